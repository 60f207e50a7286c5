//! Writes of a block's transactions so far, by the position of the writer.
//!
//! A transaction executed ahead of its turn reads here the writes of earlier transactions,
//! committed or not. They need not be right: before a result is committed, every value that it read
//! here is compared with the block's own state.

use crate::state::{
    reads::{AccountRead, Reads, SlotRead},
    state_after,
};
use alloy_primitives::map::{AddressMap, B256Map, HashMap};
use parking_lot::RwLock;
use revm::state::{Account as EvmAccount, Bytecode, EvmState};
use tandem_primitives::{Account, Address, B256, EMPTY_CODE_HASH, U256};

/// Number of shards of the map, with a lock each. A power of two.
const SHARDS: usize = 64;

/// Position of a writer in the block: 0 before all transactions, `n + 1` for transaction `n`.
pub type Position = u32;

/// Writes of one block.
pub struct Published {
    shards: Box<[RwLock<AddressMap<Written>>]>,
    codes: RwLock<B256Map<Bytecode>>,
}

/// Writes to one account.
#[derive(Default)]
struct Written {
    accounts: Versions<Option<Account>>,
    /// Positions after which the account's storage was void.
    wipes: Versions<()>,
    slots: HashMap<U256, Versions<U256>>,
}

/// Values by position, ascending.
struct Versions<T>(Vec<(Position, T)>);

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Versions<T> {
    fn latest_before(&self, position: Position) -> Option<(Position, T)> {
        self.0.iter().rev().find(|(at, _)| *at < position).copied()
    }

    fn set(&mut self, position: Position, value: T) {
        // Nearly always at the end.
        let place = self.0.iter().rposition(|(at, _)| *at <= position);
        match place {
            Some(place) if self.0[place].0 == position => self.0[place].1 = value,
            Some(place) => self.0.insert(place + 1, (position, value)),
            None => self.0.insert(0, (position, value)),
        }
    }

    fn remove(&mut self, position: Position) {
        self.0.retain(|(at, _)| *at != position);
    }
}

impl Published {
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, codes: RwLock::default() }
    }

    fn shard(&self, address: &Address) -> &RwLock<AddressMap<Written>> {
        // Combines both ends: precompiles and contracts with many zeros differ in one of them.
        &self.shards[usize::from(address[0] ^ address[19]) % SHARDS]
    }

    /// Returns an account after the transactions before `position`, or `None` if none wrote to it.
    pub fn account(&self, address: &Address, position: Position) -> Option<Option<Account>> {
        let shard = self.shard(address).read();
        let (_, account) = shard.get(address)?.accounts.latest_before(position)?;
        Some(account)
    }

    /// Returns a slot after the transactions before `position`, or `None` if none wrote to it.
    pub fn slot(&self, address: &Address, key: &U256, position: Position) -> Option<U256> {
        let shard = self.shard(address).read();
        let written = shard.get(address)?;
        let slot = written.slots.get(key).and_then(|slot| slot.latest_before(position));
        match (slot, written.wipes.latest_before(position)) {
            (Some((at, _)), Some((wiped, ()))) if wiped >= at => Some(U256::ZERO),
            (Some((_, value)), _) => Some(value),
            (None, Some(_)) => Some(U256::ZERO),
            (None, None) => None,
        }
    }

    /// Returns whether a transaction at this position would still read the same values here.
    pub fn holds(&self, reads: &Reads, position: Position) -> bool {
        let account = |read: &AccountRead| {
            self.account(&read.address, position).is_none_or(|account| account == read.account)
        };
        let slot = |read: &SlotRead| {
            self.slot(&read.address, &read.key, position).is_none_or(|value| value == read.value)
        };
        reads.accounts.iter().all(account) && reads.slots.iter().all(slot)
    }

    /// Returns code that a transaction of the block deployed.
    pub fn code(&self, hash: &B256) -> Option<Bytecode> {
        self.codes.read().get(hash).cloned()
    }

    /// Adds deployed code.
    pub fn add_code(&self, hash: B256, code: Bytecode) {
        self.codes.write().insert(hash, code);
    }

    /// Records one commit's changes of one account.
    pub fn write(
        &self,
        position: Position,
        address: Address,
        account: Option<Account>,
        wiped: bool,
        slots: impl Iterator<Item = (U256, U256)>,
    ) {
        let mut shard = self.shard(&address).write();
        let written = shard.entry(address).or_default();
        written.accounts.set(position, account);
        if wiped {
            written.wipes.set(position, ());
        }
        for (key, value) in slots {
            written.slots.entry(key).or_default().set(position, value);
        }
    }

    /// Records the changes of a transaction that was executed ahead of its turn.
    pub fn write_result(&self, position: Position, state: &EvmState) {
        for (address, account) in state.iter().filter(|(_, account)| is_written(account)) {
            let after = state_after(account);
            if let Some(code) = &account.info.code
                && (account.is_created() || code.is_eip7702())
                && account.info.code_hash != EMPTY_CODE_HASH
            {
                self.add_code(account.info.code_hash, code.clone());
            }
            let slots = account.changed_storage_slots();
            let slots = slots.map(|(key, slot)| (*key, slot.present_value()));
            self.write(position, *address, after, after.is_none(), slots);
        }
    }

    /// Removes the writes of [`Published::write_result`] for this result. Code stays, because it is
    /// addressed by its hash.
    pub fn retract(&self, position: Position, state: &EvmState) {
        for (address, account) in state.iter().filter(|(_, account)| is_written(account)) {
            let mut shard = self.shard(address).write();
            let Some(written) = shard.get_mut(address) else { continue };
            written.accounts.remove(position);
            written.wipes.remove(position);
            for (key, _) in account.changed_storage_slots() {
                if let Some(slot) = written.slots.get_mut(key) {
                    slot.remove(position);
                }
            }
        }
    }
}

/// Returns whether a commit of the account may change anything.
pub fn is_written(account: &EvmAccount) -> bool {
    account.is_touched()
        && (account.is_created()
            || account.is_selfdestructed()
            || account.is_changed()
            || account.is_empty()
            || account.storage.values().any(|slot| slot.is_changed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reader_sees_the_newest_write_before_it() {
        let (published, address, key) = (Published::new(), Address::repeat_byte(1), U256::from(7));
        let account = |nonce| Some(Account { nonce, ..Account::default() });
        assert_eq!(published.account(&address, 9), None);
        for position in [5, 0, 3] {
            let slot = (key, U256::from(position));
            published.write(position, address, account(position.into()), false, [slot].into_iter());
        }
        for (position, want) in [(0, None), (1, Some(0)), (3, Some(0)), (4, Some(3)), (9, Some(5))]
        {
            let got = published.account(&address, position);
            assert_eq!(got, want.map(account), "{position}");
            let want = want.map(U256::from);
            assert_eq!(published.slot(&address, &key, position), want, "{position}");
        }
        assert_eq!(published.slot(&address, &U256::ZERO, 9), None);
        published.write(4, address, None, true, [].into_iter());
        assert_eq!(published.account(&address, 5), Some(None));
        assert_eq!(published.slot(&address, &key, 4), Some(U256::from(3)));
        assert_eq!(published.slot(&address, &key, 5), Some(U256::ZERO));
        assert_eq!(published.slot(&address, &U256::ZERO, 5), Some(U256::ZERO));
        assert_eq!(published.slot(&address, &key, 6), Some(U256::from(5)));
    }

    proptest! {
        #[test]
        fn versions_are_kept_in_order(writes in prop::collection::vec((0..8u32, 0..9u8), 0..20)) {
            let (mut versions, mut model) = (Versions::default(), std::collections::BTreeMap::new());
            for (position, value) in writes {
                if value == 8 {
                    versions.remove(position);
                    model.remove(&position);
                } else {
                    versions.set(position, value);
                    model.insert(position, value);
                }
            }
            for position in 0..9 {
                let want = model.range(..position).next_back().map(|(at, value)| (*at, *value));
                prop_assert_eq!(versions.latest_before(position), want);
            }
        }
    }
}
