//! The oracle's state: a sorted map of the whole state, whose root is computed from scratch.

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256, map::AddressMap};
use alloy_trie::{TrieAccount, root};
use revm::{
    Database, DatabaseCommit,
    state::{Account as EvmAccount, AccountInfo, Bytecode},
};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

/// One account.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Transactions sent, or contracts created.
    pub nonce: u64,
    /// Balance in wei.
    pub balance: U256,
    /// Code, or the delegation of EIP-7702.
    pub code: Bytes,
    /// Slots that are not zero.
    pub storage: BTreeMap<U256, U256>,
}

impl Account {
    /// Creates an account with a balance and nothing else.
    pub fn funded(balance: U256) -> Self {
        Self { balance, ..Self::default() }
    }

    /// Creates a contract without balance.
    pub fn contract(code: impl Into<Bytes>) -> Self {
        Self { nonce: 1, code: code.into(), ..Self::default() }
    }

    fn code_hash(&self) -> B256 {
        if self.code.is_empty() { KECCAK256_EMPTY } else { keccak256(&self.code) }
    }
}

/// The whole state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct World(pub BTreeMap<Address, Account>);

impl World {
    /// Returns the root of the state trie, from the whole sorted state.
    pub fn state_root(&self) -> B256 {
        let leaf = |(address, account): (&Address, &Account)| {
            let slots = account.storage.iter().map(|(slot, value)| (B256::from(*slot), *value));
            let leaf = TrieAccount {
                nonce: account.nonce,
                balance: account.balance,
                storage_root: root::storage_root_unhashed(slots),
                code_hash: account.code_hash(),
            };
            (*address, leaf)
        };
        root::state_root_unhashed(self.0.iter().map(leaf))
    }

    /// Returns `alloc` of the genesis file.
    pub fn alloc_json(&self) -> Value {
        let entry = |(address, account): (&Address, &Account)| {
            let slots = account.storage.iter();
            let storage: Map<_, _> = slots
                .map(|(slot, value)| (B256::from(*slot).to_string(), json!(B256::from(*value))))
                .collect();
            let value = json!({
                "nonce": format!("{:#x}", account.nonce),
                "balance": format!("{:#x}", account.balance),
                "code": account.code,
                "storage": storage,
            });
            (address.to_string().to_lowercase(), value)
        };
        Value::Object(self.0.iter().map(entry).collect())
    }

    /// Returns an account, an empty one if it does not exist.
    pub fn get(&self, address: Address) -> Account {
        self.0.get(&address).cloned().unwrap_or_default()
    }

    fn write(&mut self, address: Address, evm: &EvmAccount) {
        // EIP-161: a touched, empty account is deleted.
        if evm.is_selfdestructed() || evm.info.is_empty() {
            self.0.remove(&address);
            return;
        }
        let account = self.0.entry(address).or_default();
        account.nonce = evm.info.nonce;
        account.balance = evm.info.balance;
        if account.code_hash() != evm.info.code_hash {
            account.code = match &evm.info.code {
                Some(code) if evm.info.code_hash != KECCAK256_EMPTY => code.original_bytes(),
                _ => Bytes::new(),
            };
            assert_eq!(account.code_hash(), evm.info.code_hash, "code of {address}");
        }
        for (slot, value) in evm.changed_storage_slots() {
            match value.present_value() {
                value if value.is_zero() => account.storage.remove(slot),
                value => account.storage.insert(*slot, value),
            };
        }
    }
}

/// The state while a block executes.
#[derive(Clone, Debug)]
pub struct Running {
    /// The state so far.
    pub world: World,
    /// Hashes of the earlier blocks, for BLOCKHASH.
    pub ancestors: BTreeMap<u64, B256>,
    /// Accounts and slots written so far.
    pub touched: Touched,
}

/// Map from address to whether the storage was cleared, and the slots written since.
pub type Touched = BTreeMap<Address, (bool, BTreeSet<U256>)>;

impl Running {
    /// Starts a block on this state.
    pub fn new(world: World, ancestors: BTreeMap<u64, B256>) -> Self {
        Self { world, ancestors, touched: Touched::new() }
    }
}

impl Database for Running {
    type Error = Infallible;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        Ok(self.world.0.get(&address).map(|account| AccountInfo {
            balance: account.balance,
            nonce: account.nonce,
            code_hash: account.code_hash(),
            code: Some(Bytecode::new_raw(account.code.clone())),
            ..AccountInfo::default()
        }))
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, Infallible> {
        unreachable!("accounts come with their code, yet {hash} is asked for")
    }

    fn storage(&mut self, address: Address, slot: U256) -> Result<U256, Infallible> {
        let account = self.world.0.get(&address);
        Ok(account.and_then(|account| account.storage.get(&slot)).copied().unwrap_or_default())
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Infallible> {
        Ok(self.ancestors.get(&number).copied().unwrap_or_default())
    }
}

impl DatabaseCommit for Running {
    fn commit(&mut self, changes: AddressMap<EvmAccount>) {
        for (address, account) in changes {
            if account.is_touched() {
                let (wiped, slots) = self.touched.entry(address).or_default();
                if account.is_selfdestructed() || account.info.is_empty() {
                    *wiped = true;
                    slots.clear();
                } else {
                    slots.extend(account.changed_storage_slots().map(|(slot, _)| *slot));
                }
                self.world.write(address, &account);
            }
        }
    }
}
