//! A state of 500,000 slots on both backends: a block's writes while a snapshot is held, point
//! reads, and a scan.
#![allow(clippy::unwrap_used)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tandem_primitives::{B256, U256, keccak256};
use tandem_store::{Durability, Options, Store, tables::Slots};

const SLOTS: u64 = 500_000;

/// Number of slots that a block changes.
const BLOCK: u64 = 2_000;

fn key(number: u64) -> (B256, B256) {
    let owner = keccak256((number % 1_000).to_be_bytes());
    (owner, keccak256(number.to_be_bytes()))
}

fn fill(store: &Store) {
    let mut batch = store.batch();
    for number in 0..SLOTS {
        let (owner, slot) = key(number);
        batch.put::<Slots>((owner, slot), U256::from(number + 1));
    }
    store.write(batch, Durability::Memory).unwrap();
}

fn measure(c: &mut Criterion, name: &str, store: &Store) {
    fill(store);
    let mut group = c.benchmark_group(name);
    group.sample_size(10);
    group.throughput(Throughput::Elements(BLOCK));
    let mut next = 0u64;
    group.bench_function("write 2,000 slots under a snapshot", |b| {
        b.iter(|| {
            let snapshot = store.snapshot();
            let mut batch = store.batch();
            for _ in 0..BLOCK {
                next = (next + 7_919) % SLOTS;
                batch.put::<Slots>(key(next), U256::from(next + 2));
            }
            store.write(batch, Durability::Process).unwrap();
            black_box(snapshot.get::<Slots>(key(0)).unwrap())
        });
    });
    group.bench_function("read 2,000 slots", |b| {
        b.iter(|| {
            let keys = (0..BLOCK).map(|_| {
                next = (next + 7_919) % SLOTS;
                key(next)
            });
            black_box(store.snapshot().multi_get::<Slots>(keys).unwrap())
        });
    });
    group.throughput(Throughput::Elements(SLOTS));
    group.bench_function("scan", |b| {
        b.iter(|| {
            let view = store.snapshot();
            let (mut cursor, mut records) = (view.cursor::<Slots>(&[]), 0);
            while cursor.entry().unwrap().is_some() {
                records += 1;
                cursor.advance();
            }
            assert_eq!(records, SLOTS);
        });
    });
    group.finish();
}

fn backends(c: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let rocks = Store::create(&directory.path().join("db"), &Options::default()).unwrap();
    measure(c, "rocksdb", &rocks);
    measure(c, "memory", &Store::in_memory());
}

criterion_group!(benches, backends);
criterion_main!(benches);
