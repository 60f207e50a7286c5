//! The parent's state for transactions that run ahead: what happens if a value is not in memory.

use super::fiber::{Input, Output, Yielder};
use crate::{
    error::Error,
    state::{
        StateReader,
        parent::{ParentState, StateKey, StateValue},
    },
};
use revm::state::Bytecode;
use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};
use tandem_primitives::{Account, B256, EMPTY_CODE_HASH, U256};
use tandem_telemetry::waiting;
use tracing::{debug, warn};

/// Behaviour of a reader if a value is not in memory.
pub enum Miss<'y> {
    /// It calls storage-writer, and the thread waits.
    Read,
    /// It parks its fiber. The thread goes on with another one, and reads the values of many.
    Park(&'y Yielder),
    /// It notes the key and takes a guess for the value, so that the execution goes on and finds
    /// more keys. Its result is worthless then.
    Guess(Missed),
}

/// Keys whose values an execution had to guess.
#[derive(Clone, Default)]
pub struct Missed(Rc<RefCell<Vec<StateKey>>>);

impl Missed {
    /// Returns the keys since the last call.
    pub fn take(&self) -> Vec<StateKey> {
        self.0.take()
    }
}

/// Reader of the parent's state.
pub struct Reader<'y> {
    state: Arc<dyn ParentState>,
    miss: Miss<'y>,
}

impl<'y> Reader<'y> {
    /// Creates a reader.
    pub fn new(state: Arc<dyn ParentState>, miss: Miss<'y>) -> Self {
        Self { state, miss }
    }

    /// Returns a value, or `None` if the reader must call storage-writer itself.
    fn find(&self, key: StateKey) -> Result<Option<StateValue>, Error> {
        if let Miss::Read = self.miss {
            return Ok(None);
        }
        if let Some(value) = self.state.in_memory(&key)? {
            return Ok(Some(value));
        }
        match &self.miss {
            Miss::Read => Ok(None),
            Miss::Park(yielder) => match yielder.suspend(Output::Parked(key)) {
                Input::Answer(value) => Ok(value),
                Input::Run(_) | Input::Cancel => Err(Error::NotInMemory),
            },
            Miss::Guess(missed) => {
                missed.0.borrow_mut().push(key);
                Ok(Some(guess(&key)))
            }
        }
    }
}

/// Returns a value with which most executions go on. A balance is sufficient, as is an amount in a
/// slot, and their sums do not overflow.
fn guess(key: &StateKey) -> StateValue {
    match key {
        StateKey::Account(_) => StateValue::Account(Some(Account {
            nonce: 1,
            balance: U256::from(u128::MAX),
            code_hash: EMPTY_CODE_HASH,
        })),
        StateKey::Slot(..) => StateValue::Slot(U256::from(u64::MAX)),
        StateKey::Code(_) => StateValue::Code(Bytecode::default()),
    }
}

/// Reads keys in one call. Returns no value if that fails: the error comes up again when a
/// transaction needs the value.
pub fn read_together(parent: &dyn ParentState, keys: &[StateKey]) -> Vec<Option<StateValue>> {
    let read = || catch_unwind(AssertUnwindSafe(|| parent.read_together(keys)));
    match waiting("wait.state_ns", read) {
        Ok(Ok(values)) => values,
        Ok(Err(error)) => {
            debug!(%error, keys = keys.len(), "the executor cannot read keys together");
            Vec::new()
        }
        Err(_) => {
            warn!(keys = keys.len(), "reading keys together panicked");
            Vec::new()
        }
    }
}

impl StateReader for Reader<'_> {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        match self.find(StateKey::Account(*address_hash))? {
            Some(StateValue::Account(account)) => Ok(account),
            _ => self.state.account(address_hash),
        }
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        match self.find(StateKey::Slot(*address_hash, *slot))? {
            Some(StateValue::Slot(value)) => Ok(value),
            _ => self.state.slot(address_hash, slot),
        }
    }

    /// Is rare, so the thread waits, whatever the reader does otherwise.
    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error> {
        self.state.has_storage(address_hash)
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        match self.find(StateKey::Code(*code_hash))? {
            Some(StateValue::Code(code)) => Ok(code),
            _ => self.state.code(code_hash),
        }
    }
}
