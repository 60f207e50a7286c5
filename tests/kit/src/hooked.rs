//! Workers that a test can observe, hold up, or make lie.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use tandem_primitives::B256;
use tandem_proto::multiproof::{
    Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, ShardRoots, StateUpdate, Status,
};

/// Hooks at the points a block passes. They do nothing unless a test overrides them.
pub trait Hooks: Send + Sync + 'static {
    /// Called when a block was begun.
    fn begun(&self, _begin: Begin) {}

    /// Called when an update is on its way to the workers.
    fn updates(&self, _update: &Arc<StateUpdate>) {}

    /// Called when the roots are requested.
    fn asked(&self) {}

    /// Called with the roots of the answer.
    fn answers(&self, _roots: &mut ShardRoots) {}
}

/// Workers with a test's hooks before them; every call is passed on to them.
pub struct Hooked<H> {
    inner: Arc<dyn ProofApi>,
    hooks: Arc<H>,
}

struct Session<H> {
    inner: Box<dyn ProofSession>,
    hooks: Arc<H>,
}

impl<H: Hooks> Hooked<H> {
    /// Wraps these workers with these hooks.
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

/// Hooks that return wrong roots on demand.
#[derive(Default)]
pub struct Liar {
    /// Number of answers from now on that are lies.
    pub lies: AtomicU64,
    /// Number of blocks that were begun.
    pub begun: AtomicU64,
    /// Number of lies that were told.
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
