//! Chain that another owner of the storage extends: it is read anew, or followed.

use super::Chain;
use crate::{config::Config, error::Error, metrics, state::layers::Layers};
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::sync::Arc;
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::storage::{HistoryReads, PendingBlock, StorageApi};
use tracing::warn;

/// Number of state diffs requested in one call.
const DIFFS_PER_CALL: usize = 64;

/// Attempts to read blocks while the base moves.
const ATTEMPTS: usize = 8;

impl Chain {
    /// Reads the chain of a storage-writer, with the state of the blocks near its head. Earlier states
    /// come from `history`. May wait for the database.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attach(
        config: &Config,
        storage: Arc<dyn StorageApi>,
        history: Option<Arc<dyn HistoryReads>>,
    ) -> Result<Self, Error> {
        metrics::describe();
        let chain = Self { history, ..Self::open(config, storage)? };
        chain.reload()?;
        Ok(chain)
    }

    /// Reads the chain of a storage-writer as [`attach`](Self::attach) does, for a reader of accounts and
    /// code: slots that recent blocks changed are not fetched, so slots must not be read. May wait for
    /// the database.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attach_accounts(config: &Config, storage: Arc<dyn StorageApi>) -> Result<Self, Error> {
        metrics::describe();
        let chain = Self { accounts_only: true, ..Self::open(config, storage)? };
        chain.reload()?;
        Ok(chain)
    }

    /// Takes over base, forkchoice and the blocks of its branch from storage-writer, to which another
    /// process writes. One thread at a time may call it.
    ///
    /// # Errors
    /// [`Error`]. The chain then stays as it was, or is read anew by the next call.
    pub fn refresh(&self) -> Result<(), Error> {
        self.follow_base()?;
        let forkchoice = self.storage.checkpoint()?.forkchoice;
        let head = forkchoice.head.hash;
        if self.base().hash != head && !self.recent.read(|layers: &Layers| layers.contains(&head)) {
            self.load_pending()?;
        }
        self.tree.write().set_forkchoice(forkchoice);
        Ok(())
    }

    /// Follows the base of storage-writer. Blocks that are below it leave memory.
    ///
    /// # Errors
    /// [`Error`] when the chain had to be read anew, which failed.
    pub(crate) fn follow_base(&self) -> Result<(), Error> {
        let (base, known) = (self.storage.checkpoint()?.base, self.base());
        if base == known {
            return Ok(());
        }
        if base.number > known.number && self.recent.advance(base) {
            self.tree.write().prune(base);
            return Ok(());
        }
        self.reload()
    }

    /// Reads base, recent blocks and forkchoice from storage-writer.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn reload(&self) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let base = self.storage.checkpoint()?.base;
            let pending = self.storage.pending()?;
            if self.storage.checkpoint()?.base != base {
                continue;
            }
            self.recent.rebase(base);
            self.load_below(base)?;
            self.insert_pending(&pending)?;
            let forkchoice = self.storage.checkpoint()?.forkchoice;
            self.tree.write().set_forkchoice(forkchoice);
            return Ok(());
        }
        warn!("the base moved in every attempt to read the chain");
        Ok(())
    }

    fn load_pending(&self) -> Result<(), Error> {
        let pending = self.storage.pending()?;
        self.insert_pending(&pending)
    }

    /// Adds pending blocks, and their changes where those are not in memory.
    fn insert_pending(&self, pending: &[PendingBlock]) -> Result<(), Error> {
        for block in pending.iter().filter(|block| !block.kept) {
            let header = decode_header(block.id, &block.header)?;
            self.tree.write().insert(block.id, Arc::new(header));
        }
        let lacks = |block: &&PendingBlock| {
            !block.kept && !self.recent.read(|layers: &Layers| layers.contains(&block.id.hash))
        };
        let lacking: Vec<&PendingBlock> = pending.iter().filter(lacks).collect();
        for blocks in lacking.chunks(DIFFS_PER_CALL) {
            let hashes: Vec<B256> = blocks.iter().map(|block| block.id.hash).collect();
            let diffs = match self.accounts_only {
                true => self.storage.account_diffs(&hashes)?,
                false => self.storage.state_diffs(&hashes)?,
            };
            for (block, diff) in blocks.iter().zip(diffs) {
                // A block without a diff has entered the base, which is followed next.
                if let Some(diff) = diff {
                    self.recent.insert(block.id, block.parent, diff);
                }
            }
        }
        Ok(())
    }
}

/// Decodes the header of a block.
pub(crate) fn decode_header(id: BlockId, header: &Bytes) -> Result<Header, Error> {
    Header::decode(&mut header.as_ref()).map_err(|error| {
        let error = error.to_string();
        Error::Record { what: "header", block: id.hash, error }
    })
}
