use crate::{Account, Shard};
use alloy_primitives::{B256, Bytes, U256};

/// Storage slot with its new value; zero means that the slot is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotUpdate {
    /// `keccak256(slot)`.
    pub key: B256,
    /// Value after the update.
    pub value: U256,
}

/// Change of one account by a transaction or by a whole block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountUpdate {
    /// `keccak256(address)`.
    pub address_hash: B256,
    /// Account after the update, `None` when it does not exist (destroyed, or empty by EIP-161).
    pub account: Option<Account>,
    /// Whether the storage was cleared **before** `slots` were written: the account was destroyed,
    /// or created again after it was destroyed.
    pub wiped: bool,
    /// Written slots, each key at most once.
    pub slots: Vec<SlotUpdate>,
}

impl AccountUpdate {
    /// Returns the shard that owns this account.
    pub fn shard(&self) -> Shard {
        Shard::of(&self.address_hash)
    }
}

/// Change of the state by one block: the last value of every account and slot that the block
/// touched.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateDiff {
    /// Updates in ascending order of `address_hash`, each address at most once. Their slots ascend
    /// too.
    pub accounts: Vec<AccountUpdate>,
    /// Deployed code, by its hash.
    pub codes: Vec<(B256, Bytes)>,
}

impl StateDiff {
    /// Returns the number of accounts and slots in the diff.
    pub fn len(&self) -> usize {
        self.accounts.iter().map(|update| 1 + update.slots.len()).sum()
    }

    /// Returns the number of bytes that the diff takes in memory.
    pub fn bytes(&self) -> usize {
        let slots: usize = self.accounts.iter().map(|update| update.slots.len()).sum();
        let codes: usize = self.codes.iter().map(|(hash, code)| hash.len() + code.len()).sum();
        self.accounts.len() * size_of::<AccountUpdate>() + slots * size_of::<SlotUpdate>() + codes
    }

    /// Returns the diff without its slots, for readers of accounts and code.
    pub fn without_slots(&self) -> Self {
        let without = |update: &AccountUpdate| AccountUpdate {
            address_hash: update.address_hash,
            account: update.account,
            wiped: update.wiped,
            slots: Vec::new(),
        };
        Self { accounts: self.accounts.iter().map(without).collect(), codes: self.codes.clone() }
    }

    /// Returns whether the block changed nothing.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.codes.is_empty()
    }
}
