//! Open block of one owner.

use crate::{
    dispatch::Dispatch,
    lane::Counts,
    message::{Opening, OwnerRoots},
    pool::{Context, Proof},
    stats::Gaps,
    tries::OwnedTries,
};
use crossbeam_channel::Sender;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_policy::Policies;
use tandem_primitives::{Shard, ShardSet, SubtrieRoot, TrieDiff, WalkTarget};
use tandem_proto::multiproof::{Begin, Error, ProofStats};
use tandem_telemetry::BusyIntervals;
use tracing::{Span, debug_span, field::Empty};

/// Block that an owner is working on.
pub struct OpenBlock {
    /// Busy time of the work on accounts, from the first such work on. Both busy times end before
    /// `context` does, with which the lane of the block is drawn.
    pub account: Option<BusyIntervals>,
    pub busy: BusyIntervals,
    pub session: u64,
    pub begin: Begin,
    /// Shards of the owner that are asked for.
    pub shards: ShardSet,
    pub policies: Policies,
    pub context: Arc<Context>,
    pub reply: Sender<Result<OwnerRoots, Error>>,
    pub failed: Option<Error>,
    /// Whether foreseen values are not yet hashed to the tops of their tries.
    pub foreseen: bool,
    /// Time spent on hashing ahead of the block's end.
    pub ahead: Duration,
    /// Time at which the last update was in.
    pub finishing: Option<Instant>,
    /// Whether something arrived since the last attempt to close the shards.
    pub retry: bool,
    /// Results of the closed shards.
    closed: [Option<(SubtrieRoot, TrieDiff)>; Shard::COUNT],
    pub began: Instant,
    pub stats: ProofStats,
    jobs: u64,
    pub batches: u64,
    pub queue_wait_max: Duration,
    /// Number of the owner.
    owner: usize,
    span: Span,
}

impl OpenBlock {
    /// Creates a block that asks for these shards. The owner is busy with it from now on.
    pub fn new(
        opening: Opening,
        shards: ShardSet,
        context: Arc<Context>,
        failed: Option<Error>,
        owner: usize,
        parent: &Span,
    ) -> Self {
        let Opening { session, begin, policies, reply, .. } = opening;
        let span = debug_span!(
            parent: parent, "storage worker",
            worker = owner, block.number = begin.block.number,
            policy.batching = %policies.batching, policy.chunking = %policies.chunking,
            policy.dispatch = %policies.dispatch,
            jobs = Empty, targets = Empty, walks = Empty, nodes = Empty, batches = Empty,
            queue_wait_us = Empty, proof.first_ready_us = Empty, proof.first_taken_us = Empty,
            proof.gap_max_us = Empty, proof.gap_p50_us = Empty,
        );
        let mut busy = BusyIntervals::logged(&span, context.spans.log());
        busy.start();
        Self {
            account: None,
            busy,
            session,
            begin,
            shards,
            policies,
            context,
            reply,
            failed,
            foreseen: false,
            ahead: Duration::ZERO,
            finishing: None,
            retry: false,
            closed: Default::default(),
            began: Instant::now(),
            stats: ProofStats::default(),
            jobs: 0,
            batches: 0,
            queue_wait_max: Duration::ZERO,
            owner,
            span,
        }
    }

    /// Counts an answer of a proof thread, and notes its error.
    pub fn count_answer(&mut self, proof: &Proof) {
        self.jobs += 1;
        self.retry = true;
        match &proof.result {
            Ok(calls) => self.stats.walks += calls,
            Err(error) => self.fail(error.clone()),
        }
    }

    /// Notes the reason why the block gets no roots. The first one counts.
    pub fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Notes the first work on accounts, which has been done just now.
    pub fn note_accounts(&mut self) {
        self.start_accounts();
        self.stop_accounts();
    }

    /// Notes that work on accounts begins: leaves are written, or the subtrie is hashed.
    fn start_accounts(&mut self) {
        let (span, owner, log) = (&self.span, self.owner, self.context.spans.log());
        let busy = self.account.get_or_insert_with(|| {
            let span = debug_span!(parent: span, "account worker", worker = owner);
            BusyIntervals::logged(&span, log)
        });
        busy.start();
    }

    /// Notes that work on accounts pauses.
    fn stop_accounts(&mut self) {
        if let Some(busy) = &mut self.account {
            busy.stop();
        }
    }

    /// Closes the shards that wait for no keys. Returns whether all are closed now. Appends the
    /// keys that the others turn out to lack.
    ///
    /// # Errors
    /// [`Error::Trie`] when a shard's tries are inconsistent.
    pub fn close_shards(
        &mut self,
        tries: &mut OwnedTries,
        dispatch: &Dispatch,
        more: &mut Vec<WalkTarget>,
    ) -> Result<bool, Error> {
        let mut all = true;
        for shard in self.shards.iter() {
            let Some(trie) = tries.get_mut(shard) else { continue };
            if self.closed[shard.index()].is_some() {
                continue;
            }
            if dispatch.waits(shard) {
                all = false;
                continue;
            }
            self.start_accounts();
            let closed = trie.finish();
            self.stop_accounts();
            match closed.map_err(|error| Error::Trie(error.to_string()))? {
                Some(closed) => self.closed[shard.index()] = Some(closed),
                None => {
                    all = false;
                    trie.take_targets(more);
                }
            }
        }
        Ok(all)
    }

    /// Takes the results of the shards, in ascending order.
    pub fn take_results(&mut self) -> (Vec<(Shard, SubtrieRoot)>, Vec<TrieDiff>) {
        let mut roots = Vec::with_capacity(self.shards.len());
        let mut diffs = Vec::with_capacity(self.shards.len());
        for shard in self.shards.iter() {
            let Some((root, diff)) = self.closed[shard.index()].take() else { continue };
            roots.push((shard, root));
            diffs.push(diff);
        }
        (roots, diffs)
    }

    /// Makes the tries step back to the parent's state.
    pub fn revert(&self, tries: &mut OwnedTries) {
        for shard in self.shards.iter() {
            let Some(trie) = tries.get_mut(shard) else { continue };
            if self.closed[shard.index()].is_some() {
                trie.revert();
            } else {
                trie.cancel();
            }
        }
    }

    /// Ends the busy time.
    pub fn stop(&mut self) {
        self.busy.stop();
        self.account = None;
        self.stats.busy = Duration::from_nanos(self.busy.total_ns());
    }

    /// Notes how much of the time of hashing ahead was in vain: that of the nodes whose paths were
    /// hashed again, as if each node took as long as any other.
    pub fn note_waste(&mut self, shards: impl Iterator<Item = tandem_trie::Counts>) {
        let (ahead, again) = shards.fold((0, 0), |(ahead, again), counts| {
            (ahead + counts.ahead, again + counts.again.min(counts.ahead))
        });
        if ahead > 0 {
            self.stats.wasted = self.ahead.mul_f64(again as f64 / ahead as f64);
        }
    }

    /// Records the counts on the span, and adds them to those of the block.
    pub fn record(&self, gaps: &mut Gaps) {
        let stats = &self.stats;
        self.span.record("jobs", self.jobs);
        self.span.record("targets", stats.targets);
        self.span.record("walks", stats.walks);
        self.span.record("nodes", stats.nodes);
        self.span.record("batches", self.batches);
        self.span.record("queue_wait_us", self.queue_wait_max.as_micros() as u64);
        gaps.record(&self.span);
        self.context.spans.add(Counts {
            threads: 1,
            jobs: self.jobs,
            targets: stats.targets,
            batches: self.batches,
            queue_wait_us: self.queue_wait_max.as_micros() as u64,
            gap_max_us: gaps.max().as_micros() as u64,
            busy_ns: self.busy.total_ns(),
            wasted_ns: stats.wasted.as_nanos() as u64,
            owners: 1,
            owners_busy_ns: self.busy.total_ns(),
            owners_busy_max_ns: self.busy.total_ns(),
        });
    }
}
