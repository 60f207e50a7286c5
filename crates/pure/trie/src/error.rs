use tandem_primitives::B256;

/// Why the bytes are no trie node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Not canonical RLP, cut short, or followed by more.
    #[error("rlp")]
    Rlp,
    /// Neither 2 nor 17 items.
    #[error("number of items")]
    Items,
    /// A path that is not hex-prefix encoded, or has a length that no node at this place can have.
    #[error("path")]
    Path,
    /// A value that is empty or longer than any in this kind of trie, or a value in a branch.
    #[error("value")]
    Value,
    /// A child that is neither a hash nor a node below 32 bytes, a branch with fewer than two, or
    /// an extension to something else than a branch.
    #[error("child")]
    Child,
}

/// A trie node that cannot be: the tries of its shard are to be cleared.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are no trie node.
    #[error("malformed {0} in the node at depth {depth} of {path}", depth = .2, path = .1)]
    Malformed(Malformed, B256, usize),
    /// A path with more than 64 nibbles, with a byte above 15, or outside the shard.
    #[error("no path of this trie")]
    Path,
    /// The node's hash is not the one that its parent holds.
    #[error("the node at depth {depth} of {path} hashes to {got}, its parent says {want}")]
    Hash {
        /// Path of the node, padded with zeros.
        path: B256,
        /// Number of nibbles of the path.
        depth: usize,
        /// Hash of the bytes.
        got: B256,
        /// Hash in the parent.
        want: B256,
    },
    /// A walk was answered in full without a node that the parent above it refers to.
    #[error("no node at depth {depth} towards {key} (owner {owner:?})")]
    Missing {
        /// Hashed address for a storage trie, `None` for the account trie.
        owner: Option<B256>,
        /// The key walked towards.
        key: B256,
        /// Depth of the missing node.
        depth: usize,
    },
    /// The value in an account leaf is no account.
    #[error("malformed account leaf {0}")]
    AccountLeaf(B256),
    /// The storage trie's root is not the one in the account leaf.
    #[error("storage root of {address_hash} is {got}, its account leaf says {want}")]
    StorageRoot {
        /// Hashed address of the account.
        address_hash: B256,
        /// Root of the storage trie as it was walked.
        got: B256,
        /// Root in the account leaf.
        want: B256,
    },
    /// A call needs the sixteen shards, one of each nibble in ascending order.
    #[error("not the sixteen shards in order")]
    Shards,
}
