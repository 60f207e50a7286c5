//! Who is a candidate for something: a set of slots that uniform sampling takes one step in.

use rand::Rng;

/// Marks a slot that is not in the set.
const ABSENT: u32 = u32::MAX;

/// A set of slots: the members densely, and for each slot where among them it stands. Adding,
/// removing (the last one takes the place) and drawing one at random take constant time.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    members: Vec<u32>,
    places: Vec<u32>,
}

impl Candidates {
    /// Puts the slot in or takes it out.
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

    /// Whether the slot is in the set.
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.places.get(slot as usize).is_some_and(|&place| place != ABSENT)
    }

    /// One of the members, each equally likely.
    pub(super) fn sample(&self, rng: &mut impl Rng) -> Option<u32> {
        if self.members.is_empty() {
            return None;
        }
        Some(self.members[rng.random_range(0..self.members.len())])
    }

    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}
