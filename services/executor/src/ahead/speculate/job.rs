//! Transactions of one block as work shared by several threads.
//!
//! Each transaction is open until a thread takes it ([`super::status`]). The engine takes it at its
//! turn, to execute it on the block's own state. Any thread may take it ahead of its turn, to
//! execute it on the values known by then.

mod guesser;
mod leases;
mod looks;

use super::{
    advice::{Advice, Gathered},
    experience::Experience,
    order::BlockOrder,
    outcome::{Counts, Speculation, agreement, longest_wait, speculate},
    reader::{Miss, Reader, read_together},
    status::{self, Claim, Statuses},
    sync::Sleeper,
    work::{Sample, Works},
};
use crate::state::{
    parent::{StateKey, StateValue},
    published::Position,
    reads::{Reads, Recorder, Sources},
};
use crate::{
    ahead::{predict::Predictor, senders::SharedSenders},
    block::evm::BlockEvm,
    metrics as names,
};
use alloy_consensus::Transaction as _;
use alloy_evm::EvmEnv;
use alloy_primitives::map::AddressMap;
use guesser::Guesser;
use leases::Leases;
pub use leases::Pace;
use looks::Looks;
use metrics::counter;
use parking_lot::Mutex;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tandem_chain::Block;
use tandem_telemetry::{unix_nanos, waiting};
use tracing::warn;

/// Maximum number of times that the engine reads for an open transaction at its turn.
const READS_AT_TURN_MAX: usize = 3;
/// Number of keys noted for the next round beyond which no more are.
const WANTED_MAX: usize = 4_096;
/// Wasted gas, beyond half of the gas of committed results, after which the engine neither waits
/// nor executes ahead in this block.
const WASTE_MAX: u64 = 2_000_000;

/// Transactions of one block.
pub struct Job {
    pub block: Arc<Block>,
    pub senders: SharedSenders,
    pub env: EvmEnv,
    pub sources: Arc<Sources>,
    advice: Option<Advice>,
    predictor: Option<Arc<Predictor>>,
    pub counts: Counts,
    statuses: Statuses<Speculation, BlockOrder>,
    in_rounds: bool,
    started: Instant,
    /// Unix time in ns at which the block's execution ended, 0 before.
    closed_ns: AtomicU64,
    looks: Looks,
    /// Number of times that a fiber parked.
    parked: AtomicU64,
    /// Number of reads that no prediction foretold, so that each would be a call without rounds.
    surprises: AtomicU64,
    /// Whether transactions of the block before missed many values.
    missed_before: bool,
    wanted: Mutex<Vec<StateKey>>,
    /// Work of the transactions.
    pub works: Arc<Works>,
    /// Transactions at tx-executors, and who executed which.
    leases: Leases,
    /// Gas of committed results, and of results that did not hold.
    useful: AtomicU64,
    wasted: AtomicU64,
}

/// Execution environment of a thread.
#[derive(Default)]
pub struct Runner {
    evm: Option<AheadEvm<'static>>,
    guesser: Guesser,
    /// Changes of results, and those of executions with guesses, of which only the keys are of use.
    gathered: Gathered,
    guessed: Gathered,
    /// Predictor; none for the engine, which has no time to learn.
    predictor: Option<Arc<Predictor>>,
}

/// EVM for transactions ahead of their turn.
pub type AheadEvm<'y> = BlockEvm<Recorder<Reader<'y>>>;

/// State of a transaction at its turn.
pub type Turn = status::Turn<Speculation>;

impl Job {
    /// Creates the job. Must be called on the engine's thread.
    pub fn new(
        block: Arc<Block>,
        senders: SharedSenders,
        env: EvmEnv,
        sources: Arc<Sources>,
        (advice, predictor): (Option<Advice>, Option<Arc<Predictor>>),
        in_rounds: bool,
        experience: &Experience,
    ) -> Self {
        // If all is in memory, the engine executes the next transaction itself.
        let missed_before = in_rounds && experience.missed();
        let lead = usize::from(!missed_before);
        let hot = match in_rounds {
            true => experience.at(block.id.number),
            false => AddressMap::default(),
        };
        let works = Arc::new(Works::of(&block, &experience.weights));
        let order = match sources.listed {
            Some(_) => BlockOrder::of_listed(block.clone(), senders.clone(), works.clone()),
            None => BlockOrder::new(block.clone(), senders.clone(), works.clone(), hot),
        };
        Self {
            statuses: Statuses::new(block.transactions.len(), lead, order, Sleeper::current()),
            in_rounds,
            started: Instant::now(),
            closed_ns: AtomicU64::new(0),
            looks: Looks::of(block.transactions.len()),
            parked: AtomicU64::new(0),
            surprises: AtomicU64::new(0),
            missed_before,
            wanted: Mutex::default(),
            leases: Leases::of(&block),
            works,
            block,
            senders,
            env,
            sources,
            advice,
            predictor,
            counts: Counts::default(),
            useful: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
        }
    }

    /// Goes on with a block of whose transactions the engine has committed those before `index`.
    pub fn begin_at(&self, index: usize, counts: &Counts) {
        if let Some(last) = index.checked_sub(1) {
            self.statuses.committed(last);
        }
        self.counts.take_from(counts);
    }

    /// Returns whether transactions are executed on the values of the block's access list. They then
    /// read nothing of one another.
    pub fn is_listed(&self) -> bool {
        self.sources.listed.is_some()
    }

    /// Ends the work: running executions finish, no further one begins.
    pub fn close(&self) {
        self.closed_ns.store(unix_nanos(), SeqCst);
        self.statuses.close();
    }

    /// Returns the Unix time in ns at which the block's execution ended, if it has.
    pub fn closed_ns(&self) -> Option<u64> {
        Some(self.closed_ns.load(SeqCst)).filter(|at| *at > 0)
    }

    /// Works until nothing is left. For threads other than the engine's.
    pub fn work(&self) {
        let mut runner = self.runner();
        loop {
            match self.claim_or_wait(&mut runner) {
                Claim::Run(index) => {
                    self.run(&mut runner, index);
                }
                Claim::Recover(index) => {
                    self.senders.get(index);
                }
                Claim::Later => {}
                Claim::Nothing => return,
            }
            // A thread that waits for this core may be one that the block waits for.
            std::thread::yield_now();
        }
    }

    /// Returns the runner of a thread other than the engine's.
    pub fn runner(&self) -> Runner {
        Runner { predictor: self.predictor.clone(), ..Runner::default() }
    }

    /// Returns whether the state is far away, so that reads should leave together.
    pub fn is_in_rounds(&self) -> bool {
        self.in_rounds
    }

    /// Returns whether the block's execution has ended.
    pub fn is_closed(&self) -> bool {
        self.statuses.is_closed()
    }

    /// Returns the next work of a thread other than the engine's, which may wait for it.
    pub fn claim_or_wait(&self, runner: &mut Runner) -> Claim {
        let claim = match self.has_wasted_all() {
            true => Claim::Nothing,
            false => self.claim_own(|| {
                waiting("wait.turn_ns", || self.statuses.seek(runner.gathered.is_empty()))
            }),
        };
        if matches!(claim, Claim::Later | Claim::Nothing) {
            runner.gathered.tell(self.advice.as_ref(), self.behind());
        }
        claim
    }

    /// Returns the next work of a thread other than the engine's, which does not wait for it.
    pub fn claim_ahead(&self) -> Claim {
        match self.has_wasted_all() {
            true => Claim::Nothing,
            false => self.statuses.claim(),
        }
    }

    fn has_wasted_all(&self) -> bool {
        self.wasted.load(SeqCst) > self.block.header.gas_limit
    }

    /// Returns the number of results that the engine has not reached.
    fn behind(&self) -> usize {
        let counts = &self.counts;
        let judged = counts.committed.load(SeqCst) + counts.conflicts.load(SeqCst);
        counts.speculated.load(SeqCst).saturating_sub(judged) as usize
    }

    /// Returns the work that the engine may do while it waits.
    pub fn claim(&self) -> Claim {
        match self.is_wasteful() {
            true => Claim::Nothing,
            false => self.claim_own(|| self.statuses.claim()),
        }
    }

    fn is_wasteful(&self) -> bool {
        self.wasted.load(SeqCst) > WASTE_MAX + self.useful.load(SeqCst) / 2
    }

    /// Returns whether most transactions miss a value.
    fn has_misses(&self) -> bool {
        match (self.parked.load(SeqCst), self.counts.speculated.load(SeqCst)) {
            (0, 0) => self.missed_before,
            (parked, speculated) => parked > speculated,
        }
    }

    /// Notes that a fiber parked at a key, which was foretold or not.
    pub fn note_parked(&self, is_foretold: bool) {
        self.parked.fetch_add(1, SeqCst);
        self.surprises.fetch_add(u64::from(!is_foretold), SeqCst);
    }

    /// Executes a transaction ahead of its turn. The caller must have claimed it. In rounds, gives
    /// the transaction back and returns the keys of its reads if they are not in memory.
    pub fn run(&self, runner: &mut Runner, index: usize) -> Vec<StateKey> {
        if !self.in_rounds {
            let began = Instant::now();
            let done = self.execute_here(runner, index);
            if let Some(done) = &done {
                self.note_own(index, done.outcome.result.result.tx_gas_used(), began.elapsed());
            }
            self.deliver(runner, index, done);
            return Vec::new();
        }
        let (done, missed) = runner.guesser.execute(self, index, Self::execute);
        match missed.is_empty() {
            true => self.deliver(runner, index, done.map(Box::new)),
            false => self.statuses.reopen(index),
        }
        missed
    }

    /// Notes that a thread of this process executed a transaction.
    pub fn note_own(&self, index: usize, gas: u64, took: Duration) {
        self.note_execution(Sample { index, gas, took, at: None });
    }

    /// Executes a transaction on the caller's thread, and hands nothing over.
    pub fn execute_here(&self, runner: &mut Runner, index: usize) -> Option<Box<Speculation>> {
        self.try_execute(&mut runner.evm, || self.evm(Miss::Read), index).map(Box::new)
    }

    /// Creates an EVM on the parent's state and the block's published writes.
    pub fn evm<'y>(&self, miss: Miss<'y>) -> AheadEvm<'y> {
        let reader = Reader::new(self.sources.parent.clone(), miss);
        BlockEvm::new(Recorder::new(self.sources.clone(), reader), self.env.clone())
    }

    /// Hands over what became of a claimed transaction.
    pub fn deliver(&self, runner: &mut Runner, index: usize, done: Option<Box<Speculation>>) {
        let position = position(index);
        let mut lesson = None;
        match done {
            // The engine still waits for the result.
            Some(done) if self.statuses.is_wanted(index) => {
                self.counts.speculated.fetch_add(1, SeqCst);
                let state = &done.outcome.result.state;
                if !self.is_listed() {
                    self.sources.published.write_result(position, state);
                }
                if self.advice.is_some() {
                    runner.gathered.add(&done.reads, state, |address| done.reads.hash_of(address));
                }
                lesson = runner.predictor.as_ref().and_then(|predictor| {
                    let sender = self.senders.get(index)?;
                    predictor.note(&self.block.transactions[index], sender, &done.reads)
                });
                if let Some(done) = self.statuses.finish(index, done).filter(|_| !self.is_listed())
                {
                    self.sources.published.retract(position, &done.outcome.result.state);
                }
                self.statuses.announce(index);
            }
            _ => self.statuses.fail(index),
        }
        runner.gathered.tell_many(self.advice.as_ref(), self.behind());
        // Last, because nothing waits for it.
        if let (Some(lesson), Some(predictor)) = (lesson, &runner.predictor) {
            predictor.learn(lesson);
        }
    }

    /// Sends the runner's advice.
    pub fn tell(&self, runner: &mut Runner) {
        runner.gathered.tell(self.advice.as_ref(), self.behind());
        runner.guessed.tell(self.advice.as_ref(), 0);
    }

    /// Executes a transaction, with a fresh EVM if there is none.
    pub fn try_execute<'y>(
        &self,
        evm: &mut Option<AheadEvm<'y>>,
        fresh: impl FnOnce() -> AheadEvm<'y>,
        index: usize,
    ) -> Option<Speculation> {
        self.catch(evm, fresh, index, Self::execute)
    }

    /// Calls `execute`, with a fresh EVM if there is none. Catches panics, because the engine may
    /// wait for the result.
    fn catch<'y>(
        &self,
        evm: &mut Option<AheadEvm<'y>>,
        fresh: impl FnOnce() -> AheadEvm<'y>,
        index: usize,
        execute: impl FnOnce(&Self, &mut AheadEvm<'_>, usize) -> Option<Speculation>,
    ) -> Option<Speculation> {
        let evm_or_fresh = AssertUnwindSafe(|| execute(self, evm.get_or_insert_with(fresh), index));
        catch_unwind(evm_or_fresh).unwrap_or_else(|_| {
            let number = self.block.id.number;
            warn!(number, index, "execution ahead of its turn panicked");
            *evm = None;
            None
        })
    }

    fn execute(&self, evm: &mut AheadEvm<'_>, index: usize) -> Option<Speculation> {
        let sender = self.senders.get(index)?;
        let environment = self.senders.environment(index, sender);
        let mut done = speculate(evm, index, environment).ok()??;
        if let Some(listed) = &self.sources.listed {
            done.agreement = agreement(listed, index, &done, evm);
        }
        Some(done)
    }

    /// Returns whether a transaction would still read the same published writes.
    pub fn is_current(&self, index: usize, reads: &Reads) -> bool {
        self.sources.published.holds(reads, position(index))
    }

    /// In rounds, if most transactions miss a value, executes an open one from memory at its turn, and
    /// reads what is missing, a few times at most.
    pub fn prepare_turn(&self, runner: &mut Runner, index: usize) {
        for _ in 0..READS_AT_TURN_MAX {
            let is_unknown = self.looks.is_unknown(index);
            let is_worthwhile = self.in_rounds && is_unknown && self.has_misses();
            if !is_worthwhile || self.is_wasteful() || !self.statuses.claim_this(index) {
                return;
            }
            let missed = self.run(runner, index);
            if missed.is_empty() {
                return;
            }
            self.read_together(&missed);
        }
    }

    /// Same as [`read_together`], of the block's parent.
    pub fn read_together(&self, keys: &[StateKey]) -> Vec<Option<StateValue>> {
        read_together(&*self.sources.parent, keys)
    }

    /// Notes keys for the next round.
    pub fn want(&self, keys: Vec<StateKey>) {
        let mut wanted = self.wanted.lock();
        if wanted.len() < WANTED_MAX {
            wanted.extend(keys);
        }
    }

    /// Returns the keys that were noted for the next round.
    pub fn take_wanted(&self) -> Vec<StateKey> {
        std::mem::take(&mut *self.wanted.lock())
    }

    /// Returns the state of a transaction at its turn.
    pub fn turn(&self, index: usize) -> Turn {
        self.statuses.turn(index)
    }

    /// Waits for a transaction running elsewhere, or takes it over.
    pub fn wait(&self, index: usize) {
        if self.is_wasteful() {
            self.statuses.take_over(index);
            return;
        }
        let (max, gas) = longest_wait(self.is_listed(), self.in_rounds);
        if let Some(left) = self.lease_left(index) {
            if waiting("wait.ahead_ns", || self.statuses.wait(index, left)) {
                counter!(names::LEASED_TRANSACTIONS, "outcome" => "late").increment(1);
            }
            return;
        }
        if waiting("wait.ahead_ns", || self.statuses.wait(index, max)) {
            self.wasted.fetch_add(gas, SeqCst);
        }
    }

    /// Records whether the engine could commit a result.
    pub fn judge(&self, index: usize, speculation: &Speculation, holds: bool) {
        let gas = speculation.outcome.result.result.tx_gas_used();
        let (count, sum) = match holds {
            true => (&self.counts.committed, &self.useful),
            false => (&self.counts.conflicts, &self.wasted),
        };
        count.fetch_add(1, SeqCst);
        sum.fetch_add(gas, SeqCst);
        if !holds {
            self.statuses.reject(index);
            if !self.is_listed() {
                let state = &speculation.outcome.result.state;
                self.sources.published.retract(position(index), state);
            }
        }
        if let Some(callee) = self.block.transactions[index].to() {
            self.statuses.with_order(|order| order.judge(callee, holds));
        }
    }

    /// Adds to the experience: contracts whose calls conflicted, and whether values were missing.
    pub fn note_experience(&self, experience: &Experience) {
        if self.is_listed() {
            return self.learn_weights(&experience.weights);
        }
        self.statuses.with_order(|order| {
            experience.note(self.block.id.number, order.hot_callees());
        });
        let (count, took) = (self.block.transactions.len() as u64, self.started.elapsed());
        if self.in_rounds {
            experience.note_missed(self.parked.load(SeqCst) > count / 2);
            experience.note_rounds_pay(self.wait_of(self.surprises.load(SeqCst)) > took / 12);
        } else {
            experience.note_rounds_pay(self.wait_of(self.sources.parent.calls()) > took / 8);
        }
    }

    /// Returns the time that this many reads wait, one after the other.
    fn wait_of(&self, reads: u64) -> Duration {
        self.sources.parent.call_time() * u32::try_from(reads).unwrap_or(u32::MAX)
    }

    /// Notes that the engine has committed a transaction.
    pub fn committed(&self, index: usize) {
        self.statuses.committed(index);
    }
}

/// Returns the position of a transaction among the writers of its block.
pub fn position(index: usize) -> Position {
    // A block of 4 billion transactions does not fit into memory.
    (index + 1) as Position
}
