//! Workers behind servers of their own, each on a network that can be disturbed.

use crate::{
    scripted::{Host, wait_until},
    support::{Chain, Made, prove, state_root},
};
use std::sync::Arc;
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_multiproof_workers_client::fleet::{Config, Deps, Fleet};
use tandem_primitives::{B256, ShardSet};
use tandem_proto::multiproof::{Error, ProofApi, StateUpdate};
use tandem_testkit::{
    hooked::{Hooked, Liar},
    network::{Network, Proxy},
};
use tokio::runtime::Runtime;

/// One worker process.
pub struct Pod {
    workers: Arc<MultiproofWorkers>,
    /// Lies when the test tells it to.
    pub liar: Arc<Liar>,
    pub network: Proxy,
    host: Host,
    running: bool,
}

impl Pod {
    pub fn start(chain: &Chain) -> Self {
        let (workers, liar) = (chain.workers(2, chain.storage.clone()), Arc::<Liar>::default());
        let host = Host::start(Arc::new(Hooked::new(workers.clone(), liar.clone())));
        let network = Proxy::start(host.address, host.runtime.handle());
        Self { workers, liar, network, host, running: true }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.network.address)
    }

    /// Kills the process, and with it everything that its workers knew.
    pub fn kill(&mut self) {
        if std::mem::take(&mut self.running) {
            self.network.set(Network::Cut);
            self.host.stop();
            self.workers.stop();
        }
    }

    /// Starts the process again, if it is not running.
    pub fn revive(&mut self, chain: &Chain) {
        if !std::mem::replace(&mut self.running, true) {
            self.workers = chain.workers(2, chain.storage.clone());
            self.liar = Arc::default();
            let api = Hooked::new(self.workers.clone(), self.liar.clone());
            self.host.start_again(Arc::new(api));
        }
        self.network.set(Network::Works);
    }

    /// Returns the shards whose tries it holds as of this block.
    pub fn holds(&self, block: B256) -> ShardSet {
        let status = self.workers.status().unwrap_or_default();
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
    /// Starts `count` pods, and waits until all are connected.
    pub fn start(chain: &Chain, count: usize, config: Config) -> Self {
        let pods: Vec<_> = (0..count).map(|_| Pod::start(chain)).collect();
        let endpoints = pods.iter().map(Pod::endpoint).collect();
        let runtime = Runtime::new().unwrap();
        let local = chain.workers(2, chain.storage.clone());
        let deps = Deps {
            runtime: runtime.handle().clone(),
            listener: None,
            local: local.clone(),
            identity: Default::default(),
        };
        let fleet = Fleet::start(&Config { endpoints, ..config }, deps).unwrap();
        wait_until(|| fleet.connected() == count);
        Self { pods, fleet, local, _runtime: runtime }
    }

    /// Returns the shards that the pods hold as of this block.
    pub fn hold(&self, block: B256) -> ShardSet {
        let held = self.pods.iter().map(|pod| pod.holds(block));
        held.fold(ShardSet::EMPTY, |all, held| all.union(held))
    }

    /// Adds blocks on this one, until a condition holds for the last one.
    pub fn extend_until(
        &self,
        chain: &mut Chain,
        mut made: Made,
        random: &mut crate::support::Random,
        mut holds: impl FnMut(&Self, B256) -> bool,
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

/// Returns the root as the executor gets it, and whether it had to ask again. Before it refuses a
/// block, the executor discards it and begins it once more.
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
