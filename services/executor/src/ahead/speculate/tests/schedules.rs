//! The status words under the orders of a few threads (loom).
//!
//! Each test is one small block. loom runs it in every order of the threads' steps with a bounded
//! number of interruptions, and reports threads that wait for ever. A ledger follows every result.

// Code of the service over the primitives of loom.
#[allow(clippy::duplicate_mod, dead_code)]
#[path = "../status.rs"]
mod status;
mod sync;

use loom::{model::Builder, thread};
use status::{Claim, Order, Statuses, Turn};
use std::{sync::Arc, time::Duration};
use sync::{Condvar, Mutex, Sleeper};

/// Block, its threads, and the engine's behaviour.
#[derive(Clone, Copy)]
struct Plan {
    /// Previous transaction of the same sender, for each transaction.
    previous: &'static [Option<usize>],
    /// Number of threads besides the engine's.
    threads: usize,
    /// Transaction whose execution ahead fails.
    failing: Option<usize>,
    /// Transaction whose result does not hold.
    conflicting: Option<usize>,
    /// Transaction that is left to the engine.
    left: Option<usize>,
    patience: Patience,
    /// Whether the engine executes one transaction ahead before its first turn.
    helps: bool,
    /// Whether the engine claims each open transaction at its turn, and gives it back the first
    /// time, as in rounds.
    in_rounds: bool,
    /// Number of turns before the engine closes the block.
    turns: usize,
    /// Transaction that another thread must execute before the engine's second turn.
    expected: Option<usize>,
    /// Maximum number of times per order that a thread is interrupted though it could go on.
    interruptions_max: usize,
}

/// Time that the engine waits for a transaction running elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// As long as it takes. A lost wake-up is a deadlock.
    Endless,
    /// Any time.
    Limited,
    /// None, as too much was wasted.
    Nothing,
}

impl Plan {
    const fn new(previous: &'static [Option<usize>], threads: usize) -> Self {
        Self {
            previous,
            threads,
            failing: None,
            conflicting: None,
            left: None,
            patience: Patience::Endless,
            helps: false,
            in_rounds: false,
            turns: previous.len(),
            expected: None,
            interruptions_max: if threads == 1 { 5 } else { 3 },
        }
    }
}

struct Chain {
    plan: Plan,
    linked: usize,
    left: Option<usize>,
}

impl Order for Chain {
    fn previous(
        &mut self,
        index: usize,
        mut link: impl FnMut(usize, usize),
    ) -> Result<Option<usize>, usize> {
        for at in self.linked..=index {
            if let Some(previous) = self.plan.previous[at] {
                link(previous, at);
            }
        }
        self.linked = self.linked.max(index + 1);
        Ok(self.plan.previous[index])
    }

    fn is_left(&self, index: usize) -> bool {
        self.left == Some(index)
    }
}

/// Fate of one transaction. Its mutex is std's: entries are no steps of the threads.
#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    /// Number of threads that began to execute it ahead.
    begun: usize,
    /// Number of executions ahead without a result.
    failed: usize,
    /// Whether its writes can be read by other threads.
    published: bool,
    /// Number of results that were retracted by their thread.
    retracted: usize,
    /// Number of results that the engine received.
    handed_out: usize,
    /// Whether the engine has executed it.
    executed: bool,
    /// Number of commits.
    committed: usize,
}

struct Model {
    plan: Plan,
    statuses: Statuses<usize, Chain>,
    engine: Sleeper,
    ledger: std::sync::Mutex<Vec<Entry>>,
    /// Whether the expected transaction was executed.
    is_met: Mutex<bool>,
    met: Condvar,
}

impl Model {
    fn new(plan: Plan) -> Self {
        let engine = Sleeper::new();
        let chain = Chain { plan, linked: 0, left: None };
        let lead = usize::from(!plan.in_rounds);
        Self {
            plan,
            statuses: Statuses::new(plan.previous.len(), lead, chain, engine.clone()),
            engine,
            ledger: std::sync::Mutex::new(vec![Entry::default(); plan.previous.len()]),
            is_met: Mutex::new(plan.expected.is_none()),
            met: Condvar::new(),
        }
    }

    fn note(&self, index: usize, change: impl FnOnce(&mut Entry)) {
        change(&mut self.ledger.lock().unwrap()[index]);
    }

    /// Work of a thread other than the engine's.
    fn work(&self) {
        loop {
            match self.statuses.seek(true) {
                Claim::Run(index) => self.run(index),
                Claim::Later => {}
                Claim::Recover(index) => panic!("the sender of {index} is known"),
                Claim::Nothing => return,
            }
        }
    }

    fn run(&self, index: usize) {
        self.note(index, |entry| {
            entry.begun += 1;
            assert_eq!(entry.begun, 1, "one thread executes it: {entry:?}");
        });
        if let Some(previous) = self.plan.previous[index] {
            self.note(previous, |entry| {
                let is_known = entry.published || entry.executed;
                assert!(is_known, "{index} follows an executed transaction: {entry:?}");
            });
        }
        if self.plan.failing == Some(index) || !self.statuses.is_wanted(index) {
            self.note(index, |entry| entry.failed += 1);
            self.statuses.fail(index);
            return;
        }
        self.note(index, |entry| entry.published = true);
        if let Some(result) = self.statuses.finish(index, Box::new(index)) {
            assert_eq!(*result, index);
            self.note(index, |entry| {
                entry.published = false;
                entry.retracted += 1;
            });
        }
        self.statuses.announce(index);
        if self.plan.expected == Some(index) {
            *self.is_met.lock() = true;
            self.met.notify_one();
        }
    }

    /// The engine's work, like that of `Turns`.
    fn commit(&self) {
        if self.plan.helps
            && let Claim::Run(index) = self.statuses.claim()
        {
            self.run(index);
        }
        for index in 0..self.plan.turns {
            match self.take(index) {
                Some(result) => {
                    assert_eq!(result, index);
                    let holds = self.plan.conflicting != Some(index);
                    self.note(index, |entry| {
                        assert!(entry.published, "the result is not retracted: {entry:?}");
                        entry.handed_out += 1;
                        entry.executed = !holds;
                        entry.published = holds;
                    });
                    if !holds {
                        self.statuses.reject(index);
                    }
                }
                None => self.note(index, |entry| entry.executed = true),
            }
            self.note(index, |entry| entry.committed += 1);
            self.statuses.committed(index);
            let mut is_met = self.is_met.lock();
            while !*is_met {
                self.met.wait(&mut is_met);
            }
        }
        self.statuses.close();
        assert!(self.statuses.is_closed());
    }

    fn take(&self, index: usize) -> Option<usize> {
        if self.plan.in_rounds && self.statuses.is_open(index) && self.statuses.claim_this(index) {
            self.statuses.reopen(index);
            if self.statuses.claim_this(index) {
                self.run(index);
            }
        }
        loop {
            match self.statuses.turn(index) {
                Turn::Ahead(result) => return Some(*result),
                Turn::Execute => return None,
                Turn::Running if self.plan.patience == Patience::Nothing => {
                    self.statuses.take_over(index);
                }
                Turn::Running => match self.statuses.claim() {
                    Claim::Run(later) => self.run(later),
                    Claim::Recover(later) => panic!("the sender of {later} is known"),
                    Claim::Later | Claim::Nothing => {
                        let taken_over = self.statuses.wait(index, Duration::ZERO);
                        assert!(!taken_over || self.plan.patience == Patience::Limited);
                    }
                },
            }
        }
    }

    /// Checks the ledger after the end of all threads.
    fn check(&self) {
        for (index, entry) in self.ledger.lock().unwrap().iter().enumerate() {
            let ends = entry.failed + entry.retracted + entry.handed_out;
            if index >= self.plan.turns {
                assert!(entry.committed == 0 && ends <= entry.begun, "{index}: {entry:?}");
                continue;
            }
            assert_eq!(entry.committed, 1, "{index} is committed once: {entry:?}");
            assert_eq!(ends, entry.begun, "the result of {index} has one end: {entry:?}");
            let is_result = entry.handed_out == 1 && self.plan.conflicting != Some(index);
            assert_ne!(is_result, entry.executed, "{index}: result or execution: {entry:?}");
            assert_eq!(is_result, entry.published, "no write of {index} is left: {entry:?}");
        }
    }
}

/// Runs the plan in all orders of its threads with that many interruptions.
fn check(plan: Plan) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(plan.interruptions_max);
    builder.check(move || {
        let model = Arc::new(Model::new(plan));
        if let Some(left) = plan.left {
            model.statuses.with_order(|chain| chain.left = Some(left));
        }
        let spawn = |work: fn(&Model)| {
            let model = model.clone();
            thread::spawn(move || work(&model))
        };
        let mut threads: Vec<_> = (0..plan.threads).map(|_| spawn(Model::work)).collect();
        if plan.patience == Patience::Limited {
            threads.push(spawn(|model| model.engine.end_time()));
        }
        model.commit();
        for thread in threads {
            thread.join().unwrap();
        }
        model.check();
    });
}

/// Three transactions of different senders.
const APART: &[Option<usize>] = &[None, None, None];

#[test]
fn one_thread_and_an_endlessly_waiting_engine() {
    check(Plan::new(APART, 1));
}

#[test]
fn two_threads_and_an_endlessly_waiting_engine() {
    check(Plan::new(APART, 2));
}

#[test]
fn a_waiting_engine_is_woken_by_a_failure() {
    check(Plan { failing: Some(1), ..Plan::new(APART, 1) });
}

#[test]
fn an_engine_takes_over_after_any_time() {
    let plan = Plan { patience: Patience::Limited, ..Plan::new(&[None, None], 1) };
    check(plan);
    check(Plan { previous: APART, turns: 3, ..plan });
}

#[test]
fn an_impatient_engine_takes_over_at_once() {
    check(Plan { patience: Patience::Nothing, ..Plan::new(APART, 1) });
    check(Plan { patience: Patience::Nothing, ..Plan::new(APART, 2) });
}

#[test]
fn a_result_that_does_not_hold_delays_the_senders_next_transaction() {
    let plan = Plan::new(&[None, None, Some(1)], 1);
    check(Plan { conflicting: Some(1), ..plan });
    check(Plan { conflicting: Some(1), threads: 2, interruptions_max: 3, ..plan });
}

#[test]
fn a_thread_that_waits_for_a_commit_is_woken() {
    let plan = Plan { expected: Some(2), ..Plan::new(&[None, None, Some(0)], 1) };
    check(plan);
    check(Plan { threads: 2, interruptions_max: 3, ..plan });
}

#[test]
fn a_thread_that_waits_for_another_execution_is_woken() {
    check(Plan { helps: true, expected: Some(2), ..Plan::new(&[None, None, Some(1)], 1) });
}

#[test]
fn a_transaction_left_to_the_engine_is_executed_at_its_turn() {
    check(Plan { left: Some(1), ..Plan::new(APART, 1) });
}

#[test]
fn a_transaction_that_the_engine_gives_back_is_executed_once() {
    let plan = Plan { in_rounds: true, ..Plan::new(&[None, None, Some(1)], 1) };
    check(plan);
    check(Plan { threads: 2, interruptions_max: 2, ..plan });
    check(Plan { previous: &[None, Some(0)], turns: 2, failing: Some(0), ..plan });
}

#[test]
fn closing_early_ends_all_threads() {
    for turns in 0..2 {
        let plan = Plan::new(&[None, None, Some(1)], 1);
        check(Plan { turns, ..plan });
        check(Plan { turns, threads: 2, interruptions_max: 3, ..plan });
    }
}
