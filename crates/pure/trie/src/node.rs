//! What lies in the arenas: ids, leaves, extensions, branches, and the slot through which a
//! parent holds a child.

use crate::encode::{HASH_LEN, copy_short};
use tandem_primitives::B256;

/// Names a node of one trie by kind and position in that kind's arena, or says that there is none
/// in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(u32);

/// Where an id leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// There is no node.
    None,
    /// There is a node, known by its reference alone.
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
    /// Blinded, but known to be a branch: the child of an extension is never anything else.
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

    /// Index of the leaf, if it is one.
    #[inline]
    pub fn as_leaf(self) -> Option<u32> {
        (self.0 >> KIND_SHIFT == 1).then_some(self.0 & INDEX_MASK)
    }

    /// Index of the branch, if it is one.
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

/// How a parent holds a child. The slot belongs to a path, not to a node: when another node takes
/// over the path, the reference stays, so at the end of the block it still says what stood there
/// at the beginning. What hashing ahead overwrites is kept aside (`sparse/ahead.rs`).
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub id: NodeId,
    /// The node below differs, or may differ, from what `reference` says.
    pub dirty: bool,
    /// Bytes of `reference` in use: 32 for a hash, fewer for the RLP of an embedded node, 0 when
    /// nothing stood here when the trie was last hashed.
    pub len: u8,
    /// Entry of a node that was hashed ahead, [`NO_ENTRY`] for any other. A branch keeps its
    /// children's entries in a list of its own; there this is only set while a slot moves.
    pub entry: u32,
    pub reference: [u8; 32],
}

/// No entry: the reference says what stood there when the block began.
pub const NO_ENTRY: u32 = u32::MAX;

impl Slot {
    /// Nothing there, and nothing was.
    pub const EMPTY: Self =
        Self { id: NodeId::NONE, dirty: false, len: 0, entry: NO_ENTRY, reference: [0; 32] };

    /// A node at a path where a node with this hash stood alone before, if any did.
    pub fn fresh(id: NodeId, before: Option<B256>) -> Self {
        match before {
            Some(hash) => Self { id, dirty: true, len: 32, reference: hash.0, ..Self::EMPTY },
            None => Self { id, dirty: true, ..Self::EMPTY },
        }
    }

    /// A node as its parent's RLP refers to it: a hash or a whole node below 32 bytes.
    pub fn clean(id: NodeId, reference: &[u8]) -> Self {
        let mut slot = Self { id, len: reference.len() as u8, ..Self::EMPTY };
        slot.reference[..reference.len()].copy_from_slice(reference);
        slot
    }

    /// Hash of the node that stands alone here by the last hashing.
    pub fn hash(&self) -> Option<B256> {
        (self.len == 32).then_some(B256::new(self.reference))
    }
}

/// What a parent is to hold of a node.
#[derive(Clone, Copy, Debug)]
pub enum Reference<'a> {
    Hash(&'a B256),
    /// The RLP of a node below 32 bytes.
    Embedded(&'a [u8]),
}

/// What stood at a path by the reference that was replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// No node stood alone there.
    Nothing,
    /// The node that stands alone there still.
    Same,
    /// Another one stood alone.
    Other,
}

impl Reference<'_> {
    /// Puts this in the place of what a slot holds.
    #[inline]
    pub fn replace(self, len: &mut u8, reference: &mut [u8; 32]) -> Before {
        let stood = *len == HASH_LEN;
        match self {
            Self::Hash(hash) => {
                // What never was is not looked at: it is seldom in the cache.
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

/// A whole key with its value of at most `V` bytes. How much of the key the leaf spells out
/// follows from where it stands, so moving it changes nothing here.
#[derive(Clone, Debug)]
pub struct Leaf<const V: usize> {
    pub key: B256,
    pub used: u32,
    len: u8,
    value: [u8; V],
}

impl<const V: usize> Leaf<V> {
    /// A leaf whose value of 1 to `V` bytes is set where it lies: one less copy of it all.
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

/// Nibbles that all keys below share. Its child is a branch, perhaps blinded.
#[derive(Clone, Debug)]
pub struct Extension {
    /// The path to the child, padded with zeros.
    pub key: B256,
    /// Depth of the child.
    pub end: u8,
    pub used: u32,
    pub child: Slot,
}

/// Where a slot lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The top of the trie.
    Root,
    /// Under a branch, at a nibble.
    Branch(u32, u8),
    /// Under an extension.
    Extension(u32),
}
