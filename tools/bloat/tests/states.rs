//! A state that is loaded in order is the one that its genesis file leads to, also after kills.
#![allow(clippy::unwrap_used)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_bloat::{Base, Plan, StateAt, load, write_genesis};
use tandem_primitives::{Address, U256};
use tandem_storage_writer::{database_files, init, verify};

const BASE: &str = r#"{"config":{"chainId":7,"homesteadBlock":0,"londonBlock":0,
    "terminalTotalDifficulty":0,"shanghaiTime":0},"difficulty":"0x0","gasLimit":"0x1c9c380",
    "alloc":{
      "0x00000000000000000000000000000000000000aa":{"balance":"0x1","nonce":"0x2","code":"0x6001",
        "storage":{"0x0":"0x1","0x1":"0xff"}},
      "0x00000000000000000000000000000000000000bb":{"balance":"0x7"}}}"#;

fn base() -> Base {
    let mut base = Base::parse(BASE).unwrap();
    base.fund(Address::repeat_byte(0xcc), U256::from(1_000));
    base
}

/// Makes the state in both ways, and compares the genesis blocks and everything below them.
fn both_ways(folder: &Path, plan: &Plan) {
    let (file, of_file, loaded) =
        (folder.join("genesis.json.gz"), folder.join("of-file"), folder.join("loaded"));
    write_genesis(plan, &base(), StateAt::Genesis, &file).unwrap();
    let expected = init(&file, &of_file, |_| {}).unwrap();
    let (last, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let made = load(plan, &base(), StateAt::Genesis, &loaded, &|done, all| {
        last.fetch_max(done, Relaxed);
        total.store(all, Relaxed);
    });
    assert_eq!(made.unwrap(), expected);
    assert_eq!((expected.accounts, expected.slots), (plan.accounts() + 3, plan.slots() + 2));
    assert_eq!(last.into_inner(), total.into_inner());
    let (report, of_file) = (verify(&loaded).unwrap(), verify(&of_file).unwrap());
    assert_eq!(report.first_difference, None);
    assert_eq!(report.account_nodes, of_file.account_nodes);
    assert_eq!(report.storage_nodes, of_file.storage_nodes);
    assert_eq!(Plan::of_database(&loaded).unwrap(), *plan);
    assert!(Plan::of_database(&folder.join("of-file")).is_err());
}

#[test]
fn a_loaded_state_is_that_of_its_genesis_file() {
    for (accounts, slots, seed) in [(0, 0, 1), (10, 3, 2), (2_000, 20_000, 3), (300, 90_000, 4)] {
        let folder = tempfile::tempdir().unwrap();
        both_ways(folder.path(), &Plan::new(accounts, slots, seed).unwrap());
    }
}

#[test]
fn a_state_of_block_1_has_the_same_tries_on_an_empty_genesis() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let plan = Plan::new(2_000, 20_000, 3).unwrap();
    let [at_genesis, at_block_1] = ["genesis", "block-1"].map(|name| folder.join(name));
    load(&plan, &base(), StateAt::Genesis, &at_genesis, &|_, _| {}).unwrap();
    let made = load(&plan, &base(), StateAt::Block1, &at_block_1, &|_, _| {}).unwrap();
    assert_eq!((made.head.number, made.accounts, made.slots), (1, 2_003, 20_002));
    let [expected, got] = [&at_genesis, &at_block_1].map(|datadir| verify(datadir).unwrap());
    assert_eq!((got.first_difference, got.base), (None, made.head));
    assert_eq!(got.account_nodes, expected.account_nodes);
    assert_eq!(got.storage_nodes, expected.storage_nodes);
    // Other clients make its genesis block of a file.
    let file = folder.join("genesis.json");
    write_genesis(&plan, &base(), StateAt::Block1, &file).unwrap();
    assert_eq!(init(&file, &folder.join("empty"), |_| {}).unwrap().genesis, made.genesis);
    let unfinished = folder.join("unfinished");
    let stop: fn(u64, u64) = |_, _| panic!("cut");
    let begin = || load(&plan, &base(), StateAt::Block1, &unfinished, &stop);
    assert!(catch_unwind(AssertUnwindSafe(begin)).is_err());
    let other = load(&plan, &base(), StateAt::Genesis, &unfinished, &|_, _| {});
    let error = other.unwrap_err().to_string();
    assert!(error.contains("another state"), "{error}");
}

#[test]
fn every_table_is_one_sorted_run_below_a_few_records() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(2_000, 20_000, 1).unwrap();
    load(&plan, &base(), StateAt::Genesis, folder.path(), &|_, _| {}).unwrap();
    for shape in database_files(folder.path()).unwrap().tables {
        let bottom = shape.levels.iter().filter(|level| level.level > 0);
        assert!(bottom.clone().count() <= 1, "{shape:?}");
        if ["accounts", "slots", "storage_trie"].contains(&shape.table) {
            assert_eq!(shape.sorted_runs(), 1, "{shape:?}");
        }
    }
}

/// A panic in the report of progress stands for a kill: nothing of the process runs on afterwards.
#[test]
fn a_load_that_is_cut_off_anywhere_ends_in_the_same_state() {
    let plan = Plan::new(3_000, 60_000, 5).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let whole =
        load(&plan, &base(), StateAt::Genesis, &folder.path().join("whole"), &|_, _| {}).unwrap();
    let datadir = folder.path().join("cut");
    let (mut cuts, mut before) = (0, 0);
    let made = loop {
        let (begin, calls) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let cut = |done: u64, _| {
            begin.fetch_min(done, Relaxed);
            assert!(calls.fetch_add(1, Relaxed) < 10, "cut");
        };
        match catch_unwind(AssertUnwindSafe(|| {
            load(&plan, &base(), StateAt::Genesis, &datadir, &cut)
        })) {
            Ok(made) => break made.unwrap(),
            Err(_) => cuts += 1,
        }
        assert!(begin.load(Relaxed) >= before, "a shard is loaded once");
        before = begin.load(Relaxed);
        assert!(cuts < 100, "the load goes on");
    };
    assert!(cuts >= 2 && before > 0, "{cuts} cuts");
    assert_eq!(made, whole);
    assert!(verify(&datadir).unwrap().is_clean());
    let other = Plan::new(3_000, 60_000, 6).unwrap();
    let datadir = folder.path().join("other");
    fn stop(_: u64, _: u64) {
        panic!("cut")
    }
    assert!(
        catch_unwind(AssertUnwindSafe(|| load(&plan, &base(), StateAt::Genesis, &datadir, &stop)))
            .is_err()
    );
    let error =
        load(&other, &base(), StateAt::Genesis, &datadir, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("another state"), "{error}");
}
