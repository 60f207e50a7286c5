//! Results of other machines, compared with the list by the places that they name.
//!
//! This is [`ListedState::agreement`] without the EVM's form of a result and without a search for any
//! key. It decides nothing of its own: what it cannot tell, such as the creation of an account, and what
//! differs, is for that function.

use super::{
    ListedAccount, ListedState,
    agreement::{Agreement, Reward},
};
use crate::state::published::Position;
use revm::state::AccountStatus;
use tandem_primitives::Account;
use tandem_proto::tx_executor::{LoadedAccount, LoadedSlot};

impl ListedState {
    /// Compares what a transaction at a position loads and leaves with what the list has there. `None` if
    /// it differs, if the parent's values were not read, and if the transaction creates or deletes an
    /// account or changes a code.
    pub fn agreement_of_loaded(
        &self,
        position: Position,
        accounts: &[LoadedAccount],
        reward: Option<Reward>,
    ) -> Option<Agreement> {
        let mut agreement = Agreement::of(accounts.len() + 1);
        for loaded in accounts {
            let (_, listed) = self.at(loaded.place as usize)?;
            self.add_loaded(&mut agreement, listed, position, loaded)?;
        }
        if let Some(reward) = reward {
            agreement.add_reward(self, position, reward)?;
        }
        Some(agreement)
    }

    /// Returns an account as a transaction at a position begins with it. `None` if the parent's accounts were
    /// not read.
    pub fn begin_account(
        &self,
        listed: &ListedAccount,
        position: Position,
    ) -> Option<Option<Account>> {
        let parent = self.parent_account(listed)?;
        Some(listed.account_before(position, parent).unwrap_or(parent))
    }

    fn add_loaded(
        &self,
        agreement: &mut Agreement,
        listed: &ListedAccount,
        position: Position,
        loaded: &LoadedAccount,
    ) -> Option<()> {
        let status = AccountStatus::from_bits(loaded.status)?;
        let is_touched = status.contains(AccountStatus::Touched);
        let usual = AccountStatus::Touched | AccountStatus::LoadedAsNotExisting;
        if !usual.contains(status) || loaded.code.is_some() {
            return None;
        }
        let there = self.begin_account(listed, position)?;
        let before = there.unwrap_or_default();
        let (nonce, balance) = loaded.changed.unwrap_or((before.nonce, before.balance));
        let after = Account { nonce, balance, ..before };
        // A touched account that is empty is deleted, unless it was not there (EIP-161).
        if is_touched && after == Account::default() && there.is_some() {
            return None;
        }
        let balance = (before.balance != after.balance).then_some(after.balance);
        let nonce = (before.nonce != after.nonce).then_some(after.nonce);
        agreement.add_info(listed, position, (balance, nonce, None))?;
        let mut has_changed = balance.is_some() || nonce.is_some();
        for slot in &loaded.slots {
            has_changed |= self.add_loaded_slot(agreement, listed, position, slot)?;
        }
        // A commit skips what was not touched.
        (is_touched || !has_changed).then_some(())
    }

    /// Returns whether the transaction changes the slot.
    fn add_loaded_slot(
        &self,
        agreement: &mut Agreement,
        listed: &ListedAccount,
        position: Position,
        LoadedSlot { place, changed }: &LoadedSlot,
    ) -> Option<bool> {
        let place = *place as usize;
        let written = match listed.changed.get(place) {
            Some((_, slot)) => slot.values.before(position),
            None => None,
        };
        let before = match written {
            Some(value) => value,
            None => self.parent_slot_at(listed, place)?,
        };
        let change = changed.filter(|value| *value != before);
        agreement.add_slot_at(listed, position, place, change)?;
        Some(change.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machines::loaded, state::listed::agreement::tests::*};
    use alloy_primitives::{U256, map::AddressMap};
    use proptest::prelude::*;
    use revm::state::{Account as EvmAccount, AccountInfo, EvmState};
    use std::{cell::Cell, collections::BTreeMap};

    /// Sets the parent's values that [`execute`] begins with.
    fn set_parent(list: &ListedState) {
        let account = Account { nonce: 1, balance: U256::from(5), ..Account::default() };
        assert!(list.set_accounts(vec![Some(account); list.order.len()]));
        let slot = |at: &ListedAccount, place| {
            let (key, _) = at.slot_at(place).unwrap();
            [0, 7, 0].map(U256::from)[key.to::<usize>()]
        };
        let slots = list.in_order().flat_map(|at| (0..at.slot_count()).map(move |n| slot(at, n)));
        assert!(list.set_slots(slots.collect()));
    }

    fn loaded_of(list: &ListedState, state: &EvmState) -> Option<Vec<LoadedAccount>> {
        state.iter().map(|(address, account)| loaded(list.get(address)?, account)).collect()
    }

    /// Returns whether the values before a transaction are those of the list, not those that it began with.
    fn has_begun_so(list: &ListedState, position: Position, state: &EvmState) -> bool {
        state.iter().all(|(address, account)| {
            let at = list.get(address).unwrap();
            let before = list.begin_account(at, position).unwrap().unwrap();
            let original = account.original_info();
            let is_same = (before.nonce, before.balance) == (original.nonce, original.balance);
            is_same
                && account.storage.iter().all(|(key, slot)| {
                    let parent = list.parent_slot(at, key).map(|(_, value)| value);
                    at.slot_before(key, position).or(parent) == Some(slot.original_value)
                })
        })
    }

    /// A result agrees by its places if and only if it does in the EVM's form, with the same parts.
    #[test]
    fn places_tell_what_the_result_itself_tells() {
        let compared = Cell::new([0; 2]);
        let transactions = prop::collection::vec(transaction(), 1..8);
        proptest!(|(
            transactions in transactions,
            left_out in any::<prop::sample::Index>(),
            is_touched in any::<bool>(),
        )| {
            let mut state = BTreeMap::new();
            let mut states: Vec<_> = transactions.iter().map(|t| execute(&mut state, t)).collect();
            // The list of all, or of all but one.
            let mut others = states.clone();
            others[left_out.index(states.len())] = EvmState::default();
            let lists = [listed(&states), listed(&others)];
            if !is_touched {
                states.iter_mut().flat_map(EvmState::values_mut).for_each(EvmAccount::unmark_touch);
            }
            for list in lists {
                set_parent(&list);
                for (position, state) in (1..).zip(&states) {
                    let Some(loaded) = loaded_of(&list, state) else { continue };
                    if !has_begun_so(&list, position, state) {
                        continue;
                    }
                    let itself = list.agreement(position, state, None);
                    let [yes, no] = compared.get();
                    compared.set(if itself.is_some() { [yes + 1, no] } else { [yes, no + 1] });
                    let by_places = list.agreement_of_loaded(position, &loaded, None);
                    let [by_places, itself] = [by_places, itself].map(|it| it.map(Agreement::sorted));
                    prop_assert_eq!(by_places, itself);
                }
            }
        });
        assert!(compared.get().iter().all(|count| *count > 100), "{:?}", compared.get());
    }

    /// Returns list and result of a transaction that leaves such an account of balance 5 and nonce 1.
    fn left(change: impl Fn(&mut EvmAccount)) -> (ListedState, Vec<LoadedAccount>) {
        let mut account = EvmAccount::from(AccountInfo {
            balance: U256::from(5),
            nonce: 1,
            ..AccountInfo::default()
        });
        account.mark_touch();
        change(&mut account);
        let state = AddressMap::from_iter([(address(0), account)]);
        let list = listed(std::slice::from_ref(&state));
        set_parent(&list);
        let loaded = loaded_of(&list, &state).unwrap();
        (list, loaded)
    }

    #[test]
    fn what_is_rare_is_left_to_the_result_itself() {
        let agrees = |change: fn(&mut EvmAccount)| {
            let (list, loaded) = left(change);
            list.agreement_of_loaded(1, &loaded, None).is_some()
        };
        assert!(agrees(|account| account.info.balance = U256::from(6)));
        assert!(!agrees(|account| account.mark_created()), "created");
        assert!(!agrees(|account| account.mark_selfdestruct()), "destroyed");
        assert!(!agrees(|account| account.info = AccountInfo::default()), "gone");
    }

    #[test]
    fn places_beyond_the_list_and_values_that_were_not_read_agree_with_nothing() {
        let (list, loaded) = left(|account| account.info.balance = U256::from(6));
        assert!(list.agreement_of_loaded(1, &loaded, None).is_some());
        let mut beyond = loaded.clone();
        beyond[0].place = 1;
        assert!(list.agreement_of_loaded(1, &beyond, None).is_none(), "an account");
        let mut beyond = loaded.clone();
        beyond[0].slots.push(LoadedSlot { place: 0, changed: None });
        assert!(list.agreement_of_loaded(1, &beyond, None).is_none(), "a slot");
        let unread = listed(&[AddressMap::from_iter([(address(0), EvmAccount::default())])]);
        assert!(unread.agreement_of_loaded(1, &loaded, None).is_none());
    }
}
