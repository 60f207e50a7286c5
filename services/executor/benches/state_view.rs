//! State reads of a block's execution, by several threads at once, over few and many layers; and
//! the cost of changing the layers.
//!
//! The variants of reading are measured alternately, and their ratio is printed, because other load
//! on the machine slows both.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use criterion::{BatchSize, BenchmarkId, Criterion};
use parking_lot::RwLock;
use quick_cache::sync::Cache;
use std::{
    hint::black_box,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use support::Nothing;
use tandem_executor::internals::{BaseCache, Layers, Recent, StateReader, StateView};
use tandem_primitives::{
    Account, AccountUpdate, B256, BlockId, SlotUpdate, StateDiff, U256, keccak256,
};

/// Numbers of accounts, and of slots of each, that one block touches.
const ACCOUNTS: u64 = 1_000;
const SLOTS: u64 = 3;

fn key(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

fn block(number: u64, branch: u64) -> BlockId {
    BlockId::new(number, key(branch << 40 | 1 << 32 | number))
}

/// Returns changes of `count` accounts from `first` on.
fn diff(first: u64, count: u64) -> Arc<StateDiff> {
    let update = |n| AccountUpdate {
        address_hash: key(n),
        account: Some(Account { nonce: n, ..Account::default() }),
        wiped: false,
        slots: (0..SLOTS).map(|slot| SlotUpdate { key: key(slot), value: U256::from(n) }).collect(),
    };
    let mut accounts: Vec<_> = (first..first + count).map(update).collect();
    accounts.sort_unstable_by_key(|update| update.address_hash);
    Arc::new(StateDiff { accounts, codes: Vec::new() })
}

/// Base of 200,000 accounts that are all cached, with 16 layers over it. Each layer has some
/// accounts of its own and shares some with the others.
struct World {
    keys: Arc<Vec<B256>>,
    head: BlockId,
    recent: Arc<Recent>,
    before: Arc<Before>,
}

/// Previous design: one lock around the layers, taken for each key, and counters shared by all
/// threads.
struct Before {
    layers: RwLock<Layers>,
    accounts: Cache<B256, Option<Account>>,
    slots: Cache<(B256, B256), U256>,
    counts: [AtomicU64; 2],
}

impl World {
    fn new(layers: u64, forks: u64) -> Self {
        let recent = Recent::new(BaseCache::new(500_000, 2_000_000, 16));
        let before = Before {
            layers: RwLock::default(),
            accounts: Cache::new(500_000),
            slots: Cache::new(2_000_000),
            counts: Default::default(),
        };
        let base = block(1, 0);
        recent.rebase(block(0, 0));
        let all = diff(0, 200_000);
        for update in &all.accounts {
            before.accounts.insert(update.address_hash, update.account);
            for slot in &update.slots {
                before.slots.insert((update.address_hash, slot.key), slot.value);
            }
        }
        recent.insert(base, block(0, 0).hash, all);
        recent.advance(base);
        let mut head = base;
        for number in 2..2 + layers {
            for branch in 0..=forks {
                // Forks leave the chain at every block, one block long.
                let id = block(number, branch);
                let diff = diff(number % 4 * 500, ACCOUNTS);
                recent.insert(id, head.hash, diff.clone());
                before.layers.write().insert(id, head.hash, diff);
            }
            head = block(number, 0);
        }
        before.layers.write().raise_base(base, 0);
        // Keys that a block reads: some changed by the last blocks, more unchanged.
        let keys = (0..1_600).map(|n| if n % 5 < 2 { key(n) } else { key(5_000 + n * 97) });
        let (recent, before) = (Arc::new(recent), Arc::new(before));
        Self { keys: Arc::new(keys.collect()), head, recent, before }
    }

    fn view(&self) -> StateView {
        StateView::pinned(self.head.hash, self.recent.clone(), Arc::new(Nothing))
    }
}

/// Reads the keys of a block: each account and its slots.
fn read_now(view: &StateView, keys: &[B256]) {
    for key in keys {
        black_box(view.account(key).unwrap());
        for slot in 0..SLOTS {
            black_box(view.slot(key, &SLOT_KEYS.with(|keys| keys[slot as usize])).unwrap());
        }
    }
}

thread_local!(static SLOT_KEYS: [B256; SLOTS as usize] = std::array::from_fn(|n| key(n as u64)));

fn read_before(before: &Before, head: B256, keys: &[B256]) {
    let branch = before.layers.read().branch(head);
    for key in keys {
        black_box({
            let layers = before.layers.read();
            let found = layers.account(&branch, key);
            assert!(branch.reaches(&layers.base().hash));
            before.counts[usize::from(found.is_none())].fetch_add(1, Relaxed);
            found.or_else(|| before.accounts.get(key)).unwrap()
        });
        for slot in 0..SLOTS {
            let slot = SLOT_KEYS.with(|keys| keys[slot as usize]);
            let layers = before.layers.read();
            let found = layers.slot(&branch, key, &slot);
            assert!(branch.reaches(&layers.base().hash));
            before.counts[usize::from(found.is_none())].fetch_add(1, Relaxed);
            black_box(found.or_else(|| before.slots.get(&(*key, slot))).unwrap());
        }
    }
}

/// Returns the time until all threads have read a block's keys, 20 times each.
fn timed(threads: usize, read: impl Fn(&[B256]) + Sync, keys: &[B256]) -> Duration {
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        for number in 0..threads {
            let (barrier, read) = (&barrier, &read);
            scope.spawn(move || {
                let mut keys = keys.to_vec();
                // Starts each thread at a different key.
                let turn = number * keys.len() / 7;
                keys.rotate_left(turn);
                read(&keys);
                barrier.wait();
                (0..20).for_each(|_| read(&keys));
                barrier.wait();
            });
        }
        barrier.wait();
        let started = Instant::now();
        barrier.wait();
        started.elapsed()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn threads_at_once() {
    let world = World::new(16, 1);
    let reads = (20 * world.keys.len() * (1 + SLOTS as usize)) as f64;
    println!("ns per read and thread, 16 layers, in turns; one lock and shared counters / pinned");
    for threads in 1..=4 {
        let (mut before, mut now, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..31 {
            let head = world.head.hash;
            let a = timed(threads, |keys| read_before(&world.before, head, keys), &world.keys);
            let view = world.view();
            let b = timed(threads, |keys| read_now(&view, keys), &world.keys);
            before.push(a.as_nanos() as f64 / reads);
            now.push(b.as_nanos() as f64 / reads);
            ratios.push(b.as_secs_f64() / a.as_secs_f64());
        }
        let (before, now, ratio) = (median(before), median(now), median(ratios));
        println!("state_view/threads/{threads}: {before:6.0} / {now:6.0}   ratio {ratio:.2}");
    }
}

fn depth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("state_view/depth");
    for (layers, forks) in [(1, 0), (16, 0), (128, 0), (128, 3)] {
        let world = World::new(layers, forks);
        let view = world.view();
        let name = BenchmarkId::from_parameter(format!("{layers} layers, {forks} forks each"));
        group.bench_function(name, |bencher| bencher.iter(|| read_now(&view, &world.keys)));
    }
    group.finish();
}

fn change(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("state_view/change");
    let world = World::new(16, 0);
    let mut layers = Layers::clone(&world.recent.pin());
    let (id, diff_of_block) = (block(100, 9), diff(0, ACCOUNTS));
    group.bench_function("insert and remove", |bencher| {
        bencher.iter(|| {
            layers.insert(id, world.head.hash, diff_of_block.clone());
            layers.remove(&id.hash)
        });
    });
    group.bench_function("copy, as a block that has ended still reads", |bencher| {
        bencher.iter_with_large_drop(|| Layers::clone(&layers));
    });
    let (base, top) = (block(1, 0), block(2, 0));
    let world = World::new(0, 0);
    group.bench_function("advance", |bencher| {
        let setup = || {
            world.recent.insert(top, base.hash, diff(0, ACCOUNTS));
        };
        bencher.iter_batched(setup, |()| world.recent.advance(top), BatchSize::PerIteration);
    });
    group.finish();
    for (kind, entries, bytes) in world.recent.cache().sizes() {
        println!("state_view/memory/{kind}: {} bytes each of {entries}", bytes / entries);
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    threads_at_once();
    depth(&mut criterion);
    change(&mut criterion);
    criterion.final_summary();
}
