//! One block as the executor sees it: the in-process transport of the proof stream. Updates pass as
//! shared values, without encoding.

use crate::{
    message::{Message, Opening, OwnerRoots},
    metrics as names,
    spans::BlockSpans,
};
use crossbeam_channel::{Receiver, bounded};
use metrics::histogram;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_actor::{CpuAffinity, Mailbox, processor};
use tandem_policy::Policies;
use tandem_primitives::{Shard, ShardSet};
use tandem_proto::multiproof::{Begin, Error, ProofSession, ProofStats, ShardRoots, StateUpdate};
use tandem_telemetry::unix_nanos;
use tracing::Span;

/// Number of the next session, over all workers of the process.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

pub struct LocalSession {
    /// Number that goes with every message, so that messages for a block that was given up never
    /// get into the next one.
    id: u64,
    /// Shards that are asked for.
    shards: ShardSet,
    workers: Arc<[Mailbox<Message>]>,
    /// Affinities of all workers when they leave the caller its processor; otherwise empty.
    affinities: Arc<[CpuAffinity]>,
    /// Processor that they leave to the caller.
    left: Option<usize>,
    answers: Receiver<Result<OwnerRoots, Error>>,
    spans: Arc<BlockSpans>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Open,
    Finishing,
    Answered,
}

impl LocalSession {
    /// Opens a block to which these policies apply; `proof_threads` threads read for it.
    pub fn begin(
        workers: Arc<[Mailbox<Message>]>,
        affinities: Arc<[CpuAffinity]>,
        begin: Begin,
        policies: Policies,
        proof_threads: usize,
    ) -> Result<Self, Error> {
        let id = SESSIONS.fetch_add(1, Relaxed);
        let (reply, answers) = bounded(workers.len());
        let spans = BlockSpans::new(Span::current(), begin.block.number, proof_threads);
        let spans = Arc::new(spans);
        let (shards, state) = (begin.shards, State::Open);
        let left = None;
        let mut session =
            Self { id, shards, workers, affinities, left, answers, spans: spans.clone(), state };
        session.leave_processor();
        for worker in session.workers.iter() {
            let (spans, reply) = (spans.clone(), reply.clone());
            let opening = Opening { session: id, begin, policies, spans, reply };
            let message = Message::Begin(Box::new(opening));
            worker.send(message).map_err(|_| Error::Unavailable)?;
        }
        Ok(session)
    }

    /// Makes the workers leave the calling thread its processor, until it waits for them.
    fn leave_processor(&mut self) {
        let Some(own) = processor() else { return };
        if self.left != Some(own) {
            self.left = Some(own);
            self.affinities.iter().for_each(|affinity| affinity.avoid_cpu(own));
        }
    }

    /// Lets the workers run anywhere: the calling thread waits for them from now on, or leaves them
    /// alone.
    fn release_workers(&self) {
        self.affinities.iter().for_each(CpuAffinity::release);
    }

    /// Sends a message to all workers. A worker that has stopped shows up as a missing answer in
    /// `roots`. The message holds no span: execution's span must end with the last transaction, not
    /// when the workers have taken its last update.
    fn broadcast(&self, message: impl Fn() -> Message) {
        for worker in self.workers.iter() {
            let _ = worker.send_in(Span::none(), message());
        }
    }
}

impl ProofSession for LocalSession {
    fn executed(&mut self, unix_ns: u64) {
        self.spans.note_executed(unix_ns);
    }

    fn update(&mut self, update: Arc<StateUpdate>) {
        self.leave_processor();
        self.broadcast(|| Message::Update { session: self.id, update: update.clone() });
    }

    fn has_taken_all(&self) -> bool {
        self.workers.iter().all(Mailbox::is_empty)
    }

    fn finish(&mut self) {
        self.spans.note_executed(unix_nanos());
        self.release_workers();
        self.state = State::Finishing;
        self.broadcast(|| Message::Finish { session: self.id });
    }

    fn roots(mut self: Box<Self>) -> Result<ShardRoots, Error> {
        if self.state == State::Open {
            self.finish();
        }
        let mut roots: [_; Shard::COUNT] = std::array::from_fn(|_| None);
        let mut stats = ProofStats::default();
        let mut failed = None;
        for _ in 0..self.workers.len() {
            match self.answers.recv() {
                Ok(Ok(worker)) => {
                    for (shard, root) in worker.roots {
                        roots[shard.index()] = root;
                    }
                    stats.targets += worker.stats.targets;
                    stats.walks += worker.stats.walks;
                    stats.nodes += worker.stats.nodes;
                    stats.busy += worker.stats.busy;
                    stats.wasted += worker.stats.wasted;
                    stats.updates = stats.updates.max(worker.stats.updates);
                }
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(Error::Unavailable),
            }
        }
        self.state = State::Answered;
        histogram!(names::BLOCK_TARGETS).record(stats.targets as f64);
        let (shards, work) = (self.shards, self.spans.work_so_far());
        failed.map_or(Ok(ShardRoots { shards, roots, stats, work }), Err)
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        if self.state != State::Answered {
            self.release_workers();
            self.broadcast(|| Message::Cancel { session: self.id });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tandem_actor::mailbox;
    use tandem_primitives::{B256, BlockId};
    use tandem_telemetry::{Recorder, Ring, TraceLevel};
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn execution_ends_before_a_slow_worker_takes_its_last_update() {
        let ring = Arc::new(Ring::new(16, 1 << 20));
        let recorder = Recorder::new(TraceLevel::Stage, ring.clone());
        let subscriber = tracing_subscriber::registry().with(recorder.layer());
        tracing::subscriber::with_default(subscriber, || {
            let (worker, inbox) = mailbox("slow", 8);
            let begin = Begin::new(BlockId { number: 1, hash: B256::ZERO }, B256::ZERO);
            let workers = Arc::from([worker]);
            let (affinities, policies) = (Arc::from([]), Policies::default());
            let mut session = LocalSession::begin(workers, affinities, begin, policies, 1).unwrap();
            let execution = info_span!("payload processor");
            execution.in_scope(|| session.update(Arc::default()));
            drop(execution);
            session.finish();
            assert_eq!(inbox.len(), 3, "the worker has taken nothing yet");
            let ended: Vec<_> = ring.traces(16).into_iter().flatten().collect();
            assert_eq!(
                ended.iter().map(|span| span.name).collect::<Vec<_>>(),
                ["payload processor"]
            );
        });
    }
}
