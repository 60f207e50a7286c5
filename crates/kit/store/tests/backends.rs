//! Both backends behave alike: random operations lead to the same answers.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tandem_store::{
    Cursor, Durability, Options, Store, Table, View,
    tables::{AccountTrie, Code, Pending, StorageTrie},
};

/// Generates keys of few byte values, so that keys collide, are prefixes of each other, and end in
/// 0xff.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(2), Just(0xfe), Just(0xff)];
    prop::collection::vec(byte, 0..5)
}

#[derive(Clone, Debug)]
enum Write {
    Put { key: Vec<u8>, value: Vec<u8>, other_table: bool },
    Delete { key: Vec<u8>, other_table: bool },
}

#[derive(Clone, Debug)]
enum Walk {
    Advance,
    Seek(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Write>),
    TakeSnapshot,
    /// Reads from the newest state and from all snapshots.
    Get(Vec<Vec<u8>>),
    Prefix {
        prefix: Vec<u8>,
        walk: Vec<Walk>,
    },
    Range {
        start: Vec<u8>,
        end: Option<Vec<u8>>,
        walk: Vec<Walk>,
    },
    /// Writes to both stores between making a cursor and its first move.
    CursorThenWrite {
        prefix: Vec<u8>,
        write: Write,
    },
}

fn write() -> impl Strategy<Value = Write> {
    let value = prop::collection::vec(any::<u8>(), 0..4);
    prop_oneof![
        4 => (key(), value, any::<bool>())
            .prop_map(|(key, value, other_table)| Write::Put { key, value, other_table }),
        2 => (key(), any::<bool>())
            .prop_map(|(key, other_table)| Write::Delete { key, other_table }),
    ]
}

fn walk() -> impl Strategy<Value = Vec<Walk>> {
    let one = prop_oneof![3 => Just(Walk::Advance), 1 => key().prop_map(Walk::Seek)];
    prop::collection::vec(one, 0..200)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(write(), 0..30).prop_map(Step::Write),
        1 => Just(Step::TakeSnapshot),
        2 => prop::collection::vec(key(), 0..8).prop_map(Step::Get),
        2 => (key(), walk()).prop_map(|(prefix, walk)| Step::Prefix { prefix, walk }),
        2 => (key(), prop::option::of(key()), walk())
            .prop_map(|(start, end, walk)| Step::Range { start, end, walk }),
        1 => (key(), write())
            .prop_map(|(prefix, write)| Step::CursorThenWrite { prefix, write }),
    ]
}

fn apply(store: &Store, writes: &[Write]) {
    let mut batch = store.batch();
    for write in writes {
        match write {
            Write::Put { key, value, other_table: false } => batch.put::<AccountTrie>(key, value),
            Write::Put { key, value, other_table: true } => {
                batch.put::<StorageTrie>((Default::default(), key), value);
            }
            Write::Delete { key, other_table: false } => batch.delete_raw::<AccountTrie>(key),
            Write::Delete { key, other_table: true } => {
                batch.delete::<StorageTrie>((Default::default(), key));
            }
        }
    }
    assert_eq!(batch.len(), writes.len());
    assert_eq!(batch.is_empty(), writes.is_empty());
    store.write(batch, Durability::Process).unwrap();
}

/// Returns the entries that a cursor shows at every step of a walk.
fn follow<T: Table>(mut cursor: Cursor<'_, T>, walk: &[Walk]) -> Vec<Option<(Vec<u8>, Vec<u8>)>> {
    let entry = |cursor: &Cursor<'_, T>| {
        cursor.entry().unwrap().map(|(key, value)| (key.to_vec(), value.to_vec()))
    };
    let mut seen = vec![entry(&cursor)];
    for step in walk {
        match step {
            Walk::Advance => cursor.advance(),
            Walk::Seek(key) => cursor.seek(key),
        }
        seen.push(entry(&cursor));
    }
    seen
}

/// Returns all records of the tables that are written to.
fn all(view: &View<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    fn table<T: Table>(mut cursor: Cursor<'_, T>, out: &mut Vec<(Vec<u8>, Vec<u8>)>) {
        while let Some((key, value)) = cursor.entry().unwrap() {
            out.push((key.to_vec(), value.to_vec()));
            cursor.advance();
        }
    }
    let mut out = Vec::new();
    table(view.cursor::<AccountTrie>(&[]), &mut out);
    table(view.cursor::<StorageTrie>(&[]), &mut out);
    assert_eq!(view.cursor::<Code>(&[]).entry().unwrap(), None);
    assert_eq!(view.cursor::<Pending>(&[]).entry().unwrap(), None);
    out
}

fn compare(stores: [&Store; 2], snapshots: &[[View<'_>; 2]], step: &Step) {
    let latest = stores.map(Store::view);
    for views in snapshots.iter().chain([&latest]) {
        match step {
            Step::Get(keys) => {
                let [one, other] = views.each_ref().map(|view| {
                    let many = view.multi_get::<AccountTrie>(keys.iter().map(Vec::as_slice));
                    let single = keys.iter().map(|key| view.get::<AccountTrie>(key).unwrap());
                    let many = many.unwrap();
                    assert!(single.eq(many.iter().cloned()));
                    many
                });
                assert_eq!(one, other);
            }
            Step::Prefix { prefix, walk } => {
                let [one, other] =
                    views.each_ref().map(|view| follow(view.cursor::<AccountTrie>(prefix), walk));
                assert_eq!(one, other);
            }
            Step::Range { start, end, walk } => {
                let [one, other] = views
                    .each_ref()
                    .map(|view| follow(view.range::<AccountTrie>(start, end.as_deref()), walk));
                assert_eq!(one, other);
            }
            Step::Write(_) | Step::TakeSnapshot | Step::CursorThenWrite { .. } => {}
        }
    }
}

/// Compares a database in memory with one whose state is spread over so many directories.
fn run(steps: &[Step], directories: usize) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes_max: 1 << 20, ..Options::default() };
    let path = directory.path().join("db");
    let mut rocks = Store::create(&path, &options).unwrap();
    if directories > 0 {
        drop(rocks);
        let disk = |number: usize| directory.path().join(number.to_string());
        let disks: Vec<_> = (0..directories).map(disk).collect();
        Store::spread(&path, &disks, &mut |_, _| true).unwrap();
        rocks = Store::open(&path, &options).unwrap();
        assert_eq!(rocks.directories().len(), directories);
    }
    let memory = Store::in_memory();
    let stores = [&rocks, &memory];
    let mut snapshots: Vec<[View<'_>; 2]> = Vec::new();
    for step in steps {
        match step {
            Step::Write(writes) => stores.into_iter().for_each(|store| apply(store, writes)),
            Step::TakeSnapshot => snapshots.push(stores.map(Store::snapshot)),
            Step::CursorThenWrite { prefix, write } => {
                let [one, other] = stores.map(|store| {
                    let view = store.view();
                    let cursor = view.cursor::<AccountTrie>(prefix);
                    apply(store, std::slice::from_ref(write));
                    follow(cursor, &[const { Walk::Advance }; 40])
                });
                assert_eq!(one, other);
            }
            read => compare(stores, &snapshots, read),
        }
    }
    for views in snapshots.iter().chain([&stores.map(Store::view)]) {
        let [one, other] = views.each_ref().map(all);
        assert_eq!(one, other);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_lead_to_the_same_answers(steps in prop::collection::vec(step(), 1..80)) {
        run(&steps, 0);
    }
}

proptest! {
    // Each directory has four column families, which take time to make.
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_over_directories_lead_to_the_same_answers(
        steps in prop::collection::vec(step(), 1..80),
        directories in 2..=5usize,
    ) {
        run(&steps, directories);
    }
}

#[test]
fn a_long_table_is_walked_in_order_from_any_place() {
    let store = Store::in_memory();
    let mut batch = store.batch();
    for number in 0..5_000u32 {
        batch.put::<AccountTrie>(&(number * 2).to_be_bytes(), b"x");
    }
    store.write(batch, Durability::Memory).unwrap();
    let view = store.view();
    for start in [0u32, 1, 126, 127, 4_999, 9_997, 9_998, 9_999] {
        let mut cursor = view.range::<AccountTrie>(&start.to_be_bytes(), None);
        let mut expected = start.next_multiple_of(2);
        while let Some((key, _)) = cursor.entry().unwrap() {
            assert_eq!(key, expected.to_be_bytes());
            expected += 2;
            cursor.advance();
        }
        assert_eq!(expected, 10_000);
    }
}
