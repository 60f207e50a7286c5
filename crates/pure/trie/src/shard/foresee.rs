//! Values that the open block will probably write. They are written and hashed before the block
//! confirms them, and reverted if it does not.

use super::ShardTrie;
use crate::{
    Lookup,
    account::{decode_account_leaf, slot_leaf},
};
use alloy_primitives::map::{B256Map, HashMap};
use tandem_primitives::{Account, AccountUpdate, B256, Shard, SlotUpdate, U256};

/// Values written on foresight alone: the value before and the value written, for each.
#[derive(Default, Debug)]
pub(super) struct Foreseen {
    accounts: B256Map<(Account, Account)>,
    slots: HashMap<(B256, B256), (U256, U256)>,
    /// Last result of [`Foreseen::new_slots`], kept to reuse its memory.
    new: Vec<SlotUpdate>,
}

impl Foreseen {
    /// Drops the foresight of an account, because an update overrides it. Returns true when the
    /// update equals the foresight.
    pub fn confirm_account(&mut self, address_hash: &B256, account: Option<Account>) -> bool {
        if self.accounts.is_empty() {
            return false;
        }
        let foreseen = self.accounts.remove(address_hash);
        foreseen.is_some_and(|(_, after)| Some(after) == account)
    }

    /// Drops the foresight of slots. Returns the slots whose foresight is absent or differs.
    pub fn new_slots<'a>(
        &'a mut self,
        address_hash: B256,
        slots: &'a [SlotUpdate],
    ) -> &'a [SlotUpdate] {
        if self.slots.is_empty() {
            return slots;
        }
        self.new.clear();
        for slot in slots {
            let foreseen = self.slots.remove(&(address_hash, slot.key));
            if foreseen.is_none_or(|(_, after)| after != slot.value) {
                self.new.push(*slot);
            }
        }
        &self.new
    }

    /// Drops the foresight of an account's slots, because its storage was cleared.
    pub fn drop_slots(&mut self, address_hash: &B256) {
        self.slots.retain(|(owner, _), _| owner != address_hash);
    }

    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.slots.is_empty()
    }

    pub fn clear(&mut self) {
        self.accounts.clear();
        self.slots.clear();
    }
}

impl ShardTrie {
    /// Takes the probable result of the open block's updates for one account, `after`. `before`
    /// gives the parent's state of it: the account and the same slots in the same order. `None` for
    /// the account means that only slots are foreseen.
    ///
    /// The result of [`finish`](Self::finish) stays the same. An [`update`](Self::update) wins,
    /// whichever comes first. Unconfirmed foresight is reverted at the end. Values that the block
    /// has already written stay. New accounts, deleted accounts and deleted slots are not written,
    /// but their paths are requested.
    pub fn foresee(&mut self, before: &AccountUpdate, after: &AccountUpdate) {
        let address_hash = before.address_hash;
        if Shard::of(&address_hash) != self.shard || after.address_hash != address_hash {
            return;
        }
        self.open();
        self.prefetch_account(&address_hash);
        if let (Some(before), Some(after)) = (before.account, after.account)
            && before != after
        {
            self.foresee_account(address_hash, before, after);
        }
        if before.slots.is_empty() {
            return;
        }
        self.open_storage(&address_hash);
        for (before, after) in before.slots.iter().zip(&after.slots) {
            self.foresee_slot(address_hash, before, after);
        }
        self.list(&address_hash);
    }

    fn foresee_account(&mut self, address_hash: B256, before: Account, after: Account) {
        if self.pending.contains_key(&address_hash)
            || self.foreseen.accounts.contains_key(&address_hash)
        {
            return;
        }
        // A value that differs from the parent's was written by the block. If the block wrote the
        // parent's own value, reverting to that value is correct.
        let is_parents = match self.accounts.find(&address_hash) {
            Lookup::Value(leaf) => {
                decode_account_leaf(leaf).is_some_and(|(account, _)| account == before)
            }
            Lookup::Absent => false,
            Lookup::Blinded(_) => true,
        };
        if is_parents {
            self.foreseen.accounts.insert(address_hash, (before, after));
            self.counting.foreseen += 1;
            self.pending.insert(address_hash, Some(after));
            self.write_early(&address_hash);
        }
    }

    fn foresee_slot(&mut self, address_hash: B256, before: &SlotUpdate, after: &SlotUpdate) {
        let place = (address_hash, before.key);
        let Some(storage) = self.storages.get_mut(&address_hash) else { return };
        let known = storage.waits(&before.key) || self.foreseen.slots.contains_key(&place);
        if known || before.key != after.key || before.value == after.value {
            return;
        }
        if after.value.is_zero() {
            storage.prefetch(&before.key, &mut self.targets);
            return;
        }
        let is_parents = match storage.trie.find(&before.key) {
            Lookup::Value(leaf) => leaf == &slot_leaf(&before.value)[..],
            Lookup::Absent => before.value.is_zero(),
            Lookup::Blinded(_) => true,
        };
        if is_parents {
            self.foreseen.slots.insert(place, (before.value, after.value));
            self.counting.foreseen += 1;
            storage.open = true;
            storage.write(before.key, after.value, &mut self.targets);
        }
    }

    /// Reverts foresight that was not confirmed.
    pub(super) fn withdraw(&mut self) {
        if self.foreseen.is_empty() {
            return;
        }
        let mut foreseen = std::mem::take(&mut self.foreseen);
        self.counting.withdrawn += (foreseen.accounts.len() + foreseen.slots.len()) as u64;
        for (address_hash, (before, _)) in foreseen.accounts.drain() {
            if matches!(self.accounts.find(&address_hash), Lookup::Blinded(_)) {
                // The account was never written.
                self.pending.remove(&address_hash);
                continue;
            }
            self.pending.insert(address_hash, Some(before));
            self.write_early(&address_hash);
        }
        for ((owner, key), (before, _)) in foreseen.slots.drain() {
            if let Some(storage) = self.storages.get_mut(&owner)
                && !storage.forget(&key)
            {
                storage.write(key, before, &mut self.targets);
            }
        }
        // Kept to reuse its memory.
        self.foreseen = foreseen;
    }
}
