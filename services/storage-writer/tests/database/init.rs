//! Databases that `init` creates, refuses and starts over.

use crate::common::{CONFIG, World, account_key, new_chain, slot_key};
use flate2::{Compression, write::GzEncoder};
use std::{fs, io::Write, path::Path};
use tandem_primitives::{Account, Bytes, EMPTY_CODE_HASH, U256, keccak256};
use tandem_proto::storage::{
    BaseReads, BlockReads, BlockRef, Leadership, ReadState, Standing, Term,
};
use tandem_storage_writer::{
    Config, Deps, Error, Initialized, Progress, StartsAs, StorageWriter, init, init_copy, verify,
    verify::{Difference, NodeFault},
};
use tandem_store::{
    Batch, Durability, Options, Store,
    tables::{AccountTrie, Accounts, Meta, Slots, StorageTrie},
};

fn write_and_init(datadir: &Path, json: &str) -> Result<Initialized, Error> {
    let path = datadir.join("given.json");
    fs::write(&path, json).unwrap();
    init(&path, datadir, |_| {})
}

fn genesis(alloc: &str) -> String {
    format!("{{{CONFIG},\"alloc\":{{{alloc}}}}}")
}

const ALLOC: &str = r#"
    "0x0000000000000000000000000000000000000001":{"balance":"0x10","code":"0x6001","nonce":"0x2",
        "storage":{"0x0":"0x1","0x01":"0x00ff","02":"0x0"}},
    "0000000000000000000000000000000000000002":{"balance":"12345678901234567890123"},
    "0x0000000000000000000000000000000000000003":{"balance":"0x0"}"#;

#[test]
fn every_spelling_of_geth_leads_to_its_root() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let made = write_and_init(datadir, &genesis(ALLOC)).unwrap();
    assert_eq!((made.already, made.accounts, made.slots), (false, 3, 2));

    let code_hash = keccak256([0x60, 0x01]);
    let mut world = World::default();
    let account = |nonce, balance, code_hash| Account { nonce, balance, code_hash };
    let storage = [(slot_key(0), U256::from(1)), (slot_key(1), U256::from(0xff))];
    world.0.insert(account_key(0), (account(2, U256::from(16), code_hash), storage.into()));
    let balance = U256::from(12_345_678_901_234_567_890_123u128);
    world.0.insert(account_key(1), (account(0, balance, EMPTY_CODE_HASH), Default::default()));
    // An empty account in the file is an account in the state, as in geth.
    world.0.insert(account_key(2), (Account::default(), Default::default()));

    let report = verify(datadir).unwrap();
    assert_eq!(report.first_difference, None);
    let writer = StorageWriter::start(Config::new(datadir), Deps::default()).unwrap();
    let checkpoint = writer.checkpoint().unwrap();
    assert_eq!(checkpoint.genesis, made.genesis);
    assert!(!checkpoint.genesis_json.contains("alloc"));
    let (_, header) = writer.header(BlockRef::Number(0)).unwrap().unwrap();
    let header: alloy_consensus::Header = alloy_rlp::decode_exact(&header).unwrap();
    assert_eq!(header.state_root, world.root());
    let request = ReadState { codes: vec![code_hash], ..ReadState::default() };
    let codes = writer.read_state(&request).unwrap().codes;
    assert_eq!(codes, [Some(Bytes::from_static(&[0x60, 0x01]))]);
}

#[test]
fn a_genesis_in_memory_is_the_same_as_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let made = write_and_init(datadir, &genesis(ALLOC)).unwrap();
    let durable = StorageWriter::start(Config::new(datadir), Deps::default()).unwrap();
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(genesis(ALLOC).as_bytes()).unwrap();
    let config = Config::new(datadir.join("unused"));
    for text in [genesis(ALLOC).into_bytes(), zipped.finish().unwrap()] {
        let created =
            StorageWriter::create_in_memory(text.as_slice(), config.clone(), Deps::default());
        let writer = created.unwrap();
        assert_eq!(writer.checkpoint().unwrap().genesis, made.genesis);
        let (report, expected) = (writer.verify().unwrap(), durable.verify().unwrap());
        assert_eq!(report.first_difference, None);
        assert_eq!((report.base, report.accounts, report.slots), (made.genesis, 3, 2));
        assert_eq!(report.account_nodes, expected.account_nodes);
        assert_eq!(report.storage_nodes, expected.storage_nodes);
    }
    assert!(!datadir.join("unused").exists());
    for bad in ["", "{}", "no json"] {
        let error =
            StorageWriter::create_in_memory(bad.as_bytes(), config.clone(), Deps::default());
        assert!(matches!(error, Err(Error::Genesis(_))));
    }
}

#[test]
fn the_same_genesis_again_is_nothing_to_do_and_another_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let made = write_and_init(datadir, &genesis(ALLOC)).unwrap();

    let zipped = datadir.join("given.json.gz");
    let mut encoder = GzEncoder::new(fs::File::create(&zipped).unwrap(), Compression::fast());
    let respelled = genesis(&ALLOC.replace("\"0x10\"", "\"16\"").replace("0x00ff", "ff"));
    encoder.write_all(respelled.as_bytes()).unwrap();
    encoder.finish().unwrap();
    let mut reports = Vec::new();
    let again = init(&zipped, datadir, |progress| reports.push(progress)).unwrap();
    assert_eq!(again, Initialized { already: true, ..made });
    assert!(matches!(reports.last(), Some(Progress::Reading { bytes, total }) if bytes == total));

    for other in [
        genesis(&ALLOC.replace("0x10", "0x11")),
        genesis(ALLOC).replace("0x1c9c380", "0x1c9c381"),
        genesis(ALLOC).replace("\"chainId\":7", "\"chainId\":8"),
    ] {
        let error = write_and_init(datadir, &other).unwrap_err();
        assert!(matches!(error, Error::OtherGenesis { have, .. } if have == made.genesis.hash));
    }
}

#[test]
fn a_follower_copy_is_called_what_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let (original, copy) = (directory.path().join("original"), directory.path().join("copy"));
    fs::create_dir_all(&original).unwrap();
    fs::create_dir_all(&copy).unwrap();
    let made = write_and_init(&original, &genesis(ALLOC)).unwrap();
    let writer = StorageWriter::start(Config::new(&original), Deps::default()).unwrap();
    let json = writer.checkpoint().unwrap().genesis_json;
    let block = writer.block(BlockRef::Number(0)).unwrap().unwrap();
    init_copy(&copy, &json, &block).unwrap();
    let error = write_and_init(&copy, &genesis(ALLOC)).unwrap_err();
    assert!(matches!(error, Error::IsCopy { have, .. } if have == made.genesis.hash), "{error}");
    assert!(error.to_string().contains("a follower's copy"), "{error}");
    // One of several storage-writers leads with a database that is no copy, if no other leader is known.
    writer.stop();
    drop(writer);
    for (folder, standing) in [(&original, Standing::Leads(Term(0))), (&copy, Standing::Follows)] {
        let config = Config { starts_as: StartsAs::Either, ..Config::new(folder) };
        let writer = StorageWriter::start(config, Deps::default()).unwrap();
        assert_eq!(*writer.standing().borrow(), standing, "{}", folder.display());
        writer.stop();
    }
}

#[test]
fn a_bad_file_leaves_nothing_and_a_half_done_init_starts_over() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let twice = r#""01":{}, "0x0000000000000000000000000000000000000001":{}"#;
    for bad in ["{", "{}", &genesis(twice), &genesis(&format!("{ALLOC},{ALLOC}"))] {
        let error = write_and_init(datadir, bad).unwrap_err();
        assert!(matches!(error, Error::Genesis(_)), "{error}");
        assert!(!datadir.join("db").exists() && !datadir.join("db.unfinished").exists());
    }
    let unfinished = Store::create(&datadir.join("db.unfinished"), &Options::default()).unwrap();
    let mut batch = unfinished.batch();
    batch.put::<Slots>((account_key(9), slot_key(9)), U256::from(9));
    unfinished.write(batch, Durability::Process).unwrap();
    let error = write_and_init(datadir, &genesis(ALLOC)).unwrap_err();
    assert!(error.to_string().contains("in use") && !error.is_in_use(), "{error}");
    drop(unfinished);
    write_and_init(datadir, &genesis(ALLOC)).unwrap();
    assert_eq!(verify(datadir).unwrap().first_difference, None);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let open = || StorageWriter::start(Config::new(datadir), Deps::default()).map(drop);
    let text = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert!(text(open()).contains("no database in"), "{}", text(open()));
    fs::create_dir_all(datadir.join("db")).unwrap();
    fs::write(datadir.join("db/holiday.jpg"), "x").unwrap();
    assert!(text(open()).contains("no Tandem database"), "{}", text(open()));
    let error = write_and_init(datadir, &genesis(ALLOC)).unwrap_err();
    assert!(error.to_string().contains("no Tandem database"), "{error}");
    fs::remove_dir_all(datadir.join("db")).unwrap();

    write_and_init(datadir, &genesis(ALLOC)).unwrap();
    let held = StorageWriter::start(Config::new(datadir), Deps::default()).unwrap();
    assert!(text(open()).contains("in use by another process"), "{}", text(open()));
    assert!(write_and_init(datadir, &genesis(ALLOC)).unwrap_err().is_in_use());
    drop(held);
    change(datadir, |batch| batch.put::<Meta>("schema_version", &99u32.to_be_bytes()));
    assert!(text(open()).contains("schema version 99"), "{}", text(open()));
}

fn change(datadir: &Path, change: impl FnOnce(&mut Batch<'_>)) {
    let store = Store::open(&datadir.join("db"), &Options::default()).unwrap();
    let mut batch = store.batch();
    change(&mut batch);
    store.write(batch, Durability::Process).unwrap();
}

fn undo_change(datadir: &Path, copy: &Path) {
    fs::remove_dir_all(datadir.join("db")).unwrap();
    fs::create_dir(datadir.join("db")).unwrap();
    for file in fs::read_dir(copy).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), datadir.join("db").join(file.file_name())).unwrap();
    }
}

#[test]
fn verify_names_what_was_tampered_with() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    new_chain(datadir);
    let copy = directory.path().join("copy");
    fs::rename(datadir.join("db"), &copy).unwrap();
    let owner = account_key(4);
    let find = |tamper: &dyn Fn(&mut Batch<'_>)| {
        fs::create_dir_all(datadir.join("db")).unwrap();
        undo_change(datadir, &copy);
        assert_eq!(verify(datadir).unwrap().first_difference, None);
        change(datadir, |batch| tamper(batch));
        let report = verify(datadir).unwrap();
        assert!(!report.is_clean());
        report.first_difference.unwrap()
    };
    let node = |owner, path: &[u8], fault| Difference::Node { owner, path: path.to_vec(), fault };

    let nibble = account_key(0)[0] >> 4;
    let found = find(&|batch| batch.delete::<AccountTrie>(&[nibble]));
    assert_eq!(found, node(None, &[nibble], NodeFault::Missing));
    let found = find(&|batch| batch.put::<AccountTrie>(&[nibble, 1, 2, 3, 4], &[0xc0]));
    assert_eq!(found, node(None, &[nibble, 1, 2, 3, 4], NodeFault::Extra));
    let found = find(&|batch| batch.put::<StorageTrie>((owner, &[]), &[0xc0]));
    assert_eq!(found, node(Some(owner), &[], NodeFault::Different));
    let found = find(&|batch| batch.put::<StorageTrie>((owner, &[1; 9]), &[0xc0]));
    assert_eq!(found, node(Some(owner), &[1; 9], NodeFault::Extra));
    let stranger = account_key(1000);
    let found = find(&|batch| batch.put::<StorageTrie>((stranger, &[]), &[0xc0]));
    assert_eq!(found, node(Some(stranger), &[], NodeFault::Extra));
    let found = find(&|batch| batch.put::<Slots>((stranger, slot_key(0)), U256::from(1)));
    assert_eq!(found, Difference::OrphanSlot { owner: stranger, slot: slot_key(0) });
    let found = find(&|batch| batch.put::<Slots>((owner, slot_key(0)), U256::from(77)));
    assert!(matches!(found, Difference::Node { owner: Some(o), .. } if o == owner), "{found}");
    let found = find(&|batch| batch.put::<Accounts>(owner, &Account::default()));
    assert!(matches!(found, Difference::Node { owner: None, .. }), "{found}");
}
