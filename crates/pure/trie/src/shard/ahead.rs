//! Hashing while the block goes on: what is done then does not wait for its end.

use super::ShardTrie;
use crate::{
    Lookup, StorageTrie,
    account::{account_leaf, storage_root},
    sparse::{Hashed, Pass, hash_tries},
};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT};

/// When and what a shard hashes ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AheadLimits {
    /// Leaves that must have been touched since the last time, so that a pass fills the lanes of
    /// the hash function.
    pub touches_min: u32,
    /// Nibbles below the top of its trie from which a node is hashed ahead. The nodes above are
    /// few, and changed by almost everything that still comes.
    pub levels: u8,
}

impl Default for AheadLimits {
    fn default() -> Self {
        Self { touches_min: 8, levels: 2 }
    }
}

/// How many nodes were hashed in a block, and when, and what was foreseen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Nodes hashed while the block went on.
    pub ahead: u64,
    /// Nodes hashed at its end.
    pub at_end: u64,
    /// Those of both whose path had been hashed in the block before: the waste.
    pub again: u64,
    /// Accounts and slots written on foresight ([`ShardTrie::foresee`]).
    pub foreseen: u64,
    /// Those of them that no update confirmed.
    pub withdrawn: u64,
}

impl ShardTrie {
    /// Hashes nodes of the open block that will probably not change any more. To be called when
    /// there is nothing else to do; it takes some ten microseconds at most. Returns the number of
    /// nodes hashed, 0 when there is nothing worth doing now.
    ///
    /// It changes nothing of what [`finish`](Self::finish) gives.
    pub fn work_ahead(&mut self) -> usize {
        let touches = self.touches + self.accounts.touches();
        if self.removals.is_some() || touches < self.ahead.touches_min {
            return 0;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        let hashed = self.hash_ahead(&fresh, self.ahead.levels);
        fresh.clear();
        // For its memory.
        self.fresh = fresh;
        hashed
    }

    /// Hashes all that is not hashed, up to the tops of the tries, where values were foreseen. To be
    /// called when all foresight seems to be in: what comes then mostly confirms it.
    ///
    /// It changes nothing of what [`finish`](Self::finish) gives. Returns the number of nodes hashed.
    pub fn hash_foreseen(&mut self) -> usize {
        if self.removals.is_some() || self.foreseen.is_empty() {
            return 0;
        }
        let is_open = |owner: &B256| self.storages.get(owner).is_some_and(|storage| storage.open);
        let owners: Vec<B256> = self.touched.iter().copied().filter(is_open).collect();
        self.hash_ahead(&owners, 0)
    }

    /// Hashes nodes of these storage tries, and of the account trie, down from so many nibbles below
    /// their tops.
    fn hash_ahead(&mut self, owners: &[B256], levels: u8) -> usize {
        let pass = Pass::Ahead(levels);
        let mut hashed = self.hash_storages_of(owners, pass);
        self.fresh.clear();
        self.touches = 0;
        let accounts = &mut [(None, &mut self.accounts)];
        hashed += hash_tries(accounts, pass, &mut self.diff, &mut self.scratch);
        self.counting.ahead += hashed.nodes as u64;
        self.counting.again += hashed.again as u64;
        hashed.nodes
    }

    /// Counts of the last block that ended.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Hashes storage tries, all together.
    pub(super) fn hash_storages_of(&mut self, owners: &[B256], pass: Pass) -> Hashed {
        let mut tries = Vec::with_capacity(owners.len());
        for owner in owners {
            let Some(storage) = self.storages.get_mut(owner) else { continue };
            (storage.listed, storage.touches) = (false, 0);
            // Out of the map for a moment, so that all can be changed at once.
            let trie = std::mem::replace(&mut storage.trie, StorageTrie::empty(None));
            tries.push((Some(*owner), trie));
        }
        let mut borrowed: Vec<_> = tries.iter_mut().map(|(owner, trie)| (*owner, trie)).collect();
        let hashed = hash_tries(&mut borrowed, pass, &mut self.diff, &mut self.scratch);
        for (owner, trie) in tries {
            let storage = owner.and_then(|owner| self.storages.get_mut(&owner));
            if let Some(storage) = storage {
                storage.trie = trie;
            }
        }
        hashed
    }

    /// Lists a storage trie among those that have something to hash ahead.
    pub(super) fn list(&mut self, owner: &B256) {
        let Some(storage) = self.storages.get_mut(owner) else { return };
        let touches = storage.trie.touches();
        self.touches += touches - std::mem::replace(&mut storage.touches, touches);
        if touches != 0 && !std::mem::replace(&mut storage.listed, true) {
            self.fresh.push(*owner);
        }
    }

    /// Writes the leaf of an account that waits, if its place is revealed and the block has left
    /// its storage alone. Its storage root is the one that stands there.
    pub(super) fn write_early(&mut self, address_hash: &B256) {
        let Some(Some(account)) = self.pending.get(address_hash) else { return };
        if self.storages.get(address_hash).is_some_and(|storage| storage.open) {
            return;
        }
        let root = match self.accounts.find(address_hash) {
            Lookup::Value(leaf) => storage_root(leaf),
            Lookup::Absent => Some(EMPTY_TRIE_ROOT),
            Lookup::Blinded(_) => None,
        };
        // A leaf that is no account comes out in `finish`.
        let Some(root) = root else { return };
        self.leaf.clear();
        account_leaf(account, root, &mut self.leaf);
        if self.accounts.update(address_hash, &self.leaf).is_ok() {
            self.pending.remove(address_hash);
            self.wrote_accounts = true;
        }
    }
}
