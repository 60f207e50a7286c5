//! Blocks with which a follower says where it stands.

use tandem_primitives::{BlockId, BlockNumber};
use tandem_proto::{
    limits::FEED_KNOWN_MAX,
    storage::{BlockReads, BlockRef, Result},
};

/// Number of newest blocks that are all named; below, distances double.
const DENSE: u64 = 48;

/// Returns heights from `head` down to 0, which is always the last.
fn heights(head: BlockNumber) -> Vec<BlockNumber> {
    let mut heights = Vec::new();
    let (mut at, mut step) = (head, 1);
    while at > 0 && heights.len() < FEED_KNOWN_MAX - 1 {
        heights.push(at);
        if head - at >= DENSE {
            step *= 2;
        }
        at = at.saturating_sub(step);
    }
    heights.push(0);
    heights
}

/// Returns blocks of the canonical chain of a database, from its head down to genesis.
///
/// # Errors
/// When the database fails.
pub fn known(storage: &dyn BlockReads, head: BlockId) -> Result<Vec<BlockId>> {
    let mut known = Vec::new();
    for height in heights(head.number) {
        known.extend(storage.header(BlockRef::Number(height))?.map(|(id, _)| id));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_fall_from_the_head_to_genesis_and_fit_into_a_request() {
        for head in [0, 1, 2, 47, 48, 49, 1_000, 25_000_000, u64::MAX] {
            let heights = heights(head);
            assert_eq!((heights[0], heights.last()), (head, Some(&0)));
            assert!(heights.len() <= FEED_KNOWN_MAX, "{head}");
            assert!(heights.windows(2).all(|pair| pair[0] > pair[1]), "{head}");
        }
        assert_eq!(heights(30).len(), 31);
    }
}
