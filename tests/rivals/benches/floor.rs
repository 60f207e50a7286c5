//! Comparison of inserting into an empty trie with the floor: the time that its hashing alone
//! takes. ethrex-trie and alloy-trie are compared as well. All run in turn, many times, so other
//! load on the machine affects all of them. The output gives medians of the ratios within one
//! round.
//!
//! The floor is the number of permutations (Keccak-f\[1600\]) that the nodes need, times the time
//! of one in the fastest lanes, on one thread. It is measured in two ways. One is hashing of
//! strings of one block. The other is the permutation alone, without moving bytes into and out of
//! the lanes.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use common::*;
use std::{hint::black_box, time::Instant};
use tandem_primitives::TrieDiff;
use tandem_trie::{Lanes, Scratch};

/// Number of bytes that one permutation absorbs.
const RATE: usize = 136;

/// Number of byte strings that are hashed at a time, each of one block.
const STRINGS: usize = 1_024;

fn main() {
    let bytes: Vec<u8> = (0..STRINGS * 100).map(|at| at as u8).collect();
    let ends: Vec<u32> = (1..=STRINGS as u32).map(|at| at * 100).collect();
    for lanes in Lanes::available() {
        let mut hashes = Vec::new();
        let mut times: Vec<f64> = (0..200)
            .map(|_| seconds(|| lanes.hash(&bytes, &ends, &mut hashes)) / STRINGS as f64)
            .collect();
        let mut alone: Vec<f64> =
            (0..200).map(|_| seconds(|| lanes.permute(STRINGS)) / STRINGS as f64).collect();
        println!(
            "one permutation, {lanes}: {:.1} ns, alone {:.1} ns",
            median(&mut times) * 1e9,
            median(&mut alone) * 1e9
        );
    }
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for (count, rounds) in [(1_000, 200), (10_000, 30)] {
        one.install(|| compare(count, rounds, &bytes, &ends));
    }
    compare(10_000, 30, &bytes, &ends);
    memory();
}

/// Compared methods, with the floors last.
const NAMES: [&str; 7] = [
    "ours, root and nodes",
    "the same, leaf by leaf",
    "alloy-trie, sort and root alone",
    "ethrex-trie, root alone",
    "ethrex-trie, root and nodes",
    "floor: hashing blocks",
    "floor: permutations alone",
];

fn compare(count: usize, rounds: usize, bytes: &[u8], ends: &[u32]) {
    let leaves = leaves(count);
    let mut scratch = Scratch::default();
    let (root, diff) = tandem(&leaves, &mut scratch);
    assert_eq!(root, Some(alloy(&leaves)));
    assert_eq!(root, Some(ethrex_root(owned(&leaves))));
    let permutations = permutations(&diff);
    drop(diff);

    let mut hashes = Vec::new();
    let mut times: [Vec<f64>; 7] = Default::default();
    for _ in 0..rounds {
        let lanes = Lanes::best();
        let round = [
            thrice(|| seconds(|| tandem(&leaves, &mut scratch))),
            thrice(|| seconds(|| tandem_one_by_one(&leaves, &mut scratch))),
            thrice(|| seconds(|| alloy(&leaves))),
            thrice(|| {
                let leaves = owned(&leaves);
                seconds(|| ethrex_root(leaves))
            }),
            thrice(|| {
                let leaves = owned(&leaves);
                seconds(|| ethrex_nodes(leaves))
            }),
            thrice(|| seconds(|| lanes.hash(bytes, ends, &mut hashes))) / STRINGS as f64
                * permutations as f64,
            thrice(|| seconds(|| lanes.permute(STRINGS))) / STRINGS as f64 * permutations as f64,
        ];
        times.iter_mut().zip(round).for_each(|(times, time)| times.push(time));
    }
    let threads = rayon::current_num_threads();
    println!(
        "\ninsert {count} keys and root, {threads} threads: {permutations} permutations, \
         {rounds} rounds"
    );
    println!("{:<36} {:>10} {:>10} {:>10} {:>10}", "", "median", "of ours", "of floor", "alone");
    for (name, of) in NAMES.iter().zip(&times) {
        let against = |other: &[f64]| {
            median(&mut of.iter().zip(other).map(|(a, b)| a / b).collect::<Vec<_>>())
        };
        println!(
            "{name:<36} {:>7.3} ms {:>10.2} {:>10.2} {:>10.2}",
            median(&mut of.clone()) * 1e3,
            against(&times[0]),
            against(&times[5]),
            against(&times[6]),
        );
    }
}

/// Returns the number of permutations that hashing the nodes takes.
fn permutations(diff: &TrieDiff) -> usize {
    diff.iter().filter_map(|change| change.rlp).map(|rlp| rlp.len() / RATE + 1).sum()
}

/// Prints the bytes that a leaf of a large trie takes, with its share of all branches.
fn memory() {
    let leaves = leaves(1_000_000);
    let mut trie = tandem_trie::StorageTrie::empty(None);
    let mut scratch = Scratch::default();
    let inserted = seconds(|| update_all(&mut trie, &leaves, &mut scratch));
    let hashed = seconds(|| root(&mut trie, &mut scratch));
    println!(
        "\na trie of {}: {} bytes a leaf; inserted in {:.0} ns a leaf, hashed in {:.0} ns",
        leaves.len(),
        trie.byte_len() / leaves.len(),
        inserted * 1e9 / leaves.len() as f64,
        hashed * 1e9 / leaves.len() as f64,
    );
}

/// Returns the median of three consecutive runs. A run finds caches and allocator as the previous
/// run of the closure left them.
fn thrice(mut run: impl FnMut() -> f64) -> f64 {
    median(&mut [run(), run(), run()])
}

/// Measures how long a closure takes, in seconds, excluding the drop of its result.
fn seconds<T>(what: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    let result = black_box(what());
    let took = start.elapsed();
    drop(result);
    took.as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
