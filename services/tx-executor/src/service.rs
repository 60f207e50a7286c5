//! Wiring: the threads that execute, started once.

use crate::{
    config::Config,
    metrics,
    utilization::Utilization,
    worker::{Work, run},
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tandem_actor::{Running, ThreadSender, thread_queue};
use tandem_proto::tx_executor::TxExecution;
use tokio_util::sync::CancellationToken;

/// Transactions that may wait for a thread. Streams are not read while there is no room.
const WORK_MAX: usize = 1_024;
/// Maximum number of threads.
const THREADS_MAX: usize = 1_024;

/// Dependencies of the service.
pub struct Deps {
    /// The EVM.
    pub execution: Arc<dyn TxExecution>,
    /// Cancelled when a thread panics.
    pub fatal: CancellationToken,
}

/// The running service.
pub struct TxExecutor {
    work: ThreadSender<Work>,
    held: Arc<AtomicUsize>,
    running: Running,
    threads: usize,
    utilization: Utilization,
}

impl TxExecutor {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn start(config: Config, deps: Deps) -> io::Result<Arc<Self>> {
        metrics::describe_metrics();
        let Deps { execution, fatal } = deps;
        let threads = config.threads.clamp(1, THREADS_MAX);
        let (work, receiver) = thread_queue("tx-executor", WORK_MAX);
        let running = Running::new(fatal);
        for number in 0..threads {
            let (receiver, execution) = (receiver.clone(), execution.clone());
            let stopping = running.stopping().clone();
            running
                .spawn(&format!("tx-{number}"), move || run(&receiver, &*execution, &stopping))?;
        }
        let (held, utilization) = (Arc::default(), Utilization::default());
        Ok(Arc::new(Self { work, held, running, threads, utilization }))
    }

    /// Returns the queue of the threads.
    pub(crate) fn work(&self) -> &ThreadSender<Work> {
        &self.work
    }

    /// Returns the number of transactions that blocks hold.
    pub(crate) fn held(&self) -> &Arc<AtomicUsize> {
        &self.held
    }

    /// Returns whether transactions wait for a thread.
    pub(crate) fn has_work(&self) -> bool {
        self.work.room() < WORK_MAX || self.held.load(Relaxed) > 0
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns how much of the threads is used.
    pub(crate) fn utilization(&self) -> &Utilization {
        &self.utilization
    }

    /// Ends the threads, each after its transaction, and waits for them. Blocks.
    pub fn stop(&self) {
        self.running.stop(|| {});
    }
}
