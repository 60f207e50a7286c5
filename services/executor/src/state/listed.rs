//! Values that a block's access list names (EIP-7928), by the position of the writer.
//!
//! The list is a claim. A transaction that is executed on it gives the right result only if the list
//! is right. So each result is compared with what the list has at its position ([`agreement`]). Where
//! that cannot show that the list is right, the values that went into a result are compared with the
//! block's own state before the result is committed ([`crate::state::BlockState::holds`]), and the
//! whole list is compared with that of the execution at the end.

pub mod agreement;
mod loaded;
mod parent;

pub use parent::{CODES_MAX, ListedParent, ParentAccounts, ParentSlots};

use crate::state::{code::analyze, published::Position};
use alloy_eips::eip7928::{AccountChanges, BlockAccessIndex};
use alloy_primitives::map::{AddressMap, B256Map, U256Map};
use alloy_rlp::Decodable as _;
use revm::state::Bytecode;
use std::iter;
use tandem_chain::AccessList;
use tandem_primitives::{
    Account, AccountUpdate, Address, B256, Bytes, EMPTY_CODE_HASH, SlotUpdate, U256, keccak256,
};
use tandem_trie::HashBatch;

/// Maximum number of an account's slots that are found by a search. A map finds more of them sooner.
const SEARCHED_MAX: usize = 16;

/// Values of one block's list.
#[derive(Default)]
pub struct ListedState {
    accounts: AddressMap<ListedAccount>,
    /// Addresses in the order of the list.
    order: Vec<Address>,
    codes: B256Map<Bytecode>,
    /// Number of changes: of balances, nonces, codes and slots, by each writer.
    changes: usize,
    /// Number of slots that are only read.
    reads: usize,
    /// Number of all slots.
    slots: usize,
    /// Values of the parent's state.
    parent: ListedParent,
}

/// Values of one account.
pub struct ListedAccount {
    /// `keccak256(address)`.
    pub hash: B256,
    /// Place of the account in the list.
    pub place: usize,
    balances: Values<U256>,
    nonces: Values<u64>,
    code_hashes: Values<B256>,
    /// Place of its first slot among all slots of the list.
    first_slot: usize,
    /// Changed slots, ascending.
    changed: Vec<(U256, ListedSlot)>,
    /// Place of the first of the slots that are only read, among all such slots of the list.
    first_read: usize,
    /// `keccak256(slot)` of slots that are only read, ascending by slot.
    read: Vec<(U256, B256)>,
    /// Places of the slots among those of the account, changed ones first. Empty up to [`SEARCHED_MAX`].
    places: U256Map<u32>,
}

/// Values of a changed slot.
struct ListedSlot {
    /// `keccak256(slot)`.
    hash: B256,
    values: Values<U256>,
}

/// Values by the position of the writer, ascending.
struct Values<T>(Vec<(Position, T)>);

impl<T: Copy> Values<T> {
    fn new(values: impl Iterator<Item = (BlockAccessIndex, T)>) -> Self {
        // The form of the list is checked before, so an index is not above the number of
        // transactions and one.
        let position = |index: BlockAccessIndex| Position::try_from(index.get()).ok();
        Self(values.map_while(|(index, value)| Some((position(index)?, value))).collect())
    }

    /// Returns the value that writers before this position leave, or `None` if there is none.
    fn before(&self, position: Position) -> Option<T> {
        let count = self.0.partition_point(|(at, _)| *at < position);
        Some(self.0[count.checked_sub(1)?].1)
    }

    /// Returns the value that the writer at this position leaves, or `None` if it leaves none.
    fn at(&self, position: Position) -> Option<T> {
        let at = self.0.binary_search_by_key(&position, |(at, _)| *at).ok()?;
        Some(self.0[at].1)
    }

    fn last(&self) -> Option<T> {
        self.0.last().map(|(_, value)| *value)
    }
}

/// Decodes the accounts of a list from its RLP.
fn entries(mut rlp: &[u8]) -> Option<Vec<AccountChanges>> {
    Vec::decode(&mut rlp).ok().filter(|_| rlp.is_empty())
}

/// Returns each address with its slots, changed ones first. Gas limits their number.
fn keys(entries: &[AccountChanges]) -> HashBatch {
    let mut keys = HashBatch::default();
    for entry in entries {
        keys.push(entry.address.as_slice());
        let changed = entry.storage_changes.iter().map(|slot| slot.slot);
        let slots = changed.chain(entry.storage_reads.iter().copied());
        slots.for_each(|slot| keys.push(&slot.to_be_bytes::<32>()));
    }
    keys
}

impl ListedState {
    /// Takes the values from a list whose form was checked. Returns `None` if it does not decode.
    pub fn of(list: &AccessList) -> Option<Self> {
        let entries = entries(list.rlp())?;
        let mut keys = keys(&entries);
        Some(Self::with_hashes(entries, keys.hash().iter().copied()))
    }

    /// Takes the values as [`Self::of`] does from the RLP of a list, but leaves out the hashes of addresses
    /// and slots. Only values of the parent's state that are set by their places can be read then. Values of
    /// a list whose form nobody checked may not be found.
    pub fn without_hashes(rlp: &[u8]) -> Option<Self> {
        let mut listed = Self::with_hashes(entries(rlp)?, iter::repeat(B256::ZERO));
        listed.parent.is_sent = true;
        Some(listed)
    }

    /// `hashes` are those of [`keys`].
    fn with_hashes(entries: Vec<AccountChanges>, mut hashes: impl Iterator<Item = B256>) -> Self {
        let mut listed = Self::default();
        listed.accounts.reserve(entries.len());
        for entry in entries {
            let address = entry.address;
            let account = listed.account_of(&mut hashes, entry);
            listed.order.push(address);
            listed.changes += account.change_count();
            listed.reads += account.read.len();
            listed.slots += account.slot_count();
            listed.accounts.insert(address, account);
        }
        listed
    }

    fn account_of(
        &mut self,
        hashes: &mut impl Iterator<Item = B256>,
        entry: AccountChanges,
    ) -> ListedAccount {
        let mut next_hash = || hashes.next().unwrap_or_default();
        let AccountChanges {
            storage_changes,
            storage_reads,
            balance_changes,
            nonce_changes,
            code_changes,
            ..
        } = entry;
        let hash = next_hash();
        let changed = storage_changes.into_iter().map(|slot| {
            let values = slot.changes.iter().map(|c| (c.block_access_index, c.new_value));
            (slot.slot, ListedSlot { hash: next_hash(), values: Values::new(values) })
        });
        let changed: Vec<_> = changed.collect();
        let read: Vec<_> = storage_reads.into_iter().map(|slot| (slot, next_hash())).collect();
        let code_hashes = code_changes.into_iter().map(|change| {
            let hash = self.add_code(change.new_code);
            (change.block_access_index, hash)
        });
        let code_hashes = Values::new(code_hashes);
        let mut places = U256Map::default();
        if changed.len() + read.len() > SEARCHED_MAX {
            let slots = changed.iter().map(|(slot, _)| slot);
            places.extend(slots.chain(read.iter().map(|(slot, _)| slot)).copied().zip(0..));
        }
        ListedAccount {
            hash,
            place: self.order.len(),
            first_read: self.reads,
            first_slot: self.slots,
            balances: Values::new(
                balance_changes.iter().map(|c| (c.block_access_index, c.post_balance)),
            ),
            nonces: Values::new(nonce_changes.iter().map(|c| (c.block_access_index, c.new_nonce))),
            code_hashes,
            changed,
            read,
            places,
        }
    }

    fn add_code(&mut self, code: Bytes) -> B256 {
        if code.is_empty() {
            return EMPTY_CODE_HASH;
        }
        let hash = keccak256(&code);
        self.codes.entry(hash).or_insert_with(|| analyze(code));
        hash
    }

    /// Returns the accounts of the list, in no particular order.
    pub fn accounts(&self) -> impl Iterator<Item = &ListedAccount> {
        self.accounts.values()
    }

    /// Returns the accounts in the order of the list.
    pub fn in_order(&self) -> impl Iterator<Item = &ListedAccount> {
        self.order.iter().filter_map(|address| self.accounts.get(address))
    }

    /// Returns the account at a place of the list, `None` beyond its end.
    pub fn at(&self, place: usize) -> Option<(Address, &ListedAccount)> {
        let address = self.order.get(place)?;
        Some((*address, self.accounts.get(address)?))
    }

    /// Returns the values of an account, `None` if the list does not name it.
    pub fn get(&self, address: &Address) -> Option<&ListedAccount> {
        self.accounts.get(address)
    }

    /// Returns code that the block deploys, by its hash.
    pub fn code(&self, hash: &B256) -> Option<&Bytecode> {
        self.codes.get(hash)
    }

    /// Returns all code that the block deploys, in ascending order of hashes.
    pub fn codes(&self) -> Vec<(B256, Bytes)> {
        let codes = self.codes.iter().map(|(hash, code)| (*hash, code.original_bytes()));
        let mut codes: Vec<_> = codes.collect();
        codes.sort_unstable_by_key(|(hash, _)| *hash);
        codes
    }

    /// Returns the changes of the whole block, given the accounts of the parent.
    ///
    /// # Errors
    /// The first error of `parent`.
    pub fn last_values<E>(
        &self,
        mut parent: impl FnMut(&B256) -> Result<Option<Account>, E>,
    ) -> Result<Vec<AccountUpdate>, E> {
        let mut updates = Vec::with_capacity(self.accounts.len());
        for listed in self.accounts() {
            if !listed.has_changes() {
                continue;
            }
            let before = parent(&listed.hash)?;
            let account = listed.account_before(Position::MAX, before).unwrap_or(before);
            // An account that is gone takes its storage along. One that the parent lacks as well was
            // there in between.
            let wiped = account.is_none();
            let slots = listed.changed.iter().filter(|_| !wiped);
            let slots = slots.filter_map(|(_, slot)| {
                Some(SlotUpdate { key: slot.hash, value: slot.values.last()? })
            });
            let slots = slots.collect();
            updates.push(AccountUpdate { address_hash: listed.hash, account, wiped, slots });
        }
        Ok(updates)
    }
}

impl ListedAccount {
    /// Returns whether the block changes the account or a slot of it.
    pub fn has_changes(&self) -> bool {
        self.is_changed() || !self.changed.is_empty()
    }

    fn is_changed(&self) -> bool {
        let Self { balances, nonces, code_hashes, .. } = self;
        !(balances.0.is_empty() && nonces.0.is_empty() && code_hashes.0.is_empty())
    }

    fn change_count(&self) -> usize {
        let Self { balances, nonces, code_hashes, changed, .. } = self;
        let slots: usize = changed.iter().map(|(_, slot)| slot.values.0.len()).sum();
        balances.0.len() + nonces.0.len() + code_hashes.0.len() + slots
    }

    /// Returns the account after the writers before `position`, given that of the parent. `None` if
    /// none of them changed it.
    pub fn account_before(
        &self,
        position: Position,
        parent: Option<Account>,
    ) -> Option<Option<Account>> {
        let balance = self.balances.before(position);
        let nonce = self.nonces.before(position);
        let code_hash = self.code_hashes.before(position);
        if balance.is_none() && nonce.is_none() && code_hash.is_none() {
            return None;
        }
        let Account { nonce: old_nonce, balance: old_balance, code_hash: old_code_hash } =
            parent.unwrap_or_default();
        let account = Account {
            nonce: nonce.unwrap_or(old_nonce),
            balance: balance.unwrap_or(old_balance),
            code_hash: code_hash.unwrap_or(old_code_hash),
        };
        // A changed account that is empty is gone (EIP-161).
        Some((account != Account::default()).then_some(account))
    }

    /// Returns the value that writers before `position` leave in a slot, `None` if none of them
    /// changed it.
    pub fn slot_before(&self, slot: &U256, position: Position) -> Option<U256> {
        self.changed_slot(slot)?.values.before(position)
    }

    fn changed_at(&self, slot: &U256) -> Option<usize> {
        match self.places.is_empty() {
            true => self.changed.binary_search_by(|(key, _)| key.cmp(slot)).ok(),
            false => self.slot_place(slot).filter(|place| *place < self.changed.len()),
        }
    }

    fn changed_slot(&self, slot: &U256) -> Option<&ListedSlot> {
        Some(&self.changed[self.changed_at(slot)?].1)
    }

    fn read_at(&self, slot: &U256) -> Option<usize> {
        match self.places.is_empty() {
            true => self.read.binary_search_by(|(key, _)| key.cmp(slot)).ok(),
            false => self.slot_place(slot)?.checked_sub(self.changed.len()),
        }
    }

    /// Returns `keccak256(slot)` of a slot that the list names.
    pub fn slot_hash(&self, slot: &U256) -> Option<B256> {
        Some(self.slot_at(self.slot_place(slot)?)?.1)
    }

    /// Returns the place of a slot among those of the account: changed ones come first.
    pub fn slot_place(&self, slot: &U256) -> Option<usize> {
        if !self.places.is_empty() {
            return Some(*self.places.get(slot)? as usize);
        }
        self.changed_at(slot).or_else(|| Some(self.changed.len() + self.read_at(slot)?))
    }

    /// Returns the slot at a place, with `keccak256(slot)`. `None` beyond the last one.
    pub fn slot_at(&self, place: usize) -> Option<(U256, B256)> {
        match self.changed.get(place) {
            Some((key, slot)) => Some((*key, slot.hash)),
            None => self.read.get(place - self.changed.len()).copied(),
        }
    }

    /// Returns the number of slots.
    pub fn slot_count(&self) -> usize {
        self.changed.len() + self.read.len()
    }

    /// Returns `keccak256(slot)` of all slots, changed ones first.
    pub fn slot_hashes(&self) -> impl Iterator<Item = B256> {
        let changed = self.changed.iter().map(|(_, slot)| slot.hash);
        changed.chain(self.read.iter().map(|(_, hash)| *hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_eips::eip7928::{BalanceChange, CodeChange, NonceChange, SlotChanges, StorageChange};
    use std::convert::Infallible;

    fn index(index: u64) -> BlockAccessIndex {
        BlockAccessIndex::new(index)
    }

    fn listed(entries: &[AccountChanges]) -> ListedState {
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<_, AccountChanges>(entries, &mut rlp);
        ListedState::of(&AccessList::decode(rlp.into()).unwrap()).unwrap()
    }

    pub(super) fn slot(key: u64, values: &[(u64, u64)]) -> SlotChanges {
        let change = |(at, value): &(u64, u64)| StorageChange::new(index(*at), U256::from(*value));
        SlotChanges::new(U256::from(key), values.iter().map(change).collect())
    }

    const CODE: Bytes = Bytes::from_static(&[0x5b, 0x00]);

    fn hash_of(slot: U256) -> B256 {
        keccak256(slot.to_be_bytes::<32>())
    }

    fn entry(address: u8) -> AccountChanges {
        AccountChanges {
            address: Address::repeat_byte(address),
            storage_changes: vec![slot(1, &[(1, 5), (3, 0)]), slot(9, &[(2, 7)])],
            storage_reads: vec![U256::from(2), U256::from(400)],
            balance_changes: vec![
                BalanceChange::new(index(0), U256::from(10)),
                BalanceChange::new(index(4), U256::from(20)),
            ],
            nonce_changes: vec![NonceChange::new(index(2), 3)],
            code_changes: vec![CodeChange::new(index(2), CODE)],
        }
    }

    #[test]
    fn a_transaction_sees_the_writes_before_its_position() {
        let listed = listed(&[entry(1)]);
        let account = listed.get(&Address::repeat_byte(1)).unwrap();
        let parent = Some(Account { nonce: 1, balance: U256::from(2), ..Account::default() });
        assert_eq!(account.account_before(0, parent), None, "before the first write");
        let expect = |position, nonce, balance: u64, code_hash| {
            let want = Account { nonce, balance: U256::from(balance), code_hash };
            assert_eq!(account.account_before(position, parent), Some(Some(want)), "{position}");
        };
        expect(1, 1, 10, EMPTY_CODE_HASH);
        expect(2, 1, 10, EMPTY_CODE_HASH);
        expect(3, 3, 10, keccak256(CODE));
        expect(5, 3, 20, keccak256(CODE));
        let slots = |key: u64| [0, 1, 2, 3, 4].map(|at| account.slot_before(&U256::from(key), at));
        assert_eq!(
            slots(1).map(|v| v.map(|v| v.to::<u64>())),
            [None, None, Some(5), Some(5), Some(0)]
        );
        assert_eq!(slots(2), [None; 5], "only read");
        assert_eq!(listed.code(&keccak256(CODE)).unwrap().original_bytes(), CODE);
        assert!(listed.get(&Address::repeat_byte(2)).is_none());
        for key in [1, 2, 9, 400].map(U256::from) {
            assert_eq!(account.slot_hash(&key), Some(hash_of(key)));
        }
        assert_eq!(account.slot_hash(&U256::from(3)), None);
        for (place, key) in [1, 9, 2, 400].map(U256::from).into_iter().enumerate() {
            assert_eq!(account.slot_place(&key), Some(place));
            assert_eq!(account.slot_at(place), Some((key, hash_of(key))));
        }
        assert_eq!((account.slot_place(&U256::from(3)), account.slot_at(4)), (None, None));
        assert_eq!(listed.at(0).unwrap().0, Address::repeat_byte(1));
        assert!(listed.at(1).is_none());
        assert_eq!(account.slot_hashes().count(), 4);
    }

    #[test]
    fn slots_of_an_account_with_many_are_found() {
        let keys = |from: u64| (from..).step_by(3).take(40);
        let entry = AccountChanges {
            storage_changes: keys(0).map(|key| slot(key, &[(1, key + 1)])).collect(),
            storage_reads: keys(1).map(U256::from).collect(),
            ..entry(1)
        };
        let listed = listed(&[entry]);
        let account = listed.get(&Address::repeat_byte(1)).unwrap();
        for (place, key) in keys(0).chain(keys(1)).map(U256::from).enumerate() {
            assert_eq!(account.slot_place(&key), Some(place));
            assert_eq!(account.slot_at(place), Some((key, hash_of(key))));
            assert_eq!(account.slot_hash(&key), Some(hash_of(key)));
            let is_changed = place < 40;
            assert_eq!(account.changed_at(&key), is_changed.then_some(place));
            assert_eq!(account.read_at(&key), place.checked_sub(40));
            let value = is_changed.then(|| key + U256::from(1));
            assert_eq!(account.slot_before(&key, 2), value);
        }
        for key in keys(2).map(U256::from) {
            assert_eq!((account.slot_place(&key), account.slot_hash(&key)), (None, None));
            assert_eq!(account.slot_before(&key, 2), None);
        }
    }

    #[test]
    fn last_values_are_those_of_the_whole_block() {
        let gone = AccountChanges {
            address: Address::repeat_byte(2),
            balance_changes: vec![BalanceChange::new(index(1), U256::ZERO)],
            ..AccountChanges::default()
        };
        let read = AccountChanges { address: Address::repeat_byte(3), ..AccountChanges::default() };
        let listed = listed(&[entry(1), gone, read]);
        let exists = [1, 2].map(|n| keccak256(Address::repeat_byte(n)));
        let parent = |hash: &B256| {
            let account = Account { balance: U256::from(9), ..Account::default() };
            Ok::<_, Infallible>(exists.contains(hash).then_some(account))
        };
        let mut updates = listed.last_values(parent).unwrap();
        updates.sort_by_key(|update| update.account.is_none());
        let [changed, gone] = &updates[..] else { panic!("{updates:?}") };
        let want = Account { nonce: 3, balance: U256::from(20), code_hash: keccak256(CODE) };
        assert_eq!((changed.account, changed.wiped), (Some(want), false));
        let mut slots: Vec<_> = changed.slots.iter().map(|s| (s.key, s.value)).collect();
        slots.sort_by_key(|(_, value)| *value);
        let slot = |key: u64, value: u64| (hash_of(U256::from(key)), U256::from(value));
        assert_eq!(slots, [slot(1, 0), slot(9, 7)]);
        assert_eq!((gone.account, gone.wiped, gone.slots.len()), (None, true, 0));
        let none = listed.last_values(|_| Ok::<_, Infallible>(None)).unwrap();
        assert_eq!(none.len(), 2, "an account may come and go within a block");
    }
}
