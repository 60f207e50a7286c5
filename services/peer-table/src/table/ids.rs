//! Index of slots by id.

use super::entry::Entry;
use alloy_primitives::map::DefaultHashBuilder;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use tandem_primitives::B512;

/// Slots by id. The ids themselves are only in the entries. That keeps this index small enough for
/// the cache, and the caller reads the entry next anyway.
#[derive(Default)]
pub(super) struct Ids {
    slots: HashTable<u32>,
    /// Hasher with a random seed, so that no attacker can choose ids that collide.
    hasher: DefaultHashBuilder,
}

impl Ids {
    /// Returns the slot of an id.
    pub(super) fn get(&self, id: &B512, entries: &[Entry]) -> Option<u32> {
        let same = |&slot: &u32| entries[slot as usize].id == *id;
        self.slots.find(self.hasher.hash_one(id), same).copied()
    }

    /// Adds a slot whose id is absent.
    pub(super) fn insert(&mut self, slot: u32, entries: &[Entry]) {
        let hash = |&slot: &u32| self.hasher.hash_one(entries[slot as usize].id);
        self.slots.insert_unique(hash(&slot), slot, hash);
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, slot: u32, entries: &[Entry]) {
        let hash = self.hasher.hash_one(entries[slot as usize].id);
        if let Ok(entry) = self.slots.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
    }

    /// Returns the number of ids.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns all slots in use.
    #[cfg(test)]
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().copied()
    }
}
