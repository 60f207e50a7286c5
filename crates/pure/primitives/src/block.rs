use alloy_primitives::B256;
use std::fmt;

/// Height of a block above genesis, which is block 0.
pub type BlockNumber = u64;

/// Identifies a block by number and hash: the number alone is ambiguous once the chain forks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BlockId {
    /// Height above genesis.
    pub number: BlockNumber,
    /// Keccak-256 of the header's RLP.
    pub hash: B256,
}

impl BlockId {
    /// Returns the block with this number and hash.
    pub const fn new(number: BlockNumber, hash: B256) -> Self {
        Self { number, hash }
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number, self.hash)
    }
}
