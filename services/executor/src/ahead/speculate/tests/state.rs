//! State in memory with random trouble in reads.

use super::Random;
use crate::{
    Error,
    state::{
        StateReader,
        parent::{ParentState, StateKey, StateValue},
    },
};
use alloy_primitives::map::{B256Map, HashSet};
use parking_lot::Mutex;
use revm::state::Bytecode;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tandem_primitives::{Account, Address, B256, Bytes, EMPTY_CODE_HASH, U256, keccak256};

/// State by hashed keys.
#[derive(Default)]
pub struct Memory {
    accounts: B256Map<(Account, B256Map<U256>)>,
    codes: B256Map<Bytecode>,
    chance: Option<Chance>,
    /// Keys that are in memory, if others are far away.
    near: Option<Mutex<HashSet<StateKey>>>,
    /// Number of calls for several keys.
    pub calls: AtomicU64,
    /// Number of their keys.
    pub keys: AtomicU64,
}

/// Occasional trouble of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The read takes slightly longer.
    Delay,
    /// The read takes longer than the engine waits.
    Hang,
    /// The read fails.
    Error,
    /// The read panics.
    Panic,
}

struct Chance {
    trouble: Trouble,
    seed: u64,
    reads: AtomicU64,
}

impl Chance {
    fn read(&self) -> Result<(), Error> {
        let read = self.reads.fetch_add(1, Relaxed);
        let sleep = |micros| std::thread::sleep(Duration::from_micros(micros));
        match (Random(self.seed.wrapping_mul(0x9e37_79b9) ^ read).below(96), self.trouble) {
            (0, Trouble::Hang) => sleep(8_000),
            (0, Trouble::Error) => {
                return Err(Error::Evm("a read failed, as it was to".into()));
            }
            (0, Trouble::Panic) => panic!("a read panicked, as it was to"),
            (1..5, _) => sleep(30),
            (5..16, _) => std::thread::yield_now(),
            _ => {}
        }
        Ok(())
    }
}

impl Memory {
    /// Returns the state with trouble.
    pub fn with(&self, trouble: Trouble, seed: u64) -> Self {
        let (accounts, codes) = (self.accounts.clone(), self.codes.clone());
        let chance = Some(Chance { trouble, seed, reads: AtomicU64::new(0) });
        Self { accounts, codes, chance, ..Self::default() }
    }

    /// Adds the values of another state.
    pub fn and(mut self, other: Self) -> Self {
        self.accounts.extend(other.accounts);
        self.codes.extend(other.codes);
        self
    }

    /// Moves all values out of memory, or none.
    pub fn far(self, is_far: bool) -> Self {
        Self { near: is_far.then(Mutex::default), ..self }
    }

    fn value(&self, key: &StateKey) -> Result<Option<StateValue>, Error> {
        Ok(match key {
            StateKey::Account(hash) => Some(StateValue::Account(self.account(hash)?)),
            StateKey::Slot(hash, slot) => Some(StateValue::Slot(self.slot(hash, slot)?)),
            StateKey::Code(hash) => self.code(hash).ok().map(StateValue::Code),
        })
    }

    pub fn insert(&mut self, address: Address, nonce: u64, balance: u64, code: &[u8]) {
        let code_hash = match code {
            [] => EMPTY_CODE_HASH,
            code => {
                let bytecode = crate::state::code::analyze(Bytes::copy_from_slice(code));
                let hash = keccak256(code);
                self.codes.insert(hash, bytecode);
                hash
            }
        };
        let account = Account { nonce, balance: U256::from(balance), code_hash };
        self.accounts.insert(keccak256(address), (account, B256Map::default()));
    }

    pub fn set_slot(&mut self, address: Address, key: u64, value: u64) {
        let key = keccak256(U256::from(key).to_be_bytes::<32>());
        let slots = &mut self.accounts.entry(keccak256(address)).or_default().1;
        slots.insert(key, U256::from(value));
    }
}

impl ParentState for Memory {
    fn in_memory(&self, key: &StateKey) -> Result<Option<StateValue>, Error> {
        match &self.near {
            Some(near) if !near.lock().contains(key) => Ok(None),
            _ => self.value(key),
        }
    }

    fn read_together(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, Error> {
        self.calls.fetch_add(1, Relaxed);
        self.keys.fetch_add(keys.len() as u64, Relaxed);
        let values = keys.iter().map(|key| self.value(key)).collect::<Result<_, _>>()?;
        if let Some(near) = &self.near {
            near.lock().extend(keys);
        }
        Ok(values)
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn call_time(&self) -> Duration {
        Duration::from_micros(150)
    }

    fn is_far(&self) -> bool {
        self.near.is_some()
    }
}

impl StateReader for Memory {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        self.chance.as_ref().map_or(Ok(()), Chance::read)?;
        Ok(self.accounts.get(address_hash).map(|(account, _)| *account))
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        self.chance.as_ref().map_or(Ok(()), Chance::read)?;
        let slots = self.accounts.get(address_hash).map(|(_, slots)| slots);
        Ok(slots.and_then(|slots| slots.get(slot)).copied().unwrap_or_default())
    }

    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error> {
        self.chance.as_ref().map_or(Ok(()), Chance::read)?;
        let slots = self.accounts.get(address_hash).map(|(_, slots)| slots);
        Ok(slots.is_some_and(|slots| slots.values().any(|value| !value.is_zero())))
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        self.codes.get(code_hash).cloned().ok_or(Error::MissingCode(*code_hash))
    }
}
