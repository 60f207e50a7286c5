use tandem_primitives::B256;

/// Reason why bytes are not a valid trie node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// RLP that is not canonical, is cut short, or is followed by further bytes.
    #[error("rlp")]
    Rlp,
    /// Number of items other than 2 and 17.
    #[error("number of items")]
    Items,
    /// Path that is not hex-prefix encoded, or has a length that no node at this place can have.
    #[error("path")]
    Path,
    /// Value that is empty or longer than this kind of trie allows, or a value in a branch.
    #[error("value")]
    Value,
    /// Child that is neither a hash nor a node below 32 bytes. Also a branch with fewer than two
    /// children, or an extension to a node that is not a branch.
    #[error("child")]
    Child,
}

/// Invalid trie node or call. The caller must clear the tries of the shard.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// Bytes that are not a valid trie node.
    #[error("malformed {0} in the node at depth {depth} of {path}", depth = .2, path = .1)]
    Malformed(Malformed, B256, usize),
    /// Path with more than 64 nibbles, with a byte above 15, or outside the shard.
    #[error("not a path of this trie")]
    Path,
    /// Node whose hash differs from the hash in its parent.
    #[error("the node at depth {depth} of {path} hashes to {got}, its parent says {want}")]
    Hash {
        /// Path of the node, padded with zeros.
        path: B256,
        /// Number of nibbles of the path.
        depth: usize,
        /// Hash of the node's bytes.
        got: B256,
        /// Hash in the parent.
        want: B256,
    },
    /// Node that its parent refers to, but that a completely answered walk did not contain.
    #[error("no node at depth {depth} towards {key} (owner {owner:?})")]
    Missing {
        /// Hashed address for a storage trie, `None` for the account trie.
        owner: Option<B256>,
        /// Key that the walk leads towards.
        key: B256,
        /// Depth of the missing node.
        depth: usize,
    },
    /// Account leaf whose value is not a valid account.
    #[error("malformed account leaf {0}")]
    AccountLeaf(B256),
    /// Storage trie whose root differs from the root in the account leaf.
    #[error("storage root of {address_hash} is {got}, its account leaf says {want}")]
    StorageRoot {
        /// Hashed address of the account.
        address_hash: B256,
        /// Root of the revealed storage trie.
        got: B256,
        /// Root in the account leaf.
        want: B256,
    },
    /// Shards that are not the sixteen shards, one per nibble in ascending order.
    #[error("not the sixteen shards in order")]
    Shards,
}
