//! From keys to jobs: cutting by policy, and what is under way.

#[cfg(doc)]
use crate::Config;
use crate::{
    nodes::Nodes,
    pool::{Context, IN_FLIGHT_MAX, Job, Pool, Proof},
    stats::Instruments,
};
use crossbeam_channel::Receiver;
use std::{collections::VecDeque, sync::Arc};
use tandem_policy::Policies;
use tandem_primitives::{Shard, WalkTarget};
use tandem_proto::multiproof::Error;

/// Keys of one job at most, whatever the policy: an answer has to fit in memory.
const JOB_TARGETS_MAX: usize = 16_384;

/// Keys that may be under way or wait for it; with more no message is taken.
const KEYS_MAX: usize = 8_192;

/// Buffers of answers kept for later jobs, if they are not larger.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// One owner's jobs.
pub struct Dispatch {
    owner: usize,
    pool: Pool,
    /// See [`Config::chunk_targets_min`].
    chunk_min: usize,
    /// Where answers come out.
    pub answers: Receiver<Proof>,
    /// Jobs handed over and not answered, those of earlier blocks included.
    in_flight: usize,
    /// Jobs of the open block not answered, those that wait included.
    open: usize,
    /// What waits for a place in flight.
    required: VecDeque<Vec<WalkTarget>>,
    advised: VecDeque<Vec<WalkTarget>>,
    backlog: usize,
    /// Keys handed over and not answered, those of earlier blocks included.
    keys_in_flight: usize,
    /// Keys under way that the open block cannot end without, by shard.
    waiting: [u32; Shard::COUNT],
    spare: Vec<(Vec<WalkTarget>, Nodes)>,
}

impl Dispatch {
    pub fn new(owner: usize, pool: Pool, chunk_min: usize, answers: Receiver<Proof>) -> Self {
        Self {
            owner,
            pool,
            chunk_min,
            answers,
            in_flight: 0,
            open: 0,
            required: VecDeque::new(),
            advised: VecDeque::new(),
            backlog: 0,
            keys_in_flight: 0,
            waiting: [0; Shard::COUNT],
            spare: Vec::new(),
        }
    }

    /// Cuts these keys by policy and hands over what there is a place for. Takes them all.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the proof threads have ended.
    pub fn dispatch(
        &mut self,
        context: &Arc<Context>,
        policies: &Policies,
        targets: &mut Vec<WalkTarget>,
        required: bool,
        counts: &mut Instruments,
    ) -> Result<(), Error> {
        if targets.is_empty() {
            return Ok(());
        }
        let idle = self.pool.idle();
        let mut plan = policies.plan_chunks(targets.len(), idle, self.pool.threads());
        plan.chunk = plan.chunk.clamp(self.chunk_min.min(JOB_TARGETS_MAX), JOB_TARGETS_MAX);
        let (storage, account) = self.pool.active();
        counts.dispatch_targets.add(targets.len());
        counts.dispatch_chunks.add(plan.chunks(targets.len()));
        counts.idle_workers.add(idle);
        counts.active_storage.add(storage);
        counts.active_account.add(account);
        counts.chunking_skipped.increment(u64::from(plan.skipped_because_busy));
        for targets in targets.chunks(plan.chunk) {
            let (mut own, nodes) = self.spare.pop().unwrap_or_default();
            own.extend_from_slice(targets);
            self.open += 1;
            if required {
                targets.iter().for_each(|target| self.waiting[shard_of(target).index()] += 1);
            }
            if self.in_flight < IN_FLIGHT_MAX && self.backlog == 0 {
                self.submit(context, own, nodes, required)?;
                continue;
            }
            self.backlog += own.len();
            if required { &mut self.required } else { &mut self.advised }.push_back(own);
        }
        targets.clear();
        Ok(())
    }

    /// Hands over what waits, as far as there are places.
    ///
    /// # Errors
    /// As [`Dispatch::dispatch`].
    pub fn pump(&mut self, context: &Arc<Context>) -> Result<(), Error> {
        while self.in_flight < IN_FLIGHT_MAX {
            let required = !self.required.is_empty();
            let queue = if required { &mut self.required } else { &mut self.advised };
            let Some(targets) = queue.pop_front() else { return Ok(()) };
            self.backlog -= targets.len();
            let nodes = self.spare.pop().map(|(_, nodes)| nodes).unwrap_or_default();
            self.submit(context, targets, nodes, required)?;
        }
        Ok(())
    }

    fn submit(
        &mut self,
        context: &Arc<Context>,
        targets: Vec<WalkTarget>,
        nodes: Nodes,
        required: bool,
    ) -> Result<(), Error> {
        let (owner, context, keys) = (self.owner, context.clone(), targets.len());
        let required = if required { keys } else { 0 };
        self.pool.submit(Job { owner, context, required, targets, nodes, jobs: 1 })?;
        self.in_flight += 1;
        self.keys_in_flight += keys;
        Ok(())
    }

    /// Takes note of an answer. False when it is not one of the open block, whose session this is.
    pub fn note(&mut self, proof: &Proof, session: Option<u64>) -> bool {
        self.in_flight -= proof.jobs;
        self.keys_in_flight -= proof.targets.len();
        if session != Some(proof.session) {
            return false;
        }
        self.open -= proof.jobs;
        let required = proof.targets[..proof.required].iter();
        required.for_each(|target| self.waiting[shard_of(target).index()] -= 1);
        true
    }

    /// Keeps the buffers of an answer for later.
    pub fn recycle(&mut self, proof: Proof) {
        let Proof { mut targets, mut nodes, .. } = proof;
        if self.spare.len() < IN_FLIGHT_MAX && nodes.capacity() <= SPARE_BYTES_MAX {
            targets.clear();
            nodes.clear();
            self.spare.push((targets, nodes));
        }
    }

    /// The open block is over: its answers that are still to come are of no use.
    pub fn abandon(&mut self) {
        self.required.clear();
        self.advised.clear();
        (self.open, self.backlog) = (0, 0);
        self.waiting = [0; Shard::COUNT];
    }

    /// Whether there is so much asked for and to be asked for that no more should be taken in.
    pub fn is_full(&self) -> bool {
        self.keys_in_flight + self.backlog >= KEYS_MAX
    }

    /// Whether all places in flight are taken.
    pub fn is_behind(&self) -> bool {
        self.backlog > 0
    }

    /// Whether something of the open block is under way.
    pub fn is_under_way(&self) -> bool {
        self.open > 0
    }

    /// Whether the shard waits for something that its root needs.
    pub fn waits(&self, shard: Shard) -> bool {
        self.waiting[shard.index()] > 0
    }
}

/// The shard whose tries a target is in.
pub fn shard_of(target: &WalkTarget) -> Shard {
    Shard::of(target.owner.as_ref().unwrap_or(&target.key))
}
