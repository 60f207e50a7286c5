//! Random blocks full of interdependent transactions, executed with and without threads ahead. The
//! results must be equal.

mod blocks;
mod far;
mod listed;
mod machines;
mod schedules;
mod state;

use super::*;
use crate::{
    Error,
    ahead::senders::Senders,
    block::{
        execute::{Executed, Failure, execute},
        receipts::ReceiptsRooter,
    },
    state::{BlockState, StateReader},
};
use alloy_primitives::map::B256Map;
use blocks::{Case, FORKS};
use parking_lot::Mutex;
use state::{Memory, Trouble};
use std::sync::OnceLock;
use tandem_chain::Fork;
use tandem_primitives::{AccountUpdate, B256, SlotUpdate, StateDiff};
use tandem_proto::multiproof::{
    self, Begin, Foresight, Prefetch, ProofApi, ProofSession, ShardRoots, StateUpdate, Status,
};
use tokio_util::sync::CancellationToken;

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Session that keeps every update.
#[derive(Default)]
struct Updates(Vec<StateUpdate>);

impl ProofSession for Updates {
    fn update(&mut self, update: Arc<StateUpdate>) {
        let mut update = StateUpdate::clone(&update);
        update.accounts.sort_by_key(|account| account.address_hash);
        for account in &mut update.accounts {
            account.slots.sort_by_key(|slot| slot.key);
        }
        self.0.push(update);
    }

    fn finish(&mut self) {}

    fn roots(self: Box<Self>) -> Result<ShardRoots, multiproof::Error> {
        Err(multiproof::Error::Unavailable)
    }
}

/// All observable results of an execution.
type Seen = (Result<Executed, Failure>, StateDiff, Vec<StateUpdate>);

thread_local! {
    /// Last counts of the engine on this thread.
    pub static COUNTS: std::cell::Cell<[u64; 3]> = const { std::cell::Cell::new([0; 3]) };
    /// Number of conflicts after which the engine on this thread last left a list.
    pub static LEFT_AFTER: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

fn run(case: &Case, reader: &Memory, ahead: Option<&Ahead<'_>>) -> Seen {
    let mut updates = Updates::default();
    let hashes = Box::new(block_hash);
    let mut state = BlockState::new(reader, hashes, Some(&mut updates));
    let senders = Senders::known(case.block.clone(), &case.signers);
    let mut rooter = ReceiptsRooter::AtEnd;
    let result = execute(&case.spec, &case.block, &senders, &mut state, &mut rooter, ahead);
    let diff = state.into_diff();
    (result, diff, updates.0)
}

fn block_hash(number: u64) -> Result<B256, Error> {
    Ok(B256::with_last_byte(number as u8))
}

fn pool(threads: usize) -> &'static Prewarmers {
    static POOLS: OnceLock<Vec<Prewarmers>> = OnceLock::new();
    let start = |threads| Prewarmers::start(threads, &CancellationToken::new()).unwrap();
    &POOLS.get_or_init(|| [1, 2, 4].map(start).into())[threads.min(4) / 2]
}

/// Executes a case with this many threads, whose reads have trouble, in rounds or not. Returns
/// results and counts.
fn run_ahead(
    case: &Case,
    threads: usize,
    trouble: Trouble,
    seed: u64,
    in_rounds: bool,
) -> (Seen, [u64; 3]) {
    let parent = Arc::new(case.state.with(trouble, seed).far(in_rounds));
    let engine = case.state.with(Trouble::Delay, seed + 1);
    let ahead = Ahead {
        threads: pool(threads),
        span: tracing::Span::none(),
        parent,
        block_hashes: Arc::new(block_hash),
        advice: None,
        predictor: Some(Arc::default()),
        in_rounds,
        listed: None,
        machines: None,
        foreign: Default::default(),
    };
    COUNTS.set([0; 3]);
    let seen = run(case, &engine, Some(&ahead));
    (seen, COUNTS.get())
}

/// Proof API that keeps all advice.
#[derive(Default)]
pub struct Told {
    pub keys: Mutex<Vec<(B256, Arc<Prefetch>)>>,
    pub values: Mutex<Vec<(B256, Arc<Foresight>)>>,
}

impl ProofApi for Told {
    fn begin(&self, _: Begin) -> Result<Box<dyn ProofSession>, multiproof::Error> {
        Err(multiproof::Error::Unavailable)
    }

    fn discard(&self, _: B256) {}

    fn status(&self) -> Result<Status, multiproof::Error> {
        Err(multiproof::Error::Unavailable)
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        self.keys.lock().push((block, keys));
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        self.values.lock().push((block, foresight));
    }
}

#[test]
fn the_workers_are_told_of_no_other_keys_than_results_change() {
    let (mut told, mut updated, mut foreseen) = (0, 0, 0);
    for seed in 0..200 {
        let case = Case::random(&mut Random(seed), Fork::Osaka);
        let proof = Arc::new(Told::default());
        let parent = Arc::new(case.state.with(Trouble::Delay, seed));
        let advice = Advice { proof: proof.clone(), block: case.block.id.hash };
        advice.tell_credited(&case.block);
        let withdrawals = case.block.withdrawals.iter().flatten().count();
        let credited = proof.keys.lock().remove(0).1.accounts.len();
        assert_eq!(credited, withdrawals + 1, "and the beneficiary");
        let (threads, block_hashes) = (pool(1), Arc::new(block_hash));
        let ahead = Ahead {
            span: tracing::Span::none(),
            threads,
            parent,
            block_hashes,
            advice: Some(advice),
            predictor: None,
            in_rounds: false,
            listed: None,
            machines: None,
            foreign: Default::default(),
        };
        let (executed, diff, _) = run(&case, &case.state, Some(&ahead));
        let [speculated, committed, _] = COUNTS.get();
        // Results that do not hold may change other keys.
        if executed.is_err() || speculated != committed {
            continue;
        }
        updated += diff.accounts.iter().map(|account| 1 + account.slots.len()).sum::<usize>();
        let accounts: B256Map<_> =
            diff.accounts.iter().map(|update| (update.address_hash, update)).collect();
        let mut keys: Vec<_> = proof.keys.lock().drain(..).collect();
        for (block, foresight) in proof.values.lock().drain(..) {
            let Foresight { before, after } = &*foresight;
            let of = |updates: &[AccountUpdate]| -> Vec<_> {
                let keys = |slots: &[SlotUpdate]| slots.iter().map(|slot| slot.key).collect();
                updates.iter().map(|u| (u.address_hash, keys(&u.slots))).collect()
            };
            let accounts: Vec<(B256, Vec<B256>)> = of(before);
            assert_eq!(accounts, of(after));
            for update in before {
                let account = case.state.account(&update.address_hash).unwrap();
                assert!(update.account.is_none() || update.account == account, "seed {seed}");
                for slot in &update.slots {
                    let value = case.state.slot(&update.address_hash, &slot.key).unwrap();
                    assert_eq!(slot.value, value, "seed {seed}");
                }
            }
            keys.push((block, Arc::new(Prefetch { accounts })));
            foreseen += 1;
        }
        for (block, keys) in keys {
            assert_eq!(block, case.block.id.hash);
            for (account, slots) in &keys.accounts {
                let Some(update) = accounts.get(account) else {
                    assert!(slots.is_empty(), "an empty account was touched and stays away");
                    continue;
                };
                told += 1 + slots.len();
                let is_changed = |slot: &B256| update.slots.iter().any(|s| s.key == *slot);
                assert!(update.wiped || slots.iter().all(is_changed), "seed {seed}");
            }
        }
    }
    // The number depends on the order of execution.
    assert!(told <= updated, "{told} keys told, {foreseen} times with values, {updated} updated");
}

fn same(case: &Case, threads: usize, trouble: Trouble, seed: u64, in_rounds: bool) -> [u64; 3] {
    let want = run(case, &case.state, None);
    let (got, counts) = run_ahead(case, threads, trouble, seed, in_rounds);
    let [want, got] = [want, got].map(|seen| {
        // After an error, only the error is compared.
        let rest = seen.0.is_ok().then_some((seen.1, seen.2));
        (format!("{:?}", seen.0), rest)
    });
    assert_eq!(want, got, "seed {seed}, {threads} threads, in rounds: {in_rounds}");
    counts
}

fn check_results_do_not_depend_on_threads_ahead(in_rounds: bool) {
    let mut totals = [0; 3];
    let (mut valid, mut invalid) = (0, 0);
    let cases = std::env::var("TANDEM_SPECULATION_CASES").ok().and_then(|n| n.parse().ok());
    for seed in 0..cases.unwrap_or(400_u64) {
        let mut random = Random(seed);
        let case = Case::random(&mut random, FORKS[seed as usize % FORKS.len()]);
        let counts = same(&case, random.pick(&[1, 2, 4]), Trouble::Delay, seed, in_rounds);
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
        let count = if run(&case, &case.state, None).0.is_ok() { &mut valid } else { &mut invalid };
        *count += 1;
    }
    let [speculated, committed, conflicts] = totals;
    assert!(valid > 100 && invalid > 20, "{valid} valid, {invalid} invalid");
    assert!(committed > 500 && conflicts > 50 && speculated >= committed + conflicts, "{totals:?}");
}

#[test]
fn results_do_not_depend_on_threads_ahead() {
    check_results_do_not_depend_on_threads_ahead(false);
}

#[test]
fn results_do_not_depend_on_rounds() {
    check_results_do_not_depend_on_threads_ahead(true);
}

#[test]
fn trouble_ahead_is_none_of_the_blocks() {
    for trouble in [Trouble::Hang, Trouble::Error, Trouble::Panic] {
        for seed in 0..40 {
            let mut random = Random(seed);
            let case = Case::random(&mut random, Fork::Osaka);
            same(&case, random.pick(&[1, 2, 4]), trouble, seed, random.one_in(2));
        }
    }
}

#[test]
fn few_transactions_or_no_threads_are_executed_in_order() {
    let mut random = Random(3);
    let case = Case::random(&mut random, Fork::Osaka);
    let none = Prewarmers::start(0, &CancellationToken::new()).unwrap();
    let few = Block::seal(case.block.header.clone(), &[], Some(&[])).unwrap();
    for (threads, block) in [(&none, case.block.clone()), (pool(1), Arc::new(few))] {
        let parent = Arc::new(case.state.with(Trouble::Panic, 0));
        let block_hashes = Arc::new(block_hash);
        let ahead = Ahead {
            span: tracing::Span::none(),
            threads,
            parent,
            block_hashes,
            advice: None,
            predictor: None,
            in_rounds: false,
            listed: None,
            machines: None,
            foreign: Default::default(),
        };
        let senders = Senders::known(block.clone(), &case.signers);
        let env = crate::block::evm::evm_env(&case.spec, &block.header);
        assert!(ahead.start(&block, &senders, &env).is_none());
    }
}
