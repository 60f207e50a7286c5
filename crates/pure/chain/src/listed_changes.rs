//! Changes of a block as its access list gives them (EIP-7928): the last value of each account and
//! slot. A copy of the state needs nothing else.

use crate::BlockError;
use alloy_eips::eip7928::AccountChanges;
use alloy_primitives::{B256, Bytes, U256, keccak256};
use alloy_rlp::Decodable;
use tandem_primitives::{Account, AccountUpdate, EMPTY_CODE_HASH, SlotUpdate, StateDiff};

/// Last values that a block's access list gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListedChanges {
    /// Changed accounts, ascending by hashed address.
    accounts: Vec<ListedAccount>,
    /// Deployed codes with their hashes.
    codes: Vec<(B256, Bytes)>,
}

/// Last values of one account.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ListedAccount {
    address_hash: B256,
    balance: Option<U256>,
    nonce: Option<u64>,
    code_hash: Option<B256>,
    /// Changed slots, ascending by hashed slot.
    slots: Vec<SlotUpdate>,
}

impl ListedChanges {
    /// Takes the last values from the RLP of a list. Whether the list is that of a block is the
    /// caller's to check.
    ///
    /// # Errors
    /// [`BlockError::AccessListEncoding`].
    pub fn decode(rlp: &[u8]) -> Result<Self, BlockError> {
        let mut rest = rlp;
        let entries = Vec::<AccountChanges>::decode(&mut rest)
            .map_err(|reason| BlockError::AccessListEncoding { reason })?;
        if !rest.is_empty() {
            let reason = alloy_rlp::Error::UnexpectedLength;
            return Err(BlockError::AccessListEncoding { reason });
        }
        let mut changes = Self::default();
        for entry in entries {
            let account = changes.account_of(entry);
            let ListedAccount { balance, nonce, code_hash, slots, .. } = &account;
            let changed = balance.is_some() || nonce.is_some() || code_hash.is_some();
            if changed || !slots.is_empty() {
                changes.accounts.push(account);
            }
        }
        changes.accounts.sort_unstable_by_key(|account| account.address_hash);
        Ok(changes)
    }

    fn account_of(&mut self, entry: AccountChanges) -> ListedAccount {
        let slots = entry.storage_changes.iter().filter_map(|slot| {
            let key = keccak256(slot.slot.to_be_bytes::<32>());
            Some(SlotUpdate { key, value: slot.changes.last()?.new_value })
        });
        let mut slots: Vec<_> = slots.collect();
        slots.sort_unstable_by_key(|slot| slot.key);
        let code_hash = entry.code_changes.into_iter().next_back().map(|change| {
            if change.new_code.is_empty() {
                return EMPTY_CODE_HASH;
            }
            let hash = keccak256(&change.new_code);
            self.codes.push((hash, change.new_code));
            hash
        });
        ListedAccount {
            address_hash: keccak256(entry.address),
            balance: entry.balance_changes.last().map(|change| change.post_balance),
            nonce: entry.nonce_changes.last().map(|change| change.new_nonce),
            code_hash,
            slots,
        }
    }

    /// Returns the hashed addresses of the changed accounts, ascending.
    pub fn address_hashes(&self) -> impl ExactSizeIterator<Item = B256> {
        self.accounts.iter().map(|account| account.address_hash)
    }

    /// Returns the changes, given the accounts of the parent in the order of
    /// [`Self::address_hashes`]. An account that is missing there did not exist.
    pub fn into_diff(self, parents: &[Option<Account>]) -> StateDiff {
        let mut accounts = Vec::with_capacity(self.accounts.len());
        for (index, listed) in self.accounts.into_iter().enumerate() {
            let ListedAccount { address_hash, balance, nonce, code_hash, slots } = listed;
            let before = parents.get(index).copied().flatten();
            let old = before.unwrap_or_default();
            let account = Account {
                nonce: nonce.unwrap_or(old.nonce),
                balance: balance.unwrap_or(old.balance),
                code_hash: code_hash.unwrap_or(old.code_hash),
            };
            // A changed account that is empty is gone (EIP-161), and its storage with it.
            let account = (account != Account::default()).then_some(account);
            let wiped = account.is_none();
            let slots = if wiped { Vec::new() } else { slots };
            accounts.push(AccountUpdate { address_hash, account, wiped, slots });
        }
        StateDiff { accounts, codes: self.codes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_eips::eip7928::{
        BalanceChange, BlockAccessIndex, CodeChange, NonceChange, SlotChanges, StorageChange,
    };
    use alloy_primitives::Address;

    fn at(index: u64) -> BlockAccessIndex {
        BlockAccessIndex::new(index)
    }

    fn decoded(entries: &[AccountChanges]) -> ListedChanges {
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<_, AccountChanges>(entries, &mut rlp);
        ListedChanges::decode(&rlp).unwrap()
    }

    #[test]
    fn the_last_value_of_each_key_counts_and_reads_do_not() {
        let code = Bytes::from_static(&[0x5b]);
        let changed = AccountChanges {
            address: Address::repeat_byte(1),
            storage_changes: vec![SlotChanges::new(
                U256::from(7),
                vec![
                    StorageChange::new(at(1), U256::from(5)),
                    StorageChange::new(at(3), U256::ZERO),
                ],
            )],
            storage_reads: vec![U256::from(9)],
            balance_changes: vec![
                BalanceChange::new(at(1), U256::from(3)),
                BalanceChange::new(at(2), U256::from(4)),
            ],
            nonce_changes: vec![NonceChange::new(at(1), 6)],
            code_changes: vec![CodeChange::new(at(2), code.clone())],
        };
        let read = AccountChanges {
            address: Address::repeat_byte(2),
            storage_reads: vec![U256::from(1)],
            ..AccountChanges::default()
        };
        let gone = AccountChanges {
            address: Address::repeat_byte(3),
            balance_changes: vec![BalanceChange::new(at(4), U256::ZERO)],
            ..AccountChanges::default()
        };
        let changes = decoded(&[changed, read, gone]);
        let hashes: Vec<B256> = changes.address_hashes().collect();
        let hash = |byte| keccak256(Address::repeat_byte(byte));
        assert!(hashes.is_sorted());
        assert_eq!(hashes.len(), 2, "an account that is only read does not change");
        let rich = Account { balance: U256::from(99), ..Account::default() };
        let parents: Vec<_> =
            hashes.iter().map(|address| (*address == hash(3)).then_some(rich)).collect();
        let diff = changes.into_diff(&parents);
        let of = |byte| diff.accounts.iter().find(|it| it.address_hash == hash(byte)).unwrap();
        let code_hash = keccak256(&code);
        let account = Account { nonce: 6, balance: U256::from(4), code_hash };
        assert_eq!(of(1).account, Some(account));
        let slot =
            SlotUpdate { key: keccak256(U256::from(7).to_be_bytes::<32>()), value: U256::ZERO };
        assert_eq!((of(1).wiped, of(1).slots.clone()), (false, vec![slot]));
        assert_eq!((of(3).account, of(3).wiped), (None, true));
        assert_eq!(diff.codes, [(code_hash, code)]);
    }

    #[test]
    fn a_list_that_goes_on_is_refused() {
        assert!(ListedChanges::decode(&[0xc0, 0xc0]).is_err());
        assert!(ListedChanges::decode(&[0xc1]).is_err());
        assert_eq!(ListedChanges::decode(&[0xc0]).unwrap(), ListedChanges::default());
    }
}
