//! Cancellation of the open block, and revert of the last block that ended.

use super::{Counts, ShardTrie};
use tandem_primitives::{B256, TrieDiff};

/// Maximum number of unused undo records to keep.
const POOL_MAX: usize = 256;

impl ShardTrie {
    /// Begins a block, unless one is open. The previous block can no longer be reverted afterwards.
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

    /// Cancels the open block: the shard returns to the state before it. Revealed nodes stay.
    /// Without an open block nothing happens.
    pub fn cancel(&mut self) {
        if self.opened {
            let touched = std::mem::take(&mut self.touched);
            self.take_back(touched);
        }
    }

    /// Reverts the block that ended last, after canceling the open one. The shard returns to the
    /// state before that block. Revealed nodes stay.
    ///
    /// Only one block can be reverted, and only if no other block was begun since and the shard was
    /// not pruned. Otherwise the shard is cleared, and the result is false.
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
                // The trie was wiped. The account leaf leads to the former trie.
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
