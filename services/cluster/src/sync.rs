//! Sync over the executor of the same process.

use std::{io, sync::Arc};
use tandem_chain::Block;
use tandem_executor::{BlockTag, Condemned, Error, Handle, PayloadStatus, Status};
use tandem_primitives::{B256, BlockId};
use tandem_proto::{peer_sessions::PeerSessionsApi, storage::StateDownloads, sync::SyncProgress};
use tandem_sync::{BlockSink, BlockSync, Chosen, Config, Deps, Import, Invalid, Pending, Prepared};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Number of blocks above the head that may be executed, as long as the head has not followed.
const ABOVE_HEAD_MAX: u64 = 1024;

/// Starts sync: whenever the consensus client chooses an unknown head, its blocks come from these
/// peers. `downloads` takes the state of a recent block, if peers serve it.
///
/// # Errors
/// Error of the operating system if it cannot create a thread.
pub fn start_sync(
    config: Config,
    handle: &Handle,
    sessions: Arc<dyn PeerSessionsApi>,
    downloads: Arc<dyn StateDownloads>,
    fatal: CancellationToken,
) -> io::Result<Arc<BlockSync>> {
    let goal = handle.wanted_head();
    let sink = Arc::new(ExecutorSink { handle: handle.clone() });
    BlockSync::start(config, Deps { sessions, sink, downloads: Some(downloads), goal, fatal })
}

/// The executor, as sync needs it.
struct ExecutorSink {
    handle: Handle,
}

impl BlockSink for ExecutorSink {
    fn head(&self) -> BlockId {
        self.handle.chain().head()
    }

    fn first_known(&self, blocks: &[BlockId]) -> Option<usize> {
        let chain = self.handle.chain();
        let highest = chain.head().number + ABOVE_HEAD_MAX;
        // Most blocks on the way down are far above, and need no look at the database.
        let is_known = |block: &BlockId| {
            block.number <= highest
                && chain.resolve(BlockTag::Hash(block.hash)).is_ok_and(|known| known.is_some())
        };
        blocks.iter().position(is_known)
    }

    fn prepare(&self, block: Block) -> Pending<Option<Prepared>> {
        let (handle, number, parent) =
            (self.handle.clone(), block.id.number, block.header.parent_hash);
        Box::pin(async move {
            let block = match handle.prepare(block).await {
                Ok(block) => block,
                Err(error) => {
                    warn!(number, %error, "block not prepared");
                    return None;
                }
            };
            let execute: Prepared = Box::new(move || {
                let answer = handle.import_prepared(block);
                Box::pin(async move { import(number, parent, answer.await) })
            });
            Some(execute)
        })
    }

    fn make_head(&self, block: BlockId) -> Pending<Chosen> {
        let handle = self.handle.clone();
        Box::pin(async move { chosen(handle.make_head(block.hash).await) })
    }

    fn reach(&self, head: B256) -> Pending<Chosen> {
        let handle = self.handle.clone();
        Box::pin(async move {
            match handle.reach(head).await {
                // The consensus client learns it with its next call. The block may be the head
                // nevertheless, so that the base follows.
                Err(Error::InvalidForkchoice(reason)) => {
                    warn!(%head, reason, "the forkchoice that was waiting is invalid");
                    chosen(handle.make_head(head).await)
                }
                answer => chosen(answer),
            }
        })
    }

    fn adopt(&self) -> Pending<bool> {
        let handle = self.handle.clone();
        Box::pin(async move {
            let adopted = handle.adopt().await;
            adopted.inspect_err(|error| warn!(%error, "downloaded state not adopted")).is_ok()
        })
    }

    fn condemn(&self, invalid: Invalid) -> Pending<()> {
        let handle = self.handle.clone();
        Box::pin(async move {
            let Invalid { verdict, blocks } = invalid;
            let (latest_valid, error) = (verdict.latest_valid, verdict.rule);
            if let Err(error) = handle.condemn(Condemned { blocks, latest_valid, error }).await {
                warn!(%error, "blocks on an invalid block not noted");
            }
        })
    }

    fn show(&self, progress: Option<SyncProgress>) {
        self.handle.chain().set_sync_progress(progress);
    }
}

fn import(number: u64, parent: B256, answer: Result<PayloadStatus, Error>) -> Import {
    match answer {
        Ok(PayloadStatus { status, latest_valid_hash, validation_error }) => match status {
            Status::Valid => Import::Done,
            Status::Accepted => Import::Kept,
            Status::Invalid | Status::InvalidBlockHash => Import::Invalid {
                latest_valid: latest_valid_hash,
                rule: validation_error.unwrap_or_default(),
            },
            Status::Syncing => {
                warn!(number, %parent, "the parent of a block from peers is not executed");
                Import::Failed
            }
        },
        Err(error) => {
            warn!(number, %error, "block from peers not executed");
            Import::Failed
        }
    }
}

fn chosen(answer: Result<PayloadStatus, Error>) -> Chosen {
    match answer.map(|answer| answer.status) {
        // An invalid head is known to the engine now.
        Ok(Status::Valid | Status::Invalid | Status::InvalidBlockHash) => Chosen::Done,
        Ok(Status::Syncing | Status::Accepted) => Chosen::Working,
        Err(error) => {
            warn!(%error, "head not chosen");
            Chosen::Failed
        }
    }
}
