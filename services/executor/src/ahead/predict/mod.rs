//! What a call will read, foretold from what earlier calls of the same function read.
//!
//! A block names accounts, but not slots: `transfer(to, amount)` reads the balances of its sender and
//! of `to`, which lie where the compiler put them, at `keccak256(key . slot)` for Solidity and at
//! `keccak256(slot . key)` for Vyper. So for each function that is called (an address and a selector)
//! a few calls are looked at: which of the keys that they read follow from sender, callee and
//! arguments, and how. The keys of later calls are then known before they execute, and are read
//! together (see [`crate::ahead::read_ahead`]).
//!
//! A prediction is advice. What it misses is read when execution gets there; what it has too much
//! was read for nothing.

mod pattern;
mod search;
#[cfg(test)]
mod tests;

use crate::state::reads::Reads;
use alloy_consensus::Transaction as _;
use parking_lot::Mutex;
use pattern::Pattern;
use quick_cache::sync::Cache;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};
use tandem_chain::Transaction;
use tandem_primitives::{Address, U256};

/// Functions remembered.
const FUNCTIONS_MAX: usize = 16_384;
/// Searches for the rules of a function in one block: one may take milliseconds.
const SEARCHES_MAX: u32 = 8;
/// Words of a call's arguments that are looked at.
const WORDS_MAX: usize = 512;

/// What is called: a contract and the first four bytes of its input. With no contract, the function
/// of that name wherever it was last met first: wallets of one make each have an address of their
/// own, also those that accounts delegate to (EIP-7702).
type Function = (Option<Address>, [u8; 4]);

/// What was learnt of functions.
pub struct Predictor {
    functions: Cache<Function, Arc<Mutex<Pattern>>>,
    /// Searches that are left in this block.
    searches: AtomicU32,
}

/// Keys that a call reads, or is expected to read: accounts, and slots of accounts.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Keys {
    /// Of those expected, sender and callee are not among them, unless the function reads their
    /// slots.
    pub accounts: Vec<Address>,
    pub slots: Vec<(Address, U256)>,
}

/// A call to learn from, and what it read: all that is needed, so that the results of the call can
/// go on their way first.
pub struct Lesson {
    call: Call,
    read: Keys,
    patterns: Vec<Arc<Mutex<Pattern>>>,
}

/// A call by what its keys may follow from.
struct Call {
    sender: Address,
    callee: Address,
    /// The arguments in words of 32 bytes.
    words: Vec<U256>,
    /// The same from the fifth byte on, where the arguments of a call within the arguments lie.
    inner: Vec<U256>,
}

impl Default for Predictor {
    fn default() -> Self {
        Self { functions: Cache::new(FUNCTIONS_MAX), searches: AtomicU32::new(SEARCHES_MAX) }
    }
}

impl Predictor {
    /// From now on the calls of another block are predicted.
    pub fn begin_block(&self) {
        self.searches.store(SEARCHES_MAX, Relaxed);
    }

    /// What a transaction of this sender will read; nothing where its function was not seen before.
    pub fn predict(&self, transaction: &Transaction, sender: Address) -> Keys {
        let mut keys = Keys::default();
        let Some((callee, selector, arguments)) = function(transaction) else { return keys };
        let known = |callee| self.functions.get(&(callee, selector));
        if let Some(pattern) = known(Some(callee)).or_else(|| known(None)) {
            pattern.lock().predict(&Call::new(sender, callee, arguments), &mut keys);
        }
        keys
    }

    /// Takes note that a transaction of this sender was executed. Now and then there is something
    /// to [`learn`](Self::learn) from what it has read.
    pub fn note(
        &self,
        transaction: &Transaction,
        sender: Address,
        reads: &Reads,
    ) -> Option<Lesson> {
        if reads.slots.is_empty() {
            return None;
        }
        let (callee, selector, arguments) = function(transaction)?;
        let mut patterns = Vec::new();
        for of in [Some(callee), None] {
            let function = (of, selector);
            let known = self.functions.get(&function);
            let is_known = known.is_some();
            let pattern = known.unwrap_or_else(|| {
                let pattern = Arc::default();
                self.functions.insert(function, Arc::clone(&pattern));
                pattern
            });
            // Else somebody learns from another call of the same function.
            let is_due = pattern.try_lock().is_some_and(|mut pattern| pattern.is_due());
            patterns.extend(is_due.then_some(pattern));
            if is_known {
                break;
            }
        }
        if patterns.is_empty() {
            return None;
        }
        Some(Lesson {
            call: Call::new(sender, callee, arguments),
            read: Keys {
                accounts: reads.accounts.iter().map(|read| read.address).collect(),
                slots: reads.slots.iter().map(|read| (read.address, read.key)).collect(),
            },
            patterns,
        })
    }

    /// Looks for what the keys follow from: it may take milliseconds.
    pub fn learn(&self, lesson: Lesson) {
        let may_search = || {
            let left = |left: u32| left.checked_sub(1);
            self.searches.fetch_update(Relaxed, Relaxed, left).is_ok()
        };
        for pattern in lesson.patterns {
            if let Some(mut pattern) = pattern.try_lock() {
                pattern.learn(&lesson.call, &lesson.read, may_search);
            }
        }
    }
}

/// What a transaction calls, and with which arguments; `None` for what is no call of a function.
fn function(transaction: &Transaction) -> Option<(Address, [u8; 4], &[u8])> {
    let (selector, arguments) = transaction.input().split_first_chunk::<4>()?;
    Some((transaction.to()?, *selector, arguments))
}

impl Call {
    fn new(sender: Address, callee: Address, arguments: &[u8]) -> Self {
        let words = |bytes: &[u8]| {
            let words = bytes.as_chunks::<32>().0.iter().take(WORDS_MAX);
            words.map(|word| U256::from_be_bytes(*word)).collect()
        };
        let inner = words(arguments.get(4..).unwrap_or_default());
        Self { sender, callee, words: words(arguments), inner }
    }
}
