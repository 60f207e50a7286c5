//! Contents that a store keeps, and directories that it refuses.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};
use tandem_primitives::{Account, B256, BlockId, U256};
use tandem_store::{
    Durability, Error, Options, Store, View,
    tables::{
        AccountTrie, Accounts, Bodies, Canonical, Code, Headers, Meta, Pending, Receipts,
        ReverseDiffs, Slots, StorageTrie, Transactions,
    },
};

fn hash(n: u8) -> B256 {
    B256::repeat_byte(n)
}

fn create(path: &Path) -> Store {
    Store::create(path, &Options::default()).unwrap()
}

fn open(path: &Path) -> Result<Store, Error> {
    Store::open(path, &Options::default())
}

/// Runs a test on a database directory, and in memory.
fn on_both(test: impl Fn(Store)) {
    let directory = tempfile::tempdir().unwrap();
    test(create(&directory.path().join("db")));
    test(Store::in_memory());
}

/// Writes one record to every table, with every kind of value.
fn fill(store: &Store) {
    let account = Account { nonce: 3, balance: U256::MAX, code_hash: hash(7) };
    let large = vec![5; 100_000];
    let mut batch = store.batch();
    batch.put::<Headers>(hash(1), (7, b"header"));
    batch.put::<Bodies>(hash(1), &large);
    batch.put::<Receipts>(hash(1), b"");
    batch.put::<Canonical>(7, hash(1));
    batch.put::<Transactions>(hash(2), (BlockId::new(9, hash(9)), 4));
    batch.put::<Code>(hash(7), &large);
    batch.put::<Accounts>(hash(3), &account);
    batch.put::<Slots>((hash(3), hash(4)), U256::from(256));
    batch.put::<AccountTrie>(&[], b"root");
    batch.put::<StorageTrie>((hash(3), &[1, 2]), b"node");
    batch.put::<ReverseDiffs>(7, b"undo");
    batch.put::<Pending>(hash(1), b"pending");
    batch.put::<Meta>("name", b"value");
    store.write(batch, Durability::Process).unwrap();
}

fn check_filled(view: &View<'_>) {
    let account = Account { nonce: 3, balance: U256::MAX, code_hash: hash(7) };
    let large = vec![5; 100_000];
    let place = (BlockId::new(9, hash(9)), 4);
    assert_eq!(view.get::<Headers>(hash(1)).unwrap(), Some((7, (*b"header").into())));
    assert_eq!(view.get::<Bodies>(hash(1)).unwrap().unwrap(), large);
    assert_eq!(view.get::<Receipts>(hash(1)).unwrap().unwrap().as_ref(), b"");
    assert_eq!(view.get::<Canonical>(7).unwrap(), Some(hash(1)));
    assert_eq!(view.get::<Transactions>(hash(2)).unwrap(), Some(place));
    assert_eq!(view.get::<Code>(hash(7)).unwrap().unwrap(), large);
    assert_eq!(view.get::<Accounts>(hash(3)).unwrap(), Some(account));
    assert_eq!(view.get::<Accounts>(hash(4)).unwrap(), None);
    let keys = [(hash(3), hash(4)), (hash(3), hash(5))];
    assert_eq!(view.multi_get::<Slots>(keys).unwrap(), [Some(U256::from(256)), None]);
    assert_eq!(view.get::<AccountTrie>(&[]).unwrap().unwrap().as_ref(), b"root");
    assert_eq!(view.get::<StorageTrie>((hash(3), &[1, 2])).unwrap().unwrap().as_ref(), b"node");
    assert_eq!(view.get::<ReverseDiffs>(7).unwrap().unwrap().as_ref(), b"undo");
    assert_eq!(view.get::<Pending>(hash(1)).unwrap().unwrap().as_ref(), b"pending");
    assert_eq!(view.get::<Meta>("name").unwrap().unwrap().as_ref(), b"value");
}

#[test]
fn every_table_gives_back_what_was_written_also_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = create(&path);
    fill(&store);
    let check = |store: &Store| check_filled(&store.snapshot());
    check(&store);
    assert!(matches!(open(&path), Err(Error::Locked(_))));
    assert!(matches!(Store::destroy(&path), Err(Error::Locked(_))));
    drop(store);
    let store = open(&path).unwrap();
    check(&store);
    store.flush().unwrap();
    drop(store);
    check(&open(&path).unwrap());
    Store::destroy(&path).unwrap();
    assert!(!path.exists());
}

#[test]
fn every_table_in_memory_gives_back_what_was_written() {
    let store = Store::in_memory();
    fill(&store);
    check_filled(&store.view());
    check_filled(&store.snapshot());
    store.flush().unwrap();
    assert_eq!(store.path(), None);
    let schema = store.view().get::<Meta>("schema_version").unwrap().unwrap();
    assert_eq!(schema.as_ref(), tandem_store::SCHEMA_VERSION.to_be_bytes());
}

#[test]
fn a_batch_of_another_kind_of_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (create(&directory.path().join("db")), Store::in_memory());
    assert!(one.write(other.batch(), Durability::Process).is_err());
    assert!(other.write(one.batch(), Durability::Process).is_err());
}

#[test]
fn a_snapshot_does_not_see_later_writes_and_a_cursor_keeps_to_its_prefix() {
    on_both(|store| check_snapshot_and_cursors(&store));
}

fn check_snapshot_and_cursors(store: &Store) {
    let put = |owner: u8, slot: u8| {
        let mut batch = store.batch();
        batch.put::<Slots>((hash(owner), hash(slot)), U256::from(slot));
        store.write(batch, Durability::Memory).unwrap();
    };
    for (owner, slot) in [(1, 1), (2, 1), (2, 2), (0xff, 1), (0xff, 2), (3, 1)] {
        put(owner, slot);
    }
    let snapshot = store.snapshot();
    put(2, 3);
    let slots = |view: &View<'_>, prefix: &[u8]| {
        let mut cursor = view.cursor::<Slots>(prefix);
        let mut found = Vec::new();
        while let Some(value) = cursor.value().unwrap() {
            found.push(value.to::<u8>());
            cursor.advance();
        }
        found
    };
    assert_eq!(slots(&snapshot, hash(2).as_slice()), [1, 2]);
    assert_eq!(slots(&store.view(), hash(2).as_slice()), [1, 2, 3]);
    assert_eq!(slots(&snapshot, hash(0xff).as_slice()), [1, 2]);
    assert_eq!(slots(&snapshot, hash(4).as_slice()), [0u8; 0]);
    assert_eq!(slots(&snapshot, &[]), [1, 1, 2, 1, 1, 2]);
    let mut range = snapshot.range::<Slots>(&[2], Some(&[3]));
    assert_eq!(range.value().unwrap(), Some(U256::from(1)));
    range.seek([hash(2), hash(2)].concat().as_slice());
    assert_eq!(range.value().unwrap(), Some(U256::from(2)));
    range.advance();
    range.advance();
    assert_eq!(range.entry().unwrap(), None);
}

#[test]
fn a_batch_is_written_whole_and_its_last_word_counts() {
    on_both(|store| check_batch(&store));
}

fn check_batch(store: &Store) {
    let mut batch = store.batch();
    batch.put::<Canonical>(1, hash(1));
    batch.delete::<Canonical>(1);
    batch.put::<Canonical>(2, hash(2));
    batch.delete_raw::<Canonical>(&2u64.to_be_bytes());
    batch.put::<Canonical>(2, hash(3));
    assert_eq!(batch.len(), 5);
    store.write(batch, Durability::Disk).unwrap();
    assert_eq!(store.view().get::<Canonical>(1).unwrap(), None);
    assert_eq!(store.view().get::<Canonical>(2).unwrap(), Some(hash(3)));
}

/// Direct reads leave nothing in the page cache. A file system may refuse them.
#[cfg(target_os = "linux")]
#[test]
fn with_direct_reads_the_tables_are_opened_past_the_page_cache() {
    const O_DIRECT: u32 = 0o40_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = create(&path);
    fill(&store);
    store.flush().unwrap();
    drop(store);
    let store = match Store::open(&path, &Options { direct_reads: true, ..Options::default() }) {
        Ok(store) => store,
        Err(error) => return assert!(error.to_string().contains("Invalid argument"), "{error}"),
    };
    check_filled(&store.view());
    let mut tables = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if !target.starts_with(&path) || target.extension().is_none_or(|it| it != "sst") {
            continue;
        }
        let info = format!("/proc/self/fdinfo/{}", entry.file_name().to_str().unwrap());
        let info = fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        assert_ne!(u32::from_str_radix(flags, 8).unwrap() & O_DIRECT, 0, "{target:?}: {flags}");
        tables += 1;
    }
    assert!(tables > 0);
}

#[test]
fn directories_that_are_not_ours_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    assert!(matches!(open(&path), Err(Error::Missing(_))));
    fs::create_dir(&path).unwrap();
    assert!(matches!(open(&path), Err(Error::Missing(_))));
    fs::write(path.join("letter.txt"), "dear").unwrap();
    assert!(matches!(open(&path), Err(Error::Foreign { .. })));
    let created = Store::create(&path, &Options::default());
    assert!(matches!(created, Err(Error::Foreign { .. })));
    fs::remove_file(path.join("letter.txt")).unwrap();

    let store = create(&path);
    let mut batch = store.batch();
    batch.put::<Meta>("schema_version", &6u32.to_be_bytes());
    store.write(batch, Durability::Process).unwrap();
    drop(store);
    let refused = open(&path);
    assert!(matches!(refused, Err(Error::NewerSchema { found: 6, supported: 5, .. })));
}

/// RocksDB 11.8 crashed where a database that had followed its logs was opened for reading without following them.
#[test]
fn a_newer_database_with_logs_that_it_followed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = create(&path);
    let mut batch = store.batch();
    batch.put::<Meta>("schema_version", &6u32.to_be_bytes());
    store.write(batch, Durability::Disk).unwrap();
    drop(store);
    let mut options = rocksdb::Options::default();
    options.set_track_and_verify_wals_in_manifest(true);
    options.create_missing_column_families(true);
    let mut families = rocksdb::DB::list_cf(&options, &path).unwrap();
    families.push("unknown".to_owned());
    let newer = rocksdb::DB::open_cf(&options, &path, families).unwrap();
    let [unknown, headers] = ["unknown", "headers"].map(|name| newer.cf_handle(name).unwrap());
    newer.put_cf(&headers, "key", "value").unwrap();
    newer.put_cf(&unknown, "key", "value").unwrap();
    newer.flush_wal(true).unwrap();
    // This closes a log that the other table still needs.
    newer.flush_cf(&unknown).unwrap();
    drop((unknown, headers));
    drop(newer);
    let refused = open(&path);
    assert!(matches!(refused, Err(Error::NewerSchema { found: 6, .. })), "{refused:?}");
}

#[test]
fn a_malformed_record_is_named() {
    on_both(|store| {
        let mut batch = store.batch();
        // A zero slot is never written, so its bytes are not a valid value.
        batch.put::<Slots>((hash(1), hash(2)), U256::ZERO);
        store.write(batch, Durability::Process).unwrap();
        let error = store.view().get::<Slots>((hash(1), hash(2))).unwrap_err().to_string();
        assert!(error.contains("slots") && error.contains(&hash(2).to_string()[2..]), "{error}");
    });
}

#[test]
fn what_the_database_takes_up_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = create(&path);
    fill(&store);
    let written = store.usage().unwrap().unwrap();
    assert!(written.memtable_bytes > 100_000, "{written:?}");
    assert!(written.log_written_bytes > 100_000, "{written:?}");
    store.flush().unwrap();
    // The reopened store has a cache of its own, which is empty.
    drop(store);
    let store = open(&path).unwrap();
    let opened = store.usage().unwrap().unwrap();
    for table in ["headers", "bodies", "accounts", "storage_trie"] {
        let found = opened.file_bytes.iter().find(|(name, _)| *name == table);
        assert!(found.unwrap().1 > 0, "{table}: {opened:?}");
    }
    let view = store.view();
    for _ in 0..2 {
        view.get::<Accounts>(hash(3)).unwrap();
    }
    let read = store.usage().unwrap().unwrap();
    assert!(read.cache_misses.data > opened.cache_misses.data, "{opened:?} {read:?}");
    assert!(read.cache_hits.data > opened.cache_hits.data, "{opened:?} {read:?}");
    assert!(read.cache_bytes > 0, "{read:?}");
    assert_eq!((read.background_errors, read.stalled.as_millis()), (0, 0));
    assert_eq!(Store::in_memory().usage().unwrap(), None);
}

/// The parts of filters and indices have checksums too. A database does without a damaged part of a filter, so only
/// this check names it.
#[test]
fn the_check_of_checksums_finds_a_flipped_bit_everywhere_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = create(&path);
    let mut batch = store.batch();
    for n in 0..4000_u64 {
        let key = tandem_primitives::keccak256(n.to_be_bytes());
        batch.put::<Slots>((hash(1), key), U256::from(n));
    }
    store.write(batch, Durability::Disk).unwrap();
    store.compact("slots", &mut |_| ()).unwrap();
    drop(store);
    assert_eq!(Store::verify_checksums(&path), None);
    let tables = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let tables = tables.filter(|path| path.extension().is_some_and(|kind| kind == "sst"));
    let table = tables.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let whole = fs::read(&table).unwrap();
    // Filter and index take up the end of the file.
    let tail = (whole.len() - 12_000..whole.len()).step_by(149);
    let missed: Vec<usize> = (0..whole.len())
        .step_by(10_007)
        .chain(tail)
        .filter(|&place| {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x10;
            fs::write(&table, bytes).unwrap();
            Store::verify_checksums(&path).is_none()
        })
        .collect();
    assert!(missed.is_empty(), "of {} bytes: {missed:?}", whole.len());
}
