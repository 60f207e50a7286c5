//! Status words of one block's transactions: which thread has which, and who sleeps until when.
//!
//! ```text
//!             claim, seek               finish                  reject
//!      OPEN ──────────────► RUNNING ──────────────► DONE ──────────────► FAILED
//!        │ turn             │     │ fail                                   ▲
//!        ▼  wait, take_over │     └────────────────────────────────────────┘
//!      TAKEN ◄──────────────┘
//! ```
//!
//! This module knows neither blocks nor the EVM. Its primitives come from `super::sync`, so that
//! `tests/schedules.rs` compiles it once more and checks all orders of a few threads.

use super::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Condvar, Mutex, SPINS, Sleeper};
use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

/// Value of `awaited` for no transaction.
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

/// Status words of a block's transactions, with results of type `R`.
pub struct Statuses<R, O> {
    slots: Box<[Slot<R>]>,
    claims: Mutex<Claims<O>>,
    /// Notified when a transaction was committed or executed that another may have waited for.
    progress: Condvar,
    /// Number of threads that look for work, or wait for it.
    seekers: AtomicUsize,
    /// Number of transactions that the engine has committed.
    committed: AtomicUsize,
    closed: AtomicBool,
    /// Number of transactions after the committed ones that are left to the engine.
    lead: usize,
    /// Transaction that the engine waits for.
    awaited: AtomicUsize,
    engine: Sleeper,
}

struct Slot<R> {
    status: AtomicU8,
    /// Next transaction of the same sender, 0 if none is known.
    successor: AtomicU32,
    result: Mutex<Option<Box<R>>>,
}

/// State for choosing the next transaction.
struct Claims<O> {
    /// Index below which no transaction is open.
    from: usize,
    order: O,
}

/// Knowledge about which transactions must wait for others.
pub trait Order {
    /// Returns the transaction that must be executed before this one, if any. Calls `link` once
    /// with each such pair, the earlier one first. `Err` names a transaction whose sender must be
    /// recovered before the order is known.
    fn previous(
        &mut self,
        index: usize,
        link: impl FnMut(usize, usize),
    ) -> Result<Option<usize>, usize>;

    /// Returns whether the transaction is left to the engine.
    fn is_left(&self, index: usize) -> bool;

    /// Returns the next transaction if none depends on another one: `None` inside if there is none
    /// left. Each is returned once.
    fn next_independent(&mut self) -> Option<Option<usize>> {
        None
    }

    /// Returns the work of all transactions that [`Order::next_independent`] has not returned, in gas.
    fn work_left(&self) -> f64 {
        0.0
    }
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
pub enum Turn<R> {
    /// The result is available.
    Ahead(Box<R>),
    /// The engine must execute the transaction.
    Execute,
    /// Another thread executes the transaction.
    Running,
}

impl<R, O: Order> Statuses<R, O> {
    /// Creates the words of `count` open transactions. The first `lead` of those that are not
    /// committed are left to the engine.
    pub fn new(count: usize, lead: usize, order: O, engine: Sleeper) -> Self {
        let slot = |_| Slot {
            status: AtomicU8::new(OPEN),
            successor: AtomicU32::new(0),
            result: Mutex::new(None),
        };
        Self {
            slots: (0..count).map(slot).collect(),
            claims: Mutex::new(Claims { from: 0, order }),
            progress: Condvar::new(),
            seekers: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            lead,
            awaited: AtomicUsize::new(NONE),
            engine,
        }
    }

    /// Ends the work: running executions finish, no further one begins.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        let _claims = self.claims.lock();
        self.progress.notify_all();
    }

    /// Returns whether [`Statuses::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Returns whether no thread has taken the transaction.
    pub fn is_open(&self, index: usize) -> bool {
        self.slots[index].is(OPEN)
    }

    /// Claims an open transaction for the thread. Returns false if another thread has taken it.
    pub fn claim_this(&self, index: usize) -> bool {
        self.slots[index].change(OPEN, RUNNING)
    }

    /// Gives a claimed transaction back, so that another thread may claim it.
    pub fn reopen(&self, index: usize) {
        let mut claims = self.claims.lock();
        claims.from = claims.from.min(index);
        self.slots[index].change(RUNNING, OPEN);
        self.progress.notify_one();
    }

    /// Same as [`Statuses::reopen`] for a transaction that the engine may wait for.
    pub fn give_back(&self, index: usize) {
        self.reopen(index);
        self.wake_engine(index);
    }

    /// Returns the next work of a thread other than the engine's. If there is none yet, a thread
    /// that `may_sleep` does so until there may be some.
    pub fn seek(&self, may_sleep: bool) -> Claim {
        // Counted before the search, so that a thread that makes progress later sees a waiting one.
        self.seekers.fetch_add(1, SeqCst);
        let mut claims = self.claims.lock();
        let claim = self.next(&mut claims);
        if claim == Claim::Later && may_sleep {
            self.progress.wait(&mut claims);
        }
        self.seekers.fetch_sub(1, SeqCst);
        claim
    }

    /// Returns the work that the engine may do while it waits.
    pub fn claim(&self) -> Claim {
        self.next(&mut self.claims.lock())
    }

    fn next(&self, Claims { from, order }: &mut Claims<O>) -> Claim {
        if self.closed.load(SeqCst) {
            return Claim::Nothing;
        }
        let is_open = |index: usize| self.slots[index].is(OPEN);
        let committed = self.committed.load(SeqCst);
        while let Some(next) = order.next_independent() {
            let Some(index) = next else { return Claim::Nothing };
            // The engine is about to take those that it leads with.
            if index >= committed + self.lead && self.slots[index].change(OPEN, RUNNING) {
                return Claim::Run(index);
            }
        }
        *from = (*from).max(committed + self.lead);
        while *from < self.slots.len() && !is_open(*from) {
            *from += 1;
        }
        let mut passed = false;
        for index in *from..self.slots.len() {
            if !is_open(index) {
                continue;
            }
            let link = |previous: usize, next: usize| {
                self.slots[previous].successor.store(next as u32, SeqCst);
            };
            let previous = match order.previous(index, link) {
                Ok(previous) => previous,
                Err(unknown) => return Claim::Recover(unknown),
            };
            // Both are read after the link. A thread that changes either later sees the link and wakes.
            let is_next = previous.is_none_or(|previous| {
                previous < self.committed.load(SeqCst) || self.slots[previous].is(DONE)
            });
            if is_next && !order.is_left(index) && self.slots[index].change(OPEN, RUNNING) {
                return Claim::Run(index);
            }
            passed = true;
        }
        if passed { Claim::Later } else { Claim::Nothing }
    }

    /// Claims some of the next transactions, if none depends on another one: at least one, and more
    /// while they are not above the `share` of the work that is left. At most `count_max`.
    pub fn claim_share(&self, count_max: usize, share: impl FnOnce(f64) -> f64) -> Vec<usize> {
        let mut claims = self.claims.lock();
        let order = &mut claims.order;
        let committed = self.committed.load(SeqCst);
        let left = order.work_left();
        let floor = left - share(left);
        let mut claimed = Vec::new();
        while !self.is_closed()
            && claimed.len() < count_max
            && (claimed.is_empty() || order.work_left() > floor)
            && let Some(Some(index)) = order.next_independent()
        {
            if index >= committed + self.lead && self.claim_this(index) {
                claimed.push(index);
            }
        }
        claimed
    }

    /// Calls a function with the order, which no other thread reads meanwhile.
    pub fn with_order(&self, change: impl FnOnce(&mut O)) {
        change(&mut self.claims.lock().order);
    }

    /// Returns whether the engine still waits for a claimed transaction.
    pub fn is_wanted(&self, index: usize) -> bool {
        self.slots[index].is(RUNNING)
    }

    /// Hands over the result of a claimed transaction. Gives it back if the engine has taken the
    /// transaction over. A call of [`Statuses::announce`] must follow.
    pub fn finish(&self, index: usize, result: Box<R>) -> Option<Box<R>> {
        let slot = &self.slots[index];
        *slot.result.lock() = Some(result);
        if slot.change(RUNNING, DONE) { None } else { slot.result.lock().take() }
    }

    /// Wakes the threads that may wait for a finished transaction.
    pub fn announce(&self, index: usize) {
        self.wake(index, 0);
        self.wake_engine(index);
    }

    /// Notes that a claimed transaction has no result.
    pub fn fail(&self, index: usize) {
        self.slots[index].change(RUNNING, FAILED);
        self.wake_engine(index);
    }

    fn wake_engine(&self, index: usize) {
        if self.awaited.load(SeqCst) == index {
            self.engine.wake();
        }
    }

    /// Wakes a thread if the sender's next transaction can be executed now, and is not the engine's
    /// next one.
    fn wake(&self, index: usize, above: usize) {
        let is_wanted = self.slots[index].successor.load(SeqCst) as usize > above;
        if is_wanted && self.seekers.load(SeqCst) > 0 {
            let _claims = self.claims.lock();
            self.progress.notify_one();
        }
    }

    /// Returns the state of a transaction at its turn.
    pub fn turn(&self, index: usize) -> Turn<R> {
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

    /// Waits on the engine's thread for a transaction running elsewhere. Takes it over after this
    /// time, and returns whether it did.
    pub fn wait(&self, index: usize, max: Duration) -> bool {
        let is_running = || self.slots[index].is(RUNNING);
        for _ in 0..SPINS {
            if !is_running() {
                return false;
            }
            std::hint::spin_loop();
        }
        let until = Instant::now() + max;
        let mut taken_over = false;
        self.awaited.store(index, SeqCst);
        while is_running() {
            if !self.engine.sleep(until) {
                taken_over = self.take_over(index);
                break;
            }
        }
        self.awaited.store(NONE, SeqCst);
        taken_over
    }

    /// Takes a transaction over that is running elsewhere. Returns whether it still was.
    pub fn take_over(&self, index: usize) -> bool {
        self.slots[index].change(RUNNING, TAKEN)
    }

    /// Notes that a result that was handed out did not hold: the sender's next transaction waits
    /// for the engine's commit of this one.
    pub fn reject(&self, index: usize) {
        self.slots[index].change(DONE, FAILED);
    }

    /// Notes that the engine has committed a transaction.
    pub fn committed(&self, index: usize) {
        self.committed.store(index + 1, SeqCst);
        self.wake(index, index + 1);
    }
}

impl<R> Slot<R> {
    fn is(&self, status: u8) -> bool {
        self.status.load(SeqCst) == status
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.status.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}
