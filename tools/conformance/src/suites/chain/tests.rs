//! Cases that were tampered with do not pass.

use super::*;
use crate::{Case, Suite};
use std::{fs, path::PathBuf};
use tempfile::TempDir;

/// A chain of one valid block.
const VALID: &str = "for_paris/frontier/create/create_deposit_oog/create_deposit_oog.json";
/// An invalid block on the genesis.
const INVALID: &str =
    "for_cancun/berlin/eip2930_access_list/acl/transaction_intrinsic_gas_cost.json";
/// A payload that the method does not accept.
const FAULTY: &str = "for_shanghaitocancunattime15k/cancun/eip4844_blobs/\
    excess_blob_gas_fork_transition/invalid_pre_fork_block_with_blob_fields.json";
/// A creation at an address that has storage (EIP-7610).
const COLLISION: &str =
    "for_shanghai/paris/eip7610_create_collision/revert_in_create/create2_collision_storage.json";

const ENGINE: &str = "blockchain_tests_engine";
const BLOCKS: &str = "blockchain_tests";
const BOTH: [&str; 2] = [ENGINE, BLOCKS];

/// Returns the outcome of the only case of a committed file after `change`.
fn after(format: &str, file: &str, change: impl FnOnce(&mut Value)) -> Outcome {
    let set = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/eest");
    let text = fs::read_to_string(set.join(format).join(file)).unwrap();
    let mut cases: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 1, "{file}");
    change(cases.values_mut().next().unwrap());
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(format).join("case.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, serde_json::to_vec(&cases).unwrap()).unwrap();
    let suite: &dyn Suite = if format == ENGINE { &Engine } else { &Blocks };
    assert!(suite.takes(&path, ""));
    let Case { run, .. } = suite.load(&path).unwrap().pop().unwrap();
    run(&Setting::default())
}

/// Asserts that the outcome is a failure whose reason contains all of these words.
#[track_caller]
fn fails(outcome: Outcome, words: &[&str]) {
    let Outcome::Failed(reason) = &outcome else { panic!("{outcome:?}, should name {words:?}") };
    assert!(words.iter().all(|word| reason.contains(word)), "{reason}, should name {words:?}");
}

/// Returns the last payload or block of a case.
fn last<'a>(format: &str, case: &'a mut Value) -> &'a mut Value {
    let list = if format == ENGINE { "engineNewPayloads" } else { "blocks" };
    case[list].as_array_mut().unwrap().last_mut().unwrap()
}

fn exception(format: &str) -> &'static str {
    if format == ENGINE { "validationError" } else { "expectException" }
}

#[test]
fn as_they_are_they_pass() {
    for format in BOTH {
        assert_eq!(after(format, VALID, |_| {}), Outcome::Passed, "{format}");
        assert_eq!(after(format, INVALID, |_| {}), Outcome::Passed, "{format}");
    }
    assert_eq!(after(ENGINE, FAULTY, |_| {}), Outcome::Passed);
}

#[test]
fn another_head_fails() {
    for format in BOTH {
        let change = |case: &mut Value| {
            case["lastblockhash"] = case["genesisBlockHeader"]["hash"].clone();
        };
        let outcome = after(format, VALID, change);
        assert!(matches!(outcome, Outcome::Failed(_)), "{format}: {outcome:?}");
        let unknown = json!(B256::repeat_byte(7));
        let outcome = after(format, VALID, |case| case["lastblockhash"] = unknown);
        fails(outcome, &["head", "0x0707"]);
    }
}

#[test]
fn another_genesis_fails() {
    for format in BOTH {
        let change = |case: &mut Value| {
            let pre = case["pre"].as_object_mut().unwrap();
            pre.values_mut().next().unwrap()["balance"] = json!("0x01");
        };
        fails(after(format, VALID, change), &["the genesis hash is"]);
    }
}

#[test]
fn a_valid_block_that_should_be_invalid_fails() {
    for format in BOTH {
        let outcome = after(format, VALID, |case| {
            last(format, case)[exception(format)] =
                json!("TransactionException.INTRINSIC_GAS_TOO_LOW");
        });
        fails(outcome, &["VALID", "expected TransactionException.INTRINSIC_GAS_TOO_LOW"]);
    }
}

#[test]
fn an_invalid_block_that_should_be_valid_fails() {
    for format in BOTH {
        let outcome = after(format, INVALID, |case| {
            last(format, case).as_object_mut().unwrap().remove(exception(format)).unwrap();
        });
        fails(outcome, &["intrinsic_gas", "expected VALID"]);
    }
}

#[test]
fn an_exception_of_another_kind_fails() {
    for format in BOTH {
        for other in ["TransactionException.NONCE_IS_MAX", "TransactionException.NO_SUCH_NAME"] {
            let change = |case: &mut Value| last(format, case)[exception(format)] = json!(other);
            fails(after(format, INVALID, change), &[other]);
        }
    }
}

#[test]
fn another_state_in_the_end_fails() {
    const SENDER: &str = "0x1ad9bc24818784172ff393bb6f89f094d4d2ca29";
    for format in BOTH {
        for (key, value) in [
            ("nonce", json!("0x02")),
            ("balance", json!("0x01")),
            ("code", json!("0x00")),
            ("storage", json!({"0x00": "0x01"})),
        ] {
            let what = if key == "storage" { "slot" } else { key };
            let change = |case: &mut Value| case["postState"][SENDER][key] = value;
            fails(after(format, VALID, change), &[what, "0x1"]);
        }
        let more = |case: &mut Value| {
            case["postState"]["0x00000000000000000000000000000000000000ff"] =
                json!({"nonce": "0x00", "balance": "0x01", "code": "0x", "storage": {}});
        };
        fails(after(format, VALID, more), &["is missing"]);
        let fewer = |case: &mut Value| {
            case["postState"].as_object_mut().unwrap().remove(SENDER).unwrap();
        };
        fails(after(format, VALID, fewer), &["is still there"]);
    }
}

#[test]
fn another_error_code_or_none_fails() {
    let other = |case: &mut Value| last(ENGINE, case)["errorCode"] = json!("-38005");
    fails(after(ENGINE, FAULTY, other), &["-32602", "expected error -38005"]);
    let none = |case: &mut Value| {
        last(ENGINE, case).as_object_mut().unwrap().remove("errorCode").unwrap();
    };
    fails(after(ENGINE, FAULTY, none), &["error -32602"]);
    let change = |case: &mut Value| last(ENGINE, case)["errorCode"] = json!("-32602");
    fails(after(ENGINE, VALID, change), &["VALID", "expected error -32602"]);
}

#[test]
fn a_fork_that_is_not_known_is_skipped_by_name() {
    for format in BOTH {
        let outcome = after(format, VALID, |case| case["network"] = json!("Bogota"));
        assert_eq!(outcome, Outcome::Skipped("fork Bogota is not supported".to_owned()));
    }
}

#[test]
fn a_creation_where_there_is_storage_fails() {
    for format in BOTH {
        assert_eq!(after(format, COLLISION, |_| {}), Outcome::Passed, "{format}");
        // As if the creation had succeeded.
        let gone = |case: &mut Value| {
            for account in case["postState"].as_object_mut().unwrap().values_mut() {
                account["storage"] = json!({});
            }
        };
        fails(after(format, COLLISION, gone), &["slot"]);
    }
}
