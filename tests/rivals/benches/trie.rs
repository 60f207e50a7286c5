//! Comparison of the sparse trie with ethrex-trie and alloy-trie's `HashBuilder`. The cases are
//! random keys into an empty trie with the root at the end, updates of leaves of a large trie, and
//! list roots.
#![allow(clippy::unwrap_used)]

mod common;

use alloy_trie::root::ordered_trie_root_encoded;
use common::*;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{collections::HashSet, hint::black_box, time::Duration};
use tandem_primitives::{B256, keccak256};
use tandem_trie::{Scratch, StorageTrie, TrieBuilder, hash_batch, list_root};

fn insert(c: &mut Criterion) {
    for count in [1_000, 10_000] {
        let leaves = leaves(count);
        let mut group = c.benchmark_group(format!("insert {count} and root"));
        group.throughput(Throughput::Elements(count as u64));
        let mut scratch = Scratch::default();
        group.bench_function("sparse trie", |b| {
            b.iter(|| black_box(tandem(&leaves, &mut scratch)));
        });
        group.bench_function("sparse trie, leaf by leaf", |b| {
            b.iter(|| black_box(tandem_one_by_one(&leaves, &mut scratch)));
        });
        group.bench_function("sparse trie, without root", |b| {
            b.iter(|| {
                let mut trie = StorageTrie::empty(None);
                update_all(&mut trie, &leaves, &mut scratch);
                black_box(trie)
            });
        });
        group.bench_function("sort and trie builder", |b| b.iter(|| black_box(built(&leaves))));
        group.bench_function("sort and alloy-trie, root alone", |b| {
            b.iter(|| black_box(alloy(&leaves)));
        });
        group.bench_function("ethrex-trie, root alone", |b| {
            let leaves = || owned(&leaves);
            b.iter_batched(leaves, |leaves| black_box(ethrex_root(leaves)), BatchSize::LargeInput);
        });
        group.bench_function("ethrex-trie, root and nodes", |b| {
            let leaves = || owned(&leaves);
            b.iter_batched(leaves, |leaves| black_box(ethrex_nodes(leaves)), BatchSize::LargeInput);
        });
        group.finish();
    }
}

/// Number of leaves of the large trie.
const LARGE: usize = 1_000_000;

/// Path and RLP.
type Node = (Vec<u8>, Vec<u8>);

/// Returns the nodes on the way to some of a trie's leaves, parents first, and the hash of its
/// root.
fn nodes_to(leaves: &[Leaf], keys: &[B256]) -> (Vec<Node>, B256) {
    let nibbles = |key: &B256| -> Vec<u8> { key.iter().flat_map(|b| [b >> 4, b & 15]).collect() };
    // Below this depth the random keys of a million leaves hardly ever share a path.
    let ways: HashSet<Vec<u8>> =
        keys.iter().flat_map(|key| (0..12).map(move |end| nibbles(key)[..end].to_vec())).collect();
    let mut nodes = Vec::new();
    let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
        if ways.contains(path) {
            nodes.push((path.to_vec(), rlp.to_vec()));
        }
    });
    for (key, value) in leaves {
        builder.push(key, value).unwrap();
    }
    let root = keccak256(builder.finish().unwrap());
    nodes.sort_by_key(|(path, _)| path.len());
    (nodes, root)
}

/// Reveals nodes as the workers do: hashes all together, then checks one by one.
fn reveal(trie: &mut StorageTrie, nodes: &[Node]) {
    let (mut bytes, mut ends, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
    for (_, rlp) in nodes {
        bytes.extend_from_slice(rlp);
        ends.push(bytes.len() as u32);
    }
    hash_batch(&bytes, &ends, &mut hashes);
    for ((path, rlp), hash) in nodes.iter().zip(&hashes) {
        trie.reveal_hashed(path, rlp, hash).unwrap();
    }
}

fn update_large(c: &mut Criterion) {
    let mut all = leaves(LARGE);
    let mut scratch = Scratch::default();
    let mut trie = StorageTrie::empty(None);
    update_all(&mut trie, &all, &mut scratch);
    root(&mut trie, &mut scratch);
    let changed: Vec<B256> = all.iter().take(10_000).map(|(key, _)| *key).collect();
    all.sort_unstable();
    for count in [1_000, 10_000] {
        let (nodes, root_hash) = nodes_to(&all, &changed[..count]);
        let mut group = c.benchmark_group(format!("update {count} of {LARGE} and root"));
        group.throughput(Throughput::Elements(count as u64));
        let mut rng = StdRng::seed_from_u64(1);
        let mut batch = || -> Vec<Leaf> {
            let mut value = || alloy_rlp::encode(rng.random::<u64>());
            changed[..count].iter().map(|key| (*key, value())).collect()
        };
        group.bench_function("revealed", |b| {
            b.iter_batched_ref(
                &mut batch,
                |batch| {
                    update_all(&mut trie, batch, &mut scratch);
                    black_box(root(&mut trie, &mut scratch))
                },
                BatchSize::LargeInput,
            );
        });
        group.bench_function("not revealed", |b| {
            b.iter_batched_ref(
                &mut batch,
                |batch| {
                    let mut trie = StorageTrie::blinded(root_hash);
                    reveal(&mut trie, &nodes);
                    update_all(&mut trie, batch, &mut scratch);
                    black_box(root(&mut trie, &mut scratch))
                },
                BatchSize::LargeInput,
            );
        });
        group.finish();
    }
}

/// Hashes a block's transactions: 400 of 250 bytes, as in large blocks.
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

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = insert, update_large, list
}
criterion_main!(benches);
