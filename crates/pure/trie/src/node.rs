//! Contents of the arenas: ids, leaves, extensions, branches, and the slot through which a parent
//! holds a child.

use crate::encode::{HASH_LEN, copy_short};
use tandem_primitives::B256;

/// Id of a node of one trie: its kind and its position in the arena of that kind. Special values
/// say that there is no node or that it is not in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(u32);

/// Target of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No node exists.
    None,
    /// A node exists, known by its reference alone.
    Blind,
    /// Index of a leaf.
    Leaf(u32),
    /// Index of an extension.
    Extension(u32),
    /// Index of a branch.
    Branch(u32),
}

const KIND_SHIFT: u32 = 30;
const INDEX_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl NodeId {
    pub const NONE: Self = Self(0);
    pub const BLIND: Self = Self(1);
    /// Blinded node that is known to be a branch: the child of an extension is always a branch.
    pub const BLIND_BRANCH: Self = Self(2);

    pub fn leaf(index: u32) -> Self {
        Self(1 << KIND_SHIFT | index)
    }

    pub fn extension(index: u32) -> Self {
        Self(2 << KIND_SHIFT | index)
    }

    pub fn branch(index: u32) -> Self {
        Self(3 << KIND_SHIFT | index)
    }

    /// Returns the index if the node is a leaf.
    #[inline]
    pub fn as_leaf(self) -> Option<u32> {
        (self.0 >> KIND_SHIFT == 1).then_some(self.0 & INDEX_MASK)
    }

    /// Returns the index if the node is a branch.
    #[inline]
    pub fn as_branch(self) -> Option<u32> {
        (self.0 >> KIND_SHIFT == 3).then_some(self.0 & INDEX_MASK)
    }

    #[inline]
    pub fn kind(self) -> Kind {
        let index = self.0 & INDEX_MASK;
        match self.0 >> KIND_SHIFT {
            1 => Kind::Leaf(index),
            2 => Kind::Extension(index),
            3 => Kind::Branch(index),
            _ if index == 0 => Kind::None,
            _ => Kind::Blind,
        }
    }
}

/// Link from a parent to a child. The slot belongs to a path, not to a node. When another node
/// takes over the path, the reference stays. At the end of the block it therefore still says what
/// stood there at the beginning. References that hashing ahead overwrites are kept in
/// `sparse/ahead.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub id: NodeId,
    /// Whether the node below differs, or may differ, from what `reference` says.
    pub dirty: bool,
    /// Bytes of `reference` in use: 32 for a hash, fewer for the RLP of an embedded node. 0 when
    /// nothing stood here when the trie was last hashed.
    pub len: u8,
    /// Entry of a node that was hashed ahead, [`NO_ENTRY`] for any other. A branch keeps its
    /// children's entries in a list of its own. In a branch this is set only while a slot moves.
    pub entry: u32,
    pub reference: [u8; 32],
}

/// Marker for a slot without an entry: the reference says what stood there when the block began.
pub const NO_ENTRY: u32 = u32::MAX;

impl Slot {
    /// Slot without a node, now and before.
    pub const EMPTY: Self =
        Self { id: NodeId::NONE, dirty: false, len: 0, entry: NO_ENTRY, reference: [0; 32] };

    /// Creates a slot for a node at a path where a node with the hash `before` stood alone, if any
    /// did.
    pub fn fresh(id: NodeId, before: Option<B256>) -> Self {
        match before {
            Some(hash) => Self { id, dirty: true, len: 32, reference: hash.0, ..Self::EMPTY },
            None => Self { id, dirty: true, ..Self::EMPTY },
        }
    }

    /// Creates a slot for a node from the reference in its parent's RLP: a hash or a whole node
    /// below 32 bytes.
    pub fn clean(id: NodeId, reference: &[u8]) -> Self {
        let mut slot = Self { id, len: reference.len() as u8, ..Self::EMPTY };
        slot.reference[..reference.len()].copy_from_slice(reference);
        slot
    }

    /// Returns the hash of the node that stands alone here, as of the last hashing.
    pub fn hash(&self) -> Option<B256> {
        (self.len == 32).then_some(B256::new(self.reference))
    }
}

/// Reference to a node, as its parent holds it.
#[derive(Clone, Copy, Debug)]
pub enum Reference<'a> {
    Hash(&'a B256),
    /// RLP of a node below 32 bytes.
    Embedded(&'a [u8]),
}

/// State of a path according to the reference that was replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// No node stood alone there.
    Nothing,
    /// An identical node stood alone there.
    Same,
    /// Another node stood alone there.
    Other,
}

impl Reference<'_> {
    /// Replaces the reference that a slot holds.
    #[inline]
    pub fn replace(self, len: &mut u8, reference: &mut [u8; 32]) -> Before {
        let stood = *len == HASH_LEN;
        match self {
            Self::Hash(hash) => {
                // The reference is read only if a node stood alone: it is seldom in the cache.
                let before = match stood {
                    false => Before::Nothing,
                    true if *reference == hash.0 => return Before::Same,
                    true => Before::Other,
                };
                (*len, *reference) = (HASH_LEN, hash.0);
                before
            }
            Self::Embedded(rlp) => {
                *len = rlp.len() as u8;
                reference[..rlp.len()].copy_from_slice(rlp);
                if stood { Before::Other } else { Before::Nothing }
            }
        }
    }
}

/// Whole key with its value of at most `V` bytes. The part of the key that the leaf encodes follows
/// from its depth, so moving the leaf changes nothing here.
#[derive(Clone, Debug)]
pub struct Leaf<const V: usize> {
    pub key: B256,
    pub used: u32,
    len: u8,
    value: [u8; V],
}

impl<const V: usize> Leaf<V> {
    /// Creates a leaf whose value of 1 to `V` bytes the caller sets in place. This saves one copy.
    pub fn without_value(key: B256, used: u32) -> Self {
        Self { key, used, len: 0, value: [0; V] }
    }

    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.value[..usize::from(self.len)]
    }

    #[inline]
    pub fn set(&mut self, value: &[u8]) {
        self.len = value.len() as u8;
        copy_short(value, &mut self.value);
    }
}

/// Nibbles that all keys below share. The child is a branch, possibly blinded.
#[derive(Clone, Debug)]
pub struct Extension {
    /// Path to the child, padded with zeros.
    pub key: B256,
    /// Depth of the child.
    pub end: u8,
    pub used: u32,
    pub child: Slot,
}

/// Location of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Top of the trie.
    Root,
    /// Under a branch, at a nibble.
    Branch(u32, u8),
    /// Under an extension.
    Extension(u32),
}
