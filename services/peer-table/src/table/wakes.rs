//! Times at which contacts become candidates again: a heap with at most one valid entry per slot.

use super::entry::{Entry, NEVER};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Times at which slots must be refreshed, earliest first. [`Entry::wake_at`] tells which entry of
/// a slot is valid; the others are skipped.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Wakes {
    /// Ensures that the slot is refreshed at `at`, or earlier; an earlier refresh schedules the
    /// next one.
    pub(super) fn schedule(&mut self, entries: &mut [Entry], slot: u32, at: u64) {
        if at >= entries[slot as usize].wake_at {
            return;
        }
        entries[slot as usize].wake_at = at;
        if self.heap.len() > 2 * entries.len() {
            self.rebuild(entries);
        } else {
            self.heap.push(Reverse((at, slot)));
        }
    }

    /// Drops invalid entries, so that the heap stays as small as the table.
    fn rebuild(&mut self, entries: &[Entry]) {
        let slots = entries.iter().zip(0..);
        let valid = slots.filter(|(entry, _)| entry.wake_at != NEVER);
        self.heap = valid.map(|(entry, slot)| Reverse((entry.wake_at, slot))).collect();
    }

    /// Returns the next slot whose time has come.
    pub(super) fn pop(&mut self, entries: &mut [Entry], now: u64) -> Option<u32> {
        while let Some(&Reverse((at, slot))) = self.heap.peek() {
            if at > now {
                return None;
            }
            self.heap.pop();
            let wake_at = &mut entries[slot as usize].wake_at;
            if *wake_at == at {
                *wake_at = NEVER;
                return Some(slot);
            }
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}
