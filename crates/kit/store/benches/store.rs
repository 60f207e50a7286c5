//! A state of 500,000 slots on both backends: a block's writes while a snapshot is held, point
//! reads, and a scan. Also the read of a recent header, beside a map in memory.
#![allow(clippy::unwrap_used)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::{collections::HashMap, hint::black_box};
use tandem_primitives::{B256, Bytes, U256, keccak256};
use tandem_store::{
    Durability, Options, Store,
    tables::{Headers, Slots},
};

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

/// Number of headers.
const HEADERS: u64 = 1_000;

/// A parent's header from the database, as a client without a cache of headers reads it.
fn headers(c: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(&directory.path().join("db"), &Options::default()).unwrap();
    let hash = |number: u64| keccak256(number.to_be_bytes());
    let (mut batch, mut known) = (store.batch(), HashMap::new());
    for number in 0..HEADERS {
        batch.put::<Headers>(hash(number), (number, &[7; 640]));
        known.insert(hash(number), Bytes::from(vec![7; 640]));
    }
    store.write(batch, Durability::Memory).unwrap();
    let mut group = c.benchmark_group("header");
    let mut next = 0;
    group.bench_function("from the database", |b| {
        b.iter(|| {
            next = (next + 1) % HEADERS;
            black_box(store.snapshot().get::<Headers>(hash(next)).unwrap().unwrap())
        });
    });
    group.bench_function("from memory", |b| {
        b.iter(|| {
            next = (next + 1) % HEADERS;
            black_box(known[&hash(next)].clone())
        });
    });
    group.finish();
}

criterion_group!(benches, backends, headers);
criterion_main!(benches);
