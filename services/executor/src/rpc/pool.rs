//! Threads for the calls of users: bounded in number, at the lowest priority, fed by a bounded
//! queue.
//!
//! There are two kinds. `call-N` threads execute and read much (`eth_call`, `eth_getLogs`, proofs).
//! `read-N` threads look up one block or one account, so that a balance does not wait for calls of
//! seconds.
//!
//! **Overload rule:** a call that finds the queue full, or that has waited for [`WAIT_MAX`], is
//! answered with -32005. Calls of the Engine API's port have their own queue, which goes first. A
//! call whose caller goes away leaves the queue, or is cut.

use super::metrics::{CALL_WAIT_SECONDS, CALLS_TOTAL, CALLS_WAITING};
use crate::{Config, Error};
use metrics::{Gauge, Histogram, counter, gauge, histogram};
use parking_lot::{Condvar, Mutex};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tandem_http::usage::{Cut, Limits, Running, Usage};
use tandem_http::{RpcError, code};
use tokio::sync::oneshot;
use tracing::{Span, error, warn};

/// Maximum time a call waits for a thread. By then, most callers have given up.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Maximum time to wait for cut calls at shutdown: one precompile may take seconds.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Port of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    /// Port of the Engine API. Its calls go first.
    Engine,
    /// Public port.
    Public,
}

const LANES: usize = 2;

type Work = Box<dyn FnOnce(Result<&Running<'_>, RpcError>) + Send>;

/// Call that waits for a thread.
struct Job {
    usage: Arc<Usage>,
    sent: Instant,
    span: Span,
    work: Work,
}

#[derive(Default)]
struct State {
    waiting: [VecDeque<Job>; LANES],
    stopped: bool,
    /// Number of threads that have not ended.
    threads: usize,
}

struct Shared {
    name: &'static str,
    limits: Limits,
    queue_max: usize,
    wait_max: Duration,
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    waiting: Gauge,
    wait: Histogram,
}

/// Threads, and the calls that wait for one.
pub(crate) struct CallPool {
    shared: Arc<Shared>,
    /// Pool with one task for each thread, which lives as long as the pool. A call's rayon work
    /// thus stays on its own thread, at that thread's priority.
    _threads: ThreadPool,
}

impl CallPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::Thread`] if the operating system cannot start a thread.
    pub(crate) fn start(
        name: &'static str,
        threads: usize,
        queue_max: usize,
        limits: Limits,
    ) -> Result<Self, Error> {
        Self::start_with(name, threads, queue_max, limits, WAIT_MAX)
    }

    fn start_with(
        name: &'static str,
        threads: usize,
        queue_max: usize,
        limits: Limits,
        wait_max: Duration,
    ) -> Result<Self, Error> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            name,
            limits,
            queue_max: queue_max.max(1),
            wait_max,
            state: Mutex::new(State { threads, ..State::default() }),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            waiting: gauge!(CALLS_WAITING, "pool" => name),
            wait: histogram!(CALL_WAIT_SECONDS, "pool" => name),
        });
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |index| format!("{name}-{index}"))
            .start_handler(|_| tandem_actor::take_lowest_priority())
            .build()
            .map_err(|error| Error::thread(name)(io::Error::other(error)))?;
        let serving = shared.clone();
        pool.spawn_broadcast(move |_| serving.serve());
        Ok(Self { shared, _threads: pool })
    }

    /// Runs the work on a thread of the pool. Dropping this future cuts the call.
    ///
    /// # Errors
    /// * -32005: too many calls wait, or the request has no gas left.
    /// * -32002: the request has no time left.
    /// * -32603: the work panics.
    /// * Otherwise the errors of the work.
    pub(super) fn run<T, W>(
        &self,
        lane: Lane,
        usage: Arc<Usage>,
        work: W,
    ) -> impl Future<Output = Result<T, RpcError>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&Running<'_>) -> Result<T, RpcError> + Send + 'static,
    {
        let shared = self.shared.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            let work: Work = Box::new(move |running| {
                let _ = reply.send(running.and_then(work));
            });
            let (sent, span) = (Instant::now(), Span::current());
            // A request with exhausted limits need not wait for that answer.
            let left = Running::begin(&usage, shared.limits, &shared.stopping, sent).map(drop);
            left.map_err(cut_error)?;
            shared.push(lane, Job { usage: usage.clone(), sent, span, work })?;
            let mut caller = Caller { usage, waits: true };
            let answer = answer.await;
            caller.waits = false;
            answer.unwrap_or_else(|_| match shared.stopping.load(Relaxed) {
                true => Err(cut_error(Cut::Abandoned)),
                false => Err(RpcError::internal()),
            })
        }
    }

    /// Cuts the executing calls, drops the waiting ones, and waits until the threads have ended.
    /// Takes at most [`STOP_MAX`].
    pub(crate) fn stop(&self) {
        self.shared.end();
        let (mut state, until) = (self.shared.state.lock(), Instant::now() + STOP_MAX);
        while state.threads > 0 {
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                warn!(pool = self.shared.name, threads = state.threads, "calls do not end");
                return;
            }
        }
    }
}

impl Drop for CallPool {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Cuts the call if dropped before the answer arrives.
struct Caller {
    usage: Arc<Usage>,
    waits: bool,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.waits {
            self.usage.abandon();
        }
    }
}

impl Shared {
    fn push(&self, lane: Lane, job: Job) -> Result<(), RpcError> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(cut_error(Cut::Abandoned));
        }
        let waiting = &mut state.waiting[lane as usize];
        if waiting.len() >= self.queue_max {
            waiting.retain(|job| !job.usage.is_abandoned());
        }
        if waiting.len() >= self.queue_max {
            self.count("refused");
            return Err(overloaded());
        }
        waiting.push_back(job);
        self.show(&state);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    fn show(&self, state: &State) {
        let waiting: usize = state.waiting.iter().map(VecDeque::len).sum();
        self.waiting.set(waiting as f64);
    }

    fn count(&self, outcome: &'static str) {
        counter!(CALLS_TOTAL, "pool" => self.name, "outcome" => outcome).increment(1);
    }

    /// Runs the loop of a thread.
    fn serve(&self) {
        while let Some(job) = self.next() {
            let outcome = self.perform(job);
            self.count(outcome);
        }
        self.state.lock().threads -= 1;
        self.changed.notify_all();
    }

    /// Waits for a call. Returns `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.waiting.iter_mut().find_map(VecDeque::pop_front) {
                self.show(&state);
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Runs a call, and returns its outcome.
    fn perform(&self, job: Job) -> &'static str {
        let Job { usage, sent, span, work } = job;
        if usage.is_abandoned() {
            return "abandoned";
        }
        let now = Instant::now();
        let waited = now.saturating_duration_since(sent);
        self.wait.record(waited.as_secs_f64());
        if waited > self.wait_max {
            work(Err(overloaded()));
            return "late";
        }
        let running = match Running::begin(&usage, self.limits, &self.stopping, now) {
            Ok(running) => running,
            Err(cut) => {
                work(Err(cut_error(cut)));
                return "cut";
            }
        };
        let done = catch_unwind(AssertUnwindSafe(|| span.in_scope(|| work(Ok(&running)))));
        if done.is_err() {
            error!(pool = self.name, "a call panicked");
            return "panicked";
        }
        match running.check() {
            Ok(()) => "answered",
            Err(Cut::Abandoned) => "abandoned",
            Err(_) => "cut",
        }
    }

    fn end(&self) {
        self.stopping.store(true, Relaxed);
        let dropped = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.waiting)
        };
        self.waiting.set(0.0);
        self.changed.notify_all();
        // Dropping them notifies their callers. Runs without the lock, because answers wake tasks.
        drop(dropped);
    }
}

fn overloaded() -> RpcError {
    RpcError::new(code::LIMIT_EXCEEDED, "limit exceeded: too many calls wait, retry later")
}

/// Returns the error object, as geth answers, for a call that was cut while it executed no code.
pub(super) fn cut_error(cut: Cut) -> RpcError {
    match cut {
        Cut::TimedOut(_) => RpcError::new(code::TIMED_OUT, "request timed out"),
        Cut::GasUsed(_) => RpcError::new(code::LIMIT_EXCEEDED, format!("limit exceeded: {cut}")),
        Cut::Abandoned => RpcError::server(cut),
    }
}

/// Pools of one executor.
pub(crate) struct CallPools {
    /// Pool for calls that execute or read much.
    pub(crate) calls: CallPool,
    /// Pool for lookups.
    pub(crate) reads: CallPool,
}

impl CallPools {
    /// Starts the pools.
    ///
    /// # Errors
    /// Same as [`CallPool::start`].
    pub(crate) fn start(config: &Config) -> Result<Self, Error> {
        let limits = Limits { seconds_max: config.call_seconds_max, gas_max: config.batch_gas_max };
        let (threads, queue_max) = (config.call_threads.max(1), config.call_queue_max);
        Ok(Self {
            calls: CallPool::start("call", threads, queue_max, limits)?,
            reads: CallPool::start("read", threads.div_ceil(2), queue_max, limits)?,
        })
    }

    /// Stops the pools. May wait.
    pub(crate) fn stop(&self) {
        // Both are told first, so that they end simultaneously.
        self.reads.shared.end();
        self.calls.stop();
        self.reads.stop();
    }
}

#[cfg(test)]
mod tests;
