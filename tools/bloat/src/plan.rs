//! Accounts and slots of a state, each of which follows from the seed and its number.

use crate::code::code_hash;
use anyhow::ensure;
use serde::{Deserialize, Serialize};
use tandem_primitives::{Account, Address, B256, EMPTY_CODE_HASH, U256};

/// Start of every address: the letters "bloat".
const ADDRESS_TAG: [u8; 4] = *b"blot";

/// Largest number of accounts or slots: a thousand times mainnet's.
const COUNT_MAX: u64 = 1 << 40;

/// Size and seed of a state.
///
/// **Accounts** have numbers from 0. The first [`Plan::contracts`] of them are contracts, the largest
/// one first. The others have a balance and a nonce. The address of an account is the four letters
/// `blot`, the seed and the number, eight bytes each.
///
/// **Sizes of contracts.** There are 2^b − 1 contracts, as many as a tenth of the accounts allows. They
/// form b groups: the largest one, the next two, the next four, and so on. All groups have the same
/// number of slots, and so have all contracts of a group. So the number of slots falls with the rank of
/// the contract (Zipf's law with exponent 1, in steps), as it roughly does on mainnet: with 80 million
/// slots in a million contracts, one has 4 million slots and half of them have seven or eight.
///
/// **Slots** of a contract have the numbers from 0, which are also their keys. A value has 8 bytes in
/// half of the slots, and 20 or 32 bytes in a quarter each, as counters, addresses and hashes have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    accounts: u64,
    slots: u64,
    seed: u64,
}

impl Plan {
    /// Creates a plan.
    ///
    /// # Errors
    /// Returns an error if there are slots but too few accounts for a contract, or too many of either.
    pub fn new(accounts: u64, slots: u64, seed: u64) -> anyhow::Result<Self> {
        let plan = Self { accounts, slots, seed };
        ensure!(
            slots == 0 || plan.contracts() > 0,
            "{accounts} accounts have no contract for slots: expected 10 accounts or more"
        );
        ensure!(
            accounts.max(slots) <= COUNT_MAX,
            "{} is too much: expected {COUNT_MAX} accounts and slots or less",
            accounts.max(slots)
        );
        Ok(plan)
    }

    /// Returns the number of accounts.
    #[must_use]
    pub fn accounts(&self) -> u64 {
        self.accounts
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the number of groups of contracts.
    #[must_use]
    pub fn groups(&self) -> u32 {
        (self.accounts / 10 + 1).ilog2()
    }

    /// Returns the number of contracts.
    #[must_use]
    pub fn contracts(&self) -> u64 {
        (1 << self.groups()) - 1
    }

    /// Returns the number of slots of a contract; 0 for an account that is none.
    #[must_use]
    pub fn slots_of(&self, account: u64) -> u64 {
        if account >= self.contracts() {
            return 0;
        }
        let groups = u64::from(self.groups());
        let group = u64::from((account + 1).ilog2());
        let in_group = self.slots / groups + u64::from(group < self.slots % groups);
        let contracts = 1 << group;
        let position = account + 1 - contracts;
        in_group / contracts + u64::from(position < in_group % contracts)
    }

    /// Returns the contract and the number in it of one of all slots of the state.
    ///
    /// # Panics
    /// Panics if the state has no such slot.
    #[must_use]
    pub fn slot_at(&self, index: u64) -> (u64, u64) {
        assert!(index < self.slots, "slot {index} of {}", self.slots);
        let groups = u64::from(self.groups());
        let larger = self.slots / groups + 1;
        // The first groups have one slot more.
        let in_larger = larger * (self.slots % groups);
        let (group, rest) = match index < in_larger {
            true => (index / larger, index % larger),
            false => {
                let index = index - in_larger;
                (self.slots % groups + index / (larger - 1), index % (larger - 1))
            }
        };
        let in_group = self.slots / groups + u64::from(group < self.slots % groups);
        let contracts = 1 << group;
        let larger = in_group / contracts + 1;
        let in_larger = larger * (in_group % contracts);
        let (position, slot) = match rest < in_larger {
            true => (rest / larger, rest % larger),
            false => {
                let rest = rest - in_larger;
                (in_group % contracts + rest / (larger - 1), rest % (larger - 1))
            }
        };
        (contracts - 1 + position, slot)
    }

    /// Returns the address of an account.
    #[must_use]
    pub fn address(&self, account: u64) -> Address {
        let mut address = Address::ZERO;
        address[..4].copy_from_slice(&ADDRESS_TAG);
        address[4..12].copy_from_slice(&self.seed.to_be_bytes());
        address[12..].copy_from_slice(&account.to_be_bytes());
        address
    }

    /// Returns an account.
    #[must_use]
    pub fn account(&self, account: u64) -> Account {
        if account < self.contracts() {
            return Account { nonce: 1, balance: U256::ZERO, code_hash: code_hash() };
        }
        let random = self.random(account, u64::MAX);
        Account {
            nonce: random & 0xff,
            // At most ten ether, and never nothing.
            balance: U256::from(random >> 8).wrapping_rem(U256::from(10u64.pow(19))) + U256::ONE,
            code_hash: EMPTY_CODE_HASH,
        }
    }

    /// Returns the key of a slot.
    #[must_use]
    pub fn slot(number: u64) -> B256 {
        B256::from(U256::from(number))
    }

    /// Returns the value of a slot, which is never zero.
    #[must_use]
    pub fn value(&self, contract: u64, slot: u64) -> U256 {
        let first = self.random(contract, slot);
        let word = |n: u64| splitmix(first.wrapping_add(n));
        let limbs = match first % 4 {
            0 | 1 => [word(1) | 1, 0, 0, 0],
            2 => [word(1), word(2), word(3) >> 32 | 1, 0],
            _ => [word(1), word(2), word(3), word(4) | 1],
        };
        U256::from_limbs(limbs)
    }

    fn random(&self, account: u64, slot: u64) -> u64 {
        splitmix(splitmix(splitmix(self.seed) ^ account) ^ slot)
    }
}

/// One step of the generator SplitMix64 (Steele, Lea and Flood, 2014), from any state.
fn splitmix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn contracts_have_all_slots_and_fewer_the_later_they_come() {
        for (accounts, slots) in [(10, 1), (10, 7), (2_000, 20_000), (12_345, 0), (70_000, 999_983)]
        {
            let plan = Plan::new(accounts, slots, 1).unwrap();
            let sizes: Vec<u64> = (0..accounts).map(|account| plan.slots_of(account)).collect();
            assert_eq!(sizes.iter().sum::<u64>(), slots);
            assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
            assert!(plan.contracts() <= accounts / 10);
            let mut found = (0..slots).map(|index| plan.slot_at(index));
            for (contract, size) in (0..).zip(&sizes) {
                assert!((0..*size).all(|slot| found.next() == Some((contract, slot))));
            }
        }
        let plan = Plan::new(20_000_000, 80_000_000, 1).unwrap();
        assert_eq!(plan.contracts(), (1 << 20) - 1);
        assert_eq!(
            [0, 1, 2, 3].map(|n| plan.slots_of(n)),
            [4_000_000, 2_000_000, 2_000_000, 1_000_000]
        );
        assert_eq!([(1 << 20) - 2, (1 << 20) - 1].map(|n| plan.slots_of(n)), [7, 0]);
    }

    #[test]
    fn slots_without_a_contract_and_absurd_sizes_are_refused() {
        let error = Plan::new(9, 1, 0).unwrap_err().to_string();
        assert!(error.contains("9 accounts") && error.contains("10 accounts"), "{error}");
        assert!(Plan::new(0, 0, 0).is_ok());
        assert!(Plan::new(u64::MAX, 0, 0).is_err());
        assert!(Plan::new(10, u64::MAX, 0).is_err());
    }

    #[test]
    fn values_have_the_lengths_of_the_law_and_differ() {
        let plan = Plan::new(1_000, 100_000, 7).unwrap();
        let values: Vec<U256> = (0..10_000).map(|slot| plan.value(3, slot)).collect();
        let count = |bytes: usize| {
            values.iter().filter(|it| it.byte_len().div_ceil(4) == bytes.div_ceil(4)).count()
        };
        assert!((4_800..5_200).contains(&count(8)), "{}", count(8));
        assert!((2_300..2_700).contains(&count(20)), "{}", count(20));
        assert!((2_300..2_700).contains(&count(32)), "{}", count(32));
        assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len());
        assert!(values.iter().all(|value| !value.is_zero()));
        assert_ne!(plan.value(3, 0), plan.value(4, 0));
        assert_ne!(plan.value(3, 0), Plan::new(1_000, 100_000, 8).unwrap().value(3, 0));
        assert!((0..1_000).all(|number| !plan.account(number).is_empty()));
    }
}
