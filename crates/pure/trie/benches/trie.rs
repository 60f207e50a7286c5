//! The sparse trie against alloy-trie's `HashBuilder`: random keys into an empty trie with the
//! root at the end, updates of leaves of a revealed trie, and the root of a list.
#![allow(clippy::unwrap_used)]

use alloy_trie::{HashBuilder, Nibbles, root::ordered_trie_root_encoded};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::hint::black_box;
use tandem_primitives::{B256, TrieDiff};
use tandem_trie::{Scratch, StorageTrie, TrieBuilder, list_root};

fn leaves(count: usize) -> Vec<(B256, Vec<u8>)> {
    let mut rng = StdRng::seed_from_u64(count as u64);
    let mut value = || alloy_rlp::encode(rng.random::<u64>());
    let values: Vec<_> = (0..count).map(|_| value()).collect();
    values.into_iter().map(|value| (B256::new(rng.random()), value)).collect()
}

/// Root of a trie that was changed, with the diff it leaves.
fn root(trie: &mut StorageTrie, scratch: &mut Scratch) -> (Option<B256>, TrieDiff) {
    let mut diff = TrieDiff::default();
    let root = trie.root(None, &mut diff, scratch);
    (root, diff)
}

fn insert(c: &mut Criterion) {
    for count in [1_000, 10_000] {
        let leaves = leaves(count);
        let mut group = c.benchmark_group(format!("insert {count} and root"));
        group.throughput(Throughput::Elements(count as u64));
        let mut scratch = Scratch::default();
        group.bench_function("sparse trie", |b| {
            b.iter(|| {
                let mut trie = StorageTrie::empty(None);
                for (key, value) in &leaves {
                    trie.update(key, value).unwrap();
                }
                black_box(root(&mut trie, &mut scratch))
            });
        });
        group.bench_function("sparse trie, without root", |b| {
            b.iter(|| {
                let mut trie = StorageTrie::empty(None);
                for (key, value) in &leaves {
                    trie.update(key, value).unwrap();
                }
                black_box(trie.is_dirty())
            });
        });
        group.bench_function("sort and trie builder", |b| {
            b.iter(|| {
                let mut sorted: Vec<_> = leaves.iter().collect();
                sorted.sort_unstable();
                let mut builder = TrieBuilder::new(|_: &[u8], _: &[u8]| {});
                for (key, value) in sorted {
                    builder.push(key, value).unwrap();
                }
                black_box(builder.finish())
            });
        });
        group.bench_function("sort and alloy-trie", |b| {
            b.iter(|| {
                let mut sorted: Vec<_> = leaves.iter().collect();
                sorted.sort_unstable();
                let mut builder = HashBuilder::default();
                for (key, value) in sorted {
                    builder.add_leaf(Nibbles::unpack(key), value);
                }
                black_box(builder.root())
            });
        });
        group.finish();
    }
}

fn update(c: &mut Criterion) {
    let leaves = leaves(100_000);
    let mut trie = StorageTrie::empty(None);
    let mut scratch = Scratch::default();
    for (key, value) in &leaves {
        trie.update(key, value).unwrap();
    }
    root(&mut trie, &mut scratch);
    for count in [100, 1_000, 10_000] {
        let mut group = c.benchmark_group(format!("update {count} of 100000 and root"));
        group.throughput(Throughput::Elements(count as u64));
        let mut rng = StdRng::seed_from_u64(1);
        let mut batch = || -> Vec<(B256, Vec<u8>)> {
            let mut one = || {
                (
                    leaves[rng.random_range(0..leaves.len())].0,
                    alloy_rlp::encode(rng.random::<u64>()),
                )
            };
            (0..count).map(|_| one()).collect()
        };
        group.bench_function("sparse trie", |b| {
            b.iter_batched_ref(
                &mut batch,
                |batch| {
                    for (key, value) in batch {
                        trie.update(key, value).unwrap();
                    }
                    black_box(root(&mut trie, &mut scratch))
                },
                BatchSize::LargeInput,
            );
        });
        group.finish();
    }
}

/// A block's transactions: 400 of 250 bytes, as large blocks have them.
fn list(c: &mut Criterion) {
    let mut rng = StdRng::seed_from_u64(2);
    let list: Vec<[u8; 250]> = (0..400).map(|_| rng.random()).collect();
    let mut group = c.benchmark_group("root of a list of 400");
    group.throughput(Throughput::Elements(list.len() as u64));
    group.bench_function("list root", |b| b.iter(|| black_box(list_root(&list))));
    group.bench_function("alloy-trie", |b| {
        b.iter(|| black_box(ordered_trie_root_encoded(&list)));
    });
    group.finish();
}

criterion_group!(benches, insert, update, list);
criterion_main!(benches);
