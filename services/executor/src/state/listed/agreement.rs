//! Proof that a block's access list is right (EIP-7928), result by result.
//!
//! A result that was made on the list's values *agrees* if its transaction touches only what the list
//! names, and leaves exactly what the list has at its position. If all results before a transaction
//! agree, the list's values before its position are those of the block, so its own result is right.
//! Nothing has to be committed to know that. In the end, the list is right if all of it was confirmed:
//! each change by its writer, and each account and slot by someone who touched it.
//!
//! An account that is gone after its transaction does not agree, because no list tells that.

use super::{ListedAccount, ListedState, Values};
use crate::{block::access_list::AccessListBuilder, state::published::Position};
use alloy_primitives::{Address, U256};
use revm::{
    bytecode::Bytecode,
    primitives::B256,
    state::{
        Account as EvmAccount, EvmState,
        bal::{AccountBal, BalWrites},
    },
};
use tandem_primitives::Account;

/// Parts of the list that one result confirms.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Agreement {
    /// Number of changes. Those of each position are different ones.
    changes: usize,
    /// Places of the accounts that it touches.
    accounts: Vec<u32>,
    /// Places of slots that the block only reads, among all such slots.
    reads: Vec<u32>,
}

/// Fee that a result does not include ([`crate::block::evm::Unrewarded`]).
#[derive(Clone, Copy, Debug)]
pub struct Reward {
    /// Account that gets it.
    pub beneficiary: Address,
    /// Fee in wei.
    pub amount: U256,
    /// The account before the transaction.
    pub before: Option<Account>,
}

/// Parts of the list that results have confirmed so far.
pub struct Confirmed {
    changes: usize,
    accounts: Places,
    reads: Places,
}

/// Set of places.
struct Places {
    words: Box<[u64]>,
    missing: usize,
}

impl Places {
    fn new(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)].into(), missing: count }
    }

    fn add(&mut self, place: u32) {
        let (word, bit) = (place as usize / 64, 1 << (place % 64));
        if self.words[word] & bit == 0 {
            self.words[word] |= bit;
            self.missing -= 1;
        }
    }
}

impl Confirmed {
    /// Creates the record of a list of which nothing is confirmed.
    pub fn new(listed: &ListedState) -> Self {
        let (accounts, reads) = (Places::new(listed.order.len()), Places::new(listed.reads));
        Self { changes: 0, accounts, reads }
    }

    /// Adds what a result confirms. Each position may be added once.
    pub fn add(&mut self, agreement: &Agreement) {
        self.changes += agreement.changes;
        agreement.accounts.iter().for_each(|place| self.accounts.add(*place));
        agreement.reads.iter().for_each(|place| self.reads.add(*place));
    }

    /// Returns whether all of the list is confirmed.
    pub fn is_all(&self, listed: &ListedState) -> bool {
        self.changes == listed.changes && self.accounts.missing == 0 && self.reads.missing == 0
    }
}

impl Agreement {
    /// Returns the same parts in ascending order.
    #[cfg(test)]
    pub fn sorted(mut self) -> Self {
        self.accounts.sort_unstable();
        self.reads.sort_unstable();
        self
    }

    /// Creates an agreement with nothing, with room for so many accounts.
    pub(super) fn of(accounts: usize) -> Self {
        Self { accounts: Vec::with_capacity(accounts), ..Self::default() }
    }

    /// Compares what a writer changes and what the list has of it at a position: both have the same
    /// value, or neither has one.
    fn compare<T: Copy + PartialEq>(
        &mut self,
        values: &Values<T>,
        position: Position,
        change: Option<T>,
    ) -> Option<()> {
        self.changes += usize::from(change.is_some());
        (values.at(position) == change).then_some(())
    }

    fn add_slot(
        &mut self,
        listed: &ListedAccount,
        position: Position,
        key: &U256,
        change: Option<U256>,
    ) -> Option<()> {
        self.add_slot_at(listed, position, listed.slot_place(key)?, change)
    }

    /// Compares the change of the slot at a place of an account, changed ones first.
    pub(super) fn add_slot_at(
        &mut self,
        listed: &ListedAccount,
        position: Position,
        place: usize,
        change: Option<U256>,
    ) -> Option<()> {
        if let Some((_, slot)) = listed.changed.get(place) {
            return self.compare(&slot.values, position, change);
        }
        let at = listed.first_read + (place - listed.changed.len());
        self.reads.push(u32::try_from(at).ok()?);
        change.is_none().then_some(())
    }

    /// Compares the changes of an account's balance, nonce and code.
    pub(super) fn add_info(
        &mut self,
        listed: &ListedAccount,
        position: Position,
        (balance, nonce, code): (Option<U256>, Option<u64>, Option<B256>),
    ) -> Option<()> {
        self.accounts.push(u32::try_from(listed.place).ok()?);
        self.compare(&listed.balances, position, balance)?;
        self.compare(&listed.nonces, position, nonce)?;
        self.compare(&listed.code_hashes, position, code)
    }

    fn add_account(
        &mut self,
        listed: &ListedAccount,
        position: Position,
        account: &EvmAccount,
    ) -> Option<()> {
        let (before, after) = (account.original_info(), &account.info);
        let is_gone = account.is_touched()
            && account.is_empty()
            && !(account.is_loaded_as_not_existing() && before.is_empty());
        if is_gone || account.is_selfdestructed() || account.is_selfdestructed_locally() {
            return None;
        }
        let balance = (before.balance != after.balance).then_some(after.balance);
        let nonce = (before.nonce != after.nonce).then_some(after.nonce);
        let code = (before.code_hash != after.code_hash).then_some(after.code_hash);
        self.add_info(listed, position, (balance, nonce, code))?;
        let mut has_changed = balance.is_some() || nonce.is_some() || code.is_some();
        for (key, slot) in &account.storage {
            let change = slot.is_changed().then_some(slot.present_value);
            has_changed |= change.is_some();
            self.add_slot(listed, position, key, change)?;
        }
        // A commit skips what was not touched.
        (account.is_touched() || !has_changed).then_some(())
    }

    pub(super) fn add_reward(
        &mut self,
        listed: &ListedState,
        position: Position,
        Reward { beneficiary, amount, before }: Reward,
    ) -> Option<()> {
        let account = listed.get(&beneficiary)?;
        // The fee touches the account, which deletes it if it is empty then (EIP-161).
        if amount.is_zero() && before == Some(Account::default()) {
            return None;
        }
        let balance = before.unwrap_or_default().balance.checked_add(amount)?;
        self.add_info(account, position, ((!amount.is_zero()).then_some(balance), None, None))
    }

    /// Compares the writes to one value, by their positions, with what the list has at these.
    fn add_writes<T: Clone + PartialEq, V: Copy + PartialEq>(
        &mut self,
        values: &Values<V>,
        writes: &BalWrites<T>,
        value: impl Fn(&T) -> V,
    ) -> Option<()> {
        for (index, write) in &writes.writes {
            let position = Position::try_from(index.get()).ok()?;
            self.compare(values, position, Some(value(write)))?;
        }
        Some(())
    }

    fn add_accesses(&mut self, listed: &ListedAccount, accesses: &AccountBal) -> Option<()> {
        self.accounts.push(u32::try_from(listed.place).ok()?);
        let info = &accesses.account_info;
        self.add_writes(&listed.balances, &info.balance, |balance| *balance)?;
        self.add_writes(&listed.nonces, &info.nonce, |nonce| *nonce)?;
        let code_hash = |(hash, _): &(B256, Bytecode)| *hash;
        self.add_writes(&listed.code_hashes, &info.code, code_hash)?;
        for (key, writes) in &accesses.storage.storage {
            if writes.is_empty() {
                // Read by the system; others may have changed it.
                if listed.changed_at(key).is_none() {
                    self.add_slot(listed, Position::MAX, key, None)?;
                }
                continue;
            }
            self.add_writes(&listed.changed_slot(key)?.values, writes, |value| *value)?;
        }
        Some(())
    }
}

impl ListedState {
    /// Compares a result at a position, made on the values of the list, with what the list has there.
    /// `None` if it differs.
    pub fn agreement(
        &self,
        position: Position,
        state: &EvmState,
        reward: Option<Reward>,
    ) -> Option<Agreement> {
        let mut agreement = Agreement::of(state.len() + 1);
        for (address, account) in state {
            agreement.add_account(self.get(address)?, position, account)?;
        }
        if let Some(reward) = reward {
            agreement.add_reward(self, position, reward)?;
        }
        Some(agreement)
    }

    /// Compares accesses with what the list has at their positions. `None` if they differ.
    pub fn agreement_with(&self, accesses: &AccessListBuilder) -> Option<Agreement> {
        let mut agreement = Agreement::default();
        for (address, accesses) in accesses.accounts() {
            agreement.add_accesses(self.get(address)?, accesses)?;
        }
        Some(agreement)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use alloy_primitives::map::AddressMap;
    use proptest::prelude::*;
    use revm::state::{AccountInfo, EvmStorageSlot, TransactionId};
    use std::collections::BTreeMap;
    use tandem_chain::AccessList;

    const BENEFICIARY: Address = Address::repeat_byte(9);

    /// Values of an account: balance, nonce, and three slots.
    pub type Values = (u64, u64, [u64; 3]);
    /// Accounts that a transaction loads, with the values that it leaves, and which slots it loads.
    pub type Transaction = BTreeMap<u8, (Values, [bool; 3])>;

    pub fn address(n: u8) -> Address {
        Address::repeat_byte(n + 1)
    }

    /// Returns what a transaction loads and changes, and makes the changes.
    pub fn execute(state: &mut BTreeMap<u8, Values>, transaction: &Transaction) -> EvmState {
        let loaded = |(n, (after, loads)): (&u8, &(Values, [bool; 3]))| {
            let before = state.entry(*n).or_insert((5, 1, [0, 7, 0]));
            let balance = U256::from(before.0);
            let mut account =
                EvmAccount::from(AccountInfo { balance, nonce: before.1, ..Default::default() });
            (account.info.balance, account.info.nonce) = (U256::from(after.0), after.1);
            account.mark_touch();
            for slot in (0..3).filter(|slot| loads[*slot]) {
                let [was, is] = [before.2[slot], after.2[slot]].map(U256::from);
                let value = EvmStorageSlot::new_changed(was, is, TransactionId::ZERO);
                account.storage.insert(U256::from(slot), value);
                before.2[slot] = after.2[slot];
            }
            (before.0, before.1) = (after.0, after.1);
            (address(*n), account)
        };
        AddressMap::from_iter(transaction.iter().map(loaded))
    }

    fn list(states: &[EvmState]) -> AccessList {
        let mut builder = AccessListBuilder::default();
        for (index, state) in states.iter().enumerate() {
            builder.set_index(index as u64 + 1);
            builder.add(state);
        }
        builder.finish().unwrap()
    }

    pub fn listed(states: &[EvmState]) -> ListedState {
        ListedState::of(&list(states)).unwrap()
    }

    pub fn transaction() -> impl Strategy<Value = Transaction> {
        let account = ((1..4_u64, 1..3_u64, [0..3_u64, 0..3, 0..3]), any::<[bool; 3]>());
        prop::collection::btree_map(0..4_u8, account, 1..4)
    }

    proptest! {
        /// The list of random transactions, made by revm, is the one with which they agree.
        #[test]
        fn transactions_agree_with_their_list_and_no_other(
            transactions in prop::collection::vec(transaction(), 1..8),
            left_out in any::<prop::sample::Index>(),
        ) {
            let mut state = BTreeMap::new();
            let states: Vec<_> = transactions.iter().map(|t| execute(&mut state, t)).collect();
            let right = listed(&states);
            let agreement = |list: &ListedState, index: usize| {
                list.agreement(index as Position + 1, &states[index], None)
            };
            let mut confirmed = Confirmed::new(&right);
            for index in 0..states.len() {
                prop_assert!(!confirmed.is_all(&right) || agreement(&right, index).unwrap().changes == 0);
                confirmed.add(&agreement(&right, index).unwrap());
            }
            prop_assert!(confirmed.is_all(&right));

            // The list of all but one, and of others in its place.
            let left_out = left_out.index(states.len());
            let mut others = states.clone();
            others[left_out] = EvmState::default();
            let (other, same) = (listed(&others), list(&others) == list(&states));
            let mut confirmed = Confirmed::new(&other);
            let all = (0..states.len()).all(|index| {
                agreement(&other, index).map(|agreement| confirmed.add(&agreement)).is_some()
            });
            prop_assert_eq!(all && confirmed.is_all(&other), same);
        }
    }

    #[test]
    fn an_account_that_is_gone_does_not_agree() {
        let mut empty = EvmAccount::from(AccountInfo::default());
        empty.mark_touch();
        let state = |account: &EvmAccount| AddressMap::from_iter([(address(0), account.clone())]);
        let listed = listed(&[state(&empty)]);
        assert!(listed.agreement(1, &state(&empty), None).is_none(), "it was there");
        let mut absent = EvmAccount::new_not_existing(TransactionId::ZERO);
        absent.mark_touch();
        assert!(listed.agreement(1, &state(&absent), None).is_some());
        absent.mark_selfdestructed_locally();
        assert!(listed.agreement(1, &state(&absent), None).is_none());
    }

    #[test]
    fn the_fee_of_the_beneficiary_is_a_change_of_its_balance() {
        let before = Some(Account { balance: U256::from(10), ..Account::default() });
        let mut rewarded = EvmAccount::from(AccountInfo::from_balance(U256::from(10)));
        rewarded.info.balance = U256::from(13);
        rewarded.mark_touch();
        let listed = listed(&[AddressMap::from_iter([(BENEFICIARY, rewarded)])]);
        let fee = |amount: u64, before| {
            let reward = Reward { beneficiary: BENEFICIARY, amount: U256::from(amount), before };
            listed.agreement(1, &EvmState::default(), Some(reward))
        };
        assert_eq!(fee(3, before).map(|agreement| agreement.changes), Some(1));
        assert!(fee(2, before).is_none() && fee(0, before).is_none() && fee(3, None).is_none());
        assert!(listed.agreement(1, &EvmState::default(), None).is_some(), "nothing is confirmed");
    }
}
