use crate::{Error, Malformed, nibbles::prefix};
use std::fmt;
use tandem_primitives::B256;

/// A node as its parent names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodePlace {
    /// Hashed address of the account whose storage trie it is in, `None` for the account trie.
    pub owner: Option<B256>,
    /// Its path, padded with zeros.
    pub path: B256,
    /// Nibbles of the path.
    pub depth: usize,
    /// Its hash; for a node that is embedded, that of the node around it.
    pub hash: B256,
}

impl NodePlace {
    /// The node at a depth of this key.
    pub(super) fn new(owner: Option<B256>, key: &B256, depth: usize, hash: B256) -> Self {
        Self { owner, path: prefix(key, depth), depth, hash }
    }
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, path, depth, hash } = self;
        // `0x` and a digit a nibble.
        let path = &path.to_string()[..2 + (*depth).min(64)];
        match owner {
            None => write!(f, "node {hash} at path {path} of the account trie"),
            Some(owner) => write!(f, "node {hash} at path {path} of the storage trie of {owner}"),
        }
    }
}

/// Why a witness does not tell what it is asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WitnessError {
    /// A node that is needed is not there.
    #[error("the witness lacks {0}")]
    Missing(NodePlace),
    /// The bytes of a node are none.
    #[error("malformed {0} in {1}")]
    Malformed(Malformed, NodePlace),
    /// The value in a leaf is neither an account nor a slot's.
    #[error("malformed {what} in the leaf of {key} (owner {owner:?})")]
    Leaf {
        /// Hashed address for a storage trie, `None` for the account trie.
        owner: Option<B256>,
        /// The leaf's key.
        key: B256,
        /// What is malformed.
        what: Malformed,
    },
    /// What the shards' tries found.
    #[error(transparent)]
    Trie(#[from] Error),
}
