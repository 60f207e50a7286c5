//! Reveal of blinded nodes.

use super::SparseTrie;
use crate::{
    Error, Malformed,
    decode::{Child, Decoded, decode},
    nibbles::{DEPTH_MAX, common_prefix, nibble, pack, put_nibble},
    node::{Extension, Kind, NodeId, Place, Slot},
};
use tandem_primitives::{B256, keccak256};

impl<const V: usize> SparseTrie<V> {
    /// Reveals the node at a path, if it is blinded and its parent is known. Any other node changes
    /// nothing. With `verify`, its hash must equal the hash that the parent holds.
    ///
    /// # Errors
    /// Returns [`Error::Path`], [`Error::Hash`] or [`Error::Malformed`]. The trie is then
    /// unchanged.
    pub fn reveal(&mut self, path: &[u8], rlp: &[u8], verify: bool) -> Result<(), Error> {
        self.reveal_checked(path, rlp, verify, None)
    }

    /// Reveals a node as [`SparseTrie::reveal`] does with `verify`, given the node's computed hash.
    ///
    /// # Errors
    /// Returns the errors of [`SparseTrie::reveal`].
    pub fn reveal_hashed(&mut self, path: &[u8], rlp: &[u8], hash: &B256) -> Result<(), Error> {
        self.reveal_checked(path, rlp, true, Some(hash))
    }

    fn reveal_checked(
        &mut self,
        path: &[u8],
        rlp: &[u8],
        verify: bool,
        hash: Option<&B256>,
    ) -> Result<(), Error> {
        let key = pack(path).ok_or(Error::Path)?;
        let base = usize::from(self.base);
        if path.len() < base || common_prefix(&key, &self.prefix) < base {
            return Err(Error::Path);
        }
        let Some(place) = self.blinded_place(&key, path.len()) else {
            return Ok(());
        };
        let mut slot = self.slot(place);
        if verify || slot.len == 0 {
            let got = hash.copied().unwrap_or_else(|| keccak256(rlp));
            if let Some(want) = slot.hash().filter(|&want| want != got) {
                return Err(Error::Hash { path: key, depth: path.len(), got, want });
            }
            slot = Slot::clean(slot.id, got.as_slice());
        }
        let is_branch = slot.id == NodeId::BLIND_BRANCH;
        let id = self
            .build(key, path.len(), rlp, is_branch)
            .map_err(|what| Error::Malformed(what, key, path.len()))?;
        if place == Place::Root {
            self.root = slot;
        }
        self.set_slot_id(place, id);
        Ok(())
    }

    /// Records that an unknown trie has no top node: it is empty.
    pub fn reveal_empty(&mut self) {
        if self.is_unknown() {
            self.root = Slot::EMPTY;
        }
    }

    /// Returns the slot of a blinded node at a path, or `None` when there is none.
    fn blinded_place(&mut self, key: &B256, end: usize) -> Option<Place> {
        let (mut place, mut depth) = (Place::Root, usize::from(self.base));
        loop {
            let kind = self.slot_id(place).kind();
            if depth >= end {
                return (depth == end && kind == Kind::Blind).then_some(place);
            }
            match kind {
                Kind::None | Kind::Blind | Kind::Leaf(_) => return None,
                Kind::Extension(index) => {
                    let extension = self.extensions.get_mut(index);
                    extension.used = self.now;
                    depth = usize::from(extension.end);
                    if depth > end || common_prefix(&extension.key, key) < depth {
                        return None;
                    }
                    place = Place::Extension(index);
                }
                Kind::Branch(index) => {
                    self.branches.get_mut(index).used = self.now;
                    place = Place::Branch(index, nibble(key, depth));
                    depth += 1;
                }
            }
        }
    }

    /// Builds a node from RLP, with the nodes embedded in it. `path` holds the first `depth`
    /// nibbles.
    fn build(
        &mut self,
        path: B256,
        depth: usize,
        rlp: &[u8],
        is_branch: bool,
    ) -> Result<NodeId, Malformed> {
        let node = decode(rlp)?;
        if is_branch && !matches!(node, Decoded::Branch(_)) {
            return Err(Malformed::Child);
        }
        let used = self.now;
        match node {
            Decoded::Leaf(hex_prefix, value) => {
                let mut key = path;
                if hex_prefix.write(&mut key, depth) != Some(DEPTH_MAX) {
                    return Err(Malformed::Path);
                }
                if value.len() > V {
                    return Err(Malformed::Value);
                }
                Ok(self.new_leaf(&key, value))
            }
            Decoded::Extension(hex_prefix, child) => {
                let mut key = path;
                let end = hex_prefix.write(&mut key, depth).ok_or(Malformed::Path)?;
                if end >= DEPTH_MAX {
                    return Err(Malformed::Path);
                }
                let child = self.build_child(key, end, child, true)?;
                let extension = Extension { key, end: end as u8, used, child };
                Ok(NodeId::extension(self.extensions.insert(extension)))
            }
            Decoded::Branch(children) => {
                if depth >= DEPTH_MAX {
                    return Err(Malformed::Path);
                }
                let mut slots = [Slot::EMPTY; 16];
                let mut count = 0;
                for (nibble, &child) in (0..).zip(&children) {
                    if child == Child::None {
                        continue;
                    }
                    let mut path = path;
                    put_nibble(&mut path, depth, nibble);
                    slots[usize::from(nibble)] = self.build_child(path, depth + 1, child, false)?;
                    count += 1;
                }
                let index = self.branches.insert(count, used);
                for (nibble, slot) in (0..).zip(slots) {
                    if slot.id != NodeId::NONE {
                        self.branches.insert_child(index, nibble, slot);
                    }
                }
                Ok(NodeId::branch(index))
            }
        }
    }

    fn build_child(
        &mut self,
        path: B256,
        depth: usize,
        child: Child<'_>,
        is_branch: bool,
    ) -> Result<Slot, Malformed> {
        match child {
            Child::None => Ok(Slot::EMPTY),
            Child::Hash(hash) => {
                let id = if is_branch { NodeId::BLIND_BRANCH } else { NodeId::BLIND };
                Ok(Slot::clean(id, hash))
            }
            Child::Embedded(rlp) => {
                let id = self.build(path, depth, rlp, is_branch)?;
                Ok(Slot::clean(id, rlp))
            }
        }
    }
}
