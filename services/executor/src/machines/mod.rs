//! Transactions of one block on several machines (EIP-7928).
//!
//! The access list of a block says what each transaction reads, so the transactions can be executed
//! anywhere. The executor sends each tx-executor the list and the parent's values of everything that
//! the list names. Then it leases transactions, and takes the results as if prewarm threads of its
//! own had executed them.
//!
//! ```text
//!  engine ── post ─► a thread for each tx-executor ── list, values, leases ─► tx-executor
//!    │                      │        ▲                                           │ executes
//!    │                      │        └───────────── results ─────────────────────┘
//!    │                 agrees with the list? ── no ─► executes here, compares
//!    │                      ▼ yes
//!    └── turn ◄──── status words of the block (`ahead::speculate`)
//! ```
//!
//! **Trust.** A tx-executor names the accounts and slots that it read, not their values: those come
//! from the parent's state and from the list, here. What it writes must be what the list has. What
//! only it says (gas, logs, status, that it read nothing else) is covered by the header. If a block
//! with foreign results breaks a rule, it is executed once more without them before it is refused,
//! and the tx-executor with the wrong result is quarantined.
//!
//! **Time.** The engine never waits longer for a foreign result than it would take to execute the
//! transaction, and at most 100 ms. What a tx-executor does not answer is executed here.

mod answers;
mod end;
mod environment;
mod fragment;
mod health;
mod held;
mod link;
mod member;
mod own_share;
mod placement;
mod values;
mod work;

#[cfg(test)]
pub use fragment::loaded;
pub use fragment::{complete, loaded_state};
pub use work::TransactionWorkers;

use crate::{ahead::speculate::Job, metrics as names, state::listed::ListedState};
pub use health::Role;
use held::Held;
use member::Member;
use metrics::gauge;
use own_share::{OwnBlock, OwnShare};
use parking_lot::{Condvar, Mutex};
use placement::{Candidate, Load, LocalRates, Share};
use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tandem_actor::spawn;
use tandem_chain::{Block, Receipt};
use tandem_proto::{
    limits::TX_LIST_BYTES_MAX,
    tx_executor::{Environment, RangeTransaction, TxExecutorApi},
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

/// Part of a tx-executor's share that it gets at once. The rest goes to who is free.
const FIRST_LEASE: f64 = 0.5;
/// Number of pieces of that part.
const FIRST_ROUNDS: u32 = 8;
/// Maximum number of transactions of a piece. Half of those that may wait at a tx-executor come at
/// once.
const FIRST_COUNT_MAX: usize = 64;
/// Number of times that a long transaction has the work of an average one.
const LONG: f64 = 4.0;
/// Gas from which a block is worth several machines: one that is not used in it may be tried sooner.
const WORTH_A_TRY: f64 = 10e6;

/// The tx-executors of an executor, each with a thread that speaks with it.
pub struct Machines {
    members: Vec<Arc<Member>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    local: LocalRates,
    own: OwnShare,
}

/// Place where the engine posts blocks.
#[derive(Default)]
struct Shared {
    posted: Mutex<Posted>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Default)]
struct Posted {
    work: Option<Arc<Work>>,
    /// Number of blocks posted so far.
    number: u64,
}

/// Block that is executed on several machines.
struct Work {
    job: Arc<Job>,
    /// Role of each tx-executor, by its number.
    roles: Vec<Option<Role>>,
    /// Share of each tx-executor.
    shares: Vec<Option<Share>>,
    /// Transactions that they have.
    held: Held,
    environment: Environment,
    /// Parent of the spans.
    span: Span,
    posted: Instant,
    /// Time of the newest answer of each tx-executor since then, in ns; 0 before the first one.
    answered: Box<[AtomicU64]>,
}

impl Work {
    /// Notes an answer. One on trial has nothing to do for the rest of the block in any case.
    fn note_answer(&self, member: usize) {
        if self.roles[member] == Some(Role::Active) {
            self.answered[member].store(self.posted.elapsed().as_nanos() as u64, SeqCst);
        }
    }

    /// Returns the part of the time so far for which tx-executors have had nothing to do since their
    /// newest answer, on average over those with an answer. `None` without any.
    fn idle(&self) -> Option<f64> {
        let time = self.posted.elapsed().as_nanos() as f64;
        let answered = self.answered.iter().map(|at| at.load(SeqCst)).filter(|at| *at != 0);
        let (count, sum) = answered.fold((0, 0.0), |(n, sum), at| (n + 1, sum + at as f64));
        (count > 0).then(|| 1.0 - sum / f64::from(count) / time)
    }
}

/// Tx-executors that take part in a block.
pub struct Placement {
    /// Role of each member in this block, by its number.
    roles: Vec<Option<Role>>,
    /// Share of each member in this block, by its number.
    shares: Vec<Option<Share>>,
    environment: Environment,
}

/// Results of a block's first execution that came from tx-executors.
#[derive(Default)]
pub struct ForeignResults {
    /// Positions of committed results, with the numbers of the tx-executors.
    pub used: Vec<(usize, usize)>,
    /// Receipts of the block; empty if the execution did not reach its end.
    pub receipts: Vec<Receipt>,
}

impl Placement {
    /// Returns whether results of tx-executors are used.
    pub fn is_shared(&self) -> bool {
        self.shares.iter().any(Option::is_some)
    }
}

impl Machines {
    /// Starts a thread for each tx-executor.
    ///
    /// # Errors
    /// Returns the operating system's error if it cannot start a thread.
    pub fn start(
        executors: Vec<Arc<dyn TxExecutorApi>>,
        fatal: &CancellationToken,
    ) -> io::Result<Self> {
        let (shared, local) = (Arc::<Shared>::default(), LocalRates::default());
        let (mut members, mut threads) = (Vec::new(), Vec::new());
        for (number, api) in executors.into_iter().enumerate() {
            let member = Arc::new(Member::new(number, api));
            let (own, shared) = (member.clone(), shared.clone());
            let thread = spawn(&format!("tx-executor-{number}"), fatal.clone(), move || {
                own.run(&shared);
            })?;
            threads.push(thread);
            members.push(member);
        }
        let own = OwnShare::default();
        Ok(Self { members, shared, threads, local, own })
    }

    /// Takes all tx-executors for proven ones that are fast and near, and this process for a slow one.
    #[cfg(test)]
    pub fn trust(&self) {
        self.note_local(1_000.0, Duration::from_secs(1));
        self.members.iter().for_each(|member| member.trust());
    }

    /// Returns the role of each tx-executor.
    #[cfg(test)]
    pub fn roles(&self) -> Vec<Option<Role>> {
        self.members.iter().map(|member| member.state(Instant::now()).role).collect()
    }

    /// Returns whether there is no tx-executor.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Decides which tx-executors take part in a block.
    /// Returns `None` if the block is executed here alone.
    pub fn place(&self, job: &Job, listed: &ListedState) -> Option<Placement> {
        let environment = environment::environment(&job.env)?;
        let list_bytes = job.block.access_list.as_ref()?.rlp().len();
        if list_bytes > TX_LIST_BYTES_MAX {
            return None;
        }
        let now = Instant::now();
        let states: Vec<_> = self.members.iter().map(|member| member.state(now)).collect();
        let candidates = states.iter().enumerate().filter_map(|(number, state)| {
            let role = state.role?;
            (role == Role::Active).then_some(Candidate { number, rates: state.rates })
        });
        // A value takes about as many bytes as its key in the list.
        let bytes = list_bytes + listed.in_order().map(|a| 64 + 16 * a.slot_count()).sum::<usize>();
        let load = Load { gas: job.works.total(), bytes };
        let chosen = placement::choose(&load, self.local.get(), candidates.collect());
        let mut shares = vec![None; states.len()];
        chosen.iter().for_each(|share| shares[share.number] = Some(*share));
        for ((state, share), member) in states.iter().zip(&shares).zip(&self.members) {
            if state.role == Some(Role::Active) && share.is_none() && load.gas >= WORTH_A_TRY {
                member.note_unused();
            }
        }
        let roles = states.iter().zip(&shares).map(|(state, share)| match state.role? {
            Role::Active if share.is_some() => Some(Role::Active),
            Role::Trial => Some(Role::Trial),
            _ => None,
        });
        let roles: Vec<_> = roles.collect();
        gauge!(names::TX_EXECUTORS, "state" => "used").set(chosen.len() as f64);
        for (role, name) in Role::NAMES {
            let count = states.iter().filter(|state| state.role == Some(role)).count();
            gauge!(names::TX_EXECUTORS, "state" => name).set(count as f64);
        }
        let is_used = roles.iter().any(Option::is_some);
        is_used.then_some(Placement { roles, shares, environment })
    }

    /// Lets the tx-executors work on a block until its job is closed. `span` is the parent of their
    /// spans. Most of their shares is leased here, before a thread of this process can take it: the
    /// list and the values need some time for their way.
    pub fn post(&self, job: &Arc<Job>, placement: Placement, span: &Span) {
        let Placement { roles, shares, environment } = placement;
        let rates =
            self.members.iter().zip(&shares).map(|(member, share)| {
                share.as_ref().and_then(|share| member.pace(share.delay).gas)
            });
        let works = (0..job.block.transactions.len()).map(|index| job.works.expected(index));
        let held = Held::new(rates, works);
        for (member, first) in self.first_leases(job, &shares).into_iter().enumerate() {
            held.add(member, &first);
        }
        if shares.iter().any(Option::is_some) {
            job.limit_own(self.own.part() * job.works.total());
        }
        let (job, span, posted) = (job.clone(), span.clone(), Instant::now());
        let answered = roles.iter().map(|_| AtomicU64::new(0)).collect();
        let work = Work { job, roles, shares, held, environment, span, posted, answered };
        {
            let mut posted = self.shared.posted.lock();
            posted.work = Some(Arc::new(work));
            posted.number += 1;
        }
        self.shared.changed.notify_all();
    }

    /// Leases the first transactions to each tx-executor, in turn, so that all of them have early ones:
    /// the engine commits results while others are made.
    fn first_leases(&self, job: &Job, shares: &[Option<Share>]) -> Vec<Vec<usize>> {
        let mut first = vec![Vec::new(); shares.len()];
        for _ in 0..FIRST_ROUNDS {
            for ((share, member), leased) in shares.iter().zip(&self.members).zip(&mut first) {
                let Some(share) = share else { continue };
                let gas = share.gas * FIRST_LEASE / f64::from(FIRST_ROUNDS);
                let mut pace = member.pace(share.delay);
                // All have the time of all, because gas says little about the time of one.
                pace.begins += pace.time_of(share.gas * FIRST_LEASE);
                leased.extend(job.lease(FIRST_COUNT_MAX, pace, |_| gas));
            }
        }
        first.iter_mut().for_each(|leased| sort(leased, job));
        first
    }

    /// Forgets a block that has ended: its state is no longer held.
    pub fn forget(&self, job: &Arc<Job>) {
        self.shared.posted.lock().work.take_if(|work| Arc::ptr_eq(&work.job, job));
    }

    /// Notes that the engine has the results of all transactions of a block, of whose work, in gas, this
    /// process executed so much. `processor` is the part of the time in which the engine wanted a processor
    /// that it had one.
    pub fn note_end(&self, job: &Arc<Job>, executed: f64, processor: f64) {
        let posted = self.shared.posted.lock();
        let work = posted.work.as_ref().filter(|work| Arc::ptr_eq(&work.job, job));
        if let Some(idle) = work.and_then(|work| work.idle()) {
            let executed = executed / job.works.total().max(1.0);
            self.own.note(&OwnBlock { executed, idle, processor });
        }
    }

    /// Notes work, in gas, that all threads of this process together did in this time.
    pub fn note_local(&self, gas: f64, took: Duration) {
        self.local.note(gas, took);
    }

    /// Quarantines the tx-executors with wrong results in a block that is valid without them: those
    /// whose receipts differ. If none differs, all that took part.
    pub fn blame(&self, foreign: &ForeignResults, right: &[Receipt]) {
        let differs = |index: &usize| match foreign.receipts.get(*index) {
            Some(receipt) => !is_same(&foreign.receipts, right, *index, receipt),
            None => false,
        };
        let wrong = foreign.used.iter().filter(|(index, _)| differs(index));
        let mut liars: BTreeSet<_> = wrong.map(|(_, number)| *number).collect();
        if liars.is_empty() {
            liars = foreign.used.iter().map(|(_, number)| *number).collect();
        }
        for number in liars {
            if let Some(member) = self.members.get(number) {
                member.quarantine("the block is valid without its results");
            }
        }
    }

    /// Notes the time of a block in which the engine neither executed transactions nor waited.
    pub fn note_in_order(&self, gas: f64, took: Duration) {
        self.local.note_in_order(gas, took);
    }
}

/// Returns whether a receipt is the one that the transaction has by `right`.
fn is_same(receipts: &[Receipt], right: &[Receipt], index: usize, receipt: &Receipt) -> bool {
    let gas = |receipts: &[Receipt]| {
        let before = index.checked_sub(1).and_then(|before| receipts.get(before));
        let before = before.map_or(0, |receipt| receipt.cumulative_gas_used);
        receipts.get(index).map(|receipt| receipt.cumulative_gas_used.wrapping_sub(before))
    };
    right
        .get(index)
        .is_some_and(|right| right.success == receipt.success && right.logs == receipt.logs)
        && gas(receipts) == gas(right)
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.shared.stopped.store(true, SeqCst);
        // Under the lock, so that no thread is between its check and its sleep.
        drop(self.shared.posted.lock());
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Waits at most this long for a block after the `seen` one.
    fn next(&self, seen: &mut u64, wait: Duration) -> Option<Arc<Work>> {
        let mut posted = self.posted.lock();
        if *seen == posted.number && !self.stopped.load(SeqCst) {
            self.changed.wait_for(&mut posted, wait);
        }
        if *seen == posted.number {
            // A block that has ended is not kept.
            posted.work.take_if(|work| work.job.is_closed());
            return None;
        }
        *seen = posted.number;
        posted.work.clone()
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }
}

/// Brings leased transactions into the order of their execution: that of the block, in which the engine
/// needs the results, but long ones first. One that began late would hold up the end.
fn sort(leased: &mut [usize], job: &Job) {
    let work = |index: usize| job.works.expected(index);
    let long =
        LONG * leased.iter().map(|index| work(*index)).sum::<f64>() / leased.len().max(1) as f64;
    let rank = |index: usize| if work(index) > long { work(index) } else { 0.0 };
    leased.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)).then(a.cmp(b)));
}

/// Returns a transaction in the form in which it travels.
fn transaction_of(block: &Block, index: usize) -> Option<RangeTransaction> {
    let bytes = block.raw_transactions.get(index)?.clone();
    Some(RangeTransaction { index: u32::try_from(index).ok()?, bytes })
}
