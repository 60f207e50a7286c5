use crate::{Error, Malformed, nibbles::prefix};
use std::fmt;
use tandem_primitives::B256;

/// Node as its parent names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodePlace {
    /// Hashed address of the account that owns the storage trie, `None` for the account trie.
    pub owner: Option<B256>,
    /// Path of the node, padded with zeros.
    pub path: B256,
    /// Number of nibbles of the path.
    pub depth: usize,
    /// Hash of the node. For an embedded node, the hash of the node that contains it.
    pub hash: B256,
}

impl NodePlace {
    /// Creates the place of the node at a depth of this key.
    pub(super) fn new(owner: Option<B256>, key: &B256, depth: usize, hash: B256) -> Self {
        Self { owner, path: prefix(key, depth), depth, hash }
    }
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, path, depth, hash } = self;
        // The output has `0x` and one digit per nibble.
        let path = &path.to_string()[..2 + (*depth).min(64)];
        match owner {
            None => write!(f, "node {hash} at path {path} of the account trie"),
            Some(owner) => write!(f, "node {hash} at path {path} of the storage trie of {owner}"),
        }
    }
}

/// Reason why a witness cannot answer a query.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WitnessError {
    /// Needed node that the witness lacks.
    #[error("the witness lacks {0}")]
    Missing(NodePlace),
    /// Node whose bytes are not a valid node.
    #[error("malformed {0} in {1}")]
    Malformed(Malformed, NodePlace),
    /// Leaf whose value is neither a valid account nor a valid slot.
    #[error("malformed {what} in the leaf of {key} (owner {owner:?})")]
    Leaf {
        /// Hashed address for a storage trie, `None` for the account trie.
        owner: Option<B256>,
        /// Key of the leaf.
        key: B256,
        /// Malformed part.
        what: Malformed,
    },
    /// Error from the shards' tries.
    #[error(transparent)]
    Trie(#[from] Error),
}
