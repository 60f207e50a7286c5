//! Order in which contacts are evicted.

use super::entry::Class;

/// Mark of the end of a queue.
const NONE: u32 = u32::MAX;

/// Three queues, one for each [`Class`], from the slot longest unseen to the one seen last. Links
/// are in an array beside the contacts, so moving a slot to the back touches little memory.
#[derive(Debug)]
pub(super) struct Queues {
    /// Slots before and after, by slot.
    links: Vec<[u32; 2]>,
    /// First and last slot, by class.
    ends: [[u32; 2]; Class::COUNT],
    lengths: [usize; Class::COUNT],
}

const FRONT: usize = 0;
const BACK: usize = 1;

impl Default for Queues {
    fn default() -> Self {
        Self { links: Vec::new(), ends: [[NONE; 2]; Class::COUNT], lengths: [0; Class::COUNT] }
    }
}

impl Queues {
    /// Appends a slot that is in no queue.
    pub(super) fn push(&mut self, class: Class, slot: u32) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, [NONE; 2]);
        }
        let last = self.ends[class as usize][BACK];
        self.links[slot as usize] = [last, NONE];
        self.join(class, last, slot);
        self.ends[class as usize][BACK] = slot;
        self.lengths[class as usize] += 1;
    }

    /// Removes a slot from its queue.
    pub(super) fn remove(&mut self, class: Class, slot: u32) {
        let [before, after] = self.links[slot as usize];
        self.join(class, before, after);
        self.lengths[class as usize] -= 1;
    }

    /// Moves a slot to the back of its queue.
    pub(super) fn touch(&mut self, class: Class, slot: u32) {
        if self.ends[class as usize][BACK] != slot {
            self.remove(class, slot);
            self.push(class, slot);
        }
    }

    /// Makes two slots neighbours; a missing one stands for the end of the queue.
    fn join(&mut self, class: Class, before: u32, after: u32) {
        match before {
            NONE => self.ends[class as usize][FRONT] = after,
            slot => self.links[slot as usize][BACK] = after,
        }
        match after {
            NONE => self.ends[class as usize][BACK] = before,
            slot => self.links[slot as usize][FRONT] = before,
        }
    }

    /// Returns the slot longest unseen.
    pub(super) fn front(&self, class: Class) -> Option<u32> {
        Some(self.ends[class as usize][FRONT]).filter(|&slot| slot != NONE)
    }

    /// Returns the slots from the one seen last to the one longest unseen.
    pub(super) fn newest_first(&self, class: Class) -> impl Iterator<Item = u32> {
        let some = |slot: u32| Some(slot).filter(|&slot| slot != NONE);
        let last = some(self.ends[class as usize][BACK]);
        std::iter::successors(last, move |&slot| some(self.links[slot as usize][FRONT]))
    }

    /// Returns the number of slots in a queue.
    pub(super) fn len(&self, class: Class) -> usize {
        self.lengths[class as usize]
    }
}
