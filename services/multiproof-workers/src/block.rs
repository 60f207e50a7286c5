//! Open block of one owner.

use crate::{
    message::{Opening, OwnerRoots},
    pool::Context,
    stats::Gaps,
};
use crossbeam_channel::Sender;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_policy::{Batch, Batching, Next, Policies};
use tandem_primitives::{Shard, ShardSet, SubtrieRoot, TrieDiff};
use tandem_proto::multiproof::{Begin, Error, ProofStats};
use tandem_telemetry::BusyIntervals;
use tracing::{Span, field::Empty, info_span};

/// Updates whose keys are requested together.
#[derive(Default)]
pub struct Gathering {
    /// Number of updates so far; 0 when there is no batch.
    pub updates: usize,
    /// Time of the first update, if the policy depends on time.
    since: Option<Instant>,
}

impl Gathering {
    /// Counts one more update.
    pub fn add(&mut self, batching: Batching) {
        self.updates += 1;
        if self.updates == 1 && matches!(batching, Batching::Window { .. }) {
            self.since = Some(Instant::now());
        }
    }

    /// Returns the policy's decision when `targets` keys are gathered and `queued` messages wait.
    pub fn next(&self, batching: Batching, targets: usize, queued: usize) -> Next {
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        batching.next(Batch { messages: self.updates, targets, queued, elapsed })
    }
}

/// Position of each shard among the shards of its owner, by [`Shard::index`].
pub type Places = [Option<u8>; Shard::COUNT];

/// Block that an owner is working on.
pub struct OpenBlock {
    pub session: u64,
    pub begin: Begin,
    /// Positions of the shards that are asked for.
    pub place: Places,
    pub policies: Policies,
    pub context: Arc<Context>,
    pub reply: Sender<Result<OwnerRoots, Error>>,
    pub failed: Option<Error>,
    pub gathering: Gathering,
    /// Time at which the last update was in.
    pub finishing: Option<Instant>,
    /// Whether something arrived since the last attempt to close the shards.
    pub retry: bool,
    /// Results of the closed shards.
    pub closed: [Option<(SubtrieRoot, TrieDiff)>; Shard::COUNT],
    pub began: Instant,
    pub stats: ProofStats,
    pub jobs: u64,
    pub batches: u64,
    pub queue_wait_max: Duration,
    /// Busy time of the work on accounts, from the first such work on.
    pub account: Option<BusyIntervals>,
    pub busy: BusyIntervals,
    pub span: Span,
}

impl OpenBlock {
    /// Creates a block that asks for the shards with a place. The owner is busy with it from now
    /// on.
    pub fn new(
        opening: Opening,
        place: Places,
        context: Arc<Context>,
        failed: Option<Error>,
        owner: usize,
        parent: &Span,
    ) -> Self {
        let Opening { session, begin, policies, reply, .. } = opening;
        let span = info_span!(
            parent: parent, "storage worker",
            worker = owner, block.number = begin.block.number,
            policy.batching = %policies.batching, policy.chunking = %policies.chunking,
            jobs = Empty, targets = Empty, walks = Empty, nodes = Empty, batches = Empty,
            queue_wait_us = Empty, proof.first_ready_us = Empty, proof.first_taken_us = Empty,
            proof.gap_max_us = Empty, proof.gap_p50_us = Empty,
        );
        let mut busy = BusyIntervals::new(&span);
        busy.start();
        Self {
            session,
            begin,
            place,
            policies,
            context,
            reply,
            failed,
            gathering: Gathering::default(),
            finishing: None,
            retry: false,
            closed: Default::default(),
            began: Instant::now(),
            stats: ProofStats::default(),
            jobs: 0,
            batches: 0,
            queue_wait_max: Duration::ZERO,
            account: None,
            busy,
            span,
        }
    }

    /// Returns the owner's shards that are asked for.
    pub fn shards(&self) -> ShardSet {
        Shard::all().filter(|shard| self.place[shard.index()].is_some()).collect()
    }

    /// Notes that work on accounts begins: leaves are written, or the subtrie is hashed.
    pub fn start_accounts(&mut self, owner: usize) {
        let span = &self.span;
        let busy = self.account.get_or_insert_with(|| {
            BusyIntervals::new(&info_span!(parent: span, "account worker", worker = owner))
        });
        busy.start();
    }

    /// Notes that work on accounts pauses.
    pub fn stop_accounts(&mut self) {
        if let Some(busy) = &mut self.account {
            busy.stop();
        }
    }

    /// Records the counts on the span.
    pub fn record(&self, gaps: &mut Gaps) {
        let stats = &self.stats;
        self.span.record("jobs", self.jobs);
        self.span.record("targets", stats.targets);
        self.span.record("walks", stats.walks);
        self.span.record("nodes", stats.nodes);
        self.span.record("batches", self.batches);
        self.span.record("queue_wait_us", self.queue_wait_max.as_micros() as u64);
        gaps.record(&self.span);
    }
}
