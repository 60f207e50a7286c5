//! Blocks whose transactions are executed by tx-executors as well: honest, lying, slow and lost ones.

use super::{
    blocks::{Case, named_signers},
    listed::*,
    *,
};
use crate::machines::{ForeignResults, Machines, Role, TransactionWorkers};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tandem_primitives::U256;
use tandem_proto::tx_executor::{
    Environment, FilledBlock, ListedBlock, NotSent, OpenBlock, ParentValues, RangeTransaction,
    TxCommand, TxExecution, TxExecutorApi, TxLog, TxOutcome, TxReply, TxResult,
};

/// Behaviour of a tx-executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Conduct {
    Honest,
    /// Answers nothing.
    Silent,
    /// Loses its connection with the first transactions.
    Lost,
    /// Refuses each block.
    Refuses,
    /// Executes nothing.
    Idle,
    /// Answers twice, and what it was not asked.
    Talkative,
    /// Changes a balance.
    Balance,
    /// Changes a slot, or a balance without one.
    Slot,
    /// Names an account beyond the list.
    Place,
    /// Reports more gas than the transaction has.
    TooMuchGas,
    /// Reports one gas more.
    Gas,
    /// Adds a log.
    Log,
    /// Says that a transaction failed.
    Status,
    /// Leaves out what a transaction loaded.
    Nothing,
}

/// Block that a [`Twin`] has.
#[derive(Default)]
struct Gathered {
    environment: Option<Environment>,
    list: Vec<u8>,
    list_bytes: usize,
    open: Option<Arc<dyn OpenBlock>>,
    values: ParentValues,
    filled: Option<Arc<dyn FilledBlock>>,
    /// Prepared transactions.
    held: Vec<RangeTransaction>,
}

/// Answer with its session.
type Answer = (u64, TxReply);

/// Tx-executor in this process, behind the calls of a connection.
struct Twin {
    conduct: Conduct,
    workers: TransactionWorkers,
    connection: AtomicU64,
    block: Mutex<Gathered>,
    answers: (Sender<Answer>, Receiver<Answer>),
    executed: AtomicUsize,
}

impl Twin {
    fn new(conduct: Conduct) -> Arc<Self> {
        Arc::new(Self {
            conduct,
            workers: TransactionWorkers::new(1 << 20).recovering_by(named_signers),
            connection: AtomicU64::new(1),
            block: Mutex::default(),
            answers: bounded(10_000),
            executed: AtomicUsize::new(0),
        })
    }

    fn answer(&self, session: u64, reply: TxReply) {
        let _ = self.answers.0.try_send((session, reply));
    }

    fn execute(&self, session: u64, transactions: Vec<RangeTransaction>) {
        let filled = self.block.lock().filled.clone();
        let Some(filled) = filled else { return };
        let mut worker = filled.worker();
        for transaction in transactions {
            let mut result = worker.execute(&transaction);
            self.executed.fetch_add(1, Relaxed);
            if let Some(outcome) = &mut result.outcome {
                self.spoil(outcome);
            }
            if self.conduct == Conduct::Idle {
                result.outcome = None;
            }
            if self.conduct == Conduct::Talkative {
                let unasked = TxResult { index: 9_999, ..result.clone() };
                self.answer(session, TxReply::Results(vec![unasked]));
                self.answer(session, TxReply::Results(vec![result.clone()]));
                self.answer(session - 1, TxReply::Refused("of another block".to_owned()));
            }
            self.answer(session, TxReply::Results(vec![result]));
        }
    }

    fn spoil(&self, outcome: &mut TxOutcome) {
        let one = U256::from(1);
        match self.conduct {
            Conduct::Balance => {
                let changed = outcome.accounts.iter_mut().find_map(|at| at.changed.as_mut());
                changed.into_iter().for_each(|(_, balance)| *balance ^= one);
            }
            Conduct::Slot => {
                let mut slots = outcome.accounts.iter_mut().flat_map(|at| &mut at.slots);
                match slots.next() {
                    Some(slot) => slot.changed = Some(slot.changed.unwrap_or_default() ^ one),
                    None => outcome.accounts[0].changed = Some((77, one)),
                }
            }
            Conduct::Place => outcome.accounts[0].place = u32::MAX,
            Conduct::TooMuchGas => outcome.gas.spent = u64::MAX,
            Conduct::Gas => outcome.gas.spent += 1,
            Conduct::Log => {
                let (address, data) = (Default::default(), Default::default());
                outcome.logs.push(TxLog { address, topics: Vec::new(), data });
            }
            Conduct::Status => outcome.success ^= true,
            Conduct::Nothing => outcome.accounts.clear(),
            _ => {}
        }
    }
}

impl TxExecutorApi for Twin {
    fn endpoint(&self) -> String {
        "twin".to_owned()
    }

    fn connection(&self) -> Option<u64> {
        Some(self.connection.load(Relaxed))
    }

    fn send(&self, connection: u64, session: u64, command: TxCommand) -> Result<(), NotSent> {
        if Some(connection) != self.connection() {
            return Err(NotSent);
        }
        let mut block = self.block.lock();
        match command {
            TxCommand::Begin(begin) => {
                *block = Gathered::default();
                block.environment = Some(begin.environment);
                block.list_bytes = begin.list_bytes;
                if self.conduct == Conduct::Refuses {
                    self.answer(session, TxReply::Refused("as it was to".to_owned()));
                }
            }
            TxCommand::List(part) => {
                block.list.extend_from_slice(&part);
                if block.list.len() == block.list_bytes {
                    let (environment, list) = (
                        block.environment.clone().unwrap(),
                        std::mem::take(&mut block.list).into(),
                    );
                    let open = self.workers.open(ListedBlock { environment, list }).unwrap();
                    block.open = Some(open);
                }
            }
            TxCommand::Values(part) => {
                block.values.accounts.extend(part.accounts);
                block.values.slots.extend(part.slots);
                block.values.codes.extend(part.codes);
                if part.last {
                    let ParentValues { accounts, slots, codes, .. } =
                        std::mem::take(&mut block.values);
                    let filled = block.open.as_ref().unwrap().fill(accounts, codes).unwrap();
                    filled.set_slots(slots).unwrap();
                    block.filled = Some(filled);
                    let held = std::mem::take(&mut block.held);
                    drop(block);
                    self.execute(session, held);
                }
            }
            TxCommand::Range(_) if self.conduct == Conduct::Silent => {}
            TxCommand::Range(_) if self.conduct == Conduct::Lost => {
                self.connection.fetch_add(1, Relaxed);
            }
            TxCommand::Range(transactions) if block.filled.is_none() => {
                let open = block.open.as_ref().unwrap();
                transactions.iter().for_each(|transaction| open.prepare(transaction));
                block.held.extend(transactions);
            }
            TxCommand::Range(transactions) => {
                drop(block);
                self.execute(session, transactions);
            }
            TxCommand::End => {}
            TxCommand::Ping(number) => self.answer(0, TxReply::Pong(number, 1)),
        }
        Ok(())
    }

    fn receive(&self, wait: Duration) -> Option<(u64, TxReply)> {
        self.answers.1.recv_timeout(wait).ok()
    }
}

fn machines(twins: &[Arc<Twin>]) -> Machines {
    let apis = twins.iter().map(|twin| twin.clone() as Arc<dyn TxExecutorApi>).collect();
    let machines = Machines::start(apis, &CancellationToken::new()).unwrap();
    machines.trust();
    machines
}

/// Executes a case on its list with these machines. Returns the results, and those of them that
/// came from tx-executors.
fn execute_on(
    case: &Case,
    list: &AccessList,
    machines: &Machines,
    seed: u64,
) -> (Seen, ForeignResults) {
    let parent = Arc::new(case.state.with(Trouble::Delay, seed));
    let engine = case.state.with(Trouble::Delay, seed + 1);
    let listed = Listed::of(&with_list(case, list), parent.clone()).unwrap();
    let ahead = Ahead {
        threads: pool(1),
        span: tracing::Span::none(),
        parent,
        block_hashes: Arc::new(block_hash),
        advice: None,
        predictor: None,
        in_rounds: true,
        listed: Some(listed),
        machines: Some(machines),
        foreign: Default::default(),
    };
    let mut block = Block::clone(&with_list(case, list));
    // The placement goes by the header, which the cases leave empty.
    block.header.gas_used = 30_000_000;
    let case = Case {
        spec: case.spec.clone(),
        block: Arc::new(block),
        signers: case.signers.clone(),
        state: Memory::default(),
    };
    let seen = run(&case, &engine, Some(&ahead));
    let receipts = seen.0.as_ref().map(|done| done.receipts.clone()).unwrap_or_default();
    (seen, ForeignResults { used: ahead.foreign.take(), receipts })
}

#[test]
fn results_of_other_machines_are_those_of_this_one() {
    let twins = [Twin::new(Conduct::Honest), Twin::new(Conduct::Honest)];
    let machines = machines(&twins);
    let mut used = 0;
    for (seed, case, want, list) in valid_cases(cases()) {
        let (got, foreign) = execute_on(&case, &list, &machines, seed);
        assert_eq!(comparable(&want), comparable(&got), "seed {seed}");
        used += foreign.used.len();
    }
    assert!(used > 50, "{used} results of other machines");
    assert_eq!(machines.roles(), [Some(Role::Active); 2]);
}

#[test]
fn whatever_the_list_does_not_have_is_found_and_the_liar_quarantined() {
    let lies = [Conduct::Balance, Conduct::Slot, Conduct::Place, Conduct::TooMuchGas];
    for conduct in lies {
        let twins = [Twin::new(conduct)];
        let machines = machines(&twins);
        let mut caught = 0;
        // More on a busy machine, where results of others are often too late to be used.
        for (seed, case, want, list) in valid_cases(1_200) {
            if seed >= 60 && caught > 5 {
                break;
            }
            machines.trust();
            let (got, foreign) = execute_on(&case, &list, &machines, seed);
            assert_eq!(comparable(&want), comparable(&got), "seed {seed}, {conduct:?}");
            let is_caught = machines.roles() == [Some(Role::Quarantined)];
            // A slot of a destroyed account has no value, whatever is said of it.
            let may_be_used = [Conduct::Balance, Conduct::Slot].contains(&conduct);
            assert!(foreign.used.is_empty() || may_be_used, "{conduct:?}");
            caught += usize::from(is_caught);
        }
        assert!(caught > 5, "{conduct:?}: {caught}");
    }
}

#[test]
fn one_that_does_not_answer_changes_nothing() {
    for conduct in
        [Conduct::Silent, Conduct::Lost, Conduct::Refuses, Conduct::Idle, Conduct::Talkative]
    {
        let twins = [Twin::new(conduct)];
        let machines = machines(&twins);
        for (seed, case, want, list) in valid_cases(40) {
            machines.trust();
            let (got, foreign) = execute_on(&case, &list, &machines, seed);
            assert_eq!(comparable(&want), comparable(&got), "seed {seed}, {conduct:?}");
            let answers = conduct == Conduct::Talkative;
            assert!(answers || foreign.used.is_empty(), "{conduct:?}");
            assert_ne!(machines.roles(), [Some(Role::Quarantined)], "{conduct:?}");
        }
    }
}

#[test]
fn what_only_the_header_tells_is_found_when_the_block_is_repeated() {
    for conduct in [Conduct::Gas, Conduct::Log, Conduct::Status, Conduct::Nothing] {
        let (liar, honest) = (Twin::new(conduct), Twin::new(Conduct::Honest));
        let machines = machines(&[liar, honest]);
        let mut blamed = 0;
        // More on a busy machine, where results of others are often too late to be used.
        for (seed, case, want, list) in valid_cases(1_200) {
            if seed >= 60 && blamed > 3 {
                break;
            }
            machines.trust();
            let (got, foreign) = execute_on(&case, &list, &machines, seed);
            if comparable(&want) == comparable(&got) {
                continue;
            }
            // The engine compares with the header, and executes the block again.
            let is_liar = foreign.used.iter().any(|(_, number)| *number == 0);
            assert!(is_liar, "seed {seed}, {conduct:?}: an honest result is wrong");
            let right = want.0.unwrap().receipts;
            machines.blame(&foreign, &right);
            let [liar, honest] = machines.roles()[..] else { panic!() };
            assert_eq!(liar, Some(Role::Quarantined), "seed {seed}, {conduct:?}");
            // If no receipt differs, all that took part are blamed.
            assert!(honest == Some(Role::Active) || conduct == Conduct::Nothing, "{conduct:?}");
            blamed += 1;
        }
        assert!(blamed > 3, "{conduct:?}: {blamed}");
    }
}

#[test]
fn a_wrong_list_is_found_with_other_machines_too() {
    let machines = machines(&[Twin::new(Conduct::Honest)]);
    let mut wrong = 0;
    for (seed, case, want, list) in valid_cases(cases()) {
        let mut entries = decode(&list);
        if !spoil(&mut entries, &mut Random(seed ^ 0xbad)) || encode(&entries) == list {
            continue;
        }
        machines.trust();
        let (got, _) = execute_on(&case, &encode(&entries), &machines, seed);
        assert_eq!(comparable(&want), comparable(&got), "seed {seed}");
        assert_eq!(machines.roles(), [Some(Role::Active)], "an honest one is not to blame");
        wrong += 1;
    }
    assert!(wrong > 20, "{wrong}");
}

#[test]
fn a_newcomer_is_compared_before_it_is_used() {
    for conduct in [Conduct::Honest, Conduct::Gas, Conduct::Log, Conduct::Status] {
        let twins = [Twin::new(conduct)];
        let apis = twins.iter().map(|twin| twin.clone() as Arc<dyn TxExecutorApi>).collect();
        let machines = Machines::start(apis, &CancellationToken::new()).unwrap();
        assert_eq!(machines.roles(), [Some(Role::Trial)]);
        // More on a busy machine, where a block may end before the newcomer begins.
        for (seed, case, want, list) in valid_cases(1_200) {
            if seed >= 60 && machines.roles() != [Some(Role::Trial)] {
                break;
            }
            let (got, foreign) = execute_on(&case, &list, &machines, seed);
            let is_trial = machines.roles() == [Some(Role::Trial)];
            if is_trial {
                assert_eq!(comparable(&want), comparable(&got), "seed {seed}, {conduct:?}");
                assert!(foreign.used.is_empty());
            }
        }
        let want = if conduct == Conduct::Honest { Role::Active } else { Role::Quarantined };
        assert_eq!(machines.roles(), [Some(want)], "{conduct:?}");
        assert!(twins[0].executed.load(Relaxed) > 0);
    }
}
