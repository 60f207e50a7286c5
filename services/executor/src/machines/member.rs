//! One tx-executor: the thread that speaks with it, and what is known of it.

use super::{
    Shared, Work,
    answers::Answers,
    end::End,
    fragment::{complete, is_same, speculation_of},
    health::{Health, Role},
    link::Link,
    placement::Rates,
    transaction_of,
    values::{account_parts, bytes_of, slot_parts},
};
use crate::{
    ahead::speculate::{Job, Miss, Pace, Reader, Runner, Sample},
    metrics as names,
    state::{listed::ListedState, reads::Recorder},
};
use alloy_consensus::Transaction as _;
use metrics::counter;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_proto::{
    limits::{TX_PART_BYTES, TX_RANGE_MAX},
    tx_executor::{
        BeginTransactions, NotSent, ParentValues, RangeTransaction, TxCommand, TxExecutorApi,
        TxReply, TxResult,
    },
};
use tandem_telemetry::{BusyIntervals, traceparent};
use tracing::{Span, debug, field::Empty, info_span, warn};

/// Interval of the signs of life between blocks.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Longest wait for a sign of life. A block that comes meanwhile waits as well.
const PONG_MAX: Duration = Duration::from_millis(50);
/// Longest time without an answer or a sign of life during a block, besides that of the way.
const SILENCE_MAX: Duration = Duration::from_millis(100);
/// Time without an answer after which a sign of life is asked for.
const SILENCE: Duration = Duration::from_millis(40);
/// Number of times that an answer may take what the way took before.
const PATIENCE: u32 = 3;
/// Longest time without an answer of a trial, as nothing is known of the way.
const TRIAL_MAX: Duration = Duration::from_secs(3);
/// Part of the gas that is left of which a tx-executor gets its share with a further lease.
const LEASE_PART: f64 = 1.0 / 3.0;
/// Longest sleep during a block, and when it may end soon. Each costs up to 50 µs of a processor.
const LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_millis(5);
/// Number of transactions of a trial. Each is executed here as well.
const TRIAL: usize = 8;
/// Least bytes of a block from which the rate of the connection is measured.
const MEASURED_BYTES_MIN: usize = 32 << 10;

/// Knowledge about a tx-executor.
#[derive(Default)]
struct Known {
    health: Health,
    rates: Rates,
}

/// One tx-executor.
pub struct Member {
    number: usize,
    api: Arc<dyn TxExecutorApi>,
    known: Mutex<Known>,
}

/// State of a tx-executor for the placement.
pub struct State {
    /// Its use, `None` without a connection.
    pub role: Option<Role>,
    pub rates: Rates,
}

impl Member {
    pub fn new(number: usize, api: Arc<dyn TxExecutorApi>) -> Self {
        Self { number, api, known: Mutex::default() }
    }

    /// Returns what the placement must know.
    pub fn state(&self, now: Instant) -> State {
        let known = self.known.lock();
        let role = self.api.connection().map(|connection| known.health.role(now, connection));
        State { role, rates: known.rates }
    }

    /// Takes the tx-executor for a proven one that is fast and near.
    #[cfg(test)]
    pub fn trust(&self) {
        use super::placement::Speed;
        let mut known = self.known.lock();
        known.health = Health::default();
        known.health.prove(self.api.connection().unwrap_or_default());
        known.rates = Rates { threads: 1, gas: Speed::of(1e12), ..Rates::default() };
    }

    /// Returns the pace of a tx-executor that begins after so many seconds.
    pub fn pace(&self, delay: f64) -> Pace {
        let begins = Duration::try_from_secs_f64(delay).unwrap_or_default();
        Pace { begins, gas: self.known.lock().rates.gas.get() }
    }

    /// Notes that the tx-executor was not used in a block that is worth several machines.
    pub fn note_unused(&self) {
        self.known.lock().rates.note_unused();
    }

    /// Leaves the tx-executor alone for a while, because a result of it was wrong.
    pub fn quarantine(&self, reason: &str) {
        let endpoint = self.api.endpoint();
        warn!(endpoint, reason, "a tx-executor gave a wrong result and is quarantined");
        counter!(names::TX_EXECUTOR_FAILURES, "kind" => "wrong").increment(1);
        self.known.lock().health.quarantine(Instant::now());
    }

    /// Speaks with the tx-executor until the end.
    pub fn run(&self, shared: &Shared) {
        let (mut seen, mut link) = (0, Link::default());
        while !shared.is_stopped() {
            let Some(work) = shared.next(&mut seen, HEARTBEAT) else {
                self.ping(&mut link);
                continue;
            };
            if let Some(role) = work.roles.get(self.number).copied().flatten() {
                self.take_part(&mut link, &work, role);
            }
        }
    }

    /// Asks for a sign of life, and measures the round trip.
    fn ping(&self, link: &mut Link) {
        let Some(connection) = self.api.connection() else { return };
        link.follow(connection);
        link.ping += 1;
        let sent = Instant::now();
        if self.api.send(connection, 0, TxCommand::Ping(link.ping)).is_err() {
            return;
        }
        while let Some(left) = PONG_MAX.checked_sub(sent.elapsed()) {
            match self.api.receive(left) {
                Some((_, TxReply::Pong(number, threads))) if number == link.ping => {
                    link.unanswered = 0;
                    let mut known = self.known.lock();
                    known.rates.note_round_trip(sent.elapsed());
                    known.rates.threads = (threads as usize).min(THREADS_MAX);
                    return;
                }
                // An answer of an earlier block.
                Some(_) => {}
                None => break,
            }
        }
        link.unanswered += 1;
        if link.unanswered >= 2 {
            self.fail("silent");
        }
    }

    fn fail(&self, kind: &'static str) {
        debug!(endpoint = self.api.endpoint(), kind, "a tx-executor failed");
        counter!(names::TX_EXECUTOR_FAILURES, "kind" => kind).increment(1);
        self.known.lock().health.note_failure(Instant::now());
    }

    fn take_part(&self, link: &mut Link, work: &Work, role: Role) {
        let Some(listed) = &work.job.sources.listed else { return };
        let Some(connection) = self.api.connection() else {
            return BlockAt::new(self, work, listed, 0, role).execute_rest();
        };
        link.follow(connection);
        let span = info_span!(
            parent: &work.span, "tx executor",
            endpoint = self.api.endpoint(), trial = role == Role::Trial,
            leased = Empty, answered = Empty, bytes = Empty,
        );
        let mut busy = BusyIntervals::new(&span);
        let (working, entered) = (busy.enter(), span.enter());
        link.session += 1;
        let mut block = BlockAt::new(self, work, listed, link.session, role);
        let end = block.execute(link).unwrap_or_else(|end| end);
        let _ = self.api.send(link.connection, link.session, TxCommand::End);
        if !matches!(end, End::Done) {
            block.execute_rest();
        }
        span.record("leased", block.leased).record("answered", block.answered);
        span.record("bytes", block.bytes);
        counter!(names::LEASE_BYTES).increment(block.bytes as u64);
        drop((working, entered));
        if let Some(end) = work.job.closed_ns() {
            busy.cut(end);
        }
        let mut known = self.known.lock();
        block.pace.tell(&mut known.rates);
        let ((work, took), threads) = (block.tried, known.rates.threads as f64);
        known.rates.note_gas(work * threads, took);
        drop(known);
        match end {
            End::Done => {
                let mut known = self.known.lock();
                known.health.note_in_time();
                if role == Role::Trial && block.compared > 0 {
                    known.health.prove(connection);
                }
            }
            // Quarantined already.
            End::Wrong => {}
            End::Lost => self.fail("lost"),
            End::Late => self.fail("late"),
            End::Refused => self.fail("refused"),
        }
    }
}

/// Maximum number of threads that a tx-executor is believed to have.
const THREADS_MAX: usize = 1_024;

/// One block at a tx-executor.
struct BlockAt<'a> {
    member: &'a Member,
    work: &'a Work,
    listed: &'a ListedState,
    session: u64,
    is_trial: bool,
    leased: usize,
    answered: usize,
    /// Results that were compared with own ones.
    compared: usize,
    /// Work of those that were right, in gas, and the time that they took one after the other.
    tried: (f64, Duration),
    bytes: usize,
    /// Time at which the accounts were there.
    read: Instant,
    /// Time at which everything was sent.
    sent: Instant,
    /// Time of the newest answer or sign of life, or of the last value.
    heard: Instant,
    /// Time at which a sign of life was asked for.
    asked: Instant,
    /// Gas of its answers so far.
    pace: Answers,
    /// Whether all results that were compared are right.
    is_right: bool,
    /// Transactions that are executed here.
    runner: Runner,
    /// Reader of what tx-executors read.
    recorder: Recorder<Reader<'static>>,
}

impl<'a> BlockAt<'a> {
    fn new(
        member: &'a Member,
        work: &'a Work,
        listed: &'a ListedState,
        session: u64,
        role: Role,
    ) -> Self {
        let sources = work.job.sources.clone();
        let reader = Reader::new(sources.parent.clone(), Miss::Read);
        Self {
            member,
            work,
            listed,
            session,
            is_trial: role == Role::Trial,
            leased: 0,
            answered: 0,
            compared: 0,
            tried: (0.0, Duration::ZERO),
            bytes: 0,
            read: Instant::now(),
            sent: Instant::now(),
            heard: Instant::now(),
            asked: Instant::now(),
            pace: Answers::default(),
            is_right: true,
            runner: Runner::default(),
            recorder: Recorder::new(sources, reader),
        }
    }

    fn job(&self) -> &'a Job {
        &self.work.job
    }

    /// Has transactions executed until none is left, or the block ends.
    fn execute(&mut self, link: &mut Link) -> Result<End, End> {
        if !self.send_block(link)? {
            self.execute_rest();
            return Ok(End::Done);
        }
        self.heard = Instant::now();
        loop {
            let mut look = LOOK;
            while look == LOOK && !self.job().is_closed() && self.has_room() {
                look = if self.lease(link)? > 0 { LOOK } else { LAST_LOOK };
            }
            if self.left().0 == 0 {
                return Ok(End::Done);
            }
            if self.job().is_closed() {
                if self.answered == 0 {
                    self.measure(self.read.elapsed());
                }
                let is_late = self.is_late() || self.was_waited_for();
                return Ok(if is_late { End::Late } else { End::Done });
            }
            let answer = self.member.api.receive(look);
            match answer {
                Some((session, TxReply::Results(results))) if session == self.session => {
                    self.heard = Instant::now();
                    self.work.note_answer(self.member.number);
                    for result in results {
                        if self.answered == 0 {
                            self.measure(self.read.elapsed().saturating_sub(result.took));
                        }
                        self.take(link, result);
                        if !self.is_right {
                            return Err(End::Wrong);
                        }
                    }
                }
                Some((session, TxReply::Refused(reason))) if session == self.session => {
                    debug!(endpoint = self.member.api.endpoint(), reason, "block refused");
                    return Err(End::Refused);
                }
                Some((_, TxReply::Pong(..))) => self.heard = Instant::now(),
                // An answer of an earlier block.
                Some(_) => {}
                None if self.member.api.connection() != Some(link.connection) => {
                    return Err(End::Lost);
                }
                None if self.is_late() => return Err(End::Late),
                None => self.look_after(link)?,
            }
        }
    }

    /// Sends the list, the transactions that were leased beforehand, and the parent's accounts and slots
    /// as soon as each are read: the tx-executor prepares the transactions meanwhile. Returns false if the block
    /// has ended, or the values cannot be read.
    fn send_block(&mut self, link: &mut Link) -> Result<bool, End> {
        let (work, listed, block) = (self.work, self.listed, &self.work.job.block);
        let Some(list) = &block.access_list else { return Ok(false) };
        let rlp = list.rlp();
        let begin = BeginTransactions {
            block_number: block.id.number,
            traceparent: traceparent(&Span::current()).unwrap_or_default(),
            environment: work.environment.clone(),
            list_bytes: rlp.len(),
        };
        self.send(link, TxCommand::Begin(Box::new(begin)))?;
        for start in (0..rlp.len()).step_by(TX_PART_BYTES) {
            let part = rlp.slice(start..rlp.len().min(start + TX_PART_BYTES));
            self.bytes += part.len();
            self.send(link, TxCommand::List(part))?;
        }
        let first = work.held.of(self.member.number);
        self.leased = first.len();
        self.send_range(link, &first)?;
        let state = &*work.job.sources.parent;
        let Some(parent) = listed.read_accounts(state) else { return Ok(false) };
        self.read = Instant::now();
        self.send_values(link, account_parts(parent, |hash| !link.has_code(hash)))?;
        let Some(slots) = listed.read_slots(state) else { return Ok(false) };
        if work.job.is_closed() {
            return Ok(false);
        }
        self.send_values(link, slot_parts(slots))?;
        self.sent = Instant::now();
        link.note_codes(parent.codes.iter().map(|(hash, _)| *hash));
        Ok(true)
    }

    fn send_values(&mut self, link: &Link, parts: Vec<ParentValues>) -> Result<(), End> {
        for part in parts {
            self.bytes += bytes_of(&part);
            self.send(link, TxCommand::Values(part))?;
        }
        Ok(())
    }

    fn send(&self, link: &Link, command: TxCommand) -> Result<(), NotSent> {
        self.member.api.send(link.connection, self.session, command)
    }

    /// Returns number and work of the transactions without an answer.
    fn left(&self) -> (usize, f64) {
        self.work.held.left(self.member.number)
    }

    /// Notes the answer to a transaction. Returns whether it is the first one, and was asked for.
    fn close(&self, index: usize) -> bool {
        self.work.held.answer(self.member.number, index)
    }

    /// Returns whether the tx-executor would soon have nothing to do.
    fn has_room(&self) -> bool {
        let rates = self.member.known.lock().rates;
        let on_the_way = rates.gas.get().unwrap_or_default() * rates.round_trip.as_secs_f64();
        let (count, work) = self.left();
        count <= 2 * rates.threads.max(1) || work <= 2.0 * on_the_way
    }

    /// Leases further transactions, or copies of those that another tx-executor has. Returns their
    /// number.
    fn lease(&mut self, link: &Link) -> Result<usize, End> {
        let count_max = match self.is_trial {
            true => TRIAL.saturating_sub(self.leased),
            false => TX_RANGE_MAX,
        };
        let (work, rates) = (self.work, self.member.known.lock().rates);
        let mut pace = self.member.pace(rates.round_trip.as_secs_f64());
        pace.begins += pace.time_of(self.left().1);
        // Shares shrink towards the end, so that no machine has one left when the others are done. A
        // lease lasts at least as long as the answer to it needs for its way.
        let least = rates.gas.get().unwrap_or_default() * rates.round_trip.as_secs_f64();
        let share = work.shares[self.member.number].map_or(0.0, |share| share.gas);
        let part = LEASE_PART * share / work.job.works.total().max(1.0);
        let mut leased = work.job.lease(count_max, pace, |gas_left| (gas_left * part).max(least));
        // First, so that none is lost if the connection is.
        work.held.add(self.member.number, &leased);
        if leased.is_empty() {
            let way = rates.round_trip.as_secs_f64();
            let is_wanted = |index| work.job.is_wanted(index);
            leased = work.held.copy(self.member.number, way, is_wanted);
            work.job.time_leases(&leased, pace);
            counter!(names::LEASED_TRANSACTIONS, "outcome" => "copied")
                .increment(leased.len() as u64);
        }
        self.leased += leased.len();
        self.send_range(link, &leased)?;
        Ok(leased.len())
    }

    /// Sends leased transactions.
    fn send_range(&mut self, link: &Link, leased: &[usize]) -> Result<(), End> {
        let (mut range, mut bytes) = (Vec::new(), 0);
        for index in leased {
            let transaction = transaction_of(&self.job().block, *index);
            let fits = |sent: &RangeTransaction| sent.bytes.len() <= TX_PART_BYTES;
            let Some(transaction) = transaction.filter(fits) else {
                self.close(*index);
                self.execute_here(*index);
                continue;
            };
            bytes += transaction.bytes.len();
            range.push(transaction);
            if bytes > TX_PART_BYTES || range.len() == TX_RANGE_MAX {
                self.bytes += std::mem::take(&mut bytes);
                self.send(link, TxCommand::Range(std::mem::take(&mut range)))?;
            }
        }
        if !range.is_empty() {
            self.bytes += bytes;
            self.send(link, TxCommand::Range(range))?;
        }
        counter!(names::LEASES).increment(u64::from(!leased.is_empty()));
        Ok(())
    }

    /// Asks for a sign of life if there has been none for a while: a transaction may take long.
    fn look_after(&mut self, link: &mut Link) -> Result<(), End> {
        if self.heard.max(self.asked).elapsed() > SILENCE {
            link.ping += 1;
            self.asked = Instant::now();
            self.member.api.send(link.connection, 0, TxCommand::Ping(link.ping))?;
        }
        Ok(())
    }

    /// Returns whether an answer is overdue.
    fn is_late(&self) -> bool {
        let rates = self.member.known.lock().rates;
        let way = match self.answered {
            0 => rates.delay(self.bytes),
            _ => rates.round_trip.as_secs_f64(),
        };
        let way = Duration::try_from_secs_f64(way).unwrap_or(TRIAL_MAX) * PATIENCE;
        let longest = if self.is_trial { TRIAL_MAX } else { SILENCE_MAX + way.min(TRIAL_MAX) };
        self.left().0 > 0 && self.heard.elapsed() > longest
    }

    /// Returns whether the engine has executed most of what it had, after a long wait.
    fn was_waited_for(&self) -> bool {
        let is_missing = !self.is_trial && 2 * self.left().0 > self.leased;
        is_missing && self.sent.elapsed() > SILENCE_MAX
    }

    /// Notes how soon the tx-executor was ready. If the block ended before, it takes at least as long.
    fn measure(&self, began: Duration) {
        if self.bytes >= MEASURED_BYTES_MIN {
            self.member.known.lock().rates.note_bytes(self.bytes, began);
        }
    }

    /// Takes an answer.
    fn take(&mut self, link: &mut Link, result: TxResult) {
        let index = result.index as usize;
        if !self.close(index) {
            return;
        }
        self.answered += 1;
        if result.code_missing {
            link.forget_codes();
        }
        let Some(outcome) = result.outcome else {
            count("not_executed");
            return self.execute_here(index);
        };
        let gas = outcome.gas.spent;
        let gas_limit = self.job().block.transactions[index].gas_limit();
        let took = (result.took, self.member.number);
        let at = (index, gas_limit, self.job().env.block_env.beneficiary);
        match speculation_of(outcome, at, &mut self.recorder, self.listed, took) {
            Ok(Some(speculation)) if speculation.agreement.is_some() && !self.is_trial => {
                count("executed");
                let (took, at) = (result.took, Some(self.member.number));
                self.job().note_execution(Sample { index, gas, took, at });
                self.pace.note(self.job().works.done(index, gas), self.heard);
                self.job().end_lease(index);
                self.job().deliver(&mut self.runner, index, Some(Box::new(speculation)));
            }
            Ok(mut foreign) => {
                count("compared");
                self.job().end_lease(index);
                let sources = &self.job().sources;
                if foreign.as_mut().is_some_and(|it| complete(it, index, sources).is_err()) {
                    return self.execute_here(index);
                }
                let own = self.job().execute_here(&mut self.runner, index);
                self.compared += usize::from(own.is_some());
                let is_wrong = match (&own, &foreign) {
                    (Some(own), Some(foreign)) => !is_same(own, foreign),
                    (Some(_), None) => true,
                    // Without a result of its own, the executor cannot tell.
                    (None, _) => false,
                };
                self.job().deliver(&mut self.runner, index, own);
                if is_wrong && std::mem::replace(&mut self.is_right, false) {
                    self.member.quarantine("the result of a transaction differs from its own");
                } else if !is_wrong {
                    self.tried.0 += self.work.job.works.done(index, gas);
                    self.tried.1 += result.took;
                }
            }
            // The engine meets the error.
            Err(_) => self.execute_here(index),
        }
    }

    /// Executes a leased transaction on this thread, if the engine has not taken it over.
    fn execute_here(&mut self, index: usize) {
        let job = self.job();
        job.end_lease(index);
        if job.is_wanted(index) && !job.is_closed() {
            job.run(&mut self.runner, index);
        }
    }

    /// Gives back what the tx-executor did not answer, and executes of it on this thread what the
    /// engine does not take first.
    fn execute_rest(&mut self) {
        let rest = self.work.held.give_up(self.member.number);
        for index in &rest {
            count("unanswered");
            self.work.job.give_back(*index);
        }
        for index in rest {
            if self.job().is_closed() {
                return;
            }
            if self.work.job.claim_again(index) {
                self.work.job.run(&mut self.runner, index);
            }
        }
    }
}

fn count(outcome: &'static str) {
    counter!(names::LEASED_TRANSACTIONS, "outcome" => outcome).increment(1);
}
