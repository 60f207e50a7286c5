//! States from a seed: the same as a genesis file leads to, for geth too, with payloads that both take.

use crate::binary;
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};
use tandem_cluster_tests::repository;
use tandem_testkit::geth;

fn tandem(arguments: &[&str], folder: &Path) -> std::process::Output {
    Command::new(binary()).args(arguments).current_dir(folder).output().unwrap()
}

/// Runs a command that has to succeed, and returns its answer.
fn answer(arguments: &[&str], folder: &Path) -> String {
    let output = tandem(arguments, folder);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str], folder: &Path) -> Value {
    serde_json::from_str(&answer(arguments, folder)).unwrap()
}

const SMALL: [&str; 6] = ["bloat", "state", "--accounts", "2000", "--slots", "20000"];

#[test]
fn a_state_is_that_of_its_genesis_file_also_for_geth_and_carries_payloads() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let state = [&SMALL[..], &["--datadir", "big", "--genesis-out", "genesis.json", "--json"]];
    let made = json(&state.concat(), folder);
    assert_eq!((&made["slots"], &made["contracts"]), (&20_000.into(), &127.into()));
    let genesis = made["genesis"].as_str().unwrap();
    assert!(answer(&["verify", "--datadir", "big"], folder).contains("no difference"));
    answer(&["init", "--genesis", "genesis.json", "--datadir", "of-file"], folder);
    let payloads = ["bloat", "payloads", "--datadir", "big", "--out", "corpus", "--blocks", "5"];
    let said = answer(&[&payloads[..], &["--gas", "3000000"]].concat(), folder);
    assert!(said.contains("5 blocks"), "{said}");
    let corpus = json_of(&folder.join("corpus/corpus.json"));
    assert_eq!(corpus["state"]["genesis"], genesis);
    let [transactions, gas] = ["transactions", "gasUsed"].map(|it| corpus[it].as_u64().unwrap());
    // All steps are taken, and nearly all slots are cold.
    let steps = 20 * 2_100 + 10 * 5_000;
    assert!(transactions >= 25 && gas > transactions * (21_000 + steps), "{corpus}");
    // The state itself stays at genesis.
    assert!(answer(&["verify", "--datadir", "big"], folder).contains("head 0 "));
    fs::write(folder.join("lab.toml"), EXPERIMENT).unwrap();
    let lab = answer(&["lab", "lab.toml", "--corpus", "corpus"], folder);
    assert!(lab.contains("two workers"), "{lab}");
    if geth::is_installed() {
        geth_takes_it(folder, genesis);
    }
}

#[test]
fn payloads_stand_on_a_state_of_block_1() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let state = ["--datadir", "big", "--block-1", "--genesis-out", "genesis.json", "--json"];
    let made = json(&[&SMALL[..], &state].concat(), folder);
    assert_ne!(made["head"], made["genesis"]);
    assert!(answer(&["verify", "--datadir", "big"], folder).contains("head 1 "));
    let genesis = json_of(&folder.join("genesis.json"));
    assert_eq!(genesis["alloc"], serde_json::json!({}));
    let payloads = ["bloat", "payloads", "--datadir", "big", "--out", "corpus", "--blocks", "2"];
    answer(&[&payloads[..], &["--gas", "3000000"]].concat(), folder);
    let corpus = json_of(&folder.join("corpus/corpus.json"));
    assert_eq!(corpus["state"]["genesis"], made["genesis"]);
    assert!(corpus["transactions"].as_u64().unwrap() > 10, "{corpus}");
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

const EXPERIMENT: &str = r#"
name = "big"
question = "Does a corpus with a data directory run?"
warmup = 1
[[variant]]
name = "two workers"
[variant.config.multiproof_workers]
threads = 2
"#;

/// geth makes the same genesis block of the file, and executes the payloads on it.
fn geth_takes_it(folder: &Path, genesis: &str) {
    let mut init = Command::new("geth");
    init.args(["init", "--datadir", "geth", "genesis.json"]).current_dir(folder);
    let log = String::from_utf8(init.output().unwrap().stderr).unwrap();
    // The log abbreviates the hash.
    let hash = format!("hash={}..{}", &genesis[2..8], &genesis[60..66]);
    assert!(log.contains(&hash), "{hash} in {log}");
    fs::copy(folder.join("genesis.json"), folder.join("corpus/genesis.json")).unwrap();
    let experiment = repository().join("lab/geth.toml").display().to_string();
    let lab = ["lab", &experiment, "--corpus", "corpus", "--warmup", "1", "--rounds", "1"];
    let lab = answer(&lab, folder);
    assert!(lab.contains("geth"), "{lab}");
}

#[test]
fn a_killed_load_goes_on_and_wrong_options_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let run = |datadir: &str| {
        let mut command = Command::new(binary());
        command.args(["bloat", "state", "--accounts", "20000", "--slots", "200000", "--json"]);
        command.args(["--datadir", datadir]).current_dir(folder);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let whole = run("whole").output().unwrap();
    assert!(whole.status.success());
    let genesis = |output: &[u8]| {
        let answer: Value = serde_json::from_slice(output).unwrap();
        answer["genesis"].as_str().unwrap().to_owned()
    };
    for milliseconds in [100, 250, 400] {
        let mut child = run("cut").spawn().unwrap();
        sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    if !folder.join("cut/db").exists() {
        let cut = run("cut").output().unwrap();
        assert!(cut.status.success(), "{}", String::from_utf8_lossy(&cut.stderr));
        assert_eq!(genesis(&cut.stdout), genesis(&whole.stdout));
    }
    assert!(answer(&["verify", "--datadir", "cut"], folder).contains("no difference"));
    let again = run("cut").output().unwrap();
    assert!(!again.status.success());
    let few =
        tandem(&["bloat", "state", "--accounts", "9", "--slots", "1", "--datadir", "x"], folder);
    assert!(String::from_utf8(few.stderr).unwrap().contains("10 accounts"));
    answer(&["init", "--genesis", "g.json", "--datadir", "y"], {
        fs::write(folder.join("g.json"), GENESIS).unwrap();
        folder
    });
    let other = tandem(&["bloat", "payloads", "--datadir", "y", "--out", "z"], folder);
    let error = String::from_utf8(other.stderr).unwrap();
    assert!(error.contains("not made by"), "{error}");
}

const GENESIS: &str = r#"{"config":{"chainId":7,"terminalTotalDifficulty":0},"difficulty":"0x0",
    "gasLimit":"0x1c9c380","alloc":{}}"#;

#[test]
fn a_stopped_database_is_shown_compacted_and_copied() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    answer(&[&SMALL[..], &["--datadir", "big"]].concat(), folder);
    let stats = json(&["db", "stats", "--datadir", "big", "--json"], folder);
    let tables = stats["tables"].as_array().unwrap();
    let slots = tables.iter().find(|table| table["table"] == "slots").unwrap();
    assert!(slots["keys_estimate"].as_u64().unwrap() >= 20_000, "{slots}");
    assert_eq!(slots["sorted_runs"], 1);
    let text = answer(&["db", "stats", "--datadir", "big"], folder);
    assert!(text.contains("storage_trie") && text.contains("bytes by level"), "{text}");
    let done = json(&["db", "compact", "--datadir", "big", "--all", "--json"], folder);
    assert_eq!(done.as_array().unwrap().len(), tables.len());
    let one = answer(&["db", "compact", "--datadir", "big", "--table", "slots"], folder);
    assert!(one.contains("slots") && !one.contains("accounts"), "{one}");
    answer(&["db", "copy", "--datadir", "big", "--to", "copy"], folder);
    assert!(answer(&["verify", "--datadir", "copy"], folder).contains("no difference"));
    for wrong in [
        &["db", "compact", "--datadir", "big"][..],
        &["db", "compact", "--datadir", "big", "--table", "none"],
        &["db", "stats", "--datadir", "missing"],
        &["db", "copy", "--datadir", "big", "--to", "copy"],
    ] {
        assert!(!tandem(wrong, folder).status.success(), "{wrong:?}");
    }
}

#[test]
fn a_state_is_spread_over_directories_and_gathered_again_also_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    answer(&[&SMALL[..], &["--datadir", "big"]].concat(), folder);
    let spread =
        ["db", "spread", "--datadir", "big", "--directory", "disk-1", "--directory", "disk-2"];
    let gather = ["db", "spread", "--datadir", "big"];
    let is_clean = || {
        assert!(answer(&["verify", "--datadir", "big"], folder).contains("no difference"));
        json(&["db", "stats", "--datadir", "big", "--json"], folder)
    };
    for (milliseconds, command, disks) in
        [(10, &spread[..], 2), (30, &gather, 0), (60, &spread, 2), (20, &gather, 0)]
    {
        let mut child = Command::new(binary()).args(command).current_dir(folder).spawn().unwrap();
        sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        answer(command, folder);
        let stats = is_clean();
        assert_eq!(stats["directories"].as_array().unwrap().len(), disks, "{stats}");
    }
    answer(&spread, folder);
    let text = answer(&["db", "stats", "--datadir", "big"], folder);
    assert!(text.contains("shards 8-f in") && text.contains("disk-2"), "{text}");
    answer(&["db", "copy", "--datadir", "big", "--to", "copy"], folder);
    assert!(answer(&["verify", "--datadir", "copy"], folder).contains("no difference"));
    // Payloads are built on a copy, and a block of them is taken.
    answer(&["bloat", "payloads", "--datadir", "big", "--out", "corpus", "--blocks", "2"], folder);
    is_clean();
    fs::rename(folder.join("disk-2"), folder.join("elsewhere")).unwrap();
    for command in [&gather[..], &spread, &["verify", "--datadir", "big"]] {
        let refused = tandem(command, folder);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains("is its disk mounted?"), "{error}");
    }
}
