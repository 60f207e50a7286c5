//! Removal of keys, and the collapse of branches that lose all children but one.

use super::{Blinded, SparseTrie};
use crate::{
    nibbles::{prefix, put_nibble},
    node::{Extension, Kind, NO_ENTRY, NodeId, Place},
};
use tandem_primitives::B256;

/// Located leaf that can be removed.
struct Removal {
    leaf: u32,
    place: Place,
    depth: usize,
    /// Nibble of the only sibling, when the branch above collapses.
    sibling: Option<u8>,
}

impl<const V: usize> SparseTrie<V> {
    /// Removes a key. A key that the trie does not hold changes nothing.
    ///
    /// # Errors
    /// Returns [`Blinded`] when the place of the key is not revealed, or when the sibling that
    /// replaces a collapsing branch is not. The trie is then unchanged.
    pub fn remove(&mut self, key: &B256) -> Result<(), Blinded> {
        let Some(removal) = self.locate_removal(key)? else {
            return Ok(());
        };
        self.free(NodeId::leaf(removal.leaf));
        match (removal.place, removal.sibling) {
            (Place::Branch(index, nibble), Some(sibling)) => {
                self.collapse(index, key, removal.depth - 1, nibble, sibling);
            }
            (Place::Branch(index, nibble), None) => {
                self.note_gone(key, removal.depth, removal.place);
                self.remove_child(index, nibble);
                self.touches += 1;
                self.mark_above();
            }
            // A leaf is never below an extension.
            (place, _) => {
                self.hold(place, NodeId::NONE);
                self.mark(place);
            }
        }
        Ok(())
    }

    /// Checks whether [`SparseTrie::remove`] could succeed now. An early check lets the caller
    /// request the missing node in time.
    ///
    /// # Errors
    /// Returns [`Blinded`] as [`SparseTrie::remove`] does.
    pub fn check_removal(&mut self, key: &B256) -> Result<(), Blinded> {
        self.locate_removal(key).map(|_| ())
    }

    fn locate_removal(&mut self, key: &B256) -> Result<Option<Removal>, Blinded> {
        let (place, depth) = self.descend(key);
        let leaf = match self.slot_id(place).kind() {
            Kind::Blind => {
                return Err(Blinded { key: *key, depth: depth as u8 });
            }
            Kind::Leaf(index) if self.leaves.get(index).key == *key => index,
            _ => return Ok(None),
        };
        let mut sibling = None;
        if let Place::Branch(index, nibble) = place {
            let branch = self.branches.get(index);
            let others = branch.present() & !(1 << nibble);
            if others.is_power_of_two() {
                let other = others.trailing_zeros() as u8;
                if branch.child(other) == NodeId::BLIND {
                    let mut key = prefix(key, depth - 1);
                    put_nibble(&mut key, depth - 1, other);
                    return Err(Blinded { key, depth: depth as u8 });
                }
                sibling = Some(other);
            }
        }
        Ok(Some(Removal { leaf, place, depth, sibling }))
    }

    /// Replaces a branch at `depth` by its last child, after the leaf at `removed` is gone.
    fn collapse(&mut self, branch: u32, key: &B256, depth: usize, removed: u8, sibling: u8) {
        let sibling_place = Place::Branch(branch, sibling);
        let mut slot = self.branches.slot(branch, sibling);
        let stays = matches!(slot.id.kind(), Kind::Branch(_)) || slot.id == NodeId::BLIND_BRANCH;
        let mut path = prefix(key, depth);
        put_nibble(&mut path, depth, sibling);
        self.note_gone(key, depth + 1, Place::Branch(branch, removed));
        if stays {
            slot.entry = self.take_entry(sibling_place).unwrap_or(NO_ENTRY);
        } else {
            // A leaf or an extension encodes more of its key when it stands higher.
            self.note_gone(&path, depth + 1, sibling_place);
        }
        self.free(NodeId::branch(branch));

        // The lowest slot of the trail holds the branch. An extension there joins with the
        // replacement.
        let mut above = || self.trail.pop().map_or(Place::Root, |(place, _)| place);
        let holder = above();
        let (place, extension) = match holder {
            Place::Extension(index) => (above(), Some(index)),
            place => (place, None),
        };
        if let Some(index) = extension {
            self.note_gone(key, depth, Place::Extension(index));
            self.free(NodeId::extension(index));
        }
        if stays {
            let end = depth as u8 + 1;
            let joined = Extension { key: path, end, used: self.now, child: slot };
            let index = self.extensions.insert(joined);
            self.note_made(NodeId::extension(index));
            self.hold(place, NodeId::extension(index));
            if slot.entry != NO_ENTRY {
                self.extensions.get_mut(index).child.entry = NO_ENTRY;
                self.hang_entry(Place::Extension(index), slot.entry);
            }
        } else {
            self.hold(place, slot.id);
        }
        self.mark(place);
    }

    /// Records that a path where a node stood alone is now empty.
    fn note_gone(&mut self, key: &B256, depth: usize, place: Place) {
        if let Some(hash) = self.take_before(place) {
            self.gone.insert((prefix(key, depth), depth as u8), hash);
        }
    }
}
