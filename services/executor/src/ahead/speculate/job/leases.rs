//! Transactions of a block that tx-executors have.

use super::Job;
use crate::ahead::speculate::outcome::longest_lease;
use alloy_consensus::Transaction as _;
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

/// Number of leases for each thread in which what is left would be done.
const LEASES_LEFT: u64 = 3;

/// Leases of one block, and what its own threads execute meanwhile.
pub struct Leases {
    /// Time since the beginning, in µs and not 0, at which each transaction was leased. 0 for those
    /// that no tx-executor has.
    since: Box<[AtomicU32]>,
    /// Gas that threads of this process executed, and the time of it in ns.
    own_gas: AtomicU64,
    own_ns: AtomicU64,
}

impl Leases {
    /// Creates the state of a block with this many transactions, of which none is leased.
    pub fn of(count: usize) -> Self {
        let since = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { since, own_gas: AtomicU64::new(0), own_ns: AtomicU64::new(0) }
    }
}

impl Job {
    /// Notes gas that a thread of this process executed in this time.
    pub fn note_own(&self, gas: u64, took: Duration) {
        self.leases.own_gas.fetch_add(gas, SeqCst);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.leases.own_ns.fetch_add(took, SeqCst);
    }

    /// Returns the gas that threads of this process executed, and the time that this took.
    pub fn own_execution(&self) -> (u64, Duration) {
        (self.leases.own_gas.load(SeqCst), Duration::from_nanos(self.leases.own_ns.load(SeqCst)))
    }

    /// Claims transactions for a tx-executor: the next ones with a fair share of the gas that is
    /// left, for `executing` threads on all machines together. At most `count_max`, and more than one
    /// only up to the share or `gas_min`.
    pub fn lease(&self, executing: usize, count_max: usize, gas_min: u64) -> Vec<usize> {
        // Shares shrink towards the end, so that no machine has one left when the others are done.
        let share =
            |gas_left: u64| (gas_left / (LEASES_LEFT * executing.max(1) as u64)).max(gas_min);
        let leased = self.statuses.claim_share(count_max, share);
        let now = u32::try_from(self.started.elapsed().as_micros()).unwrap_or(u32::MAX).max(1);
        leased.iter().for_each(|index| self.leases.since[*index].store(now, SeqCst));
        leased
    }

    /// Notes that a thread of this process executes a leased transaction now.
    pub fn end_lease(&self, index: usize) {
        self.leases.since[index].store(0, SeqCst);
    }

    /// Returns whether a transaction is still to be executed where it was leased to.
    pub fn is_wanted(&self, index: usize) -> bool {
        self.statuses.is_wanted(index)
    }

    /// Returns the time that a tx-executor has left for a transaction, `None` if none has it.
    pub fn lease_left(&self, index: usize) -> Option<Duration> {
        let since = Some(self.leases.since[index].load(SeqCst)).filter(|since| *since != 0)?;
        let max = longest_lease(self.block.transactions[index].gas_limit());
        let since = Duration::from_micros(since.into());
        Some((since + max).saturating_sub(self.started.elapsed()))
    }

    /// Takes over a transaction that a tx-executor has had for too long. Returns whether it did.
    pub fn take_over_late(&self, index: usize) -> bool {
        self.lease_left(index) == Some(Duration::ZERO) && self.statuses.take_over(index)
    }
}
