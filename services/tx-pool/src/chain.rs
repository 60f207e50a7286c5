//! Chain that the pool follows, and the way from one head to the next.

use std::sync::Arc;
use tandem_admission::SenderAccount;
use tandem_chain::{Block, ChainSpec};
use tandem_primitives::{Address, B256, BlockId, BlockNumber};

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

    /// Returns an account in the state after a block near the head; one that does not exist is
    /// empty.
    ///
    /// # Errors
    /// [`ChainError`] also if the state of that block is gone.
    fn account(&self, block: B256, address: Address) -> Result<SenderAccount, ChainError>;

    /// Returns a block with its transactions, `None` if it is not known.
    ///
    /// # Errors
    /// [`ChainError`].
    fn block(&self, hash: B256) -> Result<Option<Block>, ChainError>;

    /// Returns whether the head is known to be behind, so that transactions of peers cannot be
    /// judged.
    fn is_syncing(&self) -> bool;
}

/// Blocks between two heads.
#[derive(Default)]
pub(crate) struct Way {
    /// Blocks that left the canonical chain, the highest first.
    pub removed: Vec<Block>,
    /// Blocks that joined it, the highest first.
    pub added: Vec<Block>,
}

/// Returns the way from one head to another. It has only the new head if it is longer than
/// [`DEPTH_MAX`], or a block on it is not known.
pub(crate) fn way(chain: &dyn ChainReads, from: BlockId, to: BlockId) -> Result<Way, ChainError> {
    let Some(head) = chain.block(to.hash)? else { return Ok(Way::default()) };
    let mut way = Way { removed: Vec::new(), added: vec![head] };
    let (mut old, mut new) = (from, to);
    while old.hash != new.hash {
        let is_new = new.number >= old.number;
        let blocks = if is_new { &mut way.added } else { &mut way.removed };
        let is_first = is_new && new.hash == to.hash;
        if !is_first {
            let hash = if is_new { new.hash } else { old.hash };
            match chain.block(hash)? {
                Some(block) if (blocks.len() as u64) < DEPTH_MAX => blocks.push(block),
                _ => {
                    way.removed.clear();
                    way.added.truncate(1);
                    return Ok(way);
                }
            }
        }
        let Some(last) = blocks.last() else { break };
        let parent = BlockId::new(last.id.number.saturating_sub(1), last.header.parent_hash);
        if is_new {
            new = parent
        } else {
            old = parent
        }
        if last.id.number == 0 {
            break;
        }
    }
    // A head further back on its own branch adds nothing.
    if new.hash == to.hash {
        way.added.clear();
    }
    Ok(way)
}
