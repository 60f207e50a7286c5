//! Measures the cost of verifying a blob on one core by batch size, for the library that this crate
//! uses and for rust_eth_kzg. Measures the cost of a content key as well.
//!
//! Both libraries get the same valid blobs. The blobs come from polynomials `c·x^64`: the proofs of
//! their cells are all `c` times the generator. These are real points that take no hours to prove.
//! The two libraries alternate, and the benchmark prints the median of the rounds.
#![allow(clippy::unwrap_used, missing_docs)]

use blst::min_pk::SecretKey;
use rust_eth_kzg::{DASContext, TrustedSetup, UsePrecomp};
use sha2::{Digest, Sha256};
use std::{
    hint::black_box,
    io::Write,
    time::{Duration, Instant},
};
use tandem_kzg::{BLOB_BYTES, CELL_BYTES, CELLS, Commitment, Item, Proof, Setup, verify};
use tandem_primitives::U256;

const BATCHES: [usize; 6] = [1, 6, 8, 16, 32, 64];
/// Verifying a blob by its cells takes ten times as long as verifying it whole.
const CELL_BATCHES: [usize; 4] = [1, 6, 8, 32];
const ROUNDS: usize = 5;

struct Sample {
    blob: Box<[u8; BLOB_BYTES]>,
    commitment: Commitment,
    proof: Proof,
    cell_proofs: Box<[Proof; CELLS]>,
}

/// Builds the blob of `c·x^64`: at the roots of unity of order 4096, in bit-reversed order, `x^64`
/// takes the 64 roots of order 64.
fn sample(setup: Setup, number: u64) -> Sample {
    let modulus = "52435875175126190479447740508185965837690552500527637822603658699938581184513";
    let modulus: U256 = modulus.parse().unwrap();
    let root = U256::from(7).pow_mod((modulus - U256::ONE) / U256::from(64), modulus);
    let mut blob = Box::new([0; BLOB_BYTES]);
    for (place, element) in blob.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let exponent = (place as u32).reverse_bits() >> 20;
        let value = root.pow_mod(U256::from(exponent % 64), modulus);
        *element = value.mul_mod(U256::from(number), modulus).to_be_bytes();
    }
    let commitment = setup.commit(&blob[..]).unwrap();
    let proof = setup.prove_blob(&blob[..], &commitment).unwrap();
    let scalar = U256::from(number).to_be_bytes::<32>();
    let cell_proof = SecretKey::from_bytes(&scalar).unwrap().sk_to_pk().compress();
    Sample { blob, commitment, proof, cell_proofs: Box::new([cell_proof; CELLS]) }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Runs the two alternately and returns the median of each in microseconds per item.
fn compare(count: usize, mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        one();
        ones.push(started.elapsed());
        let started = Instant::now();
        other();
        others.push(started.elapsed());
    }
    (median(ones) / count as f64, median(others) / count as f64)
}

fn ours(setup: Setup, samples: &[Sample], cells: bool) {
    let items: Vec<_> = samples
        .iter()
        .map(|sample| {
            let blob_proof = std::slice::from_ref(&sample.proof);
            let proofs = if cells { &sample.cell_proofs[..] } else { blob_proof };
            Item::new(&sample.blob[..], &sample.commitment, proofs).unwrap()
        })
        .collect();
    assert!(verify(setup, &items).results.iter().all(Result::is_ok));
}

fn theirs(context: &DASContext, samples: &[Sample]) {
    let blobs = samples.iter().map(|sample| &*sample.blob).collect();
    let commitments = samples.iter().map(|sample| &sample.commitment).collect();
    let proofs = samples.iter().map(|sample| &sample.proof).collect();
    context.verify_blob_kzg_proof_batch(blobs, commitments, proofs).unwrap();
}

fn their_cells(context: &DASContext, samples: &[Sample]) {
    let cells: Vec<_> =
        samples.iter().map(|sample| context.compute_cells(&sample.blob).unwrap()).collect();
    let cells: Vec<&[u8; CELL_BYTES]> = cells
        .iter()
        .flatten()
        .map(|cell| <&[u8; CELL_BYTES]>::try_from(&cell[..]).unwrap())
        .collect();
    let commitments = samples.iter().flat_map(|sample| [&sample.commitment; CELLS]).collect();
    let indices: Vec<_> = samples.iter().flat_map(|_| 0..CELLS as u64).collect();
    let proofs = samples.iter().flat_map(|sample| sample.cell_proofs.iter()).collect();
    context.verify_cell_kzg_proof_batch(commitments, &indices, cells, proofs).unwrap();
}

fn hashes(sample: &Sample) {
    let proof = std::slice::from_ref(&sample.proof);
    let item = Item::new(&sample.blob[..], &sample.commitment, proof).unwrap();
    let times = 200;
    let repeat = |run: &dyn Fn()| (0..times).for_each(|_| run());
    let key = || _ = black_box(tandem_kzg::content_key(black_box(&item)));
    let sha = || _ = black_box(Sha256::digest(black_box(&sample.blob[..])));
    let (key, sha) = compare(times, || repeat(&key), || repeat(&sha));
    say(&format!("content key {key:.1} µs a blob; SHA-256 of a blob {sha:.1} µs"));
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let started = Instant::now();
    let setup = Setup::load();
    let loaded = started.elapsed();
    let started = Instant::now();
    let context = DASContext::new(&TrustedSetup::default(), UsePrecomp::No);
    say(&format!(
        "trusted setup: c-kzg {:.2} s, rust_eth_kzg {:.2} s",
        loaded.as_secs_f64(),
        started.elapsed().as_secs_f64()
    ));
    let samples: Vec<_> = (1..=64).map(|number| sample(setup, number)).collect();
    hashes(&samples[0]);
    say("µs a blob            batch     c-kzg  rust_eth_kzg  ratio");
    let row = |form: &str, count: usize, (ours, theirs): (f64, f64)| {
        say(&format!("{form:20} {count:5} {ours:9.0} {theirs:13.0} {:6.2}", theirs / ours));
    };
    for count in BATCHES {
        let part = &samples[..count];
        row(
            "blob proofs",
            count,
            compare(count, || ours(setup, part, false), || theirs(&context, part)),
        );
    }
    for count in CELL_BATCHES {
        let part = &samples[..count];
        let measured = compare(count, || ours(setup, part, true), || their_cells(&context, part));
        row("cell proofs", count, measured);
    }
}
