//! One block's transactions as work that several threads share.
//!
//! Each transaction is open until somebody takes it: the engine, at its turn, to execute it on the
//! block's own state; or any thread, ahead of its turn, to execute it on what is known by then.

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

/// Looks at a transaction under way elsewhere before the engine sleeps.
const SPINS: usize = 200;
/// As long as the engine waits at most for a transaction that is under way elsewhere. What others
/// execute on values that do not hold can run to its gas limit, where the real transaction is
/// short.
const WAIT_MAX: Duration = Duration::from_millis(4);
/// Gas that a transaction wasted counts as that the engine waited for in vain.
const WAIT_MAX_GAS: u64 = 4_000_000;
/// Gas executed for nothing, beyond that of committed results, after which the engine neither
/// waits nor executes ahead any more in this block.
const WASTE_MAX: u64 = 2_000_000;
/// No transaction.
const NONE: usize = usize::MAX;

/// Nobody has taken it.
const OPEN: u8 = 0;
/// Somebody executes it ahead of its turn.
const RUNNING: u8 = 1;
/// Its result is there.
const DONE: u8 = 2;
/// The engine executes it, or has committed it.
const TAKEN: u8 = 3;
/// It could not be executed ahead of its turn: the engine will.
const FAILED: u8 = 4;

/// A transaction executed ahead of its turn.
pub struct Speculation {
    /// What it does if what it read still holds.
    pub outcome: Unrewarded,
    /// What it read.
    pub reads: Reads,
}

struct Slot {
    status: AtomicU8,
    /// The next transaction of the same sender, 0 when none is known.
    successor: AtomicU32,
    result: Mutex<Option<Box<Speculation>>>,
}

/// What happened to the transactions of one block.
#[derive(Default)]
pub struct Counts {
    /// Executed ahead of their turn.
    pub speculated: AtomicU64,
    /// Whose results were committed as they were.
    pub committed: AtomicU64,
    /// Whose results no longer held.
    pub conflicts: AtomicU64,
}

/// The transactions of one block.
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
    /// A transaction was committed or executed, which another may have waited for.
    progress: Condvar,
    /// Threads that look for work, or wait for it.
    seekers: AtomicUsize,
    /// Transactions that the engine has committed.
    committed: AtomicUsize,
    closed: AtomicBool,
    /// The transaction that the engine waits for.
    awaited: AtomicUsize,
    engine: Thread,
    /// Gas of committed results, and of those that did not hold.
    useful: AtomicU64,
    wasted: AtomicU64,
}

/// Who may be executed next.
#[derive(Default)]
struct Claims {
    /// No transaction below it is open.
    from: usize,
    /// For each transaction, as far as they were looked at, the one before it of the same sender.
    previous: Vec<usize>,
    /// The last transaction of each sender among those.
    last_of: AddressMap<usize>,
    callees: AddressMap<Score>,
}

/// How results of calls to an address fared.
#[derive(Clone, Copy, Default)]
struct Score {
    held: u32,
    conflicts: u32,
}

impl Score {
    /// A contract whose calls mostly depend on one another.
    fn is_hot(self) -> bool {
        self.conflicts >= 2 && self.conflicts > self.held
    }
}

/// What a thread executes with.
#[derive(Default)]
pub struct Runner {
    evm: Option<BlockEvm<Recorder>>,
    gathered: Gathered,
    /// None for the engine: it has no time to learn.
    predictor: Option<Arc<Predictor>>,
}

/// What a thread may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Execute this transaction, which it holds now.
    Run(usize),
    /// Recover the sender of this one.
    Recover(usize),
    /// All that is open depends on what is under way.
    Later,
    /// Nothing any more.
    Nothing,
}

/// What the engine finds at a transaction's turn.
pub enum Turn {
    /// Its result.
    Ahead(Box<Speculation>),
    /// It is to be executed.
    Execute,
    /// Somebody executes it.
    Running,
}

impl Job {
    /// To be made on the engine's thread.
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

    /// Ends the work: what is under way is finished, nothing new is begun.
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
            // Who waits for this core may be one that the block waits for.
            std::thread::yield_now();
        }
    }

    fn claim_or_wait(&self, runner: &mut Runner) -> Claim {
        // Before the look, so that whoever makes progress after it sees that somebody waits.
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

    /// Results that the engine has not come to.
    fn behind(&self) -> usize {
        let counts = &self.counts;
        let judged = counts.committed.load(SeqCst) + counts.conflicts.load(SeqCst);
        counts.speculated.load(SeqCst).saturating_sub(judged) as usize
    }

    /// What the engine may do while it waits.
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
        // The engine's next one is its own.
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

    /// Finds the transaction before this one of the same sender. `Err` names the first transaction
    /// whose sender is not known yet.
    fn link(&self, claims: &mut Claims, index: usize) -> Result<(), usize> {
        for at in claims.previous.len()..=index {
            let previous = match self.senders.peek(at).ok_or(at)? {
                Some(sender) => claims.last_of.insert(sender, at),
                // Nobody signed it, so no transaction follows.
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

    /// Executes a transaction ahead of its turn, which the caller has claimed.
    pub fn run(&self, runner: &mut Runner, index: usize) {
        // Nobody may wait for a result that a panic keeps from coming.
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
            // The engine has not lost patience.
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
        // Last, because nobody waits for it.
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

    /// Wakes a thread if the next transaction of the same sender can be executed now, and is not
    /// the engine's next one.
    fn wake(&self, slot: &Slot, above: usize) {
        let is_wanted = slot.successor.load(SeqCst) as usize > above;
        if is_wanted && self.seekers.load(SeqCst) > 0 {
            let _claims = self.claims.lock();
            self.progress.notify_one();
        }
    }

    /// What the engine does with a transaction at its turn.
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

    /// The engine waits for a transaction that is under way elsewhere, or takes it over.
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

    /// The engine says whether a result could be committed.
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

    /// The engine has committed a transaction.
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

/// Where a transaction stands among the writers of its block.
pub fn position(index: usize) -> Position {
    // A block of 4 billion transactions does not fit into memory.
    (index + 1) as Position
}
