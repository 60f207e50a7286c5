//! Commits travel beside the root: a thread of their own hands each executed block to
//! storage-writer while the workers still hash.

use crate::error::Error;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::{io, sync::Arc, thread::JoinHandle};
use tandem_actor::spawn;
use tandem_chain::{Block, Receipt, encode_receipts};
use tandem_primitives::StateDiff;
use tandem_proto::storage::{self, Epoch, StorageApi};
use tokio_util::sync::CancellationToken;
use tracing::Span;

/// An executed block on its way to storage-writer.
pub struct Commit {
    /// The block.
    pub block: Arc<Block>,
    /// Its receipts.
    pub receipts: Vec<Receipt>,
    /// Its state changes.
    pub diff: Arc<StateDiff>,
}

struct Job {
    commit: Commit,
    span: Span,
    reply: Sender<Result<(), storage::Error>>,
}

/// The thread's handle.
pub struct Committer {
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
}

/// A commit under way.
pub struct Ack(Receiver<Result<(), storage::Error>>);

impl Committer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's, when it has no thread to give.
    pub fn start(
        storage: Arc<dyn StorageApi>,
        epoch: Epoch,
        fatal: CancellationToken,
    ) -> io::Result<Self> {
        let (jobs, inbox) = bounded::<Job>(1);
        let thread = spawn("commit", fatal, move || {
            for Job { commit, span, reply } in inbox {
                let _entered = span.entered();
                let _ = reply.send(storage.commit(epoch, commit.into()));
            }
        })?;
        Ok(Self { jobs, thread: Some(thread) })
    }

    /// Hands a block over. Waits only while an earlier one has not been taken yet.
    pub fn send(&self, commit: Commit) -> Ack {
        let (reply, ack) = bounded(1);
        let _ = self.jobs.send(Job { commit, span: Span::current(), reply });
        Ack(ack)
    }
}

impl Ack {
    /// Waits until the block is durable.
    ///
    /// # Errors
    /// What storage-writer answered.
    pub fn wait(self) -> Result<(), Error> {
        let stopped = || storage::Error::Unavailable("the commit thread has stopped".into());
        Ok(self.0.recv().unwrap_or_else(|_| Err(stopped()))?)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        let (closed, _) = bounded(0);
        self.jobs = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl From<Commit> for storage::Block {
    fn from(commit: Commit) -> Self {
        let block = &commit.block;
        Self {
            id: block.id,
            parent: block.header.parent_hash,
            header: block.header_rlp.clone(),
            body: block.body_rlp.clone(),
            receipts: encode_receipts(&commit.receipts),
            transaction_hashes: block.transaction_hashes.clone(),
            diff: commit.diff,
        }
    }
}
