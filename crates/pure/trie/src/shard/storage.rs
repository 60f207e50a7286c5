//! Storage trie of an account with its pending changes.

use super::walks::Walks;
use crate::{Error, Lookup, Scratch, StorageTrie, account::slot_leaf};
use alloy_primitives::map::B256Map;
use tandem_primitives::{B256, SlotUpdate, U256, WalkTarget};

/// Number of slots from which they are written together. Below it, a list of leaves costs more than
/// it saves.
const BULK_MIN: usize = 16;

/// Storage trie between blocks and during one.
#[derive(Debug)]
pub struct Storage {
    owner: B256,
    pub trie: StorageTrie,
    pub walks: Walks,
    /// Slots whose place was not revealed when they were written, and slots to delete. Deletions
    /// wait for the end of the block, because later writes may spare a branch its collapse.
    pending: B256Map<U256>,
    /// Whether the open block cleared the storage.
    pub wiped: bool,
    /// Whether the open block wrote to the storage.
    pub open: bool,
    /// Root before the block, `None` after a wipe. It is meaningful while the block is being
    /// closed.
    pub before: Option<B256>,
    /// Whether the trie is listed among the tries that have changes to hash ahead.
    pub listed: bool,
    /// Last seen value of [`StorageTrie::touches`].
    pub touches: u32,
    /// Stamp of the last block that used the storage.
    pub used: u32,
}

impl Storage {
    pub fn new(owner: B256, trie: StorageTrie) -> Self {
        let (walks, pending) = (Walks::default(), B256Map::default());
        Self {
            owner,
            trie,
            walks,
            pending,
            wiped: false,
            open: false,
            before: None,
            listed: false,
            touches: 0,
            used: 0,
        }
    }

    /// Stamps the trie, and from now on the nodes used in it.
    pub fn set_now(&mut self, now: u32) {
        self.used = now;
        self.trie.set_now(now);
    }

    /// Clears the storage, with all changes of the block so far.
    ///
    /// The changes that hashing ahead put into the diff become void.
    pub fn wipe(&mut self, void: &mut Vec<u32>) {
        self.trie.void_all(void);
        self.trie = StorageTrie::empty(None);
        self.trie.set_now(self.used);
        self.touches = 0;
        self.pending.clear();
        self.wiped = true;
    }

    /// Writes a slot, at once if its place is revealed. A value of zero deletes it.
    pub fn write(&mut self, key: B256, value: U256, targets: &mut Vec<WalkTarget>) {
        if !value.is_zero() {
            match self.trie.update(&key, &slot_leaf(&value)) {
                Ok(()) => {
                    if !self.pending.is_empty() {
                        self.pending.remove(&key);
                    }
                    return;
                }
                // `settle` reports a node that is missing although its walk was answered.
                Err(blinded) => {
                    let _ = self.walks.need(Some(self.owner), blinded, targets);
                }
            }
        } else if let Err(blinded) = self.trie.check_removal(&key) {
            let _ = self.walks.need(Some(self.owner), blinded, targets);
        } else if self.trie.find(&key) == Lookup::Absent {
            self.pending.remove(&key);
            return;
        }
        self.pending.insert(key, value);
    }

    /// Writes slots in their order, many at once if no deletion comes in between.
    pub fn write_all(
        &mut self,
        slots: &[SlotUpdate],
        scratch: &mut Scratch,
        targets: &mut Vec<WalkTarget>,
    ) {
        for run in slots.chunk_by(|a, b| a.value.is_zero() == b.value.is_zero()) {
            if run.len() < BULK_MIN || run[0].value.is_zero() {
                run.iter().for_each(|slot| self.write(slot.key, slot.value, targets));
                continue;
            }
            let leaves: Vec<_> =
                run.iter().map(|slot| (slot.key, slot_leaf(&slot.value))).collect();
            let Self { owner, trie, walks, pending, .. } = self;
            if !pending.is_empty() {
                for slot in run {
                    pending.remove(&slot.key);
                }
            }
            trie.update_all(&leaves, scratch, |at, blinded| {
                // `settle` reports missing nodes, as in `write`.
                let _ = walks.need(Some(*owner), blinded, targets);
                pending.insert(run[at].key, run[at].value);
            });
        }
    }

    /// Returns whether the slot waits to be written or deleted.
    pub fn waits(&self, key: &B256) -> bool {
        self.pending.contains_key(key)
    }

    /// Drops the pending write of a slot. Returns false when there is none.
    pub fn forget(&mut self, key: &B256) -> bool {
        self.pending.remove(key).is_some()
    }

    /// Requests the path of a slot.
    pub fn prefetch(&mut self, key: &B256, targets: &mut Vec<WalkTarget>) {
        if let Lookup::Blinded(blinded) = self.trie.find(key) {
            let _ = self.walks.need(Some(self.owner), blinded, targets);
        }
    }

    /// Records that a walk was answered, and writes the slot that waited for it.
    pub fn answered(&mut self, target: &WalkTarget, targets: &mut Vec<WalkTarget>) {
        self.walks.answered(target);
        if target.from_depth == 0 {
            self.trie.reveal_empty();
        }
        if let Some(&value) = self.pending.get(&target.key) {
            self.write(target.key, value, targets);
        }
    }

    /// Performs all pending writes, deletions last. Returns false when this needs more nodes.
    ///
    /// # Errors
    /// Returns [`Error::Missing`] when a fully answered walk lacks a needed node.
    pub fn settle(&mut self, targets: &mut Vec<WalkTarget>) -> Result<bool, Error> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        let (mut deletions, mut writes) = (Vec::new(), Vec::new());
        for (key, value) in self.pending.drain() {
            if value.is_zero() { deletions.push((key, value)) } else { writes.push((key, value)) }
        }
        for (key, value) in writes.into_iter().chain(deletions) {
            let done = if value.is_zero() {
                self.trie.remove(&key)
            } else {
                self.trie.update(&key, &slot_leaf(&value))
            };
            if let Err(blinded) = done {
                self.pending.insert(key, value);
                self.walks.need(Some(self.owner), blinded, targets)?;
            }
        }
        Ok(self.pending.is_empty())
    }

    /// Drops the state of the block.
    pub fn end_block(&mut self) {
        self.walks.clear();
        self.pending.clear();
        (self.wiped, self.open, self.before) = (false, false, None);
        (self.listed, self.touches) = (false, 0);
    }

    /// Returns the approximate number of bytes that the storage takes in memory.
    pub fn byte_len(&self) -> usize {
        size_of::<Self>() + size_of::<B256>() + self.trie.byte_len()
    }
}
