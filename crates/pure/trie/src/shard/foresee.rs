//! Values that the open block will probably write: written and hashed before it says so, taken back
//! where it does not.

use super::ShardTrie;
use crate::{
    Lookup,
    account::{decode_account_leaf, slot_leaf},
};
use alloy_primitives::map::{B256Map, HashMap};
use tandem_primitives::{Account, AccountUpdate, B256, Shard, SlotUpdate, U256};

/// What was written on foresight alone: what stood there before, and what stands there now.
#[derive(Default, Debug)]
pub(super) struct Foreseen {
    accounts: B256Map<(Account, Account)>,
    slots: HashMap<(B256, B256), (U256, U256)>,
    /// What [`Foreseen::new_slots`] gave last; kept for its memory.
    new: Vec<SlotUpdate>,
}

impl Foreseen {
    /// Takes note of an account: what an update says of it stands, whatever was foreseen. True when
    /// that is the same.
    pub fn confirm_account(&mut self, address_hash: &B256, account: Option<Account>) -> bool {
        if self.accounts.is_empty() {
            return false;
        }
        let foreseen = self.accounts.remove(address_hash);
        foreseen.is_some_and(|(_, after)| Some(after) == account)
    }

    /// The same with slots. Gives those of which something else was foreseen, or nothing.
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

    /// The storage of an account was cleared.
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
    /// Takes in what updates of the open block will probably say of one account, `after`, where
    /// `before` tells what the parent's state says of it: the account and the same slots in the same
    /// order. `None` for the account says that only slots are foreseen.
    ///
    /// It changes nothing of what [`finish`](Self::finish) gives: an [`update`](Self::update) wins,
    /// whichever comes first, and what none of them confirms is taken back at the end. What the block
    /// has written already is left alone. Where something comes to be or ceases to be nothing is
    /// written, but its path is asked for.
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
        // A value that is not the parent's was written by the block. If it wrote the parent's own
        // value, going back to that is right.
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

    /// Takes back what was foreseen and did not come.
    pub(super) fn withdraw(&mut self) {
        if self.foreseen.is_empty() {
            return;
        }
        let mut foreseen = std::mem::take(&mut self.foreseen);
        self.counting.withdrawn += (foreseen.accounts.len() + foreseen.slots.len()) as u64;
        for (address_hash, (before, _)) in foreseen.accounts.drain() {
            if matches!(self.accounts.find(&address_hash), Lookup::Blinded(_)) {
                // It was never written.
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
        // For its memory.
        self.foreseen = foreseen;
    }
}
