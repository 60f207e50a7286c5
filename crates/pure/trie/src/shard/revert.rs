//! The way back: giving up the open block, and taking back the last one that ended.

use super::{Counts, ShardTrie};
use tandem_primitives::{B256, TrieDiff};

/// Notes that are kept for their memory.
const POOL_MAX: usize = 256;

impl ShardTrie {
    /// Begins a block, unless one is open. From here on there is no way back behind it.
    pub(super) fn open(&mut self) {
        if std::mem::replace(&mut self.opened, true) {
            return;
        }
        self.revertible = false;
        for owner in self.last.drain(..) {
            let storage = self.storages.get_mut(&owner);
            if let Some(undo) = storage.and_then(|storage| storage.trie.untrack())
                && self.pool.len() < POOL_MAX
            {
                self.pool.push(undo);
            }
        }
        let undo = self.accounts.untrack().unwrap_or_default();
        self.accounts.track(undo);
    }

    /// Gives up the open block: the shard stands where it began. What was revealed stays. Without
    /// an open block nothing happens.
    pub fn cancel(&mut self) {
        if self.opened {
            let touched = std::mem::take(&mut self.touched);
            self.take_back(touched);
        }
    }

    /// Takes back the block that ended last, after giving up the open one: the shard stands where
    /// that block began. What was revealed stays.
    ///
    /// There is a way back by one block only, and none once another block was begun, or the shard
    /// pruned; the shard is cleared then, and the answer is false.
    pub fn revert(&mut self) -> bool {
        self.cancel();
        if !self.revertible {
            self.clear();
            return false;
        }
        let last = std::mem::take(&mut self.last);
        self.take_back(last);
        true
    }

    fn take_back(&mut self, mut owners: Vec<B256>) {
        self.accounts.revert();
        for owner in owners.drain(..) {
            let Some(storage) = self.storages.get_mut(&owner) else { continue };
            if !storage.trie.is_tracked() {
                // It was wiped. The account leaf leads to the trie that was there.
                self.storages.remove(&owner);
                continue;
            }
            storage.trie.revert();
            storage.end_block();
            self.pool.extend(storage.trie.untrack());
        }
        self.pool.truncate(POOL_MAX);
        self.touched = owners;
        self.diff = TrieDiff::default();
        self.scratch.void.clear();
        self.counting = Counts::default();
        self.end_block();
        self.revertible = false;
    }
}
