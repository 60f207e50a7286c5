use crate::{Account, Shard};
use alloy_primitives::{B256, Bytes, U256};

/// One storage slot with its new value; zero means that the slot is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotUpdate {
    /// `keccak256(slot)`.
    pub key: B256,
    /// The value after the update.
    pub value: U256,
}

/// What happened to one account, by a transaction or by a whole block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountUpdate {
    /// `keccak256(address)`.
    pub address_hash: B256,
    /// The account afterwards, `None` when it does not exist (destroyed, or empty by EIP-161).
    pub account: Option<Account>,
    /// The storage was cleared **before** `slots` were written: the account was destroyed, or
    /// created anew over a destroyed one.
    pub wiped: bool,
    /// Slots written, each key at most once.
    pub slots: Vec<SlotUpdate>,
}

impl AccountUpdate {
    /// The shard that owns this account.
    pub fn shard(&self) -> Shard {
        Shard::of(&self.address_hash)
    }
}

/// What one block did to the state: the last value of everything it touched.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateDiff {
    /// In ascending order of `address_hash`, each at most once; slots in ascending order too.
    pub accounts: Vec<AccountUpdate>,
    /// Code deployed, by its hash.
    pub codes: Vec<(B256, Bytes)>,
}

impl StateDiff {
    /// Accounts and slots in the diff.
    pub fn len(&self) -> usize {
        self.accounts.iter().map(|update| 1 + update.slots.len()).sum()
    }

    /// Bytes that the diff takes in memory.
    pub fn bytes(&self) -> usize {
        let slots: usize = self.accounts.iter().map(|update| update.slots.len()).sum();
        let codes: usize = self.codes.iter().map(|(hash, code)| hash.len() + code.len()).sum();
        self.accounts.len() * size_of::<AccountUpdate>() + slots * size_of::<SlotUpdate>() + codes
    }

    /// Whether the block changed nothing.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.codes.is_empty()
    }
}
