//! Suites can fail: fixtures that were tampered with do.

use super::ALL;
use crate::{Outcome, Setting};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Runs all cases of a file and returns the numbers of failed and passed cases.
fn run(path: &Path) -> (usize, usize) {
    let suite = ALL.iter().find(|suite| suite.takes(path, "")).unwrap();
    let cases = suite.load(path).unwrap();
    let outcomes: Vec<_> = cases.into_iter().map(|case| (case.run)(&Setting::default())).collect();
    let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|got| wanted(got)).count();
    (
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
        count(|outcome| matches!(outcome, Outcome::Passed)),
    )
}

/// Runs the file unchanged and with a text replaced: some of the cases that passed must then fail.
fn tampered(file: &str, from: &str, to: &str) {
    let original = fixtures().join(file);
    let (failed, passed) = run(&original);
    assert_eq!(failed, 0, "{file} as it is");
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join(file);
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    let text = fs::read_to_string(&original).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(&copy, text.replacen(from, to, 1)).unwrap();
    let (failed, still_passed) = run(&copy);
    assert!(failed > 0 && still_passed < passed, "{file} with {to}: {failed} cases failed");
}

#[test]
fn a_wrong_root_of_a_trie_fails() {
    tampered("ethereum-tests/TrieTests/trietest.json", "0x5991bb8c", "0x5991bb8d");
    tampered("ethereum-tests/TrieTests/trieanyorder_secureTrie.json", "reindeer", "raindeer");
}

#[test]
fn a_wrong_encoding_fails() {
    tampered("ethereum-tests/RLPTests/rlptest.json", "0x83646f67", "0x83646f68");
    tampered("ethereum-tests/RLPTests/invalidRLPTest.json", "0xf80180", "0xc180");
}

#[test]
fn a_wrong_verdict_on_a_transaction_fails() {
    let of = |folder: &str, file: &str| format!("ethereum-tests/TransactionTests/{folder}/{file}");
    let file = of("ttEIP3860", "DataTestNotEnoughGasInitCode.json");
    // Cancun is the first fork that expects it.
    tampered(&file, "INTRINSIC_GAS_TOO_LOW", "NONCE_TOO_BIG");
    tampered(&file, "INTRINSIC_GAS_TOO_LOW", "NO_SUCH_EXCEPTION");
    tampered(&file, "0xd00c", "0xd00d");
}

#[test]
fn a_wrong_verdict_on_a_proof_fails() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("verify_kzg_proof/kzg-mainnet/case/data.yaml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // A commitment to the zero polynomial.
    let point = format!("0xc0{}", "00".repeat(47));
    let vector = |y: &str, output: &str| {
        let (z, y) = (format!("0x{}", "00".repeat(32)), format!("0x{}{y}", "00".repeat(31)));
        let input = format!("  commitment: '{point}'\n  proof: '{point}'\n  z: '{z}'\n  y: '{y}'");
        fs::write(&path, format!("input:\n{input}\noutput: {output}\n")).unwrap();
        run(&path)
    };
    assert_eq!(vector("00", "true"), (0, 1));
    assert_eq!(vector("01", "false"), (0, 1));
    assert_eq!(vector("00", "false"), (1, 0));
    assert_eq!(vector("01", "true"), (1, 0));
    assert_eq!(vector("01", "null"), (1, 0));
    fs::write(&path, "nonsense").unwrap();
    assert_eq!(run(&path), (1, 0));
}

#[test]
fn a_wrong_expectation_of_a_real_block_fails() {
    let file = "mainnet-blocks/mainnet_15537394.json";
    let text = fs::read_to_string(fixtures().join(file)).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&text).unwrap();
    for of in ["blockHash", "stateRoot", "transactionsRoot"] {
        let value = fixture["expected"][of].as_str().unwrap();
        tampered(file, value, &format!("{}{}", &value[..64], "00"));
    }
    let sender = fixture["expected"]["senders"][7].as_str().unwrap();
    tampered(file, &sender[..40], "0x00000000000000000000000000000000000000");
}

#[test]
fn a_wrong_head_state_fails() {
    let folder = fixtures().join("hivechain/cancun-577be37e0e");
    let copy = TempDir::new().unwrap();
    for file in fs::read_dir(&folder).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let calls = copy.path().join("newpayload.json");
    assert_eq!(run(&calls), (0, 2));
    let genesis = copy.path().join("genesis.json");
    let text = fs::read_to_string(&genesis).unwrap();
    // One wei less for an account that persists: another genesis, on which no block fits.
    fs::write(&genesis, text.replacen("\"balance\": \"0x2a\"", "\"balance\": \"0x29\"", 1))
        .unwrap();
    assert_eq!(run(&calls), (2, 0));
    fs::write(&genesis, &text).unwrap();
    let state = copy.path().join("headstate.json");
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, text.replacen("233437500000029008737", "233437500000029008738", 1)).unwrap();
    assert_eq!(run(&calls), (2, 0));
}
