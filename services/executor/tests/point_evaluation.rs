//! The point evaluation precompile (EIP-4844) against the vectors of `verify_kzg_proof`.
//!
//! revm can be built so that the first evaluation decodes the whole trusted setup, with tables for
//! making proofs. That takes seconds during a block, and 96 MiB permanently. Only one point of it
//! is needed.
#![allow(clippy::unwrap_used)]

use flate2::read::GzDecoder;
use revm::precompile::kzg_point_evaluation::{kzg_to_versioned_hash, run};
use std::{
    fs,
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

/// Returns the value of a key in the vectors' few lines of YAML.
fn field(text: &str, key: &str) -> Vec<u8> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
    const_hex::decode(line.trim_matches([':', ' ', '\''])).unwrap()
}

#[test]
fn the_precompile_agrees_with_the_vectors_and_loads_no_setup() {
    let folder = "../../crates/pure/kzg/tests/data/verify_kzg_proof";
    let (mut right, mut wrong) = (0, 0);
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
        let (path, mut text) = (entry.unwrap().path(), String::new());
        GzDecoder::new(fs::File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
        let commitment = field(&text, "commitment");
        let mut input = kzg_to_versioned_hash(&commitment).to_vec();
        for key in ["z", "y"] {
            input.extend(field(&text, key));
        }
        input.extend(commitment);
        input.extend(field(&text, "proof"));
        let want = text.contains("output: true");
        let started = Instant::now();
        assert_eq!(run(&input, 50_000).is_ok(), want, "{}", path.display());
        // Decoding the setup would take seconds, an evaluation takes some milliseconds.
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
        if want { right += 1 } else { wrong += 1 }
    }
    assert!(right > 10 && wrong > 10, "{right} right, {wrong} wrong");
}
