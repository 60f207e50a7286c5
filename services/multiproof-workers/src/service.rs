//! Wiring: one thread per worker, started once.

use crate::{
    board::{Board, common_tip},
    config::Config,
    metrics,
    session::LocalSession,
    worker::{Message, Worker},
};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};
use tandem_actor::{Mailbox, mailbox, spawn};
use tandem_bus::Bus;
use tandem_policy::LivePolicies;
use tandem_primitives::{B256, Shard};
use tandem_proto::{
    event::CHAIN_PERSISTED,
    multiproof::{Begin, Error, Prefetch, ProofApi, ProofSession, Status},
    storage::StorageApi,
};
use tokio_util::sync::CancellationToken;

/// What the workers need from the rest of the cluster.
pub struct Deps {
    /// storage-writer, or a client of it.
    pub storage: Arc<dyn StorageApi>,
    /// Where `chain.persisted` is heard.
    pub bus: Bus,
    /// How keys are gathered and dispatched; loaded when a block begins.
    pub policies: LivePolicies,
    /// Cancelled when a worker panics.
    pub fatal: CancellationToken,
}

/// The workers of one pod.
pub struct MultiproofWorkers {
    workers: Arc<[Mailbox<Message>]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    boards: Arc<[Board]>,
    mailbox_capacity: usize,
}

impl MultiproofWorkers {
    /// Starts the worker threads.
    ///
    /// # Errors
    /// The operating system's, when it has no thread to give.
    pub fn start(config: &Config, deps: &Deps) -> io::Result<Arc<Self>> {
        metrics::describe();
        let count = config.threads.clamp(1, Shard::COUNT);
        let mut mailboxes = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        let boards: Arc<[Board]> = (0..count).map(|_| Board::default()).collect();
        for index in 0..count {
            let shards = Shard::all().filter(|shard| shard.index() % count == index).collect();
            let (sender, inbox) = mailbox("multiproof-workers", config.mailbox_capacity);
            let persisted = deps.bus.subscribe(CHAIN_PERSISTED);
            let (storage, boards) = (deps.storage.clone(), boards.clone());
            let worker = Worker::new(index, shards, config, storage, persisted, boards);
            let name = format!("proof-worker-{index}");
            threads.push(spawn(&name, deps.fatal.clone(), move || worker.run(&inbox))?);
            mailboxes.push(sender);
        }
        let mailbox_capacity = config.mailbox_capacity;
        Ok(Arc::new(Self {
            workers: mailboxes.into(),
            threads: Mutex::new(threads),
            boards,
            mailbox_capacity,
        }))
    }

    /// Stops the workers and waits for them. What they hold can be rebuilt.
    pub fn stop(&self) {
        for worker in self.workers.iter() {
            let _ = worker.send(Message::Stop);
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl ProofApi for MultiproofWorkers {
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        Ok(Box::new(LocalSession::begin(self.workers.clone(), begin)?))
    }

    fn discard(&self, block: B256) {
        for worker in self.workers.iter() {
            let _ = worker.send(Message::Discard(block));
        }
    }

    fn status(&self) -> Result<Status, Error> {
        if self.threads.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Err(Error::Unavailable);
        }
        Ok(Status {
            threads: self.workers.len() as u32,
            shards: Shard::all().collect(),
            trie_bytes: self.boards.iter().map(Board::trie_bytes).sum(),
            tip: common_tip(self.boards.iter()),
        })
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        for worker in self.workers.iter() {
            // Half of the mailbox is kept free: advice must not make an update wait.
            if worker.room() > self.mailbox_capacity / 2 {
                let _ = worker.try_send(Message::Prefetch { block, keys: keys.clone() });
            }
        }
    }
}
