//! Set of the slots that are candidates for a purpose, with uniform sampling in one step.

use rand::Rng;

/// Mark of a slot that is not in the set.
const ABSENT: u32 = u32::MAX;

/// Set of slots: a dense list of its members, and for each slot its place in that list. Adding,
/// removing (the last member takes the free place) and drawing at random take constant time.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    members: Vec<u32>,
    places: Vec<u32>,
}

impl Candidates {
    /// Adds the slot or removes it.
    pub(super) fn set(&mut self, slot: u32, wanted: bool) {
        match (self.contains(slot), wanted) {
            (false, true) => self.insert(slot),
            (true, false) => self.remove(slot),
            _ => {}
        }
    }

    fn insert(&mut self, slot: u32) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, ABSENT);
        }
        self.places[slot as usize] = self.members.len() as u32;
        self.members.push(slot);
    }

    fn remove(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.places[slot as usize], ABSENT);
        self.members.swap_remove(place as usize);
        if let Some(&moved) = self.members.get(place as usize) {
            self.places[moved as usize] = place;
        }
    }

    /// Returns whether the slot is in the set.
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.places.get(slot as usize).is_some_and(|&place| place != ABSENT)
    }

    /// Returns one of the members, each equally likely.
    pub(super) fn sample(&self, rng: &mut impl Rng) -> Option<u32> {
        if self.members.is_empty() {
            return None;
        }
        Some(self.members[rng.random_range(0..self.members.len())])
    }

    /// Returns the number of members.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}
