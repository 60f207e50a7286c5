//! Accumulator of the headers of a file, by which readers know the history before the merge: the
//! SSZ root of a list of at most 8192 records of hash and total difficulty
//! (<https://github.com/ethereum/portal-network-specs>, history network).

use alloy_primitives::{B256, U256};
use sha2::{Digest, Sha256};

/// Depth of a tree with [`crate::BLOCKS_MAX`] leaves.
const DEPTH: u32 = crate::BLOCKS_MAX.ilog2();

/// Computes the root of these headers: their hashes, and total difficulties with their own.
pub fn accumulator(headers: &[(B256, U256)]) -> B256 {
    let record = |(hash, total): &(B256, U256)| pair(*hash, B256::from(total.to_le_bytes()));
    let mut level: Vec<B256> = headers.iter().map(record).collect();
    let mut empty = B256::ZERO;
    for _ in 0..DEPTH {
        let parent = |pair_: &[B256]| pair(pair_[0], pair_.get(1).copied().unwrap_or(empty));
        level = level.chunks(2).map(parent).collect();
        empty = pair(empty, empty);
    }
    let length = B256::from(U256::from(headers.len()).to_le_bytes());
    pair(level.first().copied().unwrap_or(empty), length)
}

fn pair(left: B256, right: B256) -> B256 {
    let mut hasher = Sha256::new();
    hasher.update(left);
    hasher.update(right);
    B256::from_slice(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::b256;

    /// Computes it by its definition: all 8192 leaves, level by level.
    fn full(headers: &[(B256, U256)]) -> B256 {
        let mut level = vec![B256::ZERO; 8192];
        for (leaf, (hash, total)) in level.iter_mut().zip(headers) {
            *leaf = pair(*hash, B256::from(total.to_le_bytes()));
        }
        while level.len() > 1 {
            level = level.chunks(2).map(|it| pair(it[0], it[1])).collect();
        }
        pair(level[0], B256::from(U256::from(headers.len()).to_le_bytes()))
    }

    #[test]
    fn it_is_the_root_of_the_full_tree() {
        for count in [0_u8, 1, 2, 3, 8, 9, 255] {
            let header = |n: u8| (B256::repeat_byte(n), U256::from(n) << 200);
            let headers: Vec<_> = (0..count).map(header).collect();
            assert_eq!(accumulator(&headers), full(&headers), "{count}");
        }
    }

    /// Root of an empty list of this bound: thirteen levels of zeros, and the length.
    #[test]
    fn zeros_are_those_of_ssz() {
        let first = b256!("f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
        assert_eq!(pair(B256::ZERO, B256::ZERO), first);
    }
}
