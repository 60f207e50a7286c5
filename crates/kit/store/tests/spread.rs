//! Databases whose state is spread over directories.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tandem_primitives::{Account, B256, U256};
use tandem_store::{
    Cursor, Durability, Error, Options, Store, Table,
    tables::{AccountTrie, Accounts, Bodies, Meta, Slots, StorageTrie},
};
use tempfile::TempDir;

/// A database and directories for its state.
struct Place {
    folder: TempDir,
    directories: Vec<PathBuf>,
}

impl Place {
    fn new(directories: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = |number| folder.path().canonicalize().unwrap().join(format!("disk-{number}"));
        Self { directories: (0..directories).map(name).collect(), folder }
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("db")
    }

    fn open(&self) -> Result<Store, Error> {
        Store::open(&self.database(), &Options::default())
    }

    fn spread(&self) -> Result<(), Error> {
        Store::spread(&self.database(), &self.directories, &mut |_, _| true)
    }

    fn gather(&self) -> Result<(), Error> {
        Store::spread(&self.database(), &[], &mut |_, _| true)
    }

    /// Makes a database with records of all shards. Some of them are in files, and some in the log.
    fn filled(directories: usize) -> Self {
        let place = Self::new(directories);
        let store = Store::create(&place.database(), &Options::default()).unwrap();
        fill(&store, 0);
        store.flush().unwrap();
        fill(&store, 1);
        place
    }
}

fn hash(shard: u8, n: u8) -> B256 {
    let mut hash = B256::repeat_byte(n);
    hash[0] = shard << 4 | n & 0xf;
    hash
}

/// Writes records of all shards, other ones for each seed.
fn fill(store: &Store, seed: u8) {
    let mut batch = store.batch();
    for shard in 0..16 {
        for n in 0..20 {
            let owner = hash(shard, n);
            let account = Account { nonce: seed.into(), balance: U256::from(n), code_hash: owner };
            batch.put::<Accounts>(owner, &account);
            batch.put::<Slots>((owner, hash(n, seed)), U256::from(n) + U256::from(1));
            batch.put::<AccountTrie>(&[shard, n % 16, seed], &[n; 40]);
            batch.put::<StorageTrie>((owner, &[seed, n % 16]), &[n; 50]);
        }
    }
    batch.put::<AccountTrie>(&[], b"root");
    batch.put::<Bodies>(hash(1, seed), &[seed; 10_000]);
    batch.put::<Meta>("name", b"value");
    store.write(batch, Durability::Process).unwrap();
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn records<T: Table>(mut cursor: Cursor<'_, T>) -> Records {
    let mut records = Vec::new();
    while let Some((key, value)) = cursor.entry().unwrap() {
        records.push((key.to_vec(), value.to_vec()));
        cursor.advance();
    }
    records
}

/// Returns all records of the tables that [`fill`] writes to.
fn content(store: &Store) -> [Records; 6] {
    let view = store.snapshot();
    [
        records(view.cursor::<Accounts>(&[])),
        records(view.cursor::<Slots>(&[])),
        records(view.cursor::<AccountTrie>(&[])),
        records(view.cursor::<StorageTrie>(&[])),
        records(view.cursor::<Bodies>(&[])),
        records(view.cursor::<Meta>(&[])),
    ]
}

fn files(directory: &Path) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let is_table = |path: PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    entries.filter(|entry| is_table(entry.as_ref().unwrap().path())).count()
}

#[test]
fn a_spread_database_keeps_its_records_and_has_files_in_every_directory() {
    for directories in [1, 3, 16] {
        let place = Place::filled(directories);
        let before = content(&place.open().unwrap());
        place.spread().unwrap();
        let store = place.open().unwrap();
        assert_eq!(content(&store), before, "{directories}");
        let told: Vec<_> = store.directories().into_iter().map(|(_, path)| path).collect();
        assert_eq!(told, place.directories);
        store.flush().unwrap();
        for directory in &place.directories {
            assert!(files(directory) > 0, "{directories} directories: none in {directory:?}");
        }
        // Later writes go there, too, and are there after the database was opened again.
        fill(&store, 2);
        store.flush().unwrap();
        fill(&store, 3);
        let after = content(&store);
        assert!(after[0].len() == before[0].len() && after[1].len() > before[1].len());
        drop(store);
        assert_eq!(content(&place.open().unwrap()), after);
        assert_eq!(place.open().unwrap().scrub().faults, [""; 0]);
        assert_eq!(Store::verify_checksums(&place.database()), None);
        place.spread().unwrap();
        place.gather().unwrap();
        let store = place.open().unwrap();
        assert_eq!(content(&store), after);
        assert_eq!(store.directories(), []);
        assert!(place.directories.iter().all(|directory| !directory.exists()));
        drop(store);
        place.gather().unwrap();
    }
}

#[test]
fn shards_are_in_the_directory_of_their_range() {
    let place = Place::filled(4);
    place.spread().unwrap();
    let store = place.open().unwrap();
    let names: Vec<_> = store.directories().into_iter().map(|(range, _)| range).collect();
    assert_eq!(names, ["0-3", "4-7", "8-b", "c-f"]);
    store.flush().unwrap();
    for shape in store.shapes().unwrap() {
        assert!(shape.table != "slots" || shape.files() >= 4, "{shape:?}");
    }
    let before: Vec<_> = place.directories.iter().map(|directory| files(directory)).collect();
    let mut batch = store.batch();
    batch.put::<Slots>((hash(0x9, 1), hash(1, 1)), U256::from(1));
    store.write(batch, Durability::Process).unwrap();
    store.flush().unwrap();
    let after: Vec<_> = place.directories.iter().map(|directory| files(directory)).collect();
    assert_eq!(after, [before[0], before[1], before[2] + 1, before[3]]);
}

#[test]
fn a_copy_of_a_spread_database_has_all_files_in_its_folder() {
    let place = Place::filled(3);
    place.spread().unwrap();
    let store = place.open().unwrap();
    let copy = Place { directories: place.directories.clone(), ..Place::new(0) };
    store.copy_to(&copy.database()).unwrap();
    let before = content(&store);
    fill(&store, 4);
    let copied = copy.open().unwrap();
    assert_eq!(content(&copied), before);
    assert_eq!(copied.directories(), []);
    drop(copied);
    // A second copy does not replace the first one, nor touch it.
    assert!(matches!(store.copy_to(&copy.database()), Err(Error::Io { .. })));
    assert_eq!(content(&copy.open().unwrap()), before);
    // It can be gathered, too, and then be spread over directories of its own.
    let refused = copy.spread().unwrap_err().to_string();
    assert!(refused.contains("gather it first"), "{refused}");
    copy.gather().unwrap();
    assert_eq!(content(&copy.open().unwrap()), before);
}

/// Every batch is in a copy as a whole or not at all, over all directories.
#[test]
fn a_copy_that_is_made_while_the_database_is_written_to_shows_one_state() {
    let place = Place::filled(4);
    place.spread().unwrap();
    let options = Options { memtable_bytes_max: 1 << 20, ..Options::default() };
    let store = Store::open(&place.database(), &options).unwrap();
    let owners: Vec<_> = (0..16).map(|shard| hash(shard, 1)).collect();
    let write = |round: u64| {
        let mut batch = store.batch();
        for owner in &owners {
            batch.put::<Slots>((*owner, hash(9, 9)), U256::from(round));
            batch.put::<StorageTrie>((*owner, &[9]), &[round as u8; 3_000]);
        }
        store.write(batch, Durability::Process).unwrap();
    };
    let ended = AtomicBool::new(false);
    let copies: Vec<_> = (0..8).map(|n| place.folder.path().join(format!("copy-{n}"))).collect();
    let (first, last) = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let rounds = (1..).take_while(|_| !ended.load(Relaxed));
            rounds.inspect(|round| write(*round)).last().unwrap()
        });
        for (number, copy) in copies.iter().enumerate() {
            thread::sleep(Duration::from_millis(30));
            store.copy_to(copy).unwrap();
            if number % 2 == 0 {
                store.compact("storage_trie", &mut |_| ()).unwrap();
            }
        }
        ended.store(true, Relaxed);
        (1, writing.join().unwrap())
    });
    let mut before = first;
    for copy in &copies {
        let copied = Store::open(copy, &Options::default()).unwrap();
        assert_eq!(copied.scrub().faults, [""; 0]);
        let view = copied.view();
        let keys = owners.iter().map(|owner| (*owner, hash(9, 9)));
        let rounds = view.multi_get::<Slots>(keys).unwrap();
        let round: u64 = rounds[0].unwrap().to();
        assert!(rounds.iter().all(|found| *found == rounds[0]), "{rounds:?}");
        for owner in &owners {
            let node = view.get::<StorageTrie>((*owner, &[9])).unwrap().unwrap();
            assert_eq!(node.as_ref(), [round as u8; 3_000], "round {round}");
        }
        assert!(before <= round && round <= last, "{before}, {round}, {last}");
        before = round;
    }
    assert!(before > 10, "{before} rounds");
}

/// Ends a call after each of its reports. The database is refused then, and the same call makes up for it.
#[test]
fn a_spread_or_gathering_that_ended_early_is_ended_by_the_same_call() {
    let place = Place::filled(3);
    let before = content(&place.open().unwrap());
    let other = [place.folder.path().join("other")];
    for directories in [&place.directories[..], &[]] {
        let mut calls = 0;
        let mut allowed = 0u32;
        loop {
            let mut left = allowed;
            let spread = Store::spread(&place.database(), directories, &mut |_, _| {
                let goes_on = left > 0;
                left = left.saturating_sub(1);
                goes_on
            });
            calls += 1;
            match spread {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, Error::HalfSpread(_)), "{error}"),
            }
            assert!(matches!(place.open(), Err(Error::HalfSpread(_))));
            let refused = Store::spread(&place.database(), &other, &mut |_, _| true);
            assert!(matches!(refused, Err(Error::HalfSpread(_))), "{refused:?}");
            // The number of reports rises with each call that ends early, and falls with what is done.
            allowed = (allowed + 1) % 4;
        }
        assert!(calls > 4, "{calls}");
        assert_eq!(content(&place.open().unwrap()), before);
    }
}

/// Turns around at every moment, also while it turns around.
#[test]
fn a_spread_or_gathering_that_ended_early_is_undone_by_the_opposite_call() {
    let place = Place::filled(2);
    let before = content(&place.open().unwrap());
    let run = |directories: &[PathBuf], reports: u32| {
        let mut left = reports;
        let spread = Store::spread(&place.database(), directories, &mut |_, _| {
            let goes_on = left > 0;
            left = left.saturating_sub(1);
            goes_on
        });
        assert!(matches!(spread, Ok(()) | Err(Error::HalfSpread(_))), "{spread:?}");
        spread.is_ok()
    };
    for reports in [0, 2, 5, 8] {
        let is_spread = run(&place.directories, reports);
        run(&[], reports / 2);
        run(&place.directories, reports / 3);
        place.gather().unwrap();
        assert_eq!(content(&place.open().unwrap()), before, "{reports}, {is_spread}");
        assert!(place.directories.iter().all(|directory| !directory.exists()));
    }
    place.spread().unwrap();
    for reports in [1, 4] {
        run(&[], reports);
        place.spread().unwrap();
        let store = place.open().unwrap();
        assert_eq!((content(&store), store.directories().len()), (before.clone(), 2), "{reports}");
    }
}

#[test]
fn directories_that_are_missing_or_not_its_own_are_refused() {
    let place = Place::filled(2);
    place.spread().unwrap();
    let other = Place::filled(2);
    other.spread().unwrap();
    let moved = place.directories[1].with_extension("moved");
    let refusal = |wanted: &str| {
        let error = place.open().unwrap_err();
        assert!(matches!(error, Error::Directory { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("disk-1") && text.contains(wanted), "{text}");
        assert!(Store::verify_checksums(&place.database()).is_some());
        assert!(place.gather().is_err() && place.spread().is_err());
    };
    fs::rename(&place.directories[1], &moved).unwrap();
    refusal("is its disk mounted?");
    // An empty directory: RocksDB would take it.
    fs::create_dir(&place.directories[1]).unwrap();
    refusal("is its disk mounted?");
    fs::remove_dir(&place.directories[1]).unwrap();
    fs::rename(&other.directories[1], &place.directories[1]).unwrap();
    refusal(&other.database().canonicalize().unwrap().display().to_string());
    fs::rename(&place.directories[1], &other.directories[1]).unwrap();
    fs::rename(&moved, &place.directories[1]).unwrap();
    assert!(place.open().is_ok());
    // A copy of the folder would use the same files.
    let copy = place.folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(place.database()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let refused = Store::open(&copy, &Options::default());
    assert!(matches!(refused, Err(Error::Directory { .. })), "{refused:?}");
    // A file of the database that is missing is damage, not an empty table.
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    let mut paths = fs::read_dir(&place.directories[0]).unwrap().map(|entry| entry.unwrap().path());
    fs::remove_file(paths.find(is_table).unwrap()).unwrap();
    assert!(place.open().is_err());
}

#[test]
fn directories_have_to_be_empty_and_different() {
    let mut place = Place::filled(2);
    let before = content(&place.open().unwrap());
    let refused = |place: &Place, wanted: &str| {
        let error = place.spread().unwrap_err();
        assert!(matches!(error, Error::Spread { .. }), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        assert_eq!(content(&place.open().unwrap()), before);
    };
    fs::create_dir(&place.directories[1]).unwrap();
    fs::write(place.directories[1].join("mine"), "").unwrap();
    refused(&place, "disk-1");
    fs::remove_file(place.directories[1].join("mine")).unwrap();
    let own = place.directories.clone();
    place.directories[1] = place.directories[0].clone();
    refused(&place, "twice");
    place.directories = (0..17).map(|n| own[0].join(n.to_string())).collect();
    refused(&place, "16 shards");
    place.directories = vec![place.database()];
    refused(&place, "not empty");
    place.directories = own;
    fs::remove_dir_all(&place.directories[0]).unwrap();
    place.spread().unwrap();
}

#[test]
fn a_directory_that_an_interrupted_spread_has_only_claimed_is_free() {
    let place = Place::filled(2);
    place.spread().unwrap();
    let file = place.directories[0].join("DATABASE");
    let owner = fs::read(&file).unwrap();
    place.gather().unwrap();
    for bytes in [0, owner.len() / 2, owner.len()] {
        fs::create_dir_all(&place.directories[0]).unwrap();
        fs::write(&file, &owner[..bytes]).unwrap();
        place.spread().unwrap();
        place.gather().unwrap();
    }
    fs::create_dir_all(&place.directories[0]).unwrap();
    fs::write(&file, [&owner[..], b"of another one"].concat()).unwrap();
    assert!(matches!(place.spread(), Err(Error::Spread { .. })));
    fs::write(&file, &owner).unwrap();
    fs::write(place.directories[0].join("mine"), "").unwrap();
    assert!(matches!(place.spread(), Err(Error::Spread { .. })));
}

#[test]
fn a_database_that_is_removed_leaves_what_others_put_into_its_directories() {
    let place = Place::filled(2);
    place.spread().unwrap();
    fs::write(place.directories[1].join("mine"), "").unwrap();
    Store::destroy(&place.database()).unwrap();
    assert!(!place.database().exists() && !place.directories[0].exists());
    let left: Vec<_> = fs::read_dir(&place.directories[1]).unwrap().collect();
    assert_eq!(left.len(), 1);
}

/// A run of all shards has files in each directory, and ranges are removed across directories.
#[test]
fn bulk_loads_and_cleared_ranges_pass_from_one_directory_to_the_next() {
    let place = Place::filled(3);
    place.spread().unwrap();
    let store = place.open().unwrap();
    let mut run = store.sorted_run::<StorageTrie>();
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> =
        records(store.view().cursor::<StorageTrie>(&[])).into_iter().collect();
    let large = [7; 4000];
    for (shard, n) in (0..16).flat_map(|shard| (0..16).map(move |n| (shard, n))) {
        let owner = hash(shard, n);
        for path in 0..16 {
            run.put((owner, &[path, 15]), &large).unwrap();
            expected.insert([owner.as_slice(), &[path, 15]].concat(), large.to_vec());
        }
    }
    run.finish().unwrap();
    let found: BTreeMap<_, _> =
        records(store.view().cursor::<StorageTrie>(&[])).into_iter().collect();
    assert_eq!(found, expected);
    // Shards 4 to 11 are in all three directories.
    store.clear::<StorageTrie>(&[0x40], &[0xbf]).unwrap();
    expected.retain(|key, _| key[0] < 0x40 || key[0] > 0xbf);
    let found: BTreeMap<_, _> =
        records(store.view().cursor::<StorageTrie>(&[])).into_iter().collect();
    assert_eq!(found, expected);
    let compaction = store.compact("storage_trie", &mut |_| ()).unwrap();
    assert!(compaction.read_bytes > 0);
    store.clear::<StorageTrie>(&[], &[]).unwrap();
    assert_eq!(records(store.view().cursor::<StorageTrie>(&[])), []);
    // A cursor over all directories shows one state.
    let view = store.view();
    let cursor = view.cursor::<Slots>(&[]);
    store.clear::<Slots>(&[0xf0], &[0xff]).unwrap();
    let mut batch = store.batch();
    batch.put::<Slots>((hash(15, 77), hash(1, 1)), U256::from(1));
    store.write(batch, Durability::Process).unwrap();
    let late = hash(15, 77);
    assert!(records(cursor).iter().all(|(key, _)| key[..32] != *late), "a later write was seen");
    assert!(view.get::<Slots>((late, hash(1, 1))).unwrap().is_some());
}
