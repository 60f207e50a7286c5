use alloy_primitives::B256;

/// Request for the trie nodes on the path to one key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WalkTarget {
    /// Hashed address of the account that owns the storage trie, `None` for the account trie.
    pub owner: Option<B256>,
    /// Hashed key at the end of the path.
    pub key: B256,
    /// Depth in nibbles, 0 to 64, of the first node to return; the requester knows the nodes above.
    /// In the account trie at least 1, because its root is made from the shards and belongs to none
    /// of them.
    pub from_depth: u8,
}
