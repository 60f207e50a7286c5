//! Bulk loads, ranges that are cleared, and the files that tables have.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use tandem_primitives::{B256, U256};
use tandem_store::{
    Durability, Error, Options, Store,
    tables::{AccountTrie, Code, Slots},
};

fn key(n: u32) -> (B256, B256) {
    let mut slot = B256::ZERO;
    slot[..4].copy_from_slice(&n.to_be_bytes());
    (B256::repeat_byte((n >> 16) as u8), slot)
}

fn create(path: &Path) -> Store {
    Store::create(path, &Options::default()).unwrap()
}

fn on_both(test: impl Fn(Store)) {
    let directory = tempfile::tempdir().unwrap();
    test(create(&directory.path().join("db")));
    test(Store::in_memory());
}

fn load(store: &Store, numbers: impl Iterator<Item = u32>, value: u64) {
    let mut run = store.sorted_run::<Slots>();
    for n in numbers {
        run.put(key(n), U256::from(value)).unwrap();
    }
    run.finish().unwrap();
}

fn values(store: &Store) -> Vec<u64> {
    let view = store.view();
    let mut cursor = view.cursor::<Slots>(&[]);
    let mut values = Vec::new();
    while let Some(value) = cursor.value().unwrap() {
        values.push(value.to());
        cursor.advance();
    }
    values
}

#[test]
fn a_run_is_there_as_a_whole_or_not_at_all_and_replaces_what_was_there() {
    on_both(|store| {
        let mut run = store.sorted_run::<Slots>();
        run.put(key(1), U256::from(7)).unwrap();
        assert_eq!(values(&store), []);
        drop(run);
        store.sorted_run::<Slots>().finish().unwrap();
        assert_eq!(values(&store), []);
        let mut batch = store.batch();
        batch.put::<Slots>(key(2), U256::from(1));
        store.write(batch, Durability::Process).unwrap();
        load(&store, 1..4, 7);
        assert_eq!(values(&store), [7, 7, 7]);
        load(&store, 3..6, 8);
        assert_eq!(values(&store), [7, 7, 8, 8, 8]);
    });
}

#[test]
fn keys_out_of_order_are_refused() {
    on_both(|store| {
        let mut run = store.sorted_run::<Slots>();
        run.put(key(2), U256::from(7)).unwrap();
        for n in [1, 2] {
            assert!(matches!(run.put(key(n), U256::from(7)), Err(Error::Database(_))), "{n}");
        }
    });
}

/// A process that dies between two records leaves a file. It goes when the database is opened again.
#[test]
fn an_unfinished_run_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let files = || {
        let names = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("run-")).count()
    };
    let store = create(&path);
    let mut run = store.sorted_run::<Slots>();
    run.put(key(0), U256::from(7)).unwrap();
    assert_eq!(files(), 0, "a small run needs none");
    for n in 1..20_000 {
        run.put(key(n), U256::from(7)).unwrap();
    }
    assert_eq!(files(), 1);
    assert!(run.put(key(19_999), U256::from(7)).is_err());
    drop(run);
    assert_eq!(files(), 0);
    load(&store, 0..10, 7);
    assert_eq!(files(), 0);
    std::fs::write(path.join("run-17"), "left").unwrap();
    drop(store);
    let store = Store::open(&path, &Options::default()).unwrap();
    assert_eq!((files(), values(&store).len()), (0, 10));
}

#[test]
fn a_run_survives_reopening_and_lies_in_one_level() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let store = create(&path);
    load(&store, 0..100_000, 7);
    load(&store, 200_000..300_000, 8);
    drop(store);
    let store = Store::open(&path, &Options::default()).unwrap();
    assert_eq!(values(&store).len(), 200_000);
    let shapes = store.shapes().unwrap();
    assert_eq!(shapes.len(), Store::table_names().count());
    let slots = shapes.iter().find(|shape| shape.table == "slots").unwrap();
    assert_eq!((slots.keys_estimate, slots.files(), slots.sorted_runs()), (200_000, 2, 1));
    assert_eq!(slots.levels[0].records, 200_000);
    assert!(slots.file_bytes() > 200_000 * 30, "{slots:?}");
    assert!((0.9..1.1).contains(&slots.space_amplification().unwrap()), "{slots:?}");
    let empty = shapes.iter().find(|shape| shape.table == "accounts").unwrap();
    assert_eq!(
        (empty.file_bytes(), empty.sorted_runs(), empty.space_amplification()),
        (0, 0, None)
    );
}

#[test]
fn a_cleared_range_is_empty_and_its_neighbours_are_not() {
    on_both(|store| {
        load(&store, 0..4 << 16, 7);
        let mut batch = store.batch();
        batch.put::<Slots>(key(1 << 16), U256::from(9));
        batch.put::<Slots>(key(5 << 16), U256::from(9));
        // Paths of which one is the start of the others.
        for path in [&[][..], &[0], &[1], &[1, 2], &[1, 15, 15], &[2]] {
            batch.put::<AccountTrie>(path, b"node");
        }
        store.write(batch, Durability::Process).unwrap();
        store.clear::<Slots>(&[1], &[2]).unwrap();
        let left = values(&store);
        assert_eq!(left.len(), (2 << 16) + 1);
        assert_eq!(left.last(), Some(&9));
        store.clear::<AccountTrie>(&[1], &[1]).unwrap();
        let paths = [&[][..], &[0], &[1], &[1, 2], &[1, 15, 15], &[2]];
        let there = store.view().multi_get::<AccountTrie>(paths).unwrap();
        let there: Vec<bool> = there.iter().map(Option::is_some).collect();
        assert_eq!(there, [true, true, false, false, false, true]);
        load(&store, 1 << 16..2 << 16, 8);
        assert_eq!(values(&store).len(), (3 << 16) + 1);
        store.clear::<Slots>(&[], &[]).unwrap();
        assert_eq!(values(&store), []);
        store.clear::<Slots>(&[], &[]).unwrap();
    });
}

#[test]
fn a_compacted_table_is_one_sorted_run() {
    let directory = tempfile::tempdir().unwrap();
    let store = create(&directory.path().join("db"));
    for round in 0..3 {
        let mut batch = store.batch();
        for n in 0..1_000 {
            batch.put::<Slots>(key(n), U256::from(round));
        }
        batch.put::<Code>(B256::repeat_byte(1), &[7; 100_000]);
        store.write(batch, Durability::Process).unwrap();
        store.flush().unwrap();
    }
    let runs = || {
        let shapes = store.shapes().unwrap();
        let of = |table| shapes.iter().find(|it| it.table == table).unwrap().sorted_runs();
        [of("slots"), of("code")]
    };
    assert_eq!(runs(), [3, 3]);
    let mut reports = 0;
    let compaction = store.compact("slots", &mut |_| reports += 1).unwrap();
    assert_eq!(runs(), [1, 3]);
    assert!(compaction.bytes_after < compaction.bytes_before, "{compaction:?}");
    assert!(compaction.written_bytes > 0 && compaction.read_bytes > 0, "{compaction:?}");
    assert_eq!(values(&store), vec![2; 1_000]);
    // Data in one place already is written anew too: its files may have an older form.
    let again = store.compact("slots", &mut |_| {}).unwrap();
    assert!(again.written_bytes > 0, "{again:?}");
    assert_eq!(values(&store), vec![2; 1_000]);
    let error = store.compact("nothing", &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("nothing"), "{error}");
    assert_eq!(Store::in_memory().compact("slots", &mut |_| {}).unwrap().written_bytes, 0);
}

#[test]
fn a_copy_goes_its_own_way() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let store = create(&from);
    load(&store, 0..1_000, 7);
    let mut batch = store.batch();
    batch.put::<Slots>(key(1_000), U256::from(7));
    store.write(batch, Durability::Process).unwrap();
    store.copy_to(&to).unwrap();
    assert!(store.copy_to(&to).is_err());
    let copy = Store::open(&to, &Options::default()).unwrap();
    assert_eq!(values(&copy), vec![7; 1_001]);
    load(&copy, 0..2_000, 8);
    store.clear::<Slots>(&[], &[]).unwrap();
    assert_eq!(values(&copy), vec![8; 2_000]);
    assert_eq!(values(&store), []);
}
