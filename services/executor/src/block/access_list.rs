//! Block-level access list of a block that is executed (EIP-7928): every account and slot that it
//! touches, and every value that it leaves, by the position of the writer.
//!
//! The list is made from the EVM's own results, as each is committed. A result has all accounts and
//! slots that its transaction loaded, those of reverted calls too.

use alloy_primitives::{Address, Bytes};
use revm::state::{
    EvmState,
    bal::{AccountBal, Bal, BlockAccessIndex, alloy::AlloyAccountChanges},
};
use tandem_chain::{AccessList, BlockError};

/// Accesses of a block so far.
#[derive(Debug, Default)]
pub struct AccessListBuilder {
    list: Bal,
    index: BlockAccessIndex,
}

impl AccessListBuilder {
    /// Sets the position of the next accesses: 0 before the transactions, `n + 1` for transaction
    /// `n`, and the number of transactions and one after them.
    pub fn set_index(&mut self, index: u64) {
        self.index = BlockAccessIndex::new(index);
    }

    /// Adds all that one commit loaded and changed.
    pub fn add(&mut self, changes: &EvmState) {
        for (address, account) in changes {
            self.list.update_account(self.index, *address, account);
        }
    }

    /// Adds an account that is accessed and stays the same.
    pub fn add_account(&mut self, address: Address) {
        self.list.accounts.entry(address).or_default();
    }

    /// Returns the accesses so far, by account.
    pub fn accounts(&self) -> impl Iterator<Item = (&Address, &AccountBal)> {
        self.list.accounts.iter()
    }

    /// Returns the list in its canonical form.
    ///
    /// # Errors
    /// Never for a list that was made here: the form is checked as that of a payload is.
    pub fn finish(self) -> Result<AccessList, BlockError> {
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<_, AlloyAccountChanges>(&self.list.into_alloy_bal(), &mut rlp);
        AccessList::decode(Bytes::from(rlp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{U256, map::AddressMap};
    use alloy_rlp::Decodable;
    use revm::state::bal::alloy::AlloyBal;
    use revm::state::{Account, AccountInfo, EvmStorageSlot, TransactionId};

    const ADDRESS: Address = Address::repeat_byte(5);

    /// Returns a commit that changes a balance from one value to another, and slots likewise.
    fn commit(balance: (u64, u64), slots: &[(u64, u64, u64)]) -> EvmState {
        let mut account = Account::from(AccountInfo::from_balance(U256::from(balance.0)));
        account.info.balance = U256::from(balance.1);
        account.mark_touch();
        for (key, before, after) in slots {
            let (before, after) = (U256::from(*before), U256::from(*after));
            let slot = EvmStorageSlot::new_changed(before, after, TransactionId::ZERO);
            account.storage.insert(U256::from(*key), slot);
        }
        AddressMap::from_iter([(ADDRESS, account)])
    }

    fn finish(builder: AccessListBuilder) -> AlloyBal {
        let list = builder.finish().unwrap();
        assert_eq!(list.check(2, 1 << 20), Ok(()));
        AlloyBal::decode(&mut &list.rlp()[..]).unwrap()
    }

    #[test]
    fn values_are_listed_by_writer_and_unchanged_ones_as_read() {
        let mut builder = AccessListBuilder::default();
        builder.add(&commit((7, 7), &[(1, 0, 9), (3, 4, 4)]));
        builder.set_index(1);
        builder.add(&commit((7, 8), &[(1, 9, 9), (2, 5, 0)]));
        builder.set_index(2);
        builder.add(&commit((8, 7), &[(1, 9, 0), (0, 0, 0)]));
        builder.add_account(Address::repeat_byte(4));
        let list = finish(builder);
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].address, list[0].is_empty()), (Address::repeat_byte(4), true));
        let account = &list[1];
        assert_eq!(account.address, ADDRESS);
        assert_eq!(account.storage_reads, [U256::from(0), U256::from(3)]);
        let changes: Vec<_> = account
            .storage_changes
            .iter()
            .map(|slot| {
                let changes = slot
                    .changes
                    .iter()
                    .map(|change| (change.block_access_index.get(), change.new_value.to::<u64>()));
                (slot.slot.to::<u64>(), changes.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(changes, [(1, vec![(0, 9), (2, 0)]), (2, vec![(1, 0)])]);
        let balances: Vec<_> =
            account.balance_changes.iter().map(|change| change.post_balance.to::<u64>()).collect();
        assert_eq!(balances, [8, 7]);
    }
}
