//! Sparse trie: lookup and update. The other operations are in the submodules.

mod ahead;
mod bulk;
mod hash;
mod prune;
mod remove;
mod reveal;
mod undo;

use crate::{
    arena::{Arena, Branches},
    nibbles::{DEPTH_MAX, common_prefix, nibble, prefix},
    node::{Extension, Kind, Leaf, NO_ENTRY, NodeId, Place, Slot},
};
use ahead::Ahead;
pub(crate) use hash::{Hashed, Pass, hash_tries};
pub(crate) use prune::Ages;
use std::collections::BTreeMap;
use tandem_primitives::{B256, EMPTY_TRIE_ROOT};
pub(crate) use undo::Undo;

/// Trie of a shard's accounts. Its values are those of [`account_leaf`](crate::account_leaf).
pub type AccountTrie = SparseTrie<110>;

/// Trie of an account's storage. Its values are the RLP of the slot's integer.
pub type StorageTrie = SparseTrie<33>;

/// Sparse trie with keys of 32 bytes and values of 1 to `V` bytes (`V` at most 255).
///
/// Changes are collected until [`SparseTrie::root`] hashes the touched nodes and lists the nodes
/// that differ from the last time.
#[derive(Clone, Debug)]
pub struct SparseTrie<const V: usize> {
    leaves: Arena<Leaf<V>>,
    extensions: Arena<Extension>,
    branches: Branches,
    /// Slot of the top node. The top node always stands alone, so the slot holds its hash whatever
    /// its size.
    root: Slot,
    /// Number of nibbles above the top node, which all keys share.
    base: u8,
    /// Nibbles above the top node, padded with zeros.
    prefix: B256,
    /// Paths (padded, with their length) that lost their stand-alone node since the trie was last
    /// hashed, with the hash of that node.
    gone: BTreeMap<(B256, u8), B256>,
    ahead: Ahead,
    /// Record for reverting the block, if a revert is possible.
    undo: Option<Box<Undo>>,
    /// Number of leaves written, inserted or removed since the trie was last hashed, ahead or at
    /// the end.
    touches: u32,
    /// Number of such leaves before that, in the open block.
    heat: u32,
    /// Stamp that a node gets when it is used.
    now: u32,
    /// Slots from the top to the end of the last search, with their depths. The field is kept to
    /// reuse its memory.
    trail: Vec<(Place, u8)>,
}

/// Blinded node that the next step needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blinded {
    /// Key on whose path the node stands.
    pub key: B256,
    /// Depth of the node.
    pub depth: u8,
}

/// Result of [`SparseTrie::find`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup<'a> {
    /// Value of the key.
    Value(&'a [u8]),
    /// The trie does not hold the key.
    Absent,
    /// Unknown: a node on the way is blinded.
    Blinded(Blinded),
}

impl<const V: usize> SparseTrie<V> {
    /// Creates an empty trie. All its keys start with the nibble `first`, if given.
    pub fn empty(first: Option<u8>) -> Self {
        let mut prefix = B256::ZERO;
        prefix[0] = first.unwrap_or(0) << 4;
        Self {
            leaves: Arena::default(),
            extensions: Arena::default(),
            branches: Branches::default(),
            root: Slot::EMPTY,
            base: u8::from(first.is_some()),
            prefix,
            gone: BTreeMap::new(),
            ahead: Ahead::default(),
            undo: None,
            touches: 0,
            heat: 0,
            now: 0,
            trail: Vec::new(),
        }
    }

    /// Creates a trie of which not even the root is known.
    pub fn unknown(first: Option<u8>) -> Self {
        let mut trie = Self::empty(first);
        trie.root.id = NodeId::BLIND;
        trie
    }

    /// Creates a trie of which only the root hash is known.
    pub fn blinded(root: B256) -> Self {
        let mut trie = Self::empty(None);
        if root != EMPTY_TRIE_ROOT {
            trie.root = Slot::clean(NodeId::BLIND, root.as_slice());
        }
        trie
    }

    /// Creates a trie whose keys all start with the nibble `first`. Only the hash of its top node
    /// is known, or that there is no top node.
    pub fn blinded_below(first: u8, top: Option<B256>) -> Self {
        let mut trie = Self::empty(Some(first));
        if let Some(top) = top {
            trie.root = Slot::clean(NodeId::BLIND, top.as_slice());
        }
        trie
    }

    /// Returns whether not even the root's hash is known.
    pub fn is_unknown(&self) -> bool {
        self.root.id == NodeId::BLIND && self.root.len == 0
    }

    /// Returns whether there were changes since the trie was last hashed.
    pub fn is_dirty(&self) -> bool {
        self.root.dirty
    }

    /// Returns whether the top node is in memory, or known not to exist.
    pub fn is_top_revealed(&self) -> bool {
        self.root.id != NodeId::BLIND
    }

    /// Returns the root hash without the changes since it was last computed. It is `keccak256` of
    /// the top node, [`EMPTY_TRIE_ROOT`] without one, or `None` when it is not known.
    pub fn base_root(&self) -> Option<B256> {
        if self.is_unknown() { None } else { Some(self.root.hash().unwrap_or(EMPTY_TRIE_ROOT)) }
    }

    /// Sets the stamp that nodes get when they are used from now on. See [`SparseTrie::prune`].
    pub fn set_now(&mut self, now: u32) {
        self.now = now;
    }

    /// Returns the number of bytes that the nodes in memory take. Arrays that grow by doubling may
    /// hold up to twice as much.
    pub fn byte_len(&self) -> usize {
        self.leaves.byte_len() + self.extensions.byte_len() + self.branches.byte_len()
    }

    /// Looks up a key, and stamps the nodes on its way as used.
    pub fn find(&mut self, key: &B256) -> Lookup<'_> {
        let (place, depth) = self.descend(key);
        match self.slot_id(place).kind() {
            Kind::Blind => Lookup::Blinded(Blinded { key: *key, depth: depth as u8 }),
            Kind::Leaf(index) if self.leaves.get(index).key == *key => {
                Lookup::Value(self.leaves.get(index).value())
            }
            _ => Lookup::Absent,
        }
    }

    /// Sets a key's value. Setting the value that is already there changes nothing.
    ///
    /// # Errors
    /// Returns [`Blinded`] when the place of the key is not revealed. The trie is then unchanged.
    ///
    /// # Panics
    /// Panics when the value is empty or longer than `V`.
    pub fn update(&mut self, key: &B256, value: &[u8]) -> Result<(), Blinded> {
        self.check_value(value);
        let (place, depth) = self.descend(key);
        self.update_at(place, depth, key, value)
    }

    /// Sets a key's value as [`SparseTrie::update`] does, at the end of the descent.
    fn update_at(
        &mut self,
        place: Place,
        depth: usize,
        key: &B256,
        value: &[u8],
    ) -> Result<(), Blinded> {
        match self.slot_id(place).kind() {
            Kind::Blind => {
                return Err(Blinded { key: *key, depth: depth as u8 });
            }
            Kind::None => {
                let id = self.new_leaf(key, value);
                self.note_made(id);
                self.occupy(place, id, key, depth);
            }
            Kind::Leaf(index) => {
                let leaf = self.leaves.get_mut(index);
                let shared = common_prefix(&leaf.key, key);
                if shared == DEPTH_MAX {
                    if leaf.value() == value {
                        return Ok(());
                    }
                    self.set_value(index, value);
                } else {
                    let (id, other) = (NodeId::leaf(index), leaf.key);
                    let sibling = Slot::fresh(id, self.take_gone(&other, shared + 1));
                    self.split(place, depth, shared, key, value, (nibble(&other, shared), sibling));
                }
            }
            Kind::Extension(index) => self.split_extension(place, depth, index, key, value),
            // The descent passes through branches.
            Kind::Branch(_) => {}
        }
        self.mark(place);
        Ok(())
    }

    /// Follows a key to the slot where its path ends, and remembers the slots above it. The path
    /// ends at an empty place, at a blinded node, at a leaf, or at an extension that the key
    /// leaves.
    fn descend(&mut self, key: &B256) -> (Place, usize) {
        self.trail.clear();
        self.descend_from(Place::Root, usize::from(self.base), key)
    }

    /// Descends as [`SparseTrie::descend`] does, from a slot on the key's path. The trail must hold
    /// the slots above it.
    fn descend_from(&mut self, mut place: Place, mut depth: usize, key: &B256) -> (Place, usize) {
        let mut id = self.slot_id(place);
        loop {
            // Nearly every step goes through a branch: one comparison that is easy to predict.
            while let Some(index) = id.as_branch() {
                let branch = self.branches.get_mut(index);
                branch.used = self.now;
                let nibble = nibble(key, depth);
                self.trail.push((place, depth as u8));
                (place, id) = (Place::Branch(index, nibble), branch.child(nibble));
                depth += 1;
            }
            match id.kind() {
                Kind::None | Kind::Blind | Kind::Branch(_) => return (place, depth),
                Kind::Leaf(index) => {
                    self.leaves.get_mut(index).used = self.now;
                    return (place, depth);
                }
                Kind::Extension(index) => {
                    let extension = self.extensions.get_mut(index);
                    extension.used = self.now;
                    let end = usize::from(extension.end);
                    if common_prefix(&extension.key, key) < end {
                        return (place, depth);
                    }
                    self.trail.push((place, depth as u8));
                    (place, depth, id) = (Place::Extension(index), end, extension.child.id);
                }
            }
        }
    }

    /// Splits an extension where the key leaves it.
    fn split_extension(
        &mut self,
        place: Place,
        depth: usize,
        index: u32,
        key: &B256,
        value: &[u8],
    ) {
        let extension = self.extensions.get(index);
        let (other, end, child) = (extension.key, usize::from(extension.end), extension.child);
        let shared = common_prefix(&other, key);
        let sibling = if shared + 1 == end {
            // The child's path stays the same, and so does all that the slot knows. The entry moves
            // with the child, so the extension must not keep it in case it comes back.
            self.extensions.get_mut(index).child.entry = NO_ENTRY;
            self.free(NodeId::extension(index));
            child
        } else {
            Slot::fresh(NodeId::extension(index), self.take_gone(&other, shared + 1))
        };
        self.split(place, depth, shared, key, value, (nibble(&other, shared), sibling));
    }

    /// Inserts a branch at depth `at` under `place`, which is at `depth`. Its children are
    /// `sibling`, the node that stood there, and a new leaf.
    fn split(
        &mut self,
        place: Place,
        depth: usize,
        at: usize,
        key: &B256,
        value: &[u8],
        (sibling_nibble, sibling): (u8, Slot),
    ) {
        let leaf = self.new_leaf(key, value);
        self.note_made(leaf);
        let leaf = Slot::fresh(leaf, self.take_gone(key, at + 1));
        let branch = self.branches.insert(2, self.now);
        self.branches.insert_child(branch, sibling_nibble, sibling);
        if sibling.entry != NO_ENTRY {
            self.hang_entry(Place::Branch(branch, sibling_nibble), sibling.entry);
        }
        self.branches.insert_child(branch, nibble(key, at), leaf);
        let id = NodeId::branch(branch);
        self.note_made(id);
        let id = self.extend_to(id, depth, at, key);
        self.hold(place, id);
    }

    fn check_value(&self, value: &[u8]) {
        assert!((1..=V).contains(&value.len()), "a value has 1 to {V} bytes");
    }

    fn new_leaf(&mut self, key: &B256, value: &[u8]) -> NodeId {
        let index = self.leaves.insert(Leaf::without_value(*key, self.now));
        self.leaves.get_mut(index).set(value);
        NodeId::leaf(index)
    }

    /// Puts a node into an empty slot.
    fn occupy(&mut self, place: Place, id: NodeId, key: &B256, depth: usize) {
        match place {
            Place::Branch(index, nibble) => {
                let slot = Slot::fresh(id, self.take_gone(key, depth));
                self.insert_child(index, nibble, slot);
                // The caller marks this slot and the slots above.
                self.mark_above();
            }
            _ => self.hold(place, id),
        }
    }

    /// Returns the hash of the node that stood alone at a path which is occupied again.
    fn take_gone(&mut self, key: &B256, depth: usize) -> Option<B256> {
        if self.gone.is_empty() {
            return None;
        }
        self.gone.remove(&(prefix(key, depth), depth as u8))
    }

    fn slot(&self, place: Place) -> Slot {
        match place {
            Place::Root => self.root,
            Place::Branch(index, nibble) => self.branches.slot(index, nibble),
            Place::Extension(index) => self.extensions.get(index).child,
        }
    }

    #[inline]
    fn slot_id(&self, place: Place) -> NodeId {
        match place {
            Place::Root => self.root.id,
            Place::Branch(index, nibble) => self.branches.get(index).child(nibble),
            Place::Extension(index) => self.extensions.get(index).child.id,
        }
    }

    fn set_slot_id(&mut self, place: Place, id: NodeId) {
        match place {
            Place::Root => self.root.id = id,
            Place::Branch(index, nibble) => self.branches.get_mut(index).set_child(nibble, id),
            Place::Extension(index) => self.extensions.get_mut(index).child.id = id,
        }
    }

    /// Marks the slot dirty, and the slots above it on the trail.
    fn mark(&mut self, place: Place) {
        self.touches += 1;
        if self.mark_slot(place) {
            self.mark_above();
        }
    }

    /// Marks the slots on the trail dirty from the lowest up. All slots above a dirty slot are
    /// dirty.
    fn mark_above(&mut self) {
        for at in (0..self.trail.len()).rev() {
            if !self.mark_slot(self.trail[at].0) {
                return;
            }
        }
    }

    /// Marks a slot dirty. Returns false when it was dirty already.
    #[inline]
    fn mark_slot(&mut self, place: Place) -> bool {
        let new = match place {
            Place::Root => !std::mem::replace(&mut self.root.dirty, true),
            Place::Branch(index, nibble) => self.branches.get_mut(index).mark(nibble),
            Place::Extension(index) => {
                !std::mem::replace(&mut self.extensions.get_mut(index).child.dirty, true)
            }
        };
        if new {
            self.note_marked(place);
        }
        new
    }
}
