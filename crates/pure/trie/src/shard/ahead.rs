//! Hashing while the block is open, so that less work remains for its end.

use super::ShardTrie;
use crate::{
    Lookup, StorageTrie,
    account::{account_leaf, storage_root},
    sparse::{Hashed, Pass, hash_tries},
};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT};

/// Limits on the hashing ahead in a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AheadLimits {
    /// Minimum number of leaves touched since the last pass, so that a pass fills the lanes of the
    /// hash function.
    pub touches_min: u32,
    /// Number of nibbles below the top of its trie from which a node is hashed ahead. The nodes
    /// above are few, and most later updates change them.
    pub levels: u8,
}

impl Default for AheadLimits {
    fn default() -> Self {
        Self { touches_min: 8, levels: 2 }
    }
}

/// Numbers of nodes hashed in a block, and of values foreseen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Number of nodes hashed while the block was open.
    pub ahead: u64,
    /// Number of nodes hashed at the end of the block.
    pub at_end: u64,
    /// Number of hashed nodes whose path had already been hashed in the block: the waste.
    pub again: u64,
    /// Number of accounts and slots written on foresight ([`ShardTrie::foresee`]).
    pub foreseen: u64,
    /// Number of foreseen accounts and slots that no update confirmed.
    pub withdrawn: u64,
}

impl ShardTrie {
    /// Hashes nodes of the open block that will probably not change again. The caller runs it when
    /// idle. It takes some ten microseconds at most. Returns the number of nodes hashed, 0 when no
    /// work is worthwhile now.
    ///
    /// The result of [`finish`](Self::finish) stays the same.
    pub fn work_ahead(&mut self) -> usize {
        let touches = self.touches + self.accounts.touches();
        if self.removals.is_some() || touches < self.ahead.touches_min {
            return 0;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        let hashed = self.hash_ahead(&fresh, self.ahead.levels);
        fresh.clear();
        // Kept to reuse its memory.
        self.fresh = fresh;
        hashed
    }

    /// Hashes all unhashed nodes, up to the tops of the tries, if values were foreseen. The caller
    /// runs it when all foresight seems to be in. Later updates then mostly confirm it.
    ///
    /// The result of [`finish`](Self::finish) stays the same. Returns the number of nodes hashed.
    pub fn hash_foreseen(&mut self) -> usize {
        if self.removals.is_some() || self.foreseen.is_empty() {
            return 0;
        }
        let is_open = |owner: &B256| self.storages.get(owner).is_some_and(|storage| storage.open);
        let owners: Vec<B256> = self.touched.iter().copied().filter(is_open).collect();
        self.hash_ahead(&owners, 0)
    }

    /// Hashes nodes of these storage tries, and of the account trie, from `levels` nibbles below
    /// their tops downwards.
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

    /// Returns the counts of the last block that ended.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Hashes several storage tries together.
    pub(super) fn hash_storages_of(&mut self, owners: &[B256], pass: Pass) -> Hashed {
        let mut tries = Vec::with_capacity(owners.len());
        for owner in owners {
            let Some(storage) = self.storages.get_mut(owner) else { continue };
            (storage.listed, storage.touches) = (false, 0);
            // The trie leaves the map for a moment, so that all tries can be changed at once.
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

    /// Lists a storage trie among the tries that have changes to hash ahead.
    pub(super) fn list(&mut self, owner: &B256) {
        let Some(storage) = self.storages.get_mut(owner) else { return };
        let touches = storage.trie.touches();
        self.touches += touches - std::mem::replace(&mut storage.touches, touches);
        if touches != 0 && !std::mem::replace(&mut storage.listed, true) {
            self.fresh.push(*owner);
        }
    }

    /// Writes the leaf of a pending account, if its place is revealed and the block has left its
    /// storage alone. The leaf keeps the account's present storage root.
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
        // `finish` reports a leaf that is not an account.
        let Some(root) = root else { return };
        self.leaf.clear();
        account_leaf(account, root, &mut self.leaf);
        if self.accounts.update(address_hash, &self.leaf).is_ok() {
            self.pending.remove(address_hash);
            self.wrote_accounts = true;
        }
    }
}
