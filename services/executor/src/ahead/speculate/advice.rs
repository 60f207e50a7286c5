//! Advice to the workers about the changes of results, long before the engine commits them. Workers
//! read the paths of the keys meanwhile. Values are included if the engine is far behind.

use crate::state::state_after;
use crate::state::{
    published::is_written,
    reads::{Reads, Source},
};
use alloy_primitives::map::B256Map;
use revm::state::{EvmState, EvmStorageSlot};
use std::{collections::hash_map::Entry, sync::Arc};
use tandem_chain::Block;
use tandem_primitives::{Account, AccountUpdate, Address, B256, SlotUpdate, U256, keccak256};
use tandem_proto::multiproof::{Foresight, Prefetch, ProofApi};

/// Number of keys gathered before sending them, because each message wakes a worker.
const KEYS_MAX: usize = 32;

/// Number of transactions that the engine must be behind before values are sent. A value sent twice
/// costs the worker twice. With the engine that far behind, the worker's time is worth less now
/// than when all these results are committed at once.
const BEHIND_MIN: usize = 8;

/// Receiver of advice.
#[derive(Clone)]
pub struct Advice {
    /// The workers.
    pub proof: Arc<dyn ProofApi>,
    /// The block that is open at the workers.
    pub block: B256,
}

impl Advice {
    /// Tells the workers the accounts that the block itself credits, with fees and withdrawals:
    /// those updates come last.
    pub fn tell_credited(&self, block: &Block) {
        let withdrawals = block.withdrawals.iter().flatten().map(|withdrawal| withdrawal.address);
        let credited = withdrawals.chain([block.header.beneficiary]);
        let accounts = credited.map(|address| (keccak256(address), Vec::new())).collect();
        self.proof.prefetch(self.block, Arc::new(Prefetch { accounts }));
    }
}

/// Changes gathered by one thread.
#[derive(Default)]
pub struct Gathered {
    foresight: Foresight,
    /// Position of each account in `foresight`.
    places: B256Map<usize>,
    keys: usize,
}

impl Gathered {
    /// Adds the changes of a result to keys that the block had not changed when they were read.
    /// Other changed keys are known already. Hashes come from `reads`, or from `hash_of` for
    /// accounts that the block itself had changed.
    pub fn add(&mut self, reads: &Reads, state: &EvmState, hash_of: impl Fn(&Address) -> B256) {
        for read in &reads.accounts {
            if let Source::Parent(hash) = read.source
                && let Some(account) = state.get(&read.address).filter(|a| is_written(a))
            {
                self.account(hash, read.account, state_after(account));
                self.keys += 1;
            }
        }
        for read in &reads.slots {
            let Source::Parent(hash) = read.source else { continue };
            let Some(account) = state.get(&read.address) else { continue };
            let slot = account.storage.get(&read.key).filter(|slot| slot.is_changed());
            let Some(after) = slot.map(EvmStorageSlot::present_value) else { continue };
            let address_hash = hash_of(&read.address);
            let after = if state_after(account).is_some() { after } else { U256::ZERO };
            let place = self.place(address_hash);
            let [before, last] = [&mut self.foresight.before, &mut self.foresight.after];
            let (before, last) = (&mut before[place].slots, &mut last[place].slots);
            match before.iter().position(|slot| slot.key == hash) {
                // Two results that do not know of each other.
                Some(at) => last[at].value = after,
                None => {
                    before.push(SlotUpdate { key: hash, value: read.value });
                    last.push(SlotUpdate { key: hash, value: after });
                }
            }
            self.keys += 1;
        }
    }

    fn account(&mut self, hash: B256, before: Option<Account>, after: Option<Account>) {
        let place = self.place(hash);
        // The later one of two results wins; the choice does not matter.
        (self.foresight.before[place].account, self.foresight.after[place].account) =
            (before, after);
    }

    fn place(&mut self, address_hash: B256) -> usize {
        let next = self.foresight.before.len();
        match self.places.entry(address_hash) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(vacant) => {
                let (account, slots) = (None, Vec::new());
                let update = AccountUpdate { address_hash, account, wiped: false, slots };
                self.foresight.before.push(update.clone());
                self.foresight.after.push(update);
                *vacant.insert(next)
            }
        }
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Sends the gathered changes if they are worth a message. The engine is `behind` transactions
    /// behind.
    pub fn tell_many(&mut self, advice: Option<&Advice>, behind: usize) {
        if self.keys >= KEYS_MAX {
            self.tell(advice, behind);
        }
    }

    /// Sends the gathered changes.
    pub fn tell(&mut self, advice: Option<&Advice>, behind: usize) {
        let Self { foresight, keys, .. } = std::mem::take(self);
        let Some(advice) = advice.filter(|_| keys > 0) else { return };
        if behind >= BEHIND_MIN {
            advice.proof.foresee(advice.block, Arc::new(foresight));
            return;
        }
        let keys = |account: AccountUpdate| {
            (account.address_hash, account.slots.iter().map(|slot| slot.key).collect())
        };
        let accounts = foresight.before.into_iter().map(keys).collect();
        advice.proof.prefetch(advice.block, Arc::new(Prefetch { accounts }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ahead::speculate::tests::Told,
        state::reads::{AccountRead, SlotRead},
    };
    use revm::state::Account;
    use tandem_primitives::U256;

    fn address(n: u8) -> Address {
        Address::with_last_byte(n)
    }

    fn hash(n: u8) -> B256 {
        B256::with_last_byte(n)
    }

    /// Returns an account with slots 1, unchanged, and 2, changed.
    fn account(touched: bool) -> Account {
        let mut account = Account::default();
        account.info.nonce = 1;
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
        let hash_of = |of: &Address| hash(of[19]);
        gathered.add(&reads, &state, hash_of);
        let update = |n, account, key, value: u64| AccountUpdate {
            address_hash: hash(n),
            account,
            wiped: false,
            slots: vec![SlotUpdate { key: hash(key), value: U256::from(value) }],
        };
        let Foresight { before, after } = &gathered.foresight;
        assert_eq!(*before, [update(1, None, 12, 5), update(2, None, 22, 5)]);
        let now = state_after(&state[&address(1)]);
        assert_eq!(*after, [update(1, now, 12, 6), update(2, None, 22, 6)]);
        assert_eq!(gathered.keys, 3);
        gathered.tell_many(None, 0);
        assert!(!gathered.is_empty(), "too few for a message");
        let proof = Arc::new(Told::default());
        let advice = Advice { proof: proof.clone(), block: hash(9) };
        gathered.tell(Some(&advice), BEHIND_MIN - 1);
        assert!(gathered.is_empty());
        gathered.tell(Some(&advice), 0);
        let (block, told) = proof.keys.lock().pop().unwrap();
        assert_eq!(block, hash(9));
        assert_eq!(told.accounts, [(hash(1), vec![hash(12)]), (hash(2), vec![hash(22)])]);
        assert!(proof.keys.lock().is_empty() && proof.values.lock().is_empty());

        gathered.add(&reads, &state, hash_of);
        gathered.tell(Some(&advice), BEHIND_MIN);
        let (block, told) = proof.values.lock().pop().unwrap();
        assert_eq!(
            (block, told.before.len(), &told.after[0]),
            (hash(9), 2, &update(1, now, 12, 6))
        );
        assert!(proof.keys.lock().is_empty());
    }
}
