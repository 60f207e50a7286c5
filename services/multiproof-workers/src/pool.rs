//! Proof threads: they read trie paths, so that the owners of the tries never wait for a database.

use crate::{
    config::Config,
    layers::{Branch, Layers},
    metrics as names,
    nodes::Nodes,
    spans::BlockSpans,
    walk::{Source, walk},
};
use crossbeam_channel::{Receiver, Sender, bounded};
use metrics::{Histogram, histogram};
use parking_lot::RwLock;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_actor::{Queued, Running, ThreadSender, thread_queue};
use tandem_primitives::{B256, WalkTarget};
use tandem_proto::{multiproof::Error, storage::BaseReads};
use tracing::{debug_span, field::Empty};

/// Jobs that one owner may have in flight. The queues have room for all of them, so neither an
/// owner nor a proof thread ever waits for the other.
pub const IN_FLIGHT_MAX: usize = 64;

/// Maximum number of threads; more would wait for one another rather than for the database.
const THREADS_MAX: usize = 256;

/// Wait of a job from which on the reads are what the block waits for, as with a state on a disk. The jobs
/// behind it then become one with it: many paths that are read together take little longer than few.
const LONG_WAIT: Duration = Duration::from_millis(1);
/// Number of keys from which on such a job takes in no others.
const LONG_WAIT_TARGETS: usize = 1024;

/// Data that the jobs of one owner and block have in common.
pub struct Context {
    pub session: u64,
    /// Block whose state is read.
    pub parent: B256,
    pub branch: Branch,
    pub layers: Arc<RwLock<Layers>>,
    pub spans: Arc<BlockSpans>,
}

/// Paths to read for one owner.
pub struct Job {
    pub owner: usize,
    pub context: Arc<Context>,
    /// Number of leading targets that the block cannot end without; the others are advice.
    pub required: usize,
    pub targets: Vec<WalkTarget>,
    /// Empty buffer for the nodes found.
    pub nodes: Nodes,
    /// Number of jobs that this one has taken in, itself included.
    pub jobs: usize,
}

impl Job {
    /// Returns whether another job has the same owner and block.
    fn fits(&self, other: &Self) -> bool {
        (other.owner, other.context.session) == (self.owner, self.context.session)
    }

    /// Takes in another job that fits.
    fn join(&mut self, other: Self) {
        let (required, advised) = other.targets.split_at(other.required);
        self.targets.splice(self.required..self.required, required.iter().copied());
        self.targets.extend_from_slice(advised);
        self.required += other.required;
        self.jobs += other.jobs;
    }
}

/// Answer to a job.
pub struct Proof {
    pub session: u64,
    /// Number of required targets, as in the job.
    pub required: usize,
    pub targets: Vec<WalkTarget>,
    pub nodes: Nodes,
    /// Number of jobs that it answers.
    pub jobs: usize,
    /// Number of calls that read the base.
    pub result: Result<u64, Error>,
    /// Time at which the answer was ready.
    pub ready: Instant,
}

/// Work of the proof threads.
#[derive(Debug, Default)]
pub struct Load {
    /// Number of jobs that wait for a thread or are being worked on.
    jobs: AtomicUsize,
    /// Number of threads that work on targets of storage tries.
    storage: AtomicUsize,
    /// Number of threads that work on targets of the account trie.
    account: AtomicUsize,
}

/// Owners' end of the pool.
#[derive(Clone)]
pub struct Pool {
    jobs: ThreadSender<Job>,
    load: Arc<Load>,
    threads: usize,
}

impl Pool {
    /// Starts the threads. The second value has the receiver of the answers for each of `owners`
    /// owners. The threads end when the last clone of the pool is dropped.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn start(
        config: &Config,
        owners: usize,
        storage: &Arc<dyn BaseReads>,
        running: &Running,
    ) -> io::Result<(Self, Vec<Receiver<Proof>>)> {
        let threads = config.proof_threads.clamp(1, THREADS_MAX);
        let (jobs, queue) = thread_queue("proof-jobs", owners * IN_FLIGHT_MAX);
        let (answers, receivers): (Vec<_>, Vec<_>) =
            (0..owners).map(|_| bounded(IN_FLIGHT_MAX)).unzip();
        let load = Arc::new(Load::default());
        for index in 0..threads {
            let thread = ProofThread {
                index,
                storage: storage.clone(),
                verify_nodes: config.verify_nodes,
                threads,
                targets_min: config.targets_min(),
                targets_if_late: config.chunk_targets_min.unwrap_or(LONG_WAIT_TARGETS),
                answers: answers.clone(),
                load: load.clone(),
                seconds: histogram!(names::PROOF_SECONDS),
            };
            let queue = queue.clone();
            let run = move || thread.run(&queue);
            running.spawn(&format!("proof-reader-{index}"), run)?;
        }
        Ok((Self { jobs, load, threads }, receivers))
    }

    /// Hands a job over. An owner has at most [`IN_FLIGHT_MAX`] of them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the threads have ended.
    pub fn submit(&self, job: Job) -> Result<(), Error> {
        self.load.jobs.fetch_add(1, Relaxed);
        self.jobs.try_send(job).map_err(|_| {
            self.load.jobs.fetch_sub(1, Relaxed);
            Error::Unavailable
        })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the number of threads that have no work while no job waits.
    pub fn idle(&self) -> usize {
        self.threads.saturating_sub(self.load.jobs.load(Relaxed))
    }

    /// Returns the numbers of threads that work on storage tries at this moment, and on the account
    /// trie. A job may have both.
    pub fn active(&self) -> (usize, usize) {
        (self.load.storage.load(Relaxed), self.load.account.load(Relaxed))
    }
}

struct ProofThread {
    index: usize,
    storage: Arc<dyn BaseReads>,
    verify_nodes: bool,
    /// Number of threads, itself included.
    threads: usize,
    /// See [`Config::chunk_targets_min`].
    targets_min: usize,
    /// Number of keys from which on a job that has waited long takes in no others.
    targets_if_late: usize,
    answers: Vec<Sender<Proof>>,
    load: Arc<Load>,
    seconds: Histogram,
}

impl ProofThread {
    fn run(self, jobs: &Receiver<Queued<Job>>) {
        let mut next = None;
        while let Some((mut job, since)) =
            next.take().or_else(|| jobs.recv().ok().map(Queued::take_with_time))
        {
            // Jobs wait when all threads are busy. When a call of storage-writer is expensive, or they
            // have waited long, they are merged. Each thread takes its part of them.
            let is_late = since.elapsed() >= LONG_WAIT;
            let enough = if is_late { self.targets_if_late } else { self.targets_min };
            for _ in 0..jobs.len().div_ceil(self.threads) {
                if job.targets.len() >= enough {
                    break;
                }
                let Ok(other) = jobs.try_recv().map(Queued::take_with_time) else { break };
                if !job.fits(&other.0) {
                    next = Some(other);
                    break;
                }
                job.join(other.0);
            }
            let owner = job.owner;
            let proof = self.prove(job);
            // An owner that has ended needs no answer.
            let _ = self.answers[owner].send(proof);
        }
    }

    fn prove(&self, job: Job) -> Proof {
        let started = Instant::now();
        let Job { owner, context, required, targets, mut nodes, jobs } = job;
        let storage = usize::from(targets.iter().any(|target| target.owner.is_some()));
        let account = usize::from(targets.iter().any(|target| target.owner.is_none()));
        self.load.storage.fetch_add(storage, Relaxed);
        self.load.account.fetch_add(account, Relaxed);
        let result = context.spans.work(self.index, targets.len(), |parent| {
            let span = debug_span!(
                parent: parent, "proof job",
                worker = owner, targets = targets.len(), required = required > 0, walks = Empty,
            );
            let source = Source {
                layers: &context.layers,
                branch: &context.branch,
                parent: context.parent,
                storage: &*self.storage,
            };
            let result = walk(&source, &targets, &mut nodes);
            if self.verify_nodes && result.is_ok() {
                nodes.hash();
            }
            if let Ok(walks) = &result {
                span.record("walks", walks);
            }
            result
        });
        self.load.storage.fetch_sub(storage, Relaxed);
        self.load.account.fetch_sub(account, Relaxed);
        self.load.jobs.fetch_sub(jobs, Relaxed);
        let (ready, session) = (Instant::now(), context.session);
        self.seconds.record(ready - started);
        // The context is dropped before the answer, because the block's spans end with the block.
        drop(context);
        Proof { session, required, targets, nodes, jobs, result, ready }
    }
}
