//! Chain that the pool follows, and the way from one head to the next.

use crate::included::Contents;
use std::{collections::HashMap, sync::Arc};
use tandem_admission::SenderAccount;
use tandem_chain::{Block, ChainSpec};
use tandem_primitives::{Address, B256, BlockId, BlockNumber, Bytes};

/// Largest number of blocks between two heads on either branch whose transactions are looked at. A
/// longer way moves nonces and balances only, as in go-ethereum.
const DEPTH_MAX: u64 = 64;

/// Head of the chain.
#[derive(Clone, Debug)]
pub struct Head {
    /// Block.
    pub id: BlockId,
    /// Header of the block.
    pub header: Arc<alloy_consensus::Header>,
    /// Number of the newest finalized block, if there is one.
    pub finalized: Option<BlockNumber>,
}

/// Reason why the chain cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChainError(pub String);

/// Reads of the chain. They may wait for the database, so threads that may block make them.
pub trait ChainReads: Send + Sync + 'static {
    /// Returns the rules of the chain.
    fn spec(&self) -> &ChainSpec;

    /// Returns the head.
    ///
    /// # Errors
    /// [`ChainError`].
    fn head(&self) -> Result<Head, ChainError>;

    /// Returns accounts in the state after a block near the head, in the same order; one that does
    /// not exist is empty.
    ///
    /// # Errors
    /// [`ChainError`] also if the state of that block is gone.
    fn accounts(
        &self,
        block: B256,
        addresses: &[Address],
    ) -> Result<Vec<SenderAccount>, ChainError>;

    /// Returns one account; see [`ChainReads::accounts`].
    ///
    /// # Errors
    /// [`ChainError`] also if the state of that block is gone.
    fn account(&self, block: B256, address: Address) -> Result<SenderAccount, ChainError> {
        Ok(self.accounts(block, &[address])?.pop().unwrap_or_default())
    }

    /// Returns a block with its transactions, `None` if it is not known.
    ///
    /// # Errors
    /// [`ChainError`].
    fn block(&self, hash: B256) -> Result<Option<Block>, ChainError>;

    /// Returns whether the head is known to be behind, so that transactions of peers cannot be
    /// judged.
    fn is_syncing(&self) -> bool;
}

/// Transactions of a block near the head.
pub(crate) struct Passed {
    pub id: BlockId,
    pub parent: B256,
    /// Hashes of all transactions.
    pub hashes: Arc<[B256]>,
    /// EIP-2718 bytes of all transactions.
    pub raw: Vec<Bytes>,
    /// Transactions with blobs.
    pub contents: Contents,
}

impl Passed {
    fn of(block: &Block) -> Self {
        Self {
            id: block.id,
            parent: block.header.parent_hash,
            hashes: block.transaction_hashes.clone(),
            raw: block.raw_transactions.clone(),
            contents: Contents::of(block),
        }
    }
}

/// Blocks on the way from one head to another.
#[derive(Default)]
pub(crate) struct Way {
    /// Blocks that left the canonical chain, the highest first.
    pub removed: Vec<Arc<Passed>>,
    /// Blocks that joined it, the highest first.
    pub added: Vec<Arc<Passed>>,
}

/// Blocks that were on the canonical chain lately. They are remembered, because the chain drops a
/// branch as soon as finality excludes it, and its transactions are to return.
#[derive(Default)]
pub(crate) struct RecentBlocks(HashMap<B256, Arc<Passed>>);

impl RecentBlocks {
    /// Returns the way from one head to another. It has only the new head if it is longer than
    /// [`DEPTH_MAX`], or a block on it is not known.
    pub fn way(
        &mut self,
        chain: &dyn ChainReads,
        from: BlockId,
        to: BlockId,
    ) -> Result<Way, ChainError> {
        let mut way = Way::default();
        let (mut old, mut new) = (from, to);
        while old.hash != new.hash {
            let is_new = new.number >= old.number;
            let (at, blocks) = match is_new {
                true => (&mut new, &mut way.added),
                false => (&mut old, &mut way.removed),
            };
            let known = self.block(chain, at.hash)?;
            let Some(block) = known.filter(|_| (blocks.len() as u64) < DEPTH_MAX) else {
                way.removed.clear();
                way.added.truncate(1);
                break;
            };
            *at = BlockId::new(block.id.number.saturating_sub(1), block.parent);
            blocks.push(block);
        }
        for block in &way.added {
            self.0.insert(block.id.hash, block.clone());
        }
        self.0.retain(|_, block| block.id.number + DEPTH_MAX > to.number);
        Ok(way)
    }

    fn block(&self, chain: &dyn ChainReads, hash: B256) -> Result<Option<Arc<Passed>>, ChainError> {
        if let Some(known) = self.0.get(&hash) {
            return Ok(Some(known.clone()));
        }
        Ok(chain.block(hash)?.map(|block| Arc::new(Passed::of(&block))))
    }
}

#[cfg(test)]
mod tests;
