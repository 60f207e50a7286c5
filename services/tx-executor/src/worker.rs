//! Threads that execute transactions.

use crate::{answers::Answers, metrics as names};
use crossbeam_channel::Receiver;
use metrics::{counter, histogram};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_actor::Queued;
use tandem_proto::tx_executor::{
    BlockValues, BlockWorker, OpenBlock, RangeTransaction, TxExecution, TxResult,
};
use tandem_telemetry::BusyIntervals;
use tokio_util::sync::CancellationToken;
use tracing::{Span, debug, info_span};

/// Block of one stream, for the threads.
pub struct Block {
    pub session: u64,
    pub values: BlockValues,
    pub answers: Answers,
    pub span: Span,
    /// Opened by the first thread that needs it.
    opened: OnceLock<Option<Arc<dyn OpenBlock>>>,
    ended: AtomicBool,
    came: Instant,
    /// Time in which threads executed, all together, in nanoseconds.
    busy_nanos: AtomicU64,
}

impl Block {
    pub fn new(session: u64, values: BlockValues, answers: Answers, span: Span) -> Self {
        let (opened, ended) = (OnceLock::new(), AtomicBool::new(false));
        let (came, busy_nanos) = (Instant::now(), AtomicU64::new(0));
        Self { session, values, answers, span, opened, ended, came, busy_nanos }
    }

    /// Notes that nothing of the block is of interest any more.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Returns the time since the block came, and the time in which threads executed.
    pub fn times(&self) -> (Duration, Duration) {
        (self.came.elapsed(), Duration::from_nanos(self.busy_nanos.load(Relaxed)))
    }

    fn is_over(&self) -> bool {
        self.ended.load(Relaxed) || self.answers.end.is_cancelled()
    }

    fn open(&self, execution: &dyn TxExecution) -> Option<&Arc<dyn OpenBlock>> {
        let open = || {
            let began = Instant::now();
            let opened = execution.open(self.values.clone());
            histogram!(names::OPEN_SECONDS).record(began.elapsed());
            let outcome = if opened.is_ok() { "opened" } else { "refused" };
            counter!(names::BLOCKS, "outcome" => outcome).increment(1);
            let refuse = |reason| {
                debug!(reason, "a block cannot be executed");
                self.answers.refuse(self.session, reason);
            };
            opened.map_err(refuse).ok()
        };
        self.opened.get_or_init(open).as_ref()
    }
}

/// Transaction of a block.
pub struct Work {
    pub block: Arc<Block>,
    pub transaction: RangeTransaction,
    pub came: Instant,
}

/// Executes transactions until the service stops.
pub fn run(
    work: &Receiver<Queued<Work>>,
    execution: &dyn TxExecution,
    stopping: &CancellationToken,
) {
    let mut current: Option<Current> = None;
    while !stopping.is_cancelled() {
        // A block is not kept while the thread sleeps: its memory is large.
        let next = match work.try_recv() {
            Ok(next) => next,
            Err(_) => {
                if current.as_ref().is_some_and(|current| current.block.is_over()) {
                    current = None;
                }
                match work.recv_timeout(IDLE) {
                    Ok(next) => next,
                    Err(error) if error.is_timeout() => continue,
                    Err(_) => return,
                }
            }
        };
        let Work { block, transaction, came } = next.take();
        if block.is_over() {
            counter!(names::TRANSACTIONS, "outcome" => "dropped").increment(1);
            continue;
        }
        if current.as_ref().is_none_or(|current| !Arc::ptr_eq(&current.block, &block)) {
            let Some(open) = block.open(execution) else { continue };
            let worker = open.worker();
            let span = info_span!(parent: &block.span, "tx execution");
            let busy = BusyIntervals::new(&span);
            current = Some(Current { block, worker, span, busy });
        }
        if let Some(current) = &mut current {
            histogram!(names::WAIT_SECONDS).record(came.elapsed());
            current.execute(&transaction);
        }
    }
}

/// Longest sleep of a thread without work.
const IDLE: Duration = Duration::from_millis(500);

/// Block on which a thread works.
struct Current {
    block: Arc<Block>,
    worker: Box<dyn BlockWorker>,
    span: Span,
    busy: BusyIntervals,
}

impl Current {
    fn execute(&mut self, transaction: &RangeTransaction) {
        let block = &self.block;
        let result: TxResult = {
            let _working = (self.busy.enter(), self.span.enter());
            self.worker.execute(transaction)
        };
        block.busy_nanos.fetch_add(result.took.as_nanos() as u64, Relaxed);
        let outcome = if result.outcome.is_some() { "executed" } else { "not_executed" };
        counter!(names::TRANSACTIONS, "outcome" => outcome).increment(1);
        block.answers.send_result(block.session, result);
    }
}
