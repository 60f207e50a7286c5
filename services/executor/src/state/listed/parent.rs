//! Values of the parent's state for everything that a list names, by their places in it.

use super::{ListedAccount, ListedState};
use crate::{
    error::Error,
    state::parent::{CODES_PIECE, PIECE, ParentState, StateKey, StateValue, read_each},
};
use alloy_primitives::map::B256Set;
use tandem_primitives::{Account, B256, Bytes, EMPTY_CODE_HASH, U256};
use tracing::debug;

/// Maximum number of codes that are read together for a block.
pub const CODES_MAX: usize = 1_024;

/// Values of the parent's state, in the order of the list.
pub struct ListedParent {
    pub accounts: Vec<Option<Account>>,
    /// Slots of all accounts, for each the changed ones first.
    pub slots: Vec<U256>,
    /// Codes of the accounts, by their hashes; not all of more than [`CODES_MAX`].
    pub codes: Vec<(B256, Bytes)>,
    /// Numbers of accounts, slots and codes that were not in memory.
    pub missed: [usize; 3],
}

impl ListedState {
    /// Returns the values of the parent's state. The first call reads them, and from then on reads of
    /// the block find them by their places. `None` if they cannot be read.
    pub fn read_parent(&self, state: &dyn ParentState) -> Option<&ListedParent> {
        let read = || {
            let read = ListedParent::read(self, state);
            read.inspect_err(|error| debug!(%error, "the values of a list cannot be read")).ok()
        };
        self.parent.get_or_init(read).as_ref()
    }

    /// Returns the number of accounts and slots.
    pub fn key_count(&self) -> usize {
        self.order.len() + self.slots
    }

    /// Takes values of the parent's state that were sent. They must be as many as the list names.
    /// Returns whether they are.
    pub fn set_parent(&self, accounts: Vec<Option<Account>>, slots: Vec<U256>) -> bool {
        let fits = (accounts.len(), slots.len()) == (self.order.len(), self.slots);
        let parent = ListedParent { accounts, slots, codes: Vec::new(), missed: [0; 3] };
        fits && self.parent.set(Some(parent)).is_ok()
    }

    /// Returns an account of the parent's state, if the values were read.
    pub fn parent_account(&self, listed: &ListedAccount) -> Option<Option<Account>> {
        self.parent.get()?.as_ref()?.accounts.get(listed.place).copied()
    }

    /// Returns `keccak256(slot)` and the value of a slot in the parent's state, if the values were
    /// read and the list names the slot.
    pub fn parent_slot(&self, listed: &ListedAccount, slot: &U256) -> Option<(B256, U256)> {
        let parent = self.parent.get()?.as_ref()?;
        let place = listed.slot_place(slot)?;
        let (_, hash) = listed.slot_at(place)?;
        Some((hash, *parent.slots.get(listed.first_slot + place)?))
    }
}

impl ListedParent {
    fn read(listed: &ListedState, state: &dyn ParentState) -> Result<Self, Error> {
        let mut accounts = vec![None; listed.order.len()];
        let keys = listed.in_order().map(|at| StateKey::Account(at.hash));
        let missed_accounts = read_each(state, keys.enumerate(), PIECE, |place, value| {
            if let StateValue::Account(account) = value {
                accounts[place] = account;
            }
        })?;
        let mut slots = vec![U256::ZERO; listed.slots];
        // An account that is not there has no slots.
        let there = listed.in_order().zip(&accounts).filter(|(_, account)| account.is_some());
        let keys = there.flat_map(|(at, _)| {
            let keys = at.slot_hashes().map(|slot| StateKey::Slot(at.hash, slot));
            (at.first_slot..).zip(keys)
        });
        let missed_slots = read_each(state, keys, PIECE, |place, value| {
            if let StateValue::Slot(value) = value {
                slots[place] = value;
            }
        })?;
        let mut known = B256Set::from_iter([EMPTY_CODE_HASH]);
        let hashes = accounts.iter().flatten().map(|account| account.code_hash);
        let hashes = hashes.filter(|hash| known.insert(*hash)).take(CODES_MAX);
        let mut codes: Vec<_> = hashes.map(|hash| (hash, Bytes::new())).collect();
        let keys: Vec<_> = codes.iter().map(|(hash, _)| StateKey::Code(*hash)).collect();
        let missed_codes =
            read_each(state, keys.into_iter().enumerate(), CODES_PIECE, |place, value| {
                if let StateValue::Code(code) = value {
                    codes[place].1 = code.original_bytes();
                }
            })?;
        codes.retain(|(_, code)| !code.is_empty());
        Ok(Self { accounts, slots, codes, missed: [missed_accounts, missed_slots, missed_codes] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateReader;
    use crate::state::code::analyze;
    use alloy_eips::eip7928::AccountChanges;
    use alloy_primitives::{Address, keccak256};
    use revm::state::Bytecode;
    use std::{
        sync::atomic::{AtomicU64, Ordering::Relaxed},
        time::Duration,
    };
    use tandem_chain::AccessList;

    const CODE: Bytes = Bytes::from_static(&[0x5b, 0x00]);

    /// State in which each value is made of its key, without account 2.
    #[derive(Default)]
    struct State {
        calls: AtomicU64,
        is_broken: bool,
    }

    fn value_of(account: &B256, slot: &B256) -> U256 {
        U256::from_be_bytes((*account ^ *slot).0)
    }

    impl StateReader for State {
        fn account(&self, hash: &B256) -> Result<Option<Account>, Error> {
            if self.is_broken {
                return Err(Error::NotInMemory);
            }
            let account = Account {
                nonce: hash[0].into(),
                code_hash: keccak256(&CODE),
                ..Account::default()
            };
            Ok((*hash != keccak256(address(2))).then_some(account))
        }

        fn slot(&self, account: &B256, slot: &B256) -> Result<U256, Error> {
            Ok(value_of(account, slot))
        }

        fn has_storage(&self, _: &B256) -> Result<bool, Error> {
            Ok(false)
        }

        fn code(&self, _: &B256) -> Result<Bytecode, Error> {
            Ok(analyze(CODE))
        }
    }

    /// Nothing is in memory, besides account 1.
    impl ParentState for State {
        fn in_memory(&self, key: &StateKey) -> Result<Option<StateValue>, Error> {
            match key {
                StateKey::Account(hash) if *hash == keccak256(address(1)) => {
                    Ok(Some(StateValue::Account(self.account(hash)?)))
                }
                _ => Ok(None),
            }
        }

        fn read_together(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, Error> {
            self.calls.fetch_add(1, Relaxed);
            let read = |key: &StateKey| {
                Ok(Some(match key {
                    StateKey::Account(hash) => StateValue::Account(self.account(hash)?),
                    StateKey::Slot(hash, slot) => StateValue::Slot(self.slot(hash, slot)?),
                    StateKey::Code(hash) => StateValue::Code(self.code(hash)?),
                }))
            };
            keys.iter().map(read).collect()
        }

        fn calls(&self) -> u64 {
            self.calls.load(Relaxed)
        }

        fn call_time(&self) -> Duration {
            Duration::ZERO
        }

        fn is_far(&self) -> bool {
            true
        }
    }

    fn address(last: u8) -> Address {
        Address::with_last_byte(last)
    }

    /// List of accounts 1 to 3, each with changed and with read slots.
    fn listed() -> ListedState {
        let entry = |last: u8| {
            let read = (0..u64::from(last)).map(|slot| U256::from(2 * slot));
            let changed = [1, 9].map(|slot| super::super::tests::slot(slot, &[(1, 5)]));
            AccountChanges {
                address: address(last),
                storage_changes: changed.to_vec(),
                storage_reads: read.collect(),
                ..AccountChanges::default()
            }
        };
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<_, AccountChanges>(&[1, 2, 3].map(entry), &mut rlp);
        ListedState::of(&AccessList::decode(rlp.into()).unwrap()).unwrap()
    }

    #[test]
    fn values_are_read_once_and_found_by_their_places() {
        let (state, listed) = (State::default(), listed());
        let at = |last| listed.get(&address(last)).unwrap();
        assert!(listed.parent_account(at(1)).is_none(), "not read yet");
        assert!(listed.parent_slot(at(1), &U256::from(1)).is_none());
        let parent = listed.read_parent(&state).unwrap();
        assert_eq!((parent.accounts.len(), parent.slots.len()), (3, 6 + 1 + 2 + 3));
        assert_eq!(parent.codes, [(keccak256(&CODE), CODE)], "each code once");
        listed.read_parent(&state).unwrap();
        assert_eq!((parent.missed, state.calls()), ([2, 3 + 5, 1], 3), "a call for each kind");
        for last in 1..=3 {
            let account = at(last);
            assert_eq!(
                listed.parent_account(account).unwrap(),
                state.account(&account.hash).unwrap()
            );
            let read = (0..u64::from(last)).map(|slot| 2 * slot);
            for key in [1, 9].into_iter().chain(read) {
                let hash = keccak256(U256::from(key).to_be_bytes::<32>());
                let value = if last == 2 { U256::ZERO } else { value_of(&account.hash, &hash) };
                let found = listed.parent_slot(account, &U256::from(key));
                assert_eq!(found, Some((hash, value)), "account {last}, slot {key}");
            }
            assert_eq!(listed.parent_slot(account, &U256::from(77)), None, "not in the list");
        }
    }

    #[test]
    fn a_failed_read_leaves_the_values_to_single_reads() {
        let (state, listed) = (State { is_broken: true, ..State::default() }, listed());
        assert!(listed.read_parent(&state).is_none());
        let account = listed.get(&address(1)).unwrap();
        assert!(listed.parent_account(account).is_none());
        assert!(listed.parent_slot(account, &U256::from(1)).is_none());
    }
}
