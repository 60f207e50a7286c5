//! Transactions of one block as work shared by several threads.
//!
//! Each transaction is open until a thread takes it ([`super::status`]). The engine takes it at its
//! turn, to execute it on the block's own state. Any thread may take it ahead of its turn, to
//! execute it on the values known by then.

use super::{
    advice::{Advice, Gathered},
    status::{self, Claim, Statuses},
    sync::Sleeper,
};
use crate::state::{
    published::Position,
    reads::{Reads, Recorder, Sources},
};
use crate::{
    ahead::{predict::Predictor, senders::SharedSenders},
    block::evm::{BlockEvm, Unrewarded},
};
use alloy_consensus::Transaction as _;
use alloy_evm::EvmEnv;
use alloy_primitives::map::AddressMap;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tandem_chain::Block;
use tracing::warn;

/// Maximum time the engine waits for a transaction running elsewhere. Execution on outdated values
/// can run to the gas limit, although the real transaction is short.
const WAIT_MAX: Duration = Duration::from_millis(4);
/// Gas charged as waste for a transaction that the engine waited for in vain.
const WAIT_MAX_GAS: u64 = 4_000_000;
/// Wasted gas, beyond half of the gas of committed results, after which the engine neither waits
/// nor executes ahead in this block.
const WASTE_MAX: u64 = 2_000_000;
/// Index for no transaction.
const NONE: usize = usize::MAX;

/// Result of a transaction executed ahead of its turn.
pub struct Speculation {
    /// Outcome if its reads still hold.
    pub outcome: Unrewarded,
    /// Reads of the execution.
    pub reads: Reads,
}

/// Numbers of a block's transactions by outcome.
#[derive(Default)]
pub struct Counts {
    /// Transactions executed ahead of their turn.
    pub speculated: AtomicU64,
    /// Transactions with results committed unchanged.
    pub committed: AtomicU64,
    /// Transactions with results that no longer held.
    pub conflicts: AtomicU64,
}

/// Transactions of one block.
pub struct Job {
    pub block: Arc<Block>,
    pub senders: SharedSenders,
    pub env: EvmEnv,
    pub sources: Arc<Sources>,
    advice: Option<Advice>,
    predictor: Option<Arc<Predictor>>,
    pub counts: Counts,
    statuses: Statuses<Speculation, Order>,
    /// Gas of committed results, and of results that did not hold.
    useful: AtomicU64,
    wasted: AtomicU64,
}

/// Order of the transactions of each sender, and calls that depend on one another.
struct Order {
    block: Arc<Block>,
    senders: SharedSenders,
    /// Previous transaction of the same sender for each transaction examined so far.
    previous: Vec<usize>,
    /// Last transaction of each sender among those.
    last_of: AddressMap<usize>,
    callees: AddressMap<Score>,
}

/// Results of calls to an address that held, and that conflicted.
#[derive(Clone, Copy, Default)]
struct Score {
    held: u32,
    conflicts: u32,
}

impl Score {
    /// Returns whether calls of the contract mostly depend on one another.
    fn is_hot(self) -> bool {
        self.conflicts >= 2 && self.conflicts > self.held
    }
}

/// Execution environment of a thread.
#[derive(Default)]
pub struct Runner {
    evm: Option<BlockEvm<Recorder>>,
    gathered: Gathered,
    /// Predictor; none for the engine, which has no time to learn.
    predictor: Option<Arc<Predictor>>,
}

/// State of a transaction at its turn.
pub type Turn = status::Turn<Speculation>;

impl status::Order for Order {
    fn previous(
        &mut self,
        index: usize,
        mut link: impl FnMut(usize, usize),
    ) -> Result<Option<usize>, usize> {
        for at in self.previous.len()..=index {
            let previous = match self.senders.peek(at).ok_or(at)? {
                Some(sender) => self.last_of.insert(sender, at),
                // Without a signer, no transaction follows.
                None => None,
            };
            if let Some(previous) = previous {
                link(previous, at);
            }
            self.previous.push(previous.unwrap_or(NONE));
        }
        let previous = self.previous[index];
        Ok((previous != NONE).then_some(previous))
    }

    fn is_left(&self, index: usize) -> bool {
        let callee = self.block.transactions[index].to();
        let score = callee.and_then(|callee| self.callees.get(&callee));
        score.is_some_and(|score| score.is_hot())
    }
}

impl Job {
    /// Creates the job. Must be called on the engine's thread.
    pub fn new(
        block: Arc<Block>,
        senders: SharedSenders,
        env: EvmEnv,
        sources: Arc<Sources>,
        (advice, predictor): (Option<Advice>, Option<Arc<Predictor>>),
    ) -> Self {
        let order = Order {
            block: block.clone(),
            senders: senders.clone(),
            previous: Vec::new(),
            last_of: AddressMap::default(),
            callees: AddressMap::default(),
        };
        Self {
            statuses: Statuses::new(block.transactions.len(), order, Sleeper::current()),
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

    /// Ends the work: running executions finish, no further one begins.
    pub fn close(&self) {
        self.statuses.close();
    }

    /// Works until nothing is left. For threads other than the engine's.
    pub fn work(&self) {
        let mut runner = Runner { predictor: self.predictor.clone(), ..Runner::default() };
        loop {
            match self.claim_or_wait(&mut runner) {
                Claim::Run(index) => self.run(&mut runner, index),
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

    fn claim_or_wait(&self, runner: &mut Runner) -> Claim {
        let claim = match self.wasted.load(SeqCst) > self.block.header.gas_limit {
            true => Claim::Nothing,
            false => self.statuses.seek(runner.gathered.is_empty()),
        };
        if matches!(claim, Claim::Later | Claim::Nothing) {
            runner.gathered.tell(self.advice.as_ref(), self.behind());
        }
        claim
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
            false => self.statuses.claim(),
        }
    }

    fn is_wasteful(&self) -> bool {
        self.wasted.load(SeqCst) > WASTE_MAX + self.useful.load(SeqCst) / 2
    }

    /// Executes a transaction ahead of its turn. The caller must have claimed it.
    pub fn run(&self, runner: &mut Runner, index: usize) {
        // Catches panics, because the engine may wait for the result.
        let done = catch_unwind(AssertUnwindSafe(|| {
            let fresh = || BlockEvm::new(Recorder::new(self.sources.clone()), self.env.clone());
            self.execute(runner.evm.get_or_insert_with(fresh), index)
        }));
        let done = done.unwrap_or_else(|_| {
            warn!(number = self.block.id.number, index, "execution ahead of its turn panicked");
            runner.evm = None;
            None
        });
        let position = position(index);
        let mut lesson = None;
        match done {
            // The engine still waits for the result.
            Some(done) if self.statuses.is_wanted(index) => {
                self.counts.speculated.fetch_add(1, SeqCst);
                let state = &done.outcome.result.state;
                self.sources.published.write_result(position, state);
                if self.advice.is_some()
                    && let Some(evm) = &mut runner.evm
                {
                    let recorder = evm.database();
                    runner.gathered.add(&done.reads, state, |address| recorder.hash_of(address));
                }
                lesson = runner.predictor.as_ref().and_then(|predictor| {
                    let sender = self.senders.get(index)?;
                    predictor.note(&self.block.transactions[index], sender, &done.reads)
                });
                if let Some(done) = self.statuses.finish(index, Box::new(done)) {
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

    fn execute(&self, evm: &mut BlockEvm<Recorder>, index: usize) -> Option<Speculation> {
        let sender = self.senders.get(index)?;
        evm.database().begin(position(index));
        let environment = self.senders.environment(index, sender);
        let outcome = evm.transact_unrewarded(environment).ok()?;
        let reads = evm.database().take_reads();
        (!reads.met_storage).then_some(Speculation { outcome, reads })
    }

    /// Returns the state of a transaction at its turn.
    pub fn turn(&self, index: usize) -> Turn {
        self.statuses.turn(index)
    }

    /// Waits for a transaction running elsewhere, or takes it over.
    pub fn wait(&self, index: usize) {
        if self.is_wasteful() {
            self.statuses.take_over(index);
        } else if self.statuses.wait(index, WAIT_MAX) {
            self.wasted.fetch_add(WAIT_MAX_GAS, SeqCst);
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
            let state = &speculation.outcome.result.state;
            self.sources.published.retract(position(index), state);
        }
        if let Some(callee) = self.block.transactions[index].to() {
            self.statuses.with_order(|order| {
                let score = order.callees.entry(callee).or_default();
                *if holds { &mut score.held } else { &mut score.conflicts } += 1;
            });
        }
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
