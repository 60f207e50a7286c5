//! Transactions of one block as work shared by several threads.
//!
//! Each transaction is open until a thread takes it. The engine takes it at its turn, to execute it
//! on the block's own state. Any thread may take it ahead of its turn, to execute it on the values
//! known by then.

use super::advice::{Advice, Gathered};
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
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread::Thread,
    time::{Duration, Instant},
};
use tandem_chain::Block;
use tandem_primitives::Address;
use tracing::warn;

/// Number of checks of a transaction running elsewhere before the engine sleeps.
const SPINS: usize = 200;
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

/// Status: no thread has taken the transaction.
const OPEN: u8 = 0;
/// Status: a thread executes the transaction ahead of its turn.
const RUNNING: u8 = 1;
/// Status: the result is available.
const DONE: u8 = 2;
/// Status: the engine executes the transaction, or has committed it.
const TAKEN: u8 = 3;
/// Status: execution ahead failed, so the engine will execute the transaction.
const FAILED: u8 = 4;

/// Result of a transaction executed ahead of its turn.
pub struct Speculation {
    /// Outcome if its reads still hold.
    pub outcome: Unrewarded,
    /// Reads of the execution.
    pub reads: Reads,
}

struct Slot {
    status: AtomicU8,
    /// Next transaction of the same sender, 0 if none is known.
    successor: AtomicU32,
    result: Mutex<Option<Box<Speculation>>>,
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
    slots: Box<[Slot]>,
    claims: Mutex<Claims>,
    /// Notified when a transaction was committed or executed that another may have waited for.
    progress: Condvar,
    /// Number of threads that look for work, or wait for it.
    seekers: AtomicUsize,
    /// Number of transactions that the engine has committed.
    committed: AtomicUsize,
    closed: AtomicBool,
    /// Transaction that the engine waits for.
    awaited: AtomicUsize,
    engine: Thread,
    /// Gas of committed results, and of results that did not hold.
    useful: AtomicU64,
    wasted: AtomicU64,
}

/// State for choosing the next transaction.
#[derive(Default)]
struct Claims {
    /// Index below which no transaction is open.
    from: usize,
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

/// Next work of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Execute this transaction, which the thread holds now.
    Run(usize),
    /// Recover the sender of this transaction.
    Recover(usize),
    /// Wait, because every open transaction depends on running ones.
    Later,
    /// No work is left.
    Nothing,
}

/// State of a transaction at its turn.
pub enum Turn {
    /// The result is available.
    Ahead(Box<Speculation>),
    /// The engine must execute the transaction.
    Execute,
    /// Another thread executes the transaction.
    Running,
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
        let slot = |_| Slot {
            status: AtomicU8::new(OPEN),
            successor: AtomicU32::new(0),
            result: Mutex::new(None),
        };
        Self {
            slots: (0..block.transactions.len()).map(slot).collect(),
            block,
            senders,
            env,
            sources,
            advice,
            predictor,
            counts: Counts::default(),
            claims: Mutex::default(),
            progress: Condvar::new(),
            seekers: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            awaited: AtomicUsize::new(NONE),
            engine: std::thread::current(),
            useful: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
        }
    }

    /// Ends the work: running executions finish, no further one begins.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        let _claims = self.claims.lock();
        self.progress.notify_all();
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
        // Counted before the search, so that a thread that makes progress later sees a waiting one.
        self.seekers.fetch_add(1, SeqCst);
        let mut claims = self.claims.lock();
        let claim = match self.wasted.load(SeqCst) > self.block.header.gas_limit {
            true => Claim::Nothing,
            false => self.next(&mut claims),
        };
        if matches!(claim, Claim::Later | Claim::Nothing) && !runner.gathered.is_empty() {
            let behind = self.behind();
            let tell = || runner.gathered.tell(self.advice.as_ref(), behind);
            MutexGuard::unlocked(&mut claims, tell);
        } else if claim == Claim::Later {
            self.progress.wait(&mut claims);
        }
        self.seekers.fetch_sub(1, SeqCst);
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
            false => self.next(&mut self.claims.lock()),
        }
    }

    fn is_wasteful(&self) -> bool {
        self.wasted.load(SeqCst) > WASTE_MAX + self.useful.load(SeqCst) / 2
    }

    fn next(&self, claims: &mut MutexGuard<'_, Claims>) -> Claim {
        if self.closed.load(SeqCst) {
            return Claim::Nothing;
        }
        let is_open = |index: usize| self.slots[index].is(OPEN);
        // The next transaction is left to the engine.
        let committed = self.committed.load(SeqCst);
        claims.from = claims.from.max(committed + 1);
        while claims.from < self.slots.len() && !is_open(claims.from) {
            claims.from += 1;
        }
        let mut passed = false;
        for index in claims.from..self.slots.len() {
            if !is_open(index) {
                continue;
            }
            if let Err(unknown) = self.link(claims, index) {
                return Claim::Recover(unknown);
            }
            let (previous, slot) = (claims.previous[index], &self.slots[index]);
            let is_next = previous == NONE || previous < committed || self.slots[previous].is(DONE);
            if is_next && !self.is_hot(claims, index) && slot.change(OPEN, RUNNING) {
                return Claim::Run(index);
            }
            passed = true;
        }
        if passed { Claim::Later } else { Claim::Nothing }
    }

    /// Links this transaction to the sender's previous one. `Err` names the first transaction whose
    /// sender is unknown.
    fn link(&self, claims: &mut Claims, index: usize) -> Result<(), usize> {
        for at in claims.previous.len()..=index {
            let previous = match self.senders.peek(at).ok_or(at)? {
                Some(sender) => claims.last_of.insert(sender, at),
                // Without a signer, no transaction follows.
                None => None,
            };
            if let Some(previous) = previous {
                self.slots[previous].successor.store(at as u32, SeqCst);
            }
            claims.previous.push(previous.unwrap_or(NONE));
        }
        Ok(())
    }

    fn callee(&self, index: usize) -> Option<Address> {
        self.block.transactions[index].to()
    }

    fn is_hot(&self, claims: &Claims, index: usize) -> bool {
        let score = self.callee(index).and_then(|callee| claims.callees.get(&callee));
        score.is_some_and(|score| score.is_hot())
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
        let slot = &self.slots[index];
        let position = position(index);
        let mut lesson = None;
        match done {
            // The engine still waits for the result.
            Some(done) if slot.is(RUNNING) => {
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
                *slot.result.lock() = Some(Box::new(done));
                if !slot.change(RUNNING, DONE)
                    && let Some(done) = slot.result.lock().take()
                {
                    self.sources.published.retract(position, &done.outcome.result.state);
                }
                self.wake(slot, 0);
            }
            _ => {
                slot.change(RUNNING, FAILED);
            }
        }
        if self.awaited.load(SeqCst) == index {
            self.engine.unpark();
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

    /// Wakes a thread if the sender's next transaction can be executed now, and is not the engine's
    /// next one.
    fn wake(&self, slot: &Slot, above: usize) {
        let is_wanted = slot.successor.load(SeqCst) as usize > above;
        if is_wanted && self.seekers.load(SeqCst) > 0 {
            let _claims = self.claims.lock();
            self.progress.notify_one();
        }
    }

    /// Returns the state of a transaction at its turn.
    pub fn turn(&self, index: usize) -> Turn {
        let slot = &self.slots[index];
        loop {
            match slot.status.load(SeqCst) {
                OPEN if slot.change(OPEN, TAKEN) => return Turn::Execute,
                OPEN => {}
                RUNNING => return Turn::Running,
                DONE => return slot.result.lock().take().map_or(Turn::Execute, Turn::Ahead),
                _ => return Turn::Execute,
            }
        }
    }

    /// Waits for a transaction running elsewhere, or takes it over.
    pub fn wait(&self, index: usize) {
        let slot = &self.slots[index];
        let is_running = || slot.is(RUNNING);
        if self.is_wasteful() {
            slot.change(RUNNING, TAKEN);
            return;
        }
        for _ in 0..SPINS {
            if !is_running() {
                return;
            }
            std::hint::spin_loop();
        }
        let until = Instant::now() + WAIT_MAX;
        self.awaited.store(index, SeqCst);
        while is_running() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if slot.change(RUNNING, TAKEN) {
                    self.wasted.fetch_add(WAIT_MAX_GAS, SeqCst);
                }
                break;
            }
            std::thread::park_timeout(left);
        }
        self.awaited.store(NONE, SeqCst);
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
            // The sender's next transaction waits for the engine's commit of this one.
            self.slots[index].change(DONE, FAILED);
            let state = &speculation.outcome.result.state;
            self.sources.published.retract(position(index), state);
        }
        if let Some(callee) = self.callee(index) {
            let mut claims = self.claims.lock();
            let score = claims.callees.entry(callee).or_default();
            *if holds { &mut score.held } else { &mut score.conflicts } += 1;
        }
    }

    /// Notes that the engine has committed a transaction.
    pub fn committed(&self, index: usize) {
        self.committed.store(index + 1, SeqCst);
        self.wake(&self.slots[index], index + 1);
    }
}

impl Slot {
    fn is(&self, status: u8) -> bool {
        self.status.load(SeqCst) == status
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.status.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}

/// Returns the position of a transaction among the writers of its block.
pub fn position(index: usize) -> Position {
    // A block of 4 billion transactions does not fit into memory.
    (index + 1) as Position
}
