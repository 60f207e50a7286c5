//! State before the open block of nodes that were hashed ahead of the block's end. The diff
//! compares with that state, not with hashes from within the block.

use super::SparseTrie;
use crate::node::{NO_ENTRY, Place};
use tandem_primitives::B256;

/// Path where a node was hashed ahead.
#[derive(Clone, Debug)]
struct Entry {
    /// Hash of the node that stood alone there before the block, if one did.
    before: Option<B256>,
    place: Place,
    /// Next child of the branch that has an entry.
    next: u32,
    /// Position in the diff of the last change written for the path.
    change: Option<u32>,
}

/// Nodes of a trie that were hashed ahead in the open block.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    entries: Vec<Entry>,
    /// Changes in the diff that no longer hold.
    pub void: Vec<u32>,
}

impl Ahead {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the hash before the block, and the position of the path's change in the diff.
    pub fn get(&self, entry: u32) -> (Option<B256>, Option<u32>) {
        let entry = &self.entries[entry as usize];
        (entry.before, entry.change)
    }

    pub fn set_change(&mut self, entry: u32, change: Option<u32>) {
        self.entries[entry as usize].change = change;
    }
}

impl<const V: usize> SparseTrie<V> {
    /// Returns the entry of a slot, if its node was hashed ahead.
    #[inline]
    pub(super) fn entry(&self, place: Place) -> Option<u32> {
        let mut entry = match place {
            Place::Root => self.root.entry,
            Place::Extension(index) => self.extensions.get(index).child.entry,
            Place::Branch(index, _) => self.branches.get(index).entry,
        };
        while entry != NO_ENTRY && self.ahead.entries[entry as usize].place != place {
            entry = self.ahead.entries[entry as usize].next;
        }
        (entry != NO_ENTRY).then_some(entry)
    }

    /// Creates an entry for a slot that has none.
    pub(super) fn add_entry(&mut self, place: Place, before: Option<B256>, change: Option<u32>) {
        let entry = self.ahead.entries.len() as u32;
        self.ahead.entries.push(Entry { before, place, next: NO_ENTRY, change });
        self.hang_entry(place, entry);
    }

    /// Attaches an entry to a slot that has none.
    pub(super) fn hang_entry(&mut self, place: Place, entry: u32) {
        let first = self.first_entry(place);
        let next = std::mem::replace(first, entry);
        let entry = &mut self.ahead.entries[entry as usize];
        (entry.place, entry.next) = (place, next);
    }

    /// Detaches the entry of a slot from it.
    pub(super) fn take_entry(&mut self, place: Place) -> Option<u32> {
        let entry = self.entry(place)?;
        let next = self.ahead.entries[entry as usize].next;
        let mut at = *self.first_entry(place);
        if at == entry {
            *self.first_entry(place) = next;
            return Some(entry);
        }
        while self.ahead.entries[at as usize].next != entry {
            at = self.ahead.entries[at as usize].next;
        }
        self.ahead.entries[at as usize].next = next;
        Some(entry)
    }

    /// Returns the hash of the node that stood alone at a slot before the block.
    pub(super) fn before(&self, place: Place) -> Option<B256> {
        match self.entry(place) {
            Some(entry) => self.ahead.get(entry).0,
            None => self.slot(place).hash(),
        }
    }

    /// Returns the hash that [`SparseTrie::before`] returns, for a slot whose path becomes empty.
    /// Its change in the diff becomes void.
    pub(super) fn take_before(&mut self, place: Place) -> Option<B256> {
        let Some(entry) = self.take_entry(place) else {
            return self.slot(place).hash();
        };
        let (before, change) = self.ahead.get(entry);
        self.ahead.set_change(entry, None);
        self.ahead.void.extend(change);
        before
    }

    /// Voids every change that hashing ahead put into the diff, because the whole trie is dropped.
    pub(crate) fn void_all(&mut self, void: &mut Vec<u32>) {
        void.append(&mut self.ahead.void);
        void.extend(self.ahead.entries.iter().filter_map(|entry| entry.change));
    }

    /// Removes the entries at the end of the block. A place that was reused meanwhile has no entry
    /// either.
    pub(super) fn clear_entries(&mut self, void: &mut Vec<u32>) {
        void.append(&mut self.ahead.void);
        let mut entries = std::mem::take(&mut self.ahead.entries);
        for entry in entries.drain(..) {
            *self.first_entry(entry.place) = NO_ENTRY;
        }
        self.ahead.entries = entries;
    }

    fn first_entry(&mut self, place: Place) -> &mut u32 {
        match place {
            Place::Root => &mut self.root.entry,
            Place::Extension(index) => &mut self.extensions.get_mut(index).child.entry,
            Place::Branch(index, _) => &mut self.branches.get_mut(index).entry,
        }
    }
}
