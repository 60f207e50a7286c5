//! Keys that results change, told to the workers long before the engine commits them: the paths
//! are read meanwhile.

use super::{
    published::is_written,
    reads::{Reads, Source},
};
use alloy_primitives::map::AddressMap;
use revm::state::{EvmState, EvmStorageSlot};
use std::sync::Arc;
use tandem_chain::Block;
use tandem_primitives::{Address, B256, keccak256};
use tandem_proto::multiproof::{Prefetch, ProofApi};

/// Keys gathered before they are told: a message wakes a worker.
const KEYS_MAX: usize = 32;

/// Whom to tell.
#[derive(Clone)]
pub struct Advice {
    /// The workers.
    pub proof: Arc<dyn ProofApi>,
    /// The block that is open there.
    pub block: B256,
}

impl Advice {
    /// Tells whose balance the block itself raises, fees and withdrawals: those updates come last.
    pub fn tell_credited(&self, block: &Block) {
        let withdrawals = block.withdrawals.iter().flatten().map(|withdrawal| withdrawal.address);
        let credited = withdrawals.chain([block.header.beneficiary]);
        let accounts = credited.map(|address| (keccak256(address), Vec::new())).collect();
        self.proof.prefetch(self.block, Arc::new(Prefetch { accounts }));
    }
}

/// What one thread has gathered.
#[derive(Default)]
pub struct Gathered {
    accounts: Vec<(B256, Vec<B256>)>,
    keys: usize,
}

impl Gathered {
    /// Takes the keys that a result changes and that the block had not changed when it read them:
    /// those that others changed are known already. Their hashes come from `reads`; those of
    /// accounts whose own value the block had changed come from `hash_of`.
    pub fn add(
        &mut self,
        reads: &Reads,
        state: &EvmState,
        hash_of: impl Fn(&Address) -> Option<B256>,
    ) {
        let mut places: AddressMap<usize> = AddressMap::default();
        for read in &reads.accounts {
            if let Source::Parent(hash) = read.source
                && state.get(&read.address).is_some_and(is_written)
            {
                places.insert(read.address, self.accounts.len());
                self.accounts.push((hash, Vec::new()));
                self.keys += 1;
            }
        }
        for read in &reads.slots {
            let Source::Parent(hash) = read.source else { continue };
            let slot = state.get(&read.address).and_then(|account| account.storage.get(&read.key));
            if !slot.is_some_and(EvmStorageSlot::is_changed) {
                continue;
            }
            let place = match places.get(&read.address) {
                Some(place) => *place,
                None => {
                    let Some(account) = hash_of(&read.address) else { continue };
                    places.insert(read.address, self.accounts.len());
                    self.accounts.push((account, Vec::new()));
                    self.accounts.len() - 1
                }
            };
            self.accounts[place].1.push(hash);
            self.keys += 1;
        }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Tells what was gathered, if it is worth a message.
    pub fn tell_many(&mut self, advice: Option<&Advice>) {
        if self.keys >= KEYS_MAX {
            self.tell(advice);
        }
    }

    /// Tells what was gathered.
    pub fn tell(&mut self, advice: Option<&Advice>) {
        let Self { accounts, keys } = std::mem::take(self);
        if let Some(advice) = advice.filter(|_| keys > 0) {
            advice.proof.prefetch(advice.block, Arc::new(Prefetch { accounts }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::reads::{AccountRead, SlotRead};
    use revm::state::Account;
    use tandem_primitives::U256;

    fn address(n: u8) -> Address {
        Address::with_last_byte(n)
    }

    fn hash(n: u8) -> B256 {
        B256::with_last_byte(n)
    }

    /// An account with slots 1, unchanged, and 2, changed.
    fn account(touched: bool) -> Account {
        let mut account = Account::default();
        let slot = |before: u64, after: u64| {
            EvmStorageSlot::new_changed(U256::from(before), U256::from(after), Default::default())
        };
        account.storage.insert(U256::from(1), slot(5, 5));
        account.storage.insert(U256::from(2), slot(5, 6));
        if touched {
            account.mark_touch();
        }
        account
    }

    #[test]
    fn changed_keys_that_came_from_the_parent_are_gathered() {
        let state: EvmState = [
            (address(1), account(true)),
            (address(2), account(true)),
            (address(3), account(false)),
        ]
        .into_iter()
        .collect();
        let mut reads = Reads::default();
        for (n, source) in
            [(1, Source::Parent(hash(1))), (2, Source::Block), (3, Source::Parent(hash(3)))]
        {
            reads.accounts.push(AccountRead { address: address(n), account: None, source });
        }
        for (n, key, source) in [
            (1, 1, Source::Parent(hash(11))),
            (1, 2, Source::Parent(hash(12))),
            (2, 1, Source::Parent(hash(21))),
            (2, 2, Source::Parent(hash(22))),
        ] {
            let (address, key) = (address(n), U256::from(key));
            reads.slots.push(SlotRead { address, key, value: U256::from(5), source });
        }
        reads.slots.push(SlotRead {
            address: address(2),
            key: U256::from(2),
            value: U256::ZERO,
            source: Source::Block,
        });
        let mut gathered = Gathered::default();
        assert!(gathered.is_empty());
        gathered.add(&reads, &state, |of| (*of == address(2)).then(|| hash(2)));
        assert_eq!(gathered.accounts, [(hash(1), vec![hash(12)]), (hash(2), vec![hash(22)])]);
        assert_eq!(gathered.keys, 3);
        gathered.tell_many(None);
        assert!(!gathered.is_empty(), "too few for a message");
        gathered.tell(None);
        assert!(gathered.is_empty());
    }
}
