//! Values of the parent's state for everything that a list names, by their places in it.

use super::{ListedAccount, ListedState};
use crate::{
    error::Error,
    state::parent::{CODES_PIECE, PIECE, ParentState, StateKey, StateValue, read_each},
};
use alloy_primitives::map::B256Set;
use std::sync::OnceLock;
use tandem_primitives::{Account, B256, Bytes, EMPTY_CODE_HASH, U256};
use tandem_telemetry::waiting;
use tracing::debug;

/// Maximum number of codes that are read together for a block.
pub const CODES_MAX: usize = 1_024;

/// Values of the parent's state, once they were read together or sent.
#[derive(Default)]
pub struct ListedParent {
    accounts: OnceLock<Option<ParentAccounts>>,
    slots: OnceLock<Option<ParentSlots>>,
    /// Whether they are sent: reads of slots wait for them.
    pub(super) is_sent: bool,
}

/// Accounts of the parent's state, in the order of the list.
pub struct ParentAccounts {
    pub accounts: Vec<Option<Account>>,
    /// Codes of the accounts, by their hashes; not all of more than [`CODES_MAX`].
    pub codes: Vec<(B256, Bytes)>,
    /// Numbers of accounts and codes that were not in memory.
    missed: [usize; 2],
}

/// Slots of the parent's state, in the order of the list: for each account the changed ones first.
pub struct ParentSlots {
    pub slots: Vec<U256>,
    /// Number of slots that were not in memory.
    missed: usize,
}

impl ListedState {
    /// Returns the accounts of the parent's state. The first call reads them, and from then on reads of
    /// the block find them by their places. `None` if they cannot be read.
    pub fn read_accounts(&self, state: &dyn ParentState) -> Option<&ParentAccounts> {
        let read = || logged(ParentAccounts::read(self, state));
        self.parent.accounts.get_or_init(read).as_ref()
    }

    /// Same as [`Self::read_accounts`], for slots. Reads the accounts first.
    pub fn read_slots(&self, state: &dyn ParentState) -> Option<&ParentSlots> {
        let accounts = self.read_accounts(state)?;
        let read = || logged(ParentSlots::read(self, &accounts.accounts, state));
        self.parent.slots.get_or_init(read).as_ref()
    }

    /// Returns the numbers of accounts, slots and codes that were read because memory lacked them.
    pub fn missed(&self) -> [usize; 3] {
        let accounts = self.parent.accounts.get().and_then(Option::as_ref);
        let slots = self.parent.slots.get().and_then(Option::as_ref);
        let [accounts, codes] = accounts.map_or([0; 2], |accounts| accounts.missed);
        [accounts, slots.map_or(0, |slots| slots.missed), codes]
    }

    /// Returns the number of accounts and slots.
    pub fn key_count(&self) -> usize {
        self.order.len() + self.slots
    }

    /// Takes accounts of the parent's state that were sent. They must be as many as the list names.
    /// Returns whether they are.
    pub fn set_accounts(&self, accounts: Vec<Option<Account>>) -> bool {
        let fits = accounts.len() == self.order.len();
        let accounts = ParentAccounts { accounts, codes: Vec::new(), missed: [0; 2] };
        fits && self.parent.accounts.set(Some(accounts)).is_ok()
    }

    /// Same as [`Self::set_accounts`], for slots.
    pub fn set_slots(&self, slots: Vec<U256>) -> bool {
        let fits = slots.len() == self.slots;
        let slots = Some(ParentSlots { slots, missed: 0 });
        fits && self.parent.slots.set(slots).is_ok()
    }

    /// Lets nothing wait for slots any more.
    pub fn give_up_slots(&self) {
        self.parent.slots.set(None).ok();
    }

    /// Returns an account of the parent's state, if the accounts were read.
    pub fn parent_account(&self, listed: &ListedAccount) -> Option<Option<Account>> {
        self.parent.accounts.get()?.as_ref()?.accounts.get(listed.place).copied()
    }

    /// Returns the value of the slot at a place of an account in the parent's state, if the slots were read.
    pub(super) fn parent_slot_at(&self, listed: &ListedAccount, place: usize) -> Option<U256> {
        let read = self.parent.slots.get()?.as_ref()?;
        // The slots of the next account follow.
        let place = Some(place).filter(|place| *place < listed.slot_count())?;
        read.slots.get(listed.first_slot + place).copied()
    }

    /// Returns `keccak256(slot)` and the value of a slot in the parent's state, if the slots were read
    /// and the list names the slot. Waits for slots that are sent.
    pub fn parent_slot(&self, listed: &ListedAccount, slot: &U256) -> Option<(B256, U256)> {
        let slots = &self.parent.slots;
        let read = match slots.get() {
            None if self.parent.is_sent => waiting("wait.values_ns", || slots.wait()),
            read => read?,
        };
        let place = listed.slot_place(slot)?;
        let (_, hash) = listed.slot_at(place)?;
        Some((hash, *read.as_ref()?.slots.get(listed.first_slot + place)?))
    }
}

fn logged<T>(read: Result<T, Error>) -> Option<T> {
    read.inspect_err(|error| debug!(%error, "the values of a list cannot be read")).ok()
}

impl ParentAccounts {
    fn read(listed: &ListedState, state: &dyn ParentState) -> Result<Self, Error> {
        let mut accounts = vec![None; listed.order.len()];
        let keys = listed.in_order().map(|at| StateKey::Account(at.hash));
        let missed = read_each(state, keys.enumerate(), PIECE, |place, value| {
            if let StateValue::Account(account) = value {
                accounts[place] = account;
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
        Ok(Self { accounts, codes, missed: [missed, missed_codes] })
    }
}

impl ParentSlots {
    fn read(
        listed: &ListedState,
        accounts: &[Option<Account>],
        state: &dyn ParentState,
    ) -> Result<Self, Error> {
        let mut slots = vec![U256::ZERO; listed.slots];
        // An account that is not there has no slots.
        let there = listed.in_order().zip(accounts).filter(|(_, account)| account.is_some());
        let keys = there.flat_map(|(at, _)| {
            let keys = at.slot_hashes().map(|slot| StateKey::Slot(at.hash, slot));
            (at.first_slot..).zip(keys)
        });
        let missed = read_each(state, keys, PIECE, |place, value| {
            if let StateValue::Slot(value) = value {
                slots[place] = value;
            }
        })?;
        Ok(Self { slots, missed })
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
        ListedState::of(&AccessList::decode(listed_rlp()).unwrap()).unwrap()
    }

    fn listed_rlp() -> Bytes {
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
        rlp.into()
    }

    #[test]
    fn values_are_read_once_and_found_by_their_places() {
        let (state, listed) = (State::default(), listed());
        let at = |last| listed.get(&address(last)).unwrap();
        assert!(listed.parent_account(at(1)).is_none(), "not read yet");
        assert!(listed.parent_slot(at(1), &U256::from(1)).is_none());
        let slots = listed.read_slots(&state).unwrap();
        let accounts = listed.read_accounts(&state).unwrap();
        assert_eq!((accounts.accounts.len(), slots.slots.len()), (3, 6 + 1 + 2 + 3));
        assert_eq!(accounts.codes, [(keccak256(&CODE), CODE)], "each code once");
        listed.read_slots(&state).unwrap();
        assert_eq!((listed.missed(), state.calls()), ([2, 3 + 5, 1], 3), "a call for each kind");
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
        assert!(listed.read_accounts(&state).is_none());
        assert!(listed.read_slots(&state).is_none());
        let account = listed.get(&address(1)).unwrap();
        assert!(listed.parent_account(account).is_none());
        assert!(listed.parent_slot(account, &U256::from(1)).is_none());
    }

    #[test]
    fn slots_that_are_sent_are_waited_for() {
        let rlp = listed_rlp();
        let sent = || ListedState::without_hashes(&rlp).unwrap();
        let read = |listed: &ListedState| {
            let account = listed.get(&address(2)).unwrap();
            listed.parent_slot(account, &U256::from(9)).map(|(_, value)| value)
        };
        let listed = sent();
        assert!(!listed.set_accounts(vec![None; 2]), "too few");
        assert!(listed.set_accounts(vec![None; 3]));
        assert!(!listed.set_slots(vec![U256::ZERO; 11]), "too few");
        let slots: Vec<_> = (0..12).map(U256::from).collect();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&listed));
            assert!(listed.set_slots(slots));
            // After those of account 1 and slot 1.
            assert_eq!(reading.join().unwrap(), Some(U256::from(4)));
        });
        let listed = sent();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&listed));
            listed.give_up_slots();
            assert_eq!(reading.join().unwrap(), None);
        });
    }
}
