//! Threads that execute transactions.

use crate::{answers::Answers, metrics as names};
use crossbeam_channel::Receiver;
use metrics::{counter, histogram};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_actor::Queued;
use tandem_primitives::U256;
use tandem_proto::tx_executor::{
    BlockWorker, FilledBlock, ListedBlock, OpenBlock, ParentValues, RangeTransaction, TxExecution,
    TxResult,
};
use tandem_telemetry::BusyIntervals;
use tokio_util::sync::CancellationToken;
use tracing::{Span, debug, info_span};

/// Block of one stream, for the threads.
pub struct Block {
    pub session: u64,
    pub answers: Answers,
    pub span: Span,
    listed: ListedBlock,
    /// Opened by the first thread that needs it, and filled by the first one after the values came.
    opened: OnceLock<Option<Arc<dyn OpenBlock>>>,
    filled: OnceLock<Option<Arc<dyn FilledBlock>>>,
    coming: Mutex<Coming>,
    /// Number of transactions that blocks hold, of all blocks.
    held: Arc<AtomicUsize>,
    ended: AtomicBool,
    /// Time in which threads executed, all together, in nanoseconds.
    busy_nanos: AtomicU64,
}

/// Values of a block, and what waits for them.
#[derive(Default)]
struct Coming {
    /// Time at which the accounts came.
    came: Option<Instant>,
    accounts: Option<ParentValues>,
    slots: Option<Vec<U256>>,
    /// Prepared transactions, in their order.
    held: VecDeque<RangeTransaction>,
}

impl Block {
    pub fn new(
        session: u64,
        listed: ListedBlock,
        answers: Answers,
        span: Span,
        held: Arc<AtomicUsize>,
    ) -> Self {
        let (opened, filled) = (OnceLock::new(), OnceLock::new());
        let (coming, ended) = (Mutex::default(), AtomicBool::new(false));
        let busy_nanos = AtomicU64::new(0);
        Self { session, answers, span, listed, opened, filled, coming, held, ended, busy_nanos }
    }

    /// Takes the accounts and codes of the block, and the slots if these are the last values.
    pub fn fill(&self, mut values: ParentValues) {
        let mut coming = self.coming.lock();
        coming.came = Some(Instant::now());
        coming.slots = values.last.then(|| std::mem::take(&mut values.slots));
        coming.accounts = Some(values);
    }

    /// Takes the slots of the block.
    ///
    /// # Errors
    /// Returns the reason why the block cannot be executed.
    pub fn set_slots(&self, slots: Vec<U256>) -> Result<(), String> {
        let mut coming = self.coming.lock();
        coming.slots = Some(slots);
        self.pass_slots(&mut coming)
    }

    /// Passes on slots that have come to the block if it is filled, and lets nothing wait for them if it
    /// has ended.
    fn pass_slots(&self, coming: &mut Coming) -> Result<(), String> {
        let Some(Some(filled)) = self.filled.get() else { return Ok(()) };
        let passed = coming.slots.take().map_or(Ok(()), |slots| filled.set_slots(slots));
        if passed.is_err() {
            self.ended.store(true, Relaxed);
        }
        if self.is_over() {
            filled.give_up_slots();
        }
        passed
    }

    /// Notes that nothing of the block is of interest any more.
    pub fn end(&self) {
        let mut coming = self.coming.lock();
        self.ended.store(true, Relaxed);
        // There is nobody to tell.
        self.pass_slots(&mut coming).ok();
    }

    /// Returns the time since the accounts came, and the time in which threads executed.
    pub fn times(&self) -> (Duration, Duration) {
        let came = self.coming.lock().came;
        let open = came.map_or(Duration::ZERO, |came| came.elapsed());
        (open, Duration::from_nanos(self.busy_nanos.load(Relaxed)))
    }

    fn is_over(&self) -> bool {
        self.ended.load(Relaxed) || self.answers.end.is_cancelled()
    }

    fn opened(&self, execution: &dyn TxExecution) -> Option<&Arc<dyn OpenBlock>> {
        let open = || self.unless_refused(execution.open(self.listed.clone()));
        self.opened.get_or_init(open).as_ref()
    }

    /// Prepares a transaction and keeps it until the accounts are there. Gives it back if they are.
    fn hold(&self, open: &dyn OpenBlock, sent: RangeTransaction) -> Option<RangeTransaction> {
        if self.has_accounts() {
            return Some(sent);
        }
        open.prepare(&sent);
        let mut coming = self.coming.lock();
        if coming.came.is_some() {
            return Some(sent);
        }
        coming.held.push_back(sent);
        self.held.fetch_add(1, Relaxed);
        None
    }

    fn has_accounts(&self) -> bool {
        self.coming.lock().came.is_some()
    }

    /// Returns the block with its accounts, which have come.
    fn filled(&self, open: &dyn OpenBlock) -> Option<&Arc<dyn FilledBlock>> {
        let fill = || {
            let (came, values) = {
                let mut coming = self.coming.lock();
                (coming.came?, coming.accounts.take()?)
            };
            let filled = self.unless_refused(open.fill(values.accounts, values.codes))?;
            histogram!(names::OPEN_SECONDS).record(came.elapsed());
            counter!(names::BLOCKS, "outcome" => "opened").increment(1);
            Some(filled)
        };
        let filled = self.filled.get_or_init(fill).as_ref()?;
        let passed = self.pass_slots(&mut self.coming.lock());
        self.unless_refused(passed)?;
        Some(filled)
    }

    fn unless_refused<T>(&self, result: Result<T, String>) -> Option<T> {
        let refuse = |reason| {
            debug!(reason, "a block cannot be executed");
            counter!(names::BLOCKS, "outcome" => "refused").increment(1);
            self.answers.refuse(self.session, reason);
        };
        result.map_err(refuse).ok()
    }

    fn next_held(&self) -> Option<RangeTransaction> {
        let next = self.coming.lock().held.pop_front()?;
        self.held.fetch_sub(1, Relaxed);
        Some(next)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.held.fetch_sub(self.coming.get_mut().held.len(), Relaxed);
    }
}

/// Work of a thread.
pub struct Work {
    pub block: Arc<Block>,
    /// Transaction of the block. `None` to open the block, and for transactions that it holds.
    pub transaction: Option<RangeTransaction>,
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
        if transaction.is_some() {
            histogram!(names::WAIT_SECONDS).record(came.elapsed());
        }
        if block.is_over() {
            counter!(names::TRANSACTIONS, "outcome" => "dropped")
                .increment(u64::from(transaction.is_some()));
            continue;
        }
        let Some(open) = block.opened(execution) else { continue };
        let mut transaction = transaction.and_then(|sent| block.hold(&**open, sent));
        if !block.has_accounts() {
            continue;
        }
        if current.as_ref().is_none_or(|current| !Arc::ptr_eq(&current.block, &block)) {
            let Some(filled) = block.filled(&**open) else { continue };
            current = Some(Current::new(block.clone(), &**filled));
        }
        // Held transactions come first.
        while let Some(next) = block.next_held().or_else(|| transaction.take()) {
            if block.is_over() {
                counter!(names::TRANSACTIONS, "outcome" => "dropped").increment(1);
            } else if let Some(current) = &mut current {
                current.execute(&next);
            }
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
    fn new(block: Arc<Block>, filled: &dyn FilledBlock) -> Self {
        let span = info_span!(parent: &block.span, "tx execution");
        let busy = BusyIntervals::new(&span);
        Self { block, worker: filled.worker(), span, busy }
    }

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
