//! Work between blocks: the assignment of the next block, and the outcome of the last one.

use super::{
    assignment::{Owners, assign_shards, moved_shards, owners},
    collect::WorkerShare,
    config::Config,
    lateness::LatenessPolicy,
    roster::{AvailableWorkers, Roster, Worker},
    session::FleetSession,
    trial_block::{TrialBlock, TrialOutcome},
};
use crate::{EndpointError, Listener, metrics as names};
use metrics::counter;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_membership::WorkerId;
use tandem_primitives::{AccountUpdate, B256, BlockId, Shard, ShardSet, SubtrieRoot};
use tandem_proto::multiproof::{
    Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, ShardRoots, Status,
};
use tandem_rpc::Identity;
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

/// Dependencies of a fleet.
pub struct Deps {
    /// Runtime of the connections.
    pub runtime: Handle,
    /// Listener for live workers on the bus. `None` when only the configured workers are used.
    pub listener: Option<Listener>,
    /// Computes the shards that no worker answers for: `tandem_multiproof_workers::MultiproofWorkers` over the same
    /// storage-writer, which cost next to nothing while they are not asked.
    pub local: Arc<dyn ProofApi>,
    /// Identity with which to connect to workers.
    pub identity: Identity,
}

/// Several workers as one. See the [module](super).
///
/// Calls may wait, so they do not belong in async code. One thread at a time may begin, finish and
/// discard blocks.
pub struct Fleet {
    core: Arc<FleetCore>,
    _follower: Option<AbortOnDropHandle<()>>,
}

/// State shared by the fleet and its open block.
pub struct FleetCore {
    pub lateness: LatenessPolicy,
    quarantine: Duration,
    pub local: Arc<dyn ProofApi>,
    roster: Mutex<Roster>,
    history: Mutex<FleetHistory>,
    /// Workers that get advice about the open block.
    advised: RwLock<Option<Arc<AdviceTargets>>>,
}

/// State kept from block to block.
#[derive(Default)]
struct FleetHistory {
    owners: Owners,
    last: Option<FinishedBlock>,
    /// Trials that have time left.
    trials: Vec<TrialBlock>,
    /// Discarded block, until it is known whether it is retried.
    discarded: Option<B256>,
}

/// Block whose roots were given.
pub struct FinishedBlock {
    pub block: BlockId,
    pub shards: ShardSet,
    pub roots: [SubtrieRoot; Shard::COUNT],
    pub computed_by: [Option<Arc<Worker>>; Shard::COUNT],
    /// Parts at workers on trial; these had time until `trials_end`.
    pub trials: Vec<WorkerShare>,
    pub trials_end: Instant,
}

/// Workers of the open block.
struct AdviceTargets {
    block: B256,
    workers: Vec<(Arc<Worker>, ShardSet)>,
    local: bool,
}

impl Fleet {
    /// Connects to the configured workers and to those announced on the bus, in the background. A
    /// block that begins before that is computed by `local`.
    ///
    /// # Errors
    /// [`EndpointError`] of a configured worker.
    pub fn start(config: &Config, deps: Deps) -> Result<Arc<Self>, EndpointError> {
        names::describe_fleet();
        let Deps { runtime, listener, local, identity } = deps;
        let core = Arc::new(FleetCore {
            lateness: config.lateness(),
            quarantine: Duration::from_secs(config.quarantine_seconds),
            local,
            roster: Mutex::new(Roster::new(config, identity, &runtime)?),
            history: Mutex::default(),
            advised: RwLock::new(None),
        });
        let follower = listener.map(|listener| {
            let core = core.clone();
            let task = runtime.spawn(async move { follow(&core, listener).await });
            AbortOnDropHandle::new(task)
        });
        Ok(Arc::new(Self { core, _follower: follower }))
    }

    /// Returns the number of connected workers.
    pub fn connected(&self) -> usize {
        self.core.roster.lock().connected().len()
    }
}

/// Interval between two checks of the connections, while some workers have never been connected.
const PROVEN_SOME: Duration = Duration::from_millis(200);
/// Interval between two checks when all workers have been connected.
const PROVEN_ALL: Duration = Duration::from_secs(10);

/// Keeps the roster equal to the live workers.
async fn follow(core: &FleetCore, listener: Listener) {
    let mut alive = listener.watch();
    loop {
        let heard = alive.borrow_and_update().clone();
        core.roster.lock().set_heard(&heard, Instant::now());
        loop {
            // While a worker is not proven, its connection may be made at any moment.
            let proven = core.roster.lock().proven();
            let all = proven.len() >= heard.len();
            listener.prove(proven);
            let wait = if all { PROVEN_ALL } else { PROVEN_SOME };
            match timeout(wait, alive.changed()).await {
                Ok(Ok(())) => break,
                Ok(Err(_)) => return,
                Err(_) => {}
            }
        }
    }
}

impl FleetCore {
    /// Judges the workers on trial, and settles a discarded block. If that block is `next`, returns
    /// the answer that was given for it.
    fn settle_last_block(&self, next: B256) -> Option<Retry> {
        let (mut last, discarded, mut trials) = {
            let mut history = self.history.lock();
            (history.last.take(), history.discarded.take(), mem::take(&mut history.trials))
        };
        if let Some(done) = &mut last {
            trials.extend(TrialBlock::of_block(done, discarded == Some(done.block.hash)));
        }
        self.history.lock().trials = self.evaluate_trials(trials);
        let discarded = discarded?;
        if discarded == next {
            return Some(Retry(last.filter(|done| done.block.hash == next)));
        }
        self.discard_everywhere(discarded);
        None
    }

    /// Judges these trials, and returns those that have time left. A worker that was in time, or
    /// wrong, has nothing more to show.
    fn evaluate_trials(&self, mut trials: Vec<TrialBlock>) -> Vec<TrialBlock> {
        let now = Instant::now();
        let mut judged = BTreeSet::new();
        trials.retain_mut(|trial| {
            let worker = trial.part.worker.clone();
            match trial.outcome(now) {
                None => return true,
                Some(TrialOutcome::Late) => {
                    worker.record_failure();
                    return false;
                }
                Some(TrialOutcome::InTime) => worker.record_in_time(),
                Some(TrialOutcome::Wrong(shards)) => self.quarantine(&worker, trial.block, shards),
            }
            judged.insert(worker.id.clone());
            false
        });
        trials.retain(|trial| !judged.contains(&trial.part.worker.id));
        trials
    }

    /// Discards a block that was refused for good.
    fn discard_everywhere(&self, block: B256) {
        for worker in self.connected() {
            worker.client.discard(block);
        }
        self.local.discard(block);
    }

    fn connected(&self) -> Vec<Arc<Worker>> {
        self.roster.lock().connected()
    }

    /// Compares a block's earlier roots with those computed with fresh tries in this process. A
    /// worker whose roots differ was wrong.
    pub fn quarantine_wrong_workers(&self, earlier: &FinishedBlock, right: &ShardRoots) {
        let mut wrong: BTreeMap<&WorkerId, (&Arc<Worker>, ShardSet)> = BTreeMap::new();
        for shard in earlier.shards.iter() {
            let index = shard.index();
            let Some(worker) = earlier.computed_by[index].as_ref() else { continue };
            if earlier.roots[index] != right.roots[index] {
                wrong.entry(&worker.id).or_insert((worker, ShardSet::EMPTY)).1.insert(shard);
            }
        }
        for (worker, shards) in wrong.into_values() {
            self.quarantine(worker, earlier.block, shards);
        }
    }

    fn quarantine(&self, worker: &Worker, block: BlockId, shards: ShardSet) {
        counter!(names::QUARANTINES).increment(1);
        let seconds = self.quarantine.as_secs();
        error!(
            worker = %worker.id, block.number = block.number, %shards, seconds,
            "worker gave wrong subtrie roots and is not used"
        );
        worker.quarantine(Instant::now() + self.quarantine);
        // Its tries of this block must not be built on when it is used again.
        worker.client.discard(block.hash);
    }

    /// Notes that the roots of a block were given.
    pub fn set_last_block(&self, done: FinishedBlock) {
        self.history.lock().last = Some(done);
    }

    /// Deals the shards of a block out among the active workers.
    fn open(&self, begin: Begin, available: &AvailableWorkers) -> Vec<WorkerShare> {
        let ids: Vec<WorkerId> = available.active.iter().map(|worker| worker.id.clone()).collect();
        let sets = assign_shards(&ids);
        let owners = owners(ids.iter().zip(sets.iter().copied()));
        let moved = {
            let mut history = self.history.lock();
            let moved = moved_shards(&history.owners, &owners);
            history.owners = owners;
            moved
        };
        if !moved.is_empty() {
            counter!(names::SHARDS_MOVED).increment(moved.len() as u64);
            let names: Vec<_> = ids.iter().map(WorkerId::as_str).collect();
            info!(shards = %moved, workers = ?names, "shards move");
        }
        let mut parts = Vec::with_capacity(ids.len());
        for (worker, shards) in available.active.iter().zip(sets) {
            let shards = shards.intersection(begin.shards);
            if shards.is_empty() {
                continue;
            }
            match worker.client.open(begin.of_shards(shards), true) {
                Some(session) => {
                    let cold = !moved.intersection(shards).is_empty();
                    parts.push(WorkerShare { worker: worker.clone(), session, cold });
                }
                // Other workers are asked for the missing shards in the end.
                None => worker.record_failure(),
            }
        }
        parts
    }

    /// Opens a block at workers on trial, with the shards that they would have if they answered.
    fn open_trials(&self, begin: Begin, available: &AvailableWorkers) -> Vec<WorkerShare> {
        let all = || available.active.iter().chain(&available.trial);
        let ids: Vec<WorkerId> = all().map(|worker| worker.id.clone()).collect();
        let sets = assign_shards(&ids);
        let mut parts = Vec::with_capacity(available.trial.len());
        for (worker, shards) in available.trial.iter().zip(&sets[available.active.len()..]) {
            let shards = shards.intersection(begin.shards);
            if !shards.is_empty()
                && let Some(session) = worker.client.open(begin.of_shards(shards), false)
            {
                parts.push(WorkerShare { worker: worker.clone(), session, cold: false });
            }
        }
        parts
    }
}

/// Discarded block that begins again, with the answer that was given for it, if that is known.
struct Retry(Option<FinishedBlock>);

impl ProofApi for Fleet {
    /// Deals the shards out anew. This process computes the block when no worker can answer, or
    /// when the block was discarded before.
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        let core = &self.core;
        if let Some(Retry(earlier)) = core.settle_last_block(begin.block.hash) {
            counter!(names::COMPUTED_LOCALLY, "reason" => "again").increment(1);
            core.local.discard(begin.block.hash);
            let local = core.local.begin(begin)?;
            core.advise(begin.block.hash, &[], true);
            let session = FleetSession::new(core.clone(), begin, Vec::new(), Vec::new());
            return Ok(Box::new(session.computed_by(local).compared_with(earlier)));
        }
        let available = core.roster.lock().available(Instant::now());
        let parts = core.open(begin, &available);
        let trials = if available.trial.is_empty() {
            Vec::new()
        } else {
            core.open_trials(begin, &available)
        };
        let local = if parts.is_empty() {
            counter!(names::COMPUTED_LOCALLY, "reason" => "nobody").increment(1);
            Some(core.local.begin(begin)?)
        } else {
            None
        };
        let all: Vec<&WorkerShare> = parts.iter().chain(&trials).collect();
        core.advise(begin.block.hash, &all, local.is_some());
        let session = FleetSession::new(core.clone(), begin, parts, trials);
        Ok(Box::new(match local {
            Some(local) => session.computed_by(local),
            None => session,
        }))
    }

    /// Remembers the block until the next one begins. It may be retried, and the workers' tries of
    /// it may be right.
    fn discard(&self, block: B256) {
        let before = self.core.history.lock().discarded.replace(block);
        if let Some(before) = before.filter(|before| *before != block) {
            self.core.discard_everywhere(before);
        }
    }

    /// Returns the combined status of all connected workers that answer. Only tries of the last
    /// block count as held shards.
    fn status(&self) -> Result<Status, Error> {
        let tip = self.core.history.lock().last.as_ref().map(|done| done.block.hash);
        let mut all = Status { tip, ..Status::default() };
        for worker in self.core.connected() {
            let Ok(status) = worker.client.status() else { continue };
            all.threads += status.threads;
            all.trie_bytes += status.trie_bytes;
            if status.tip == tip {
                all.shards = all.shards.union(status.shards);
            }
        }
        Ok(all)
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        let Some(advised) = self.core.advised_of(block) else { return };
        if advised.local {
            self.core.local.prefetch(block, keys.clone());
        }
        for (worker, shards) in &advised.workers {
            let of_them = |key: &&(B256, Vec<B256>)| shards.contains(Shard::of(&key.0));
            let accounts: Vec<_> = keys.accounts.iter().filter(of_them).cloned().collect();
            if !accounts.is_empty() {
                worker.client.prefetch(block, Arc::new(Prefetch { accounts }));
            }
        }
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        let Some(advised) = self.core.advised_of(block) else { return };
        if advised.local {
            self.core.local.foresee(block, foresight.clone());
        }
        for (worker, shards) in &advised.workers {
            let of_them = |update: &&AccountUpdate| shards.contains(update.shard());
            let part = |list: &[AccountUpdate]| list.iter().filter(of_them).cloned().collect();
            let before: Vec<AccountUpdate> = part(&foresight.before);
            if !before.is_empty() {
                let after = part(&foresight.after);
                worker.client.foresee(block, Arc::new(Foresight { before, after }));
            }
        }
    }
}

impl FleetCore {
    fn advise(&self, block: B256, parts: &[&WorkerShare], local: bool) {
        let workers =
            parts.iter().map(|part| (part.worker.clone(), part.session.shards())).collect();
        *self.advised.write() = Some(Arc::new(AdviceTargets { block, workers, local }));
    }

    fn advised_of(&self, block: B256) -> Option<Arc<AdviceTargets>> {
        self.advised.read().clone().filter(|advised| advised.block == block)
    }
}
