//! Workers that run behind servers of their own, each on a network that can be disturbed.

use crate::{
    network::{Network, Proxy},
    scripted::{Host, wait_until},
    support::{Chain, Made, prove, state_root},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use tandem_multiproof_workers::{
    MultiproofWorkers,
    fleet::{Config, Deps, Fleet},
};
use tandem_primitives::{B256, ShardSet};
use tandem_proto::multiproof::{
    Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, ShardRoots, StateUpdate, Status,
};
use tokio::runtime::Runtime;

/// Workers that lie when they are told to.
pub struct Liar {
    inner: Arc<MultiproofWorkers>,
    pub lies: Arc<AtomicBool>,
    /// Blocks begun.
    pub begun: AtomicU64,
}

struct LyingSession {
    inner: Box<dyn ProofSession>,
    lies: Arc<AtomicBool>,
}

impl ProofApi for Liar {
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        self.begun.fetch_add(1, SeqCst);
        Ok(Box::new(LyingSession { inner: self.inner.begin(begin)?, lies: self.lies.clone() }))
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

impl ProofSession for LyingSession {
    fn update(&mut self, update: Arc<StateUpdate>) {
        self.inner.update(update);
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn roots(self: Box<Self>) -> Result<ShardRoots, Error> {
        let mut answer = self.inner.roots()?;
        if self.lies.load(SeqCst) {
            for root in answer.roots.iter_mut().flatten() {
                let mut bytes = root.to_vec();
                *bytes.last_mut().unwrap() ^= 1;
                *root = bytes.into();
            }
        }
        Ok(answer)
    }
}

/// One worker process.
pub struct Pod {
    pub api: Arc<Liar>,
    pub network: Proxy,
    host: Host,
    running: bool,
}

impl Pod {
    pub fn start(chain: &Chain) -> Self {
        let api = Self::workers(chain);
        let host = Host::start(api.clone());
        let network = Proxy::start(host.address, &host.runtime);
        Self { api, network, host, running: true }
    }

    fn workers(chain: &Chain) -> Arc<Liar> {
        let inner = chain.workers(2, chain.storage.clone());
        Arc::new(Liar { inner, lies: Arc::default(), begun: AtomicU64::new(0) })
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.network.address)
    }

    /// The process dies, and with it all that its workers knew.
    pub fn kill(&mut self) {
        if std::mem::take(&mut self.running) {
            self.network.set(Network::Cut);
            self.host.stop();
            self.api.inner.stop();
        }
    }

    /// It starts again, if it is not running.
    pub fn revive(&mut self, chain: &Chain) {
        if !std::mem::replace(&mut self.running, true) {
            self.api = Self::workers(chain);
            self.host.start_again(self.api.clone());
        }
        self.network.set(Network::Works);
    }

    /// The shards whose tries it holds as of this block.
    pub fn holds(&self, block: B256) -> ShardSet {
        let status = self.api.status().unwrap_or_default();
        if status.tip == Some(block) { status.shards } else { ShardSet::EMPTY }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Some pods, and a fleet of them.
pub struct Pods {
    pub pods: Vec<Pod>,
    pub fleet: Arc<Fleet>,
    pub local: Arc<MultiproofWorkers>,
    _runtime: Runtime,
}

impl Pods {
    /// So many, all connected.
    pub fn start(chain: &Chain, count: usize, config: Config) -> Self {
        let pods: Vec<_> = (0..count).map(|_| Pod::start(chain)).collect();
        let endpoints = pods.iter().map(Pod::endpoint).collect();
        let runtime = Runtime::new().unwrap();
        let local = chain.workers(2, chain.storage.clone());
        let deps = Deps { runtime: runtime.handle().clone(), listener: None, local: local.clone() };
        let fleet = Fleet::start(&Config { endpoints, ..config }, deps).unwrap();
        wait_until(|| fleet.connected() == count);
        Self { pods, fleet, local, _runtime: runtime }
    }

    /// The shards that pods hold as of this block, each in one pod.
    pub fn hold(&self, block: B256) -> ShardSet {
        let held = self.pods.iter().map(|pod| pod.holds(block));
        held.fold(ShardSet::EMPTY, |all, held| all.union(held))
    }

    /// Makes blocks on this one, until a condition holds for the last one made.
    pub fn extend_until(
        &self,
        chain: &mut Chain,
        mut made: Made,
        random: &mut crate::support::Random,
        holds: impl Fn(&Self, B256) -> bool,
    ) -> Made {
        for _ in 0..3_000 {
            if holds(self, made.block.id.hash) {
                return made;
            }
            let next = chain.make(made.block.id, 6, random);
            assert_eq!(as_executor(&*self.fleet, &next).unwrap().0, next.root);
            chain.commit(&next);
            chain.make_head(next.block.id);
            made = next;
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("waited in vain");
    }
}

/// The root as the executor gets it, and whether it had to ask again: before it refuses a block it
/// discards it and begins it once more.
pub fn as_executor(api: &dyn ProofApi, made: &Made) -> Result<(B256, bool), Error> {
    if let Ok(first) = prove(api, made)
        && tandem_trie::combine(&first.roots).is_ok_and(|(root, _)| root == made.root)
    {
        return Ok((made.root, false));
    }
    api.discard(made.block.id.hash);
    let mut session = api.begin(made.begin())?;
    session.update(Arc::new(StateUpdate { accounts: made.block.diff.accounts.clone() }));
    session.finish();
    Ok((state_root(&session.roots()?), true))
}
