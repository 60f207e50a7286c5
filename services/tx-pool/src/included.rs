//! Blobs in blocks that stay.
//!
//! A block's transactions leave the pool, and their blobs leave blob-validator, once no reorg can
//! remove the block. That is the case when it is finalized. If the consensus layer names no
//! finalized block, it is the case [`DEPTH`] blocks below the head.

use alloy_consensus::Transaction as _;
use std::collections::HashMap;
use tandem_chain::{Block, Transaction};
use tandem_primitives::{B256, BlockId, BlockNumber};

/// Distance below the head, in blocks, at which a block counts as final. Two epochs, which is the
/// normal delay of finalization.
pub const DEPTH: u64 = 64;

/// Returns the number of the highest block that no reorg can remove, if there is one.
pub fn settled(head: BlockNumber, finalized: Option<BlockNumber>) -> Option<BlockNumber> {
    finalized.max(head.checked_sub(DEPTH))
}

/// Maximum number of noted blocks, of all branches. The lowest are evicted first.
const BLOCKS_MAX: usize = 512;

/// Blob transactions and blobs of one block.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Contents {
    /// Hashes of its blob transactions.
    pub transactions: Vec<B256>,
    /// Versioned hashes that these transactions name.
    pub blobs: Vec<B256>,
}

impl Contents {
    /// Returns the contents of this block.
    pub fn of(block: &Block) -> Self {
        let mut contents = Self::default();
        for (transaction, hash) in block.transactions.iter().zip(block.transaction_hashes.iter()) {
            if let Transaction::Eip4844(_) = transaction {
                contents.transactions.push(*hash);
                contents.blobs.extend(transaction.blob_versioned_hashes().unwrap_or_default());
            }
        }
        contents
    }
}

/// Valid blocks above the final ones.
#[derive(Default)]
pub struct Included(HashMap<B256, Noted>);

struct Noted {
    number: BlockNumber,
    parent: B256,
    contents: Contents,
}

impl Included {
    /// Notes a valid block, whether canonical or not.
    pub fn note(&mut self, id: BlockId, parent: B256, contents: Contents) {
        self.0.insert(id.hash, Noted { number: id.number, parent, contents });
        if self.0.len() > BLOCKS_MAX
            && let Some(lowest) = self.0.values().map(|noted| noted.number).min()
        {
            self.0.retain(|_, noted| noted.number > lowest);
        }
    }

    /// Follows the head. Returns the contents of its branch's blocks that became final. Blocks of
    /// other branches up to that height are forgotten.
    pub fn follow(&mut self, head: BlockId, finalized: Option<BlockNumber>) -> Vec<Contents> {
        let Some(settled) = settled(head.number, finalized) else { return Vec::new() };
        if self.0.values().all(|noted| noted.number > settled) {
            return Vec::new();
        }
        let (mut contents, mut hash) = (Vec::new(), head.hash);
        while let Some(noted) = self.0.get_mut(&hash) {
            if noted.number <= settled {
                contents.push(std::mem::take(&mut noted.contents));
            }
            hash = noted.parent;
        }
        self.0.retain(|_, noted| noted.number > settled);
        contents.retain(|contents| !contents.transactions.is_empty());
        contents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the id of a block of `branch` at this height.
    fn id(branch: u8, number: u64) -> BlockId {
        let mut hash = B256::repeat_byte(branch);
        hash[24..].copy_from_slice(&number.to_be_bytes());
        BlockId::new(number, hash)
    }

    fn contents(id: BlockId) -> Contents {
        Contents { transactions: vec![id.hash], blobs: vec![id.hash; 2] }
    }

    fn note(included: &mut Included, id: BlockId, parent: BlockId) {
        included.note(id, parent.hash, contents(id));
    }

    /// Returns blocks 1 to 100 of branch 1, and of branch 2 from 5 on.
    fn two_branches() -> Included {
        let mut included = Included::default();
        for number in 1..=100 {
            note(&mut included, id(1, number), id(1, number - 1));
        }
        note(&mut included, id(2, 5), id(1, 4));
        for number in 6..=100 {
            note(&mut included, id(2, number), id(2, number - 1));
        }
        included
    }

    #[test]
    fn only_final_blocks_of_the_heads_branch_are_settled() {
        let mut included = two_branches();
        assert!(included.follow(id(2, 20), None).is_empty(), "no finality, not deep enough");
        let settled = included.follow(id(2, 20), Some(6));
        let want: Vec<_> = [(2, 6), (2, 5), (1, 4), (1, 3), (1, 2), (1, 1)]
            .map(|(b, n)| contents(id(b, n)))
            .into();
        assert_eq!(settled, want);
        assert!(included.follow(id(2, 20), Some(6)).is_empty(), "once");
        // Final blocks stay final, even if the head is reported elsewhere.
        assert_eq!(included.follow(id(1, 30), Some(7)), [contents(id(1, 7))]);
    }

    #[test]
    fn without_finality_depth_decides() {
        let mut included = two_branches();
        assert_eq!(included.follow(id(1, DEPTH + 2), None).len(), 2, "as 0 is not noted: 1 and 2");
        assert_eq!(included.follow(id(1, DEPTH + 3), Some(1)), [contents(id(1, 3))]);
    }

    #[test]
    fn blocks_without_blobs_lead_to_those_below() {
        let mut included = Included::default();
        note(&mut included, id(1, 1), id(1, 0));
        for number in 2..=9 {
            included.note(id(1, number), id(1, number - 1).hash, Contents::default());
        }
        assert_eq!(included.follow(id(1, 9), Some(8)), [contents(id(1, 1))]);
        assert!(included.0.len() == 1);
    }

    #[test]
    fn what_is_noted_is_bounded() {
        let mut included = Included::default();
        for number in 1..=3 * BLOCKS_MAX as u64 {
            note(&mut included, id(1, number), id(1, number - 1));
            assert!(included.0.len() <= BLOCKS_MAX);
        }
        // All blocks at one height as well.
        for branch in 0..=255 {
            for more in 0..4 {
                included.note(
                    BlockId::new(9_999, id(branch, more).hash),
                    B256::ZERO,
                    Contents::default(),
                );
            }
            assert!(included.0.len() <= BLOCKS_MAX);
        }
    }
}
