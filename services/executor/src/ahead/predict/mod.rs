//! Prediction of a call's reads from the reads of earlier calls of the same function.
//!
//! A block names accounts, but not slots. For example, `transfer(to, amount)` reads the balances of
//! its sender and of `to`. The compiler places them at `keccak256(key . slot)` for Solidity and at
//! `keccak256(slot . key)` for Vyper. So a few calls of each function (an address and a selector)
//! are examined. The examination finds which of their keys follow from sender, callee and
//! arguments, and how. The keys of later calls are then known before they execute, and are read
//! together (see [`crate::ahead::read_ahead`]).
//!
//! A prediction is advice. Execution itself reads the keys that it misses. Superfluous keys are
//! read in vain.

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
use tandem_primitives::{Address, B256, U256, keccak256};

/// Maximum number of remembered functions.
const FUNCTIONS_MAX: usize = 16_384;
/// Maximum number of rule searches in one block. A search may take milliseconds.
const SEARCHES_MAX: u32 = 8;
/// Maximum number of examined words of a call's arguments.
const WORDS_MAX: usize = 512;

/// Called function: a contract and the first four bytes of its input. An entry without a contract
/// covers the selector in any contract, learnt from the first call of each. It serves wallets of
/// one make, which have an address each, including those that accounts delegate to (EIP-7702).
type Function = (Option<Address>, [u8; 4]);

/// Rules learnt for functions.
pub struct Predictor {
    functions: Cache<Function, Arc<Mutex<Pattern>>>,
    /// Remaining searches in this block.
    searches: AtomicU32,
}

/// Keys that a call reads, or is expected to read: accounts, and slots of accounts.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Keys {
    /// Accounts. A prediction omits sender and callee, unless the function reads their slots.
    pub accounts: Vec<Address>,
    pub slots: Vec<(Address, U256)>,
}

impl Keys {
    /// Returns whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.slots.is_empty()
    }

    /// Returns the slots as hashes of address and slot.
    pub fn hashed_slots(&self) -> impl Iterator<Item = (B256, B256)> + '_ {
        let mut hashed: Option<(Address, B256)> = None;
        self.slots.iter().map(move |(address, slot)| {
            // Slots of one contract mostly follow each other.
            let account = match hashed {
                Some((last, hash)) if last == *address => hash,
                _ => keccak256(address),
            };
            hashed = Some((*address, account));
            (account, keccak256(slot.to_be_bytes::<32>()))
        })
    }
}

/// Call to learn from, and its reads. It owns its data, so that the results of the call can be
/// forwarded first.
pub struct Lesson {
    call: Call,
    read: Keys,
    patterns: Vec<Arc<Mutex<Pattern>>>,
}

/// Parts of a call that its keys may follow from.
struct Call {
    sender: Address,
    callee: Address,
    /// The arguments in words of 32 bytes.
    words: Vec<U256>,
    /// Arguments in words from the fifth byte on, for a call within the arguments.
    inner: Vec<U256>,
}

/// When to predict, and from what.
#[derive(Clone)]
pub struct Prediction {
    predictor: Arc<Predictor>,
    /// Whether to predict. `None`: while reads take long.
    wanted: Option<bool>,
}

impl Prediction {
    /// Creates a prediction that knows nothing yet. Without a setting, it is made while reads take
    /// long.
    pub fn new(wanted: Option<bool>) -> Self {
        Self { predictor: Arc::default(), wanted }
    }

    /// Returns the predictor if there is to be a prediction.
    pub fn of(&self, reads_take_long: bool) -> Option<Arc<Predictor>> {
        self.wanted.unwrap_or(reads_take_long).then(|| self.predictor.clone())
    }
}

impl Default for Predictor {
    fn default() -> Self {
        Self { functions: Cache::new(FUNCTIONS_MAX), searches: AtomicU32::new(SEARCHES_MAX) }
    }
}

impl Predictor {
    /// Begins another block, whose calls are then predicted.
    pub fn begin_block(&self) {
        self.searches.store(SEARCHES_MAX, Relaxed);
    }

    /// Returns the expected reads of a transaction of this sender. They are empty if its function is
    /// known to read no slot, and `None` if nothing is known of it, or no rule was found.
    pub fn predict(&self, transaction: &Transaction, sender: Address) -> Option<Keys> {
        let (callee, selector, arguments) = function(transaction)?;
        let known = [Some(callee), None].map(|of| self.functions.get(&(of, selector)));
        let call = Call::new(sender, callee, arguments);
        let (mut keys, mut reads_none) = (Keys::default(), false);
        for pattern in known.iter().flatten() {
            let pattern = pattern.lock();
            reads_none |= pattern.has_no_call();
            pattern.predict(&call, &mut keys);
            if !keys.is_empty() {
                break;
            }
        }
        (reads_none || !keys.is_empty()).then_some(keys)
    }

    /// Notes the execution of a transaction of this sender. Occasionally returns a lesson to
    /// [`learn`](Self::learn) from its reads.
    pub fn note(
        &self,
        transaction: &Transaction,
        sender: Address,
        reads: &Reads,
    ) -> Option<Lesson> {
        let (callee, selector, arguments) = function(transaction)?;
        if reads.slots.is_empty() {
            // A function without slots, until another call of it reads one.
            self.pattern((Some(callee), selector));
            return None;
        }
        let mut patterns = Vec::new();
        for of in [Some(callee), None] {
            let pattern = self.pattern((of, selector));
            // Otherwise another thread is learning from a call of this function.
            let Some(mut locked) = pattern.try_lock() else { break };
            let (is_first, is_due) = (locked.has_no_call(), locked.is_due());
            drop(locked);
            patterns.extend(is_due.then_some(pattern));
            if !is_first {
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

    /// Returns what is known of a function, which is remembered from now on.
    fn pattern(&self, function: Function) -> Arc<Mutex<Pattern>> {
        self.functions.get(&function).unwrap_or_else(|| {
            let pattern = Arc::default();
            self.functions.insert(function, Arc::clone(&pattern));
            pattern
        })
    }

    /// Searches for rules behind the keys. May take milliseconds.
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

/// Returns callee, selector and arguments, or `None` if the transaction calls no function.
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
