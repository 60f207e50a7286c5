//! Transactions executed ahead of their turn, on the prewarm threads, whose results are committed
//! as they are where everything that went into them still holds.
//!
//! ```text
//!  engine ── turn 0: executes ── turn 1: result there ─► reads hold? ─► commit ── turn 2: under way
//!               │                    ▲                      │ no          │          │ elsewhere
//!             commits                │                   executes        writes      ▼
//!               ▼                 result                                  │    executes a later one
//!           published ──────►  prewarm threads  ◄────────────────────────┘
//!               ▲                    │ take the next open transaction
//!               └── writes of results┘
//! ```
//!
//! A result is right if every value it was made from is the one that the transaction would read at
//! its turn. So it does not matter on what state it was executed. The engine compares the accounts
//! and slots that were read with the block's state, by value. It executes the transaction itself
//! where one differs. A key that the block has not touched is not read again if its value came from
//! the parent, because both sides read the parent through the same view. Verdicts, receipts and the
//! order of updates to the workers are those of execution in order.
//!
//! * Results read what those before them in the block wrote, committed or not: a sender's second
//!   transaction can follow its first one.
//! * The fee to the beneficiary is added at the commit ([`crate::block::evm::Unrewarded`]).
//! * Calls of a contract whose results keep failing to hold are left to the engine, and what is
//!   executed for nothing is bounded by gas.
//! * If a block's access list drives it, transactions are executed on the list's values instead of
//!   one another's writes ([`crate::ahead::listed`]). Nothing depends on anything then, so those that
//!   may be long come first. The first result that does not hold shows that the list is wrong: the
//!   rest of the block is executed as if there were none.
//! * Errors are never taken from a result: the engine executes the transaction and finds its own.

mod advice;
mod experience;
mod fiber;
mod job;
mod order;
mod outcome;
mod pool;
mod reader;
mod rounds;
mod status;
mod sync;
#[cfg(test)]
mod tests;
mod work;

pub use advice::Advice;
pub use job::{AheadEvm, Job, Pace, Runner, position};
pub use outcome::{Speculation, speculate};
pub use pool::Prewarmers;
pub use reader::{Miss, Reader};
pub use work::Sample;

use crate::{
    ahead::{
        listed::Listed,
        predict::Predictor,
        read_ahead::system_slots,
        senders::{Senders, SharedSenders},
    },
    machines::{Machines, Placement},
    metrics as names,
    state::{
        BlockState, StateReader,
        listed::ListedState,
        parent::{ParentState, StateKey},
        published::Published,
        reads::{SharedBlockHashes, Sources},
    },
};
use alloy_evm::EvmEnv;
use job::Turn;
use metrics::counter;
use pool::Posted;
use status::Claim;
use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};
use tandem_chain::{Block, Header};
use tandem_primitives::{B256, keccak256};
use tandem_telemetry::thread_cpu_ns;
use tracing::{Span, debug};

/// Minimum number of transactions for execution ahead. Smaller blocks are executed in order.
pub const TRANSACTIONS_MIN: usize = 5;

/// Inputs of execution ahead besides the block: threads, and the state from any thread.
pub struct Ahead<'a> {
    /// The prewarm threads.
    pub threads: &'a Prewarmers,
    /// Parent of their spans. They may still work when execution has ended, so it is not the span
    /// of execution.
    pub span: Span,
    /// State of the parent.
    pub parent: Arc<dyn ParentState>,
    /// Block hashes for the BLOCKHASH instruction.
    pub block_hashes: SharedBlockHashes,
    /// Receiver of the keys that results change.
    pub advice: Option<Advice>,
    /// Predictor that learns from the reads.
    pub predictor: Option<Arc<Predictor>>,
    /// Whether reads of far state are made in rounds.
    pub in_rounds: bool,
    /// Access list that drives the block.
    pub listed: Option<Listed>,
    /// Other machines that execute transactions of a block with a list.
    pub machines: Option<&'a Machines>,
    /// Positions of committed results, with the numbers of the tx-executors that they came from.
    pub foreign: RefCell<Vec<(usize, usize)>>,
}

impl<'a> Ahead<'a> {
    /// Begins to execute the block's transactions ahead, if that is worthwhile. The engine's thread
    /// calls this, once the block's state includes everything before the first transaction.
    pub fn start(&self, block: &Arc<Block>, senders: &Senders, env: &EvmEnv) -> Option<Turns<'a>> {
        let senders = senders.share();
        // With a list and machines, the engine's own work is measured for the next placement.
        let is_alone = self.threads.is_empty() && self.listed.as_ref().zip(self.machines).is_none();
        if is_alone || block.transactions.len() < TRANSACTIONS_MIN {
            senders.recover();
            return None;
        }
        let listed = self.listed.clone();
        let listed_state = listed.as_ref().map(|listed| listed.state.clone());
        let job = self.job(block, &senders, env, listed_state);
        let placement = listed.as_ref().zip(self.machines);
        let placement =
            placement.and_then(|(listed, machines)| machines.place(&job, &listed.state));
        // A tx-executor recovers the signers of what it executes.
        match placement.as_ref().is_some_and(Placement::is_shared) {
            true => senders.leave(),
            false => senders.recover(),
        }
        let posted = Instant::now();
        if let Some((placement, machines)) = placement.zip(self.machines) {
            machines.post(&job, placement, &self.span);
        }
        // The tx-executors prepare what they got meanwhile.
        if let Some(listed) = &listed {
            listed.read_ahead();
            job.prolong_leases(posted.elapsed());
        }
        let posted = self.threads.post(job, self.span.clone());
        let (block, env, conflict) = (block.clone(), env.clone(), None);
        let (runner, machines) = (Runner::default(), self.machines);
        let (began, executing, waiting) = (Instant::now(), Duration::ZERO, Duration::ZERO);
        let threads = 1 + self.threads.count();
        let turns = Turns {
            posted,
            runner,
            listed,
            machines,
            began,
            cpu_began_ns: thread_cpu_ns(),
            executing,
            waiting,
            threads,
            block,
            senders,
            env,
            conflict,
        };
        Some(turns)
    }

    fn job(
        &self,
        block: &Arc<Block>,
        senders: &SharedSenders,
        env: &EvmEnv,
        listed: Option<Arc<ListedState>>,
    ) -> Arc<Job> {
        let (parent, block_hashes) = (self.parent.clone(), self.block_hashes.clone());
        let is_listed = listed.is_some();
        let sources = Sources { published: Published::new(), listed, parent, block_hashes };
        let is_far = self.in_rounds && self.parent.is_far();
        let in_rounds = !is_listed && is_far && self.threads.experience().rounds_pay();
        // The workers know the list's values, and all reads are foretold.
        let told = match is_listed {
            true => (None, None),
            false => (self.advice.clone(), self.predictor.clone()),
        };
        let experience = self.threads.experience();
        let (block, senders, env) = (block.clone(), senders.clone(), env.clone());
        let sources = Arc::new(sources);
        Arc::new(Job::new(block, senders, env, sources, told, in_rounds, experience))
    }

    /// Reads the slots of the block's system calls that are not in memory, in one call if the state
    /// is far away. The engine calls this before the first system call, which comes too early for
    /// what other threads read ahead.
    pub fn read_for_system_calls(&self, header: &Header) {
        if !self.in_rounds || !self.parent.is_far() {
            return;
        }
        let slots = system_slots(header).into_iter();
        let keys = slots.map(|(contract, slot)| {
            StateKey::Slot(keccak256(contract), keccak256(B256::from(slot)))
        });
        let is_missing = |key: &StateKey| matches!(self.parent.in_memory(key), Ok(None));
        let keys: Vec<_> = keys.filter(is_missing).collect();
        if keys.len() > 1 {
            reader::read_together(&*self.parent, &keys);
        }
    }
}

/// The engine's side of one block. Once it is dropped, no further work begins.
pub struct Turns<'a> {
    posted: Posted<'a>,
    /// Runner for transactions that the engine itself executes ahead.
    runner: Runner,
    /// Access list that drove the block at its beginning.
    listed: Option<Listed>,
    /// Other machines, which want to know how fast this one is.
    machines: Option<&'a Machines>,
    began: Instant,
    /// Processor time of the engine's thread then, in ns.
    cpu_began_ns: u64,
    /// Time in which the engine executed transactions, and in which it waited for them.
    executing: Duration,
    waiting: Duration,
    /// Number of threads of this process.
    threads: usize,
    block: Arc<Block>,
    senders: SharedSenders,
    env: EvmEnv,
    /// First transaction whose result on the list's values did not hold.
    conflict: Option<usize>,
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        if let Some(listed) = &self.listed {
            listed.stop();
        }
        if let Some(machines) = self.machines {
            machines.forget(&self.posted.job);
        }
        #[cfg(test)]
        self.note_counts();
    }
}

#[cfg(test)]
impl Turns<'_> {
    fn note_counts(&self) {
        let counts = &self.job().counts;
        let counts = [&counts.speculated, &counts.committed, &counts.conflicts];
        tests::COUNTS.set(counts.map(|count| count.load(SeqCst)));
    }
}

impl<'a> Turns<'a> {
    /// Returns the sources to which the block's state publishes, if transactions read there.
    pub fn sources(&self) -> Option<&Arc<Sources>> {
        Some(&self.job().sources).filter(|sources| sources.listed.is_none())
    }

    /// Returns the sources of all reads ahead of turns.
    pub fn all_sources(&self) -> &Arc<Sources> {
        &self.job().sources
    }

    /// Returns whether transactions are executed on the values of the block's access list.
    pub fn follows_list(&self) -> bool {
        self.job().is_listed()
    }

    /// Leaves the access list, which is wrong before this transaction. The rest of the block is
    /// executed as if there were no list, on the block's state so far.
    pub fn leave_list<R: StateReader>(
        &mut self,
        ahead: &Ahead<'a>,
        index: usize,
        state: &BlockState<'_, R>,
    ) {
        counter!(names::ACCESS_LISTS, "outcome" => "left").increment(1);
        debug!(block.number = self.block.id.number, index, "the access list is wrong");
        self.conflict = Some(index);
        #[cfg(test)]
        tests::LEFT_AFTER.set(Some(self.job().counts.conflicts.load(SeqCst)));
        if let Some(listed) = &self.listed {
            listed.stop();
        }
        let job = ahead.job(&self.block, &self.senders, &self.env, None);
        state.publish_all(&job.sources.published, position(index) - 1);
        self.job().close();
        job.begin_at(index, &self.job().counts);
        self.posted = ahead.threads.post(job, ahead.span.clone());
        self.runner = Runner::default();
    }

    /// Records the outcome in the current span and in the metrics.
    pub fn record(&self) {
        if let Some(machines) = self.machines {
            let (work, took) = self.job().own_execution();
            // Other threads may get less of the processors than the engine.
            let took = self.executing.max(took / u32::try_from(self.threads).unwrap_or(u32::MAX));
            machines.note_local(work, took);
            let elapsed = self.began.elapsed();
            let in_order = elapsed.saturating_sub(self.executing + self.waiting);
            let busy = elapsed.saturating_sub(self.waiting).as_nanos().max(1);
            let had = thread_cpu_ns().saturating_sub(self.cpu_began_ns);
            machines.note_end(&self.posted.job, work, had as f64 / busy as f64);
            machines.note_in_order(self.job().works.total(), in_order);
        }
        let (span, counts) = (Span::current(), &self.job().counts);
        span.record("listed", self.listed.is_some());
        if let Some(index) = self.conflict {
            span.record("list.left_at", index);
        }
        for (name, outcome, count) in [
            ("speculated", "executed", &counts.speculated),
            ("committed", "committed", &counts.committed),
            ("conflicts", "conflict", &counts.conflicts),
        ] {
            let count = count.load(SeqCst);
            span.record(name, count);
            counter!(names::SPECULATED, "outcome" => outcome).increment(count);
        }
    }

    fn job(&self) -> &Job {
        &self.posted.job
    }

    /// Returns the result of a transaction whose turn it is, or `None` if it must be executed.
    /// While another thread executes it, the engine executes a later one.
    pub fn take(&mut self, index: usize) -> Option<Box<Speculation>> {
        let job = &self.posted.job;
        job.prepare_turn(&mut self.runner, index);
        // Most results are there already.
        match job.turn(index) {
            Turn::Ahead(result) => return Some(result),
            Turn::Execute => return None,
            Turn::Running => {}
        }
        let (began, executing) = (Instant::now(), self.executing);
        let result = self.wait_for(index);
        self.waiting += began.elapsed().saturating_sub(self.executing - executing);
        result
    }

    /// Same as [`Turns::take`], but executes the transaction on the list's values if no other thread
    /// has. Returns `None` if that gives no result.
    pub fn take_or_execute(&mut self, index: usize) -> Option<Box<Speculation>> {
        if let Some(result) = self.take(index) {
            return Some(result);
        }
        let began = Instant::now();
        let result = self.posted.job.execute_here(&mut self.runner, index);
        let took = began.elapsed();
        self.executing += took;
        if let Some(result) = &result {
            self.posted.job.counts.speculated.fetch_add(1, SeqCst);
            let gas = result.outcome.result.result.tx_gas_used();
            self.posted.job.note_own(index, gas, took);
        }
        result
    }

    fn wait_for(&mut self, index: usize) -> Option<Box<Speculation>> {
        let job = &self.posted.job;
        let mut may_help = true;
        loop {
            match job.turn(index) {
                Turn::Ahead(result) => return Some(result),
                Turn::Execute => return None,
                Turn::Running if job.take_over_late(index) => {
                    counter!(names::LEASED_TRANSACTIONS, "outcome" => "late").increment(1);
                }
                Turn::Running if job.help_to_look(&mut self.runner) => {}
                Turn::Running if !may_help => job.wait(index),
                Turn::Running => match job.claim() {
                    Claim::Run(later) => {
                        let began = Instant::now();
                        let missed = job.run(&mut self.runner, later);
                        self.executing += began.elapsed();
                        may_help = missed.is_empty();
                        job.want(missed);
                    }
                    Claim::Recover(later) => {
                        job.senders.get(later);
                    }
                    Claim::Later | Claim::Nothing => job.wait(index),
                },
            }
        }
    }

    /// Notes whether the taken result is committed.
    pub fn judge(&self, index: usize, speculation: &Speculation, holds: bool) {
        self.job().judge(index, speculation, holds);
    }

    /// Notes that the engine executed a transaction at its turn.
    pub fn note_own(&mut self, index: usize, gas: u64, took: Duration) {
        self.executing += took;
        self.job().note_own(index, gas, took);
    }

    /// Notes that a transaction was committed, in either way.
    pub fn committed(&self, index: usize) {
        self.job().committed(index);
    }
}
