//! Loads of a state in order, and what is done to the files of a stopped database.

use crate::common::{CONFIG, World, genesis};
use std::path::Path;
use tandem_primitives::{Bytes, Shard, U256, keccak256};
use tandem_proto::storage::{BaseReads, ReadState};
use tandem_storage_writer::{
    Config, Deps, Error, StateAt, StateLoad, StorageWriter, compact_tables, copy_database,
    database_files, init, load_plan, table_names, verify,
};

/// The state of the genesis, and its file without `alloc`.
struct Given {
    world: World,
    json: String,
}

impl Given {
    fn new() -> Self {
        Self { world: genesis().1, json: format!("{{{CONFIG}}}") }
    }

    fn load_shard(&self, load: &StateLoad, shard: Shard) -> Result<(), Error> {
        let mut writer = load.shard(shard)?;
        let of_shard = self.world.0.iter().filter(|(hash, _)| Shard::of(hash) == shard);
        for (hash, (account, slots)) in of_shard {
            writer.account(*hash, account)?;
            for (slot, value) in slots {
                writer.slot(*hash, *slot, *value)?;
            }
        }
        writer.finish(|_| {})
    }
}

fn shards() -> Vec<Shard> {
    Shard::all().collect()
}

#[test]
fn a_state_that_is_loaded_is_the_one_that_a_genesis_file_leads_to() {
    let directory = tempfile::tempdir().unwrap();
    let (of_file, loaded) = (directory.path().join("file"), directory.path().join("loaded"));
    let given = Given::new();
    let (json, _) = genesis();
    std::fs::write(directory.path().join("genesis.json"), json).unwrap();
    let expected = init(&directory.path().join("genesis.json"), &of_file, |_| {}).unwrap();

    let load = StateLoad::open(&loaded, "plan").unwrap();
    let code = Bytes::from_static(b"code");
    load.put_codes(&[(keccak256(&code), code.clone())]).unwrap();
    // In any order.
    for shard in shards().into_iter().rev() {
        given.load_shard(&load, shard).unwrap();
    }
    let made = load.finish(&given.json, StateAt::Genesis).unwrap();
    assert_eq!(made, expected);
    let (report, of_file) = (verify(&loaded).unwrap(), verify(&of_file).unwrap());
    assert_eq!(report.first_difference, None);
    assert_eq!(report.account_nodes, of_file.account_nodes);
    assert_eq!(report.storage_nodes, of_file.storage_nodes);
    assert_eq!(load_plan(&loaded).unwrap().as_deref(), Some("plan"));
    assert_eq!(load_plan(&directory.path().join("file")).unwrap(), None);
    let writer = StorageWriter::start(Config::new(&loaded), Deps::default()).unwrap();
    assert_eq!(writer.checkpoint().unwrap().genesis, expected.genesis);
    let request = ReadState { codes: vec![keccak256(&code)], ..ReadState::default() };
    assert_eq!(writer.read_state(&request).unwrap().codes, [Some(code)]);
}

#[test]
fn a_load_that_ended_early_goes_on_with_the_shards_that_are_missing() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let given = Given::new();
    let load = StateLoad::open(datadir, "plan").unwrap();
    for shard in &shards()[..5] {
        given.load_shard(&load, *shard).unwrap();
    }
    // The process dies in the middle of a shard.
    let (hash, (account, _)) =
        given.world.0.iter().find(|(hash, _)| Shard::of(hash) > shards()[4]).unwrap();
    let mut writer = load.shard(Shard::of(hash)).unwrap();
    writer.account(*hash, account).unwrap();
    drop(writer);
    drop(load);
    assert!(matches!(
        StateLoad::open(datadir, "other").err(),
        Some(Error::OtherLoad { have, .. }) if have == "plan"
    ));
    let load = StateLoad::open(datadir, "plan").unwrap();
    let missing: Vec<Shard> =
        shards().into_iter().filter(|shard| load.loaded(*shard).is_none()).collect();
    assert_eq!(missing, &shards()[5..]);
    for shard in &missing[..10] {
        given.load_shard(&load, *shard).unwrap();
    }
    // A shard may be loaded once more, and with less than before.
    load.shard(shards()[7]).unwrap().finish(|_| {}).unwrap();
    assert_eq!(load.loaded(shards()[7]), Some((0, 0)));
    given.load_shard(&load, shards()[7]).unwrap();
    drop(load);

    let load = StateLoad::open(datadir, "plan").unwrap();
    let error = load.finish(&given.json, StateAt::Genesis).unwrap_err().to_string();
    assert!(error.contains("shard f"), "{error}");
    let load = StateLoad::open(datadir, "plan").unwrap();
    given.load_shard(&load, shards()[15]).unwrap();
    load.finish(&given.json, StateAt::Genesis).unwrap();
    let report = verify(datadir).unwrap();
    assert_eq!(report.first_difference, None);
    assert_eq!(report.accounts, given.world.0.len() as u64);
    assert!(matches!(StateLoad::open(datadir, "plan").err(), Some(Error::Io { .. })));
}

/// A process may die while it creates the database.
#[test]
fn a_load_begins_over_what_is_no_database_yet() {
    let directory = tempfile::tempdir().unwrap();
    let unfinished = directory.path().join("db.loading");
    std::fs::create_dir(&unfinished).unwrap();
    std::fs::write(unfinished.join("LOCK"), "").unwrap();
    let load = StateLoad::open(directory.path(), "plan").unwrap();
    assert!(shards().iter().all(|shard| load.loaded(*shard).is_none()));
}

#[test]
fn keys_out_of_order_slots_of_nobody_and_a_faulty_genesis_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let load = StateLoad::open(directory.path(), "plan").unwrap();
    let (hash, (account, _)) = Given::new().world.0.pop_first().unwrap();
    let shard = Shard::of(&hash);
    let mut writer = load.shard(shard).unwrap();
    writer.account(hash, &account).unwrap();
    assert!(writer.account(hash, &account).is_err());
    drop(writer);
    let mut writer = load.shard(shard).unwrap();
    writer.slot(hash, hash, U256::ONE).unwrap();
    assert!(matches!(writer.finish(|_| {}), Err(Error::Damaged(_))));
    for shard in shards() {
        load.shard(shard).unwrap().finish(|_| {}).unwrap();
    }
    assert!(matches!(load.finish("{}", StateAt::Genesis), Err(Error::Genesis(_))));
}

fn bytes_of(datadir: &Path) -> u64 {
    database_files(datadir).unwrap().tables.iter().map(|shape| shape.file_bytes()).sum()
}

#[test]
fn a_stopped_database_is_looked_at_compacted_and_copied_and_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (datadir, copy) = (directory.path().join("a"), directory.path().join("b"));
    let (genesis, _) = crate::common::new_chain(&datadir);
    assert!(bytes_of(&datadir) > 0);
    let tables: Vec<String> = table_names().map(str::to_owned).collect();
    let mut done = Vec::new();
    compact_tables(&datadir, &tables, |_, _| {}, |table, _| done.push(table.to_owned())).unwrap();
    assert_eq!(done, tables);
    assert!(database_files(&datadir).unwrap().tables.iter().all(|shape| shape.sorted_runs() <= 1));
    assert!(verify(&datadir).unwrap().is_clean());
    let unknown = ["slots".to_owned(), "none".to_owned()];
    let refused = compact_tables(&datadir, &unknown, |_, _| panic!("begun"), |_, _| {});
    assert!(refused.unwrap_err().to_string().contains("none"));

    copy_database(&datadir, &copy).unwrap();
    assert!(copy_database(&datadir, &copy).is_err());
    assert!(verify(&copy).unwrap().is_clean());
    let writer = StorageWriter::start(Config::new(&copy), Deps::default()).unwrap();
    assert_eq!(writer.checkpoint().unwrap().genesis, genesis);
    assert!(database_files(&copy).unwrap_err().is_in_use());
    assert!(compact_tables(&copy, &tables, |_, _| {}, |_, _| {}).unwrap_err().is_in_use());
    let other = directory.path().join("c");
    assert!(copy_database(&copy, &other).unwrap_err().is_in_use());
    let missing = database_files(&directory.path().join("d")).unwrap_err().to_string();
    assert!(missing.contains("tandem init"), "{missing}");
}
