//! Search for the reads of transactions that no thread executes yet, or that wait for a value.

use super::{AheadEvm, Job, Runner};
use crate::{
    ahead::speculate::outcome::{Speculation, speculate},
    state::parent::StateKey,
};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use tandem_primitives::keccak256;

/// Maximum gas of an execution that takes guesses.
const GUESS_GAS_MAX: u64 = 1_000_000;

/// Nothing was looked for.
const UNKNOWN: u8 = 0;
/// Predicted keys were noted.
const PREDICTED: u8 = 1;
/// Number of executions with guesses of a transaction that goes on waiting: values that come in lead to keys
/// that guesses in their place did not. The states after [`PREDICTED`] count them.
const GUESSES_MAX: u8 = 8;

/// Searches so far.
pub struct Looks {
    of_each: Box<[AtomicU8]>,
    /// First transaction that [`Job::next_to_read`] has not looked at.
    next: AtomicUsize,
    /// Transaction above which [`Job::help_to_look`] has looked at all.
    above: AtomicUsize,
}

impl Looks {
    /// Creates the state of a block with this number of transactions.
    pub fn of(count: usize) -> Self {
        let of_each = (0..count).map(|_| AtomicU8::new(UNKNOWN)).collect();
        Self { of_each, next: AtomicUsize::new(0), above: AtomicUsize::new(count) }
    }

    /// Returns whether nothing was looked for.
    pub fn is_unknown(&self, index: usize) -> bool {
        self.of_each[index].load(SeqCst) == UNKNOWN
    }

    /// Notes that predicted keys are looked for. Returns false if another thread did, or the search is further.
    fn predict(&self, index: usize) -> bool {
        self.of_each[index].compare_exchange(UNKNOWN, PREDICTED, SeqCst, SeqCst).is_ok()
    }

    /// Notes that guesses are of no use to a transaction.
    fn end(&self, index: usize) {
        self.of_each[index].store(PREDICTED + GUESSES_MAX, SeqCst);
    }

    /// Notes one more execution with guesses, of at most so many. Returns false if there were as many.
    fn guess(&self, index: usize, max: u8) -> bool {
        let more = |state| (PREDICTED..PREDICTED + max).contains(&state).then_some(state + 1);
        self.of_each[index].try_update(SeqCst, SeqCst, more).is_ok()
    }
}

impl Job {
    /// Returns the next transaction that cannot be executed yet, or is left to the engine, and
    /// whose reads no thread has looked for.
    pub fn next_to_read(&self) -> Option<usize> {
        if self.is_closed() {
            return None;
        }
        let count = self.block.transactions.len();
        loop {
            let index = self.looks.next.fetch_add(1, SeqCst);
            if index >= count {
                return None;
            }
            if self.can_be_looked_at(index) {
                return Some(index);
            }
        }
    }

    /// Returns whether the reads of a transaction can be looked for, and are still of interest.
    fn can_be_looked_at(&self, index: usize) -> bool {
        self.statuses.is_open(index) && self.senders.peek(index).is_some()
    }

    /// Looks for the reads of one transaction while the engine waits, from the block's end on, so
    /// that the next round has its keys. Returns false if that is not worthwhile.
    pub fn help_to_look(&self, runner: &mut Runner) -> bool {
        if !self.in_rounds || !self.has_misses() {
            return false;
        }
        loop {
            let above = self.looks.above.load(SeqCst);
            let Some(index) = above.checked_sub(1) else { return false };
            self.looks.above.store(index, SeqCst);
            if self.can_be_looked_at(index) {
                let keys = self.look_for_reads(runner, index, false);
                self.want(keys);
                return true;
            }
        }
    }

    /// Returns keys of a transaction's reads that are not in memory: the first time those that are
    /// predicted, later or without a prediction those that follow from guesses, and then nothing.
    /// Guesses cost an execution, so they are left for later where the function is known to read
    /// nothing, unless the transaction `waits` for a value. One that waits again, for a key that guesses did not
    /// lead to, is executed with guesses again: a call of an account whose code came in leads to its slots.
    pub fn look_for_reads(&self, runner: &mut Runner, index: usize, waits: bool) -> Vec<StateKey> {
        if self.looks.predict(index)
            && let Some(keys) = self.predicted(index)
            && !(keys.is_empty() && waits)
        {
            return keys;
        }
        if !self.looks.guess(index, if waits { GUESSES_MAX } else { 1 }) {
            return Vec::new();
        }
        let (done, keys) = runner.guesser.execute(self, index, Self::execute_for_reads);
        self.surprises.fetch_add(keys.len() as u64, SeqCst);
        // Values of slots lead from pointer to pointer at most; code leads to all that it reads.
        if keys.iter().all(|key| matches!(key, StateKey::Slot(..))) {
            self.looks.end(index);
        }
        if let Some(done) = done.filter(|_| self.advice.is_some()) {
            // Workers read the paths of what it changes while its values are read.
            let (reads, state) = (&done.reads, &done.outcome.result.state);
            runner.guessed.add(reads, state, |address| reads.hash_of(address));
            runner.guessed.tell_many(self.advice.as_ref(), 0);
        }
        keys
    }

    /// Returns the predicted reads of a transaction that are not in memory. Returns `None` without a
    /// prediction, or if all of its keys are in memory: it may lack others.
    fn predicted(&self, index: usize) -> Option<Vec<StateKey>> {
        let sender = self.senders.peek(index)??;
        let transaction = &self.block.transactions[index];
        let keys = self.predictor.as_ref()?.predict(transaction, sender)?;
        let accounts = keys.accounts.iter().map(|address| StateKey::Account(keccak256(address)));
        let slots = keys.hashed_slots().map(|(address, slot)| StateKey::Slot(address, slot));
        let is_missing = |key: &StateKey| matches!(self.sources.parent.in_memory(key), Ok(None));
        let missing: Vec<_> = accounts.chain(slots).filter(is_missing).collect();
        (keys.is_empty() || !missing.is_empty()).then_some(missing)
    }

    /// Executes a transaction for its reads and the keys that it changes, on whatever state there is. Earlier
    /// transactions of its sender may be missing.
    fn execute_for_reads(&self, evm: &mut AheadEvm<'_>, index: usize) -> Option<Speculation> {
        let sender = self.senders.get(index)?;
        let mut environment = self.senders.environment(index, sender);
        environment.gas_limit = environment.gas_limit.min(GUESS_GAS_MAX);
        evm.check_nonces(false);
        let done = speculate(evm, index, environment);
        evm.check_nonces(true);
        done.ok().flatten()
    }
}
