use alloy_primitives::B256;

/// A request for the trie nodes on the way to one key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WalkTarget {
    /// Hashed address of the account whose storage trie is walked, `None` for the account trie.
    pub owner: Option<B256>,
    /// The hashed key walked towards.
    pub key: B256,
    /// Nodes at fewer nibbles than this are known to the asker and left out, 0 to 64. In the
    /// account trie at least 1: its root is made from the shards and belongs to none of them.
    pub from_depth: u8,
}
