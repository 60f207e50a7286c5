//! `tandem devnet` and `tandem spam`, where geth is installed.

use crate::binary;
use serde_json::Value;
use std::process::Command;
use tandem_testkit::geth::is_installed;

fn devnet(fork: &str) {
    if !is_installed() {
        return;
    }
    let mut devnet = Command::new(binary());
    devnet.args(["devnet", "--fork", fork, "--slots", "40", "--slot-ms", "400", "--reorgs", "10"]);
    let output = devnet.args(["--rate", "40", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["agree"], true, "{result}");
    assert!(result["reorgs"].as_u64() > Some(0), "{result}");
    assert!(result["missed"].as_u64() > Some(0), "{result}");
    for client in ["tandem", "geth"] {
        let client = &result["clients"][client];
        assert!(client["blocks"].as_u64() > Some(10), "{result}");
        assert!(client["transactions"].as_u64() > Some(0), "{result}\n{said}");
    }
}

#[test]
fn tandem_and_geth_propose_in_turn_by_the_rules_of_osaka() {
    devnet("osaka");
}

#[test]
fn tandem_and_geth_propose_in_turn_by_the_rules_of_amsterdam() {
    devnet("amsterdam");
}

#[test]
fn a_devnet_without_geth_says_so() {
    let mut devnet = Command::new(binary());
    devnet.args(["devnet", "--geth", "/does/not/exist"]);
    let output = devnet.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("start /does/not/exist"), "{said}");
}

#[test]
fn spam_without_a_node_or_a_key_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let spam = || {
        let mut spam = Command::new(binary());
        spam.args(["spam", "--url", "http://127.0.0.1:1", "--key"]).arg(&key);
        let output = spam.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = spam();
    assert!(said.contains(&key.display().to_string()), "{said}");
    std::fs::write(&key, format!("{:064x}", 7)).unwrap();
    let said = spam();
    assert!(said.contains("connect to http://127.0.0.1:1"), "{said}");
}
