//! State of a block's parent, as transactions that run ahead of their turn read it.

use super::StateReader;
use crate::error::Error;
use revm::state::Bytecode;
use std::time::Duration;
use tandem_primitives::{Account, B256, U256};
use tandem_telemetry::waiting;

/// Number of keys of one call of [`read_each`].
pub const PIECE: usize = 2_048;
/// Number of codes of one such call, because code is long.
pub const CODES_PIECE: usize = 64;

/// Key of the parent's state. All parts are hashes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateKey {
    /// An account, by `keccak256(address)`.
    Account(B256),
    /// A storage slot, by `keccak256(address)` and `keccak256(slot)`.
    Slot(B256, B256),
    /// Code, by its hash.
    Code(B256),
}

/// Value of a [`StateKey`].
#[derive(Clone, Debug)]
pub enum StateValue {
    /// The account, or `None` if there is none.
    Account(Option<Account>),
    /// The slot's value, zero if it is not set.
    Slot(U256),
    /// The code, analyzed.
    Code(Bytecode),
}

/// State that tells what it has in memory, and reads many keys in one call.
pub trait ParentState: StateReader + Send + Sync {
    /// Returns a value that is in memory, or `None` if storage-writer must be called.
    ///
    /// # Errors
    /// Same as [`StateReader::account`].
    fn in_memory(&self, key: &StateKey) -> Result<Option<StateValue>, Error>;

    /// Reads keys in one call of storage-writer, and returns their values in the same order. The
    /// value of missing code is `None`.
    ///
    /// # Errors
    /// Same as [`StateReader::account`].
    fn read_together(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, Error>;

    /// Returns the number of calls of storage-writer so far.
    fn calls(&self) -> u64;

    /// Returns the average time of a call of storage-writer for one value.
    fn call_time(&self) -> Duration;

    /// Returns whether a call of storage-writer takes long enough to do other work meanwhile.
    fn is_far(&self) -> bool;
}

/// Reads keys, each with its place: those that memory lacks in calls of `piece` keys. Gives each value
/// to `put`, but not missing code, which is met by who runs it. Returns the number of keys that memory
/// lacked.
///
/// # Errors
/// Same as [`StateReader::account`].
pub fn read_each<P>(
    state: &dyn ParentState,
    keys: impl Iterator<Item = (P, StateKey)>,
    piece: usize,
    mut put: impl FnMut(P, StateValue),
) -> Result<usize, Error> {
    let (mut places, mut missing, mut count) = (Vec::new(), Vec::new(), 0);
    let mut keys = keys.fuse();
    loop {
        let key = keys.next();
        let is_end = key.is_none();
        if let Some((place, key)) = key {
            match state.in_memory(&key)? {
                Some(value) => put(place, value),
                None => {
                    places.push(place);
                    missing.push(key);
                    count += 1;
                }
            }
        }
        if missing.len() == piece || (is_end && !missing.is_empty()) {
            let read = waiting("wait.state_ns", || state.read_together(&missing))?;
            missing.clear();
            for (place, value) in places.drain(..).zip(read) {
                if let Some(value) = value {
                    put(place, value);
                }
            }
        }
        if is_end {
            return Ok(count);
        }
    }
}
