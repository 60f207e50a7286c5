//! Transactions of a block that tx-executors have.

use super::Job;
use crate::ahead::speculate::{
    outcome::longest_lease,
    status::Claim,
    work::{Sample, Weights, function},
};
use alloy_consensus::Transaction as _;
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst},
    time::Duration,
};
use tandem_chain::Block;

/// Number of times that a tx-executor may take what it took for transactions before.
const PATIENCE: u32 = 3;
/// Longest time that a tx-executor is given for what it has, beyond that of one transaction.
const BACKLOG_MAX: Duration = Duration::from_secs(2);

/// Leases of one block, and what its own threads execute meanwhile.
pub struct Leases {
    /// Time since the beginning, in µs and not 0, after which the engine executes a transaction
    /// itself. 0 for those that no tx-executor has.
    until: Box<[AtomicU32]>,
    /// Executions so far, here and at tx-executors.
    samples: Mutex<Vec<Sample>>,
    /// Work, in gas, that threads of this process may still claim ahead of its turn.
    own_left: AtomicI64,
}

/// Speed of a tx-executor.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pace {
    /// Time until it begins with the next lease.
    pub begins: Duration,
    /// Gas per second of all its threads, if it is known.
    pub gas: Option<f64>,
}

impl Pace {
    /// Returns the time that so much gas takes.
    pub fn time_of(&self, gas: f64) -> Duration {
        let seconds = self.gas.filter(|rate| *rate > 0.0).map_or(0.0, |rate| gas / rate);
        Duration::try_from_secs_f64(seconds).unwrap_or(BACKLOG_MAX)
    }
}

impl Leases {
    /// Creates the state of a block of which nothing is leased.
    pub fn of(block: &Block) -> Self {
        let until = block.transactions.iter().map(|_| AtomicU32::new(0)).collect();
        Self { until, samples: Mutex::default(), own_left: AtomicI64::new(i64::MAX) }
    }
}

impl Job {
    /// Notes the execution of a transaction, if its block has an access list. Nothing else shares out work.
    pub fn note_execution(&self, sample: Sample) {
        if self.is_listed() {
            self.leases.samples.lock().push(sample);
        }
    }

    /// Returns the work that threads of this process did, in gas, and the time that this took.
    pub fn own_execution(&self) -> (f64, Duration) {
        let samples = self.leases.samples.lock();
        let own = samples.iter().filter(|sample| sample.at.is_none());
        own.fold((0.0, Duration::ZERO), |(work, took), sample| {
            (work + self.works.done(sample.index, sample.gas), took + sample.took)
        })
    }

    /// Has threads of this process claim at most about so much work, in gas, ahead of its turn.
    pub fn limit_own(&self, work: f64) {
        self.leases.own_left.store(work as i64, SeqCst);
    }

    /// Claims work for a thread of this process, if it may claim more.
    pub(super) fn claim_own(&self, claim: impl FnOnce() -> Claim) -> Claim {
        let left = &self.leases.own_left;
        if left.load(SeqCst) <= 0 {
            return Claim::Nothing;
        }
        let claim = claim();
        if let Claim::Run(index) = claim {
            left.fetch_sub(self.works.expected(index) as i64, SeqCst);
        }
        claim
    }

    /// Learns the weights of functions from the block's executions.
    pub(super) fn learn_weights(&self, weights: &Weights) {
        let call = |index: usize| {
            let transaction = &self.block.transactions[index];
            (function(transaction), transaction.gas_limit())
        };
        weights.learn(call, &self.works, &self.leases.samples.lock());
    }

    /// Claims the next transactions for a tx-executor of this pace, with about so much work in all: at
    /// most `count_max`, and more than one only up to the work. `work` gets that of all that are left.
    pub fn lease(&self, count_max: usize, pace: Pace, work: impl FnOnce(f64) -> f64) -> Vec<usize> {
        let leased = self.statuses.claim_share(count_max, work);
        self.time_leases(&leased, pace);
        leased
    }

    /// Notes until when a tx-executor of this pace has time for transactions that it has got, possibly
    /// as copies of what another one has.
    pub fn time_leases(&self, leased: &[usize], pace: Pace) {
        let sum = leased.iter().map(|index| self.works.expected(*index)).sum();
        let backlog = ((pace.begins + pace.time_of(sum)) * PATIENCE).min(BACKLOG_MAX);
        let now = self.started.elapsed();
        for index in leased {
            let wait = longest_lease(self.block.transactions[*index].gas_limit());
            let until = u32::try_from((now + backlog + wait).as_micros()).unwrap_or(u32::MAX);
            self.leases.until[*index].store(until.max(1), SeqCst);
        }
    }

    /// Prolongs all leases by the time for which the tx-executors waited for values.
    pub fn prolong_leases(&self, waited: Duration) {
        let waited = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
        let later = |until: u32| (until != 0).then(|| until.saturating_add(waited));
        for until in &self.leases.until {
            until.fetch_update(SeqCst, SeqCst, later).ok();
        }
    }

    /// Notes that no tx-executor has a transaction any more.
    pub fn end_lease(&self, index: usize) {
        self.leases.until[index].store(0, SeqCst);
    }

    /// Gives a leased transaction back, so that any thread may execute it. Those of this process may claim
    /// any other one, too.
    pub fn give_back(&self, index: usize) {
        self.end_lease(index);
        self.limit_own(f64::INFINITY);
        self.statuses.give_back(index);
    }

    /// Claims a transaction that was given back. Returns false if another thread has taken it.
    pub fn claim_again(&self, index: usize) -> bool {
        self.statuses.claim_this(index)
    }

    /// Returns whether a transaction is still to be executed where it was leased to.
    pub fn is_wanted(&self, index: usize) -> bool {
        self.statuses.is_wanted(index)
    }

    /// Returns the time that a tx-executor has left for a transaction, `None` if none has it.
    pub fn lease_left(&self, index: usize) -> Option<Duration> {
        let until = Some(self.leases.until[index].load(SeqCst)).filter(|until| *until != 0)?;
        Some(Duration::from_micros(until.into()).saturating_sub(self.started.elapsed()))
    }

    /// Takes over a transaction that a tx-executor has had for too long. Returns whether it did.
    pub fn take_over_late(&self, index: usize) -> bool {
        self.lease_left(index) == Some(Duration::ZERO) && self.statuses.take_over(index)
    }
}
