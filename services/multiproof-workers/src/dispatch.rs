//! Conversion of keys to jobs by policy, and the jobs under way.

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

/// Maximum number of keys in a job, whatever the policy: an answer must fit in memory.
const JOB_TARGETS_MAX: usize = 16_384;

/// Number of keys under way or waiting at which no more messages are taken.
const KEYS_MAX: usize = 8_192;

/// Maximum size of an answer's buffer that is kept for later jobs.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// Jobs of one owner.
pub struct Dispatch {
    owner: usize,
    pool: Pool,
    /// See [`Config::chunk_targets_min`].
    chunk_min: usize,
    /// Receiver of the answers.
    pub answers: Receiver<Proof>,
    /// Number of jobs handed over and not answered, including those of earlier blocks.
    in_flight: usize,
    /// Number of unanswered jobs of the open block, including those that wait.
    open: usize,
    /// Jobs that wait for a place in flight.
    required: VecDeque<Vec<WalkTarget>>,
    advised: VecDeque<Vec<WalkTarget>>,
    backlog: usize,
    /// Number of keys handed over and not answered, including those of earlier blocks.
    keys_in_flight: usize,
    /// Number of keys under way that the open block cannot end without, by shard.
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

    /// Splits these keys into jobs by policy, and hands over the jobs that have a place. Takes all
    /// keys.
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

    /// Hands over waiting jobs while there are places.
    ///
    /// # Errors
    /// As for [`Dispatch::dispatch`].
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

    /// Notes an answer. Returns whether it belongs to the open block, whose session is given.
    pub fn record_answer(&mut self, proof: &Proof, session: Option<u64>) -> bool {
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

    /// Keeps the buffers of an answer for later jobs.
    pub fn recycle(&mut self, proof: Proof) {
        let Proof { mut targets, mut nodes, .. } = proof;
        if self.spare.len() < IN_FLIGHT_MAX && nodes.capacity() <= SPARE_BYTES_MAX {
            targets.clear();
            nodes.clear();
            self.spare.push((targets, nodes));
        }
    }

    /// Drops the jobs of the open block, which is over. Answers still to come are of no use.
    pub fn abandon(&mut self) {
        self.required.clear();
        self.advised.clear();
        (self.open, self.backlog) = (0, 0);
        self.waiting = [0; Shard::COUNT];
    }

    /// Returns whether so many keys are under way or waiting that no more should be taken in.
    pub fn is_full(&self) -> bool {
        self.keys_in_flight + self.backlog >= KEYS_MAX
    }

    /// Returns whether all places in flight are taken.
    pub fn is_behind(&self) -> bool {
        self.backlog > 0
    }

    /// Returns whether jobs of the open block are unanswered.
    pub fn is_under_way(&self) -> bool {
        self.open > 0
    }

    /// Returns whether the shard waits for keys that its root needs.
    pub fn waits(&self, shard: Shard) -> bool {
        self.waiting[shard.index()] > 0
    }
}

/// Returns the shard whose tries contain a target.
pub fn shard_of(target: &WalkTarget) -> Shard {
    Shard::of(target.owner.as_ref().unwrap_or(&target.key))
}
