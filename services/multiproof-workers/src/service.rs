//! Wiring: one thread per worker, and the proof threads, started once.

use crate::{
    config::Config,
    dispatch::Dispatch,
    message::Message,
    metrics,
    owner::{Owner, Parts},
    pool::Pool,
    session::LocalSession,
    status::{WorkerStatus, held_by_all},
};
use std::{io, sync::Arc};
use tandem_actor::{CpuAffinity, Mailbox, Running, mailbox};
use tandem_bus::Bus;
use tandem_policy::LivePolicies;
use tandem_primitives::{B256, Shard};
use tandem_proto::{
    event::CHAIN_PERSISTED,
    multiproof::{Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, Status},
    storage::{BaseReads, TrieStorage},
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

/// Dependencies of the workers.
pub struct Deps {
    /// storage-writer, or a client of it.
    pub storage: Arc<dyn TrieStorage>,
    /// Bus that carries `chain.persisted`.
    pub bus: Bus,
    /// Policies for gathering and dispatching keys; loaded when a block begins.
    pub policies: LivePolicies,
    /// Cancelled when a worker panics.
    pub fatal: CancellationToken,
}

/// Workers of one pod.
pub struct MultiproofWorkers {
    workers: Arc<[Mailbox<Message>]>,
    running: Running,
    statuses: Arc<[WorkerStatus]>,
    mailbox_capacity: usize,
    proof_threads: usize,
    /// Affinities of all workers when they keep off the engine's processor; otherwise empty.
    affinities: Arc<[CpuAffinity]>,
    policies: LivePolicies,
}

impl MultiproofWorkers {
    /// Starts the worker threads.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn start(config: Config, deps: Deps) -> io::Result<Arc<Self>> {
        metrics::describe();
        let count = config.threads.clamp(1, Shard::COUNT);
        let mut mailboxes = Vec::with_capacity(count);
        let mut affinities = Vec::with_capacity(count);
        let statuses: Arc<[WorkerStatus]> = (0..count).map(|_| WorkerStatus::default()).collect();
        let running = Running::new(deps.fatal);
        let reads: Arc<dyn BaseReads> = deps.storage.clone();
        // These threads end after the workers, which hold the pool.
        let (pool, answers) = Pool::start(&config, count, &reads, &running)?;
        let proof_threads = pool.threads();
        for (index, answers) in answers.into_iter().enumerate() {
            let owned = Shard::all().filter(|shard| shard.index() % count == index).collect();
            let (sender, inbox) = mailbox("multiproof-workers", config.mailbox_capacity);
            let persisted = deps.bus.subscribe(CHAIN_PERSISTED);
            let (storage, statuses) = (deps.storage.clone(), statuses.clone());
            let dispatch = Dispatch::new(index, pool.clone(), config.targets_min(), answers);
            let owner =
                Owner::new(&config, Parts { index, owned, storage, persisted, statuses, dispatch });
            let name = format!("proof-worker-{index}");
            let affinity = CpuAffinity::default();
            if config.keep_off_engine {
                affinities.push(affinity.clone());
            }
            let run = move || {
                let _taken = affinity.take();
                owner.run(&inbox);
            };
            running.spawn(&name, run)?;
            mailboxes.push(sender);
        }
        let mailbox_capacity = config.mailbox_capacity;
        let policies = deps.policies.clone();
        Ok(Arc::new(Self {
            workers: mailboxes.into(),
            running,
            statuses,
            mailbox_capacity,
            proof_threads,
            affinities: affinities.into(),
            policies,
        }))
    }

    /// Sends a message to all workers that have room.
    fn advise(&self, message: impl Fn() -> Message) {
        for worker in self.workers.iter() {
            // Half of the mailbox is kept free: advice must not make an update wait.
            if worker.room() > self.mailbox_capacity / 2 {
                // Advice is of no span: threads that execute ahead end with the block.
                let _ = worker.try_send_in(Span::none(), message());
            }
        }
    }

    /// Stops the workers and waits for them. Their state can be rebuilt.
    pub fn stop(&self) {
        self.running.stop(|| {
            for worker in self.workers.iter() {
                let _ = worker.send(Message::Stop);
            }
        });
    }
}

impl ProofApi for MultiproofWorkers {
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        let (workers, policies) = (self.workers.clone(), self.policies.load());
        let affinities = if begin.kept { self.affinities.clone() } else { Arc::from([]) };
        let proof_threads = self.proof_threads;
        let session = LocalSession::begin(workers, affinities, begin, policies, proof_threads)?;
        Ok(Box::new(session))
    }

    fn discard(&self, block: B256) {
        for worker in self.workers.iter() {
            let _ = worker.send(Message::Discard(block));
        }
    }

    fn status(&self) -> Result<Status, Error> {
        if self.running.stopping().is_cancelled() {
            return Err(Error::Unavailable);
        }
        let held = held_by_all(self.statuses.iter());
        Ok(Status {
            threads: self.workers.len() as u32,
            shards: held.shards,
            trie_bytes: self.statuses.iter().map(WorkerStatus::trie_bytes).sum(),
            tip: held.tip,
        })
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        self.advise(|| Message::Prefetch { block, keys: keys.clone() });
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        self.advise(|| Message::Foresee { block, foresight: foresight.clone() });
    }
}
