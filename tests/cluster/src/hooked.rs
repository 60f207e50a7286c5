//! Workers that a test looks at, holds up, or lets lie.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use tandem_primitives::B256;
use tandem_proto::multiproof::{
    Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, ShardRoots, StateUpdate, Status,
};

/// What happens where a block passes. Nothing, but for what a test says.
pub trait Hooks: Send + Sync + 'static {
    /// A block was begun.
    fn begun(&self, _begin: Begin) {}

    /// An update is on its way to the workers.
    fn updates(&self, _update: &Arc<StateUpdate>) {}

    /// The roots are asked for.
    fn asked(&self) {}

    /// These roots are the answer.
    fn answers(&self, _roots: &mut ShardRoots) {}
}

/// Workers with a test's hooks before them; whatever comes is handed on to them.
pub struct Hooked<H> {
    inner: Arc<dyn ProofApi>,
    hooks: Arc<H>,
}

struct Session<H> {
    inner: Box<dyn ProofSession>,
    hooks: Arc<H>,
}

impl<H: Hooks> Hooked<H> {
    /// These workers with these hooks.
    pub fn new(inner: Arc<dyn ProofApi>, hooks: Arc<H>) -> Self {
        Self { inner, hooks }
    }
}

impl<H: Hooks> ProofApi for Hooked<H> {
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        let inner = self.inner.begin(begin)?;
        self.hooks.begun(begin);
        Ok(Box::new(Session { inner, hooks: self.hooks.clone() }))
    }

    fn discard(&self, block: B256) {
        self.inner.discard(block);
    }

    fn status(&self) -> Result<Status, Error> {
        self.inner.status()
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        self.inner.prefetch(block, keys);
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        self.inner.foresee(block, foresight);
    }
}

impl<H: Hooks> ProofSession for Session<H> {
    fn update(&mut self, update: Arc<StateUpdate>) {
        self.hooks.updates(&update);
        self.inner.update(update);
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn roots(self: Box<Self>) -> Result<ShardRoots, Error> {
        let Self { inner, hooks } = *self;
        hooks.asked();
        let mut roots = inner.roots()?;
        hooks.answers(&mut roots);
        Ok(roots)
    }
}

/// Lies when it is told to: gives wrong roots.
#[derive(Default)]
pub struct Liar {
    /// So many answers from now on are lies.
    pub lies: AtomicU64,
    /// Blocks that were begun.
    pub begun: AtomicU64,
    /// Lies that were told.
    pub told: AtomicU64,
}

impl Hooks for Liar {
    fn begun(&self, _: Begin) {
        self.begun.fetch_add(1, SeqCst);
    }

    fn answers(&self, answer: &mut ShardRoots) {
        if self.lies.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            return;
        }
        for root in answer.roots.iter_mut().flatten() {
            let mut bytes = root.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            *root = bytes.into();
        }
        self.told.fetch_add(1, SeqCst);
    }
}
