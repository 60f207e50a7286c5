//! Check of everything that a database has on disk: all checksums, and all records.

use crate::{
    Result, Store, Table,
    layout::Layout,
    options,
    rocks::{Rocks, place},
    store::Backend,
    tables::{
        self, AccessLists, AccountHistory, AccountTrie, Accounts, Bodies, Canonical, Code, Headers,
        Kept, Meta, Pending, Proven, Receipts, ReverseDiffs, SlotHistory, Slots, StateDiffs,
        StorageTrie, Transactions,
    },
};
use rocksdb::{AsRawPtr, ColumnFamily, ColumnFamilyDescriptor, DB, ReadOptions};
use std::{
    ffi::{CStr, c_char},
    path::Path,
    ptr,
};

/// Result of [`Store::scrub`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Number of readable records.
    pub records: u64,
    /// Descriptions of unreadable data: the first fault of each table.
    pub faults: Vec<String>,
}

/// Function that reads one table. It tells `pace` the bytes of each record, and ends when that says no.
/// It returns its number of records, and the first fault.
type Scan = fn(&Rocks, pace: &mut dyn FnMut(usize) -> bool) -> (u64, Option<String>);

/// Bytes after which a scan takes a new cursor. A cursor keeps the files that it reads from being removed.
const CURSOR_BYTES_MAX: usize = 64 << 20;

/// Number of files that stay open while all are checked.
const FILES_OPEN: i32 = 64;

/// Scans of all tables. Two of them were missing once.
const SCANS: [Scan; tables::ALL.len()] = [
    scan::<Headers>,
    scan::<Bodies>,
    scan::<Receipts>,
    scan::<Canonical>,
    scan::<Transactions>,
    scan::<Code>,
    scan::<Accounts>,
    scan::<Slots>,
    scan::<AccountTrie>,
    scan::<StorageTrie>,
    scan::<ReverseDiffs>,
    scan::<Pending>,
    scan::<Proven>,
    scan::<Kept>,
    scan::<AccessLists>,
    scan::<StateDiffs>,
    scan::<AccountHistory>,
    scan::<SlotHistory>,
    scan::<Meta>,
];

impl Store {
    /// Checks the checksums of all files, including blocks that hold no records, such as filters and indices.
    /// Returns a description of the first fault. No process may have the database open, as files
    /// come and go while it is open.
    pub fn verify_checksums(path: &Path) -> Option<String> {
        let fault = verify_files(path).unwrap_or_else(|error| Some(error.to_string()));
        fault.map(|fault| format!("checksums: {fault}"))
    }

    /// Decodes all records of all tables. Reads the whole database, bypassing the cache. A store in
    /// memory has nothing to check.
    pub fn scrub(&self) -> Scrubbed {
        let Backend::Rocks(rocks) = &self.backend else { return Scrubbed::default() };
        let mut scrubbed = Scrubbed::default();
        for scan in SCANS {
            let (records, fault) = scan(rocks, &mut |_| true);
            scrubbed.records += records;
            scrubbed.faults.extend(fault);
        }
        scrubbed
    }

    /// Number of tables, for [`Store::scrub_table`].
    pub const TABLES: usize = SCANS.len();

    /// Decodes all records of one of the [`TABLES`](Self::TABLES) tables, as [`Store::scrub`] does, while the
    /// store is in use. `pace` gets the bytes of each record, may wait, and returns whether to go on.
    /// Returns the first fault.
    pub fn scrub_table(&self, table: usize, pace: &mut dyn FnMut(usize) -> bool) -> Option<String> {
        let Backend::Rocks(rocks) = &self.backend else { return None };
        SCANS.get(table).and_then(|scan| scan(rocks, pace).1)
    }
}

fn scan<T: Table>(rocks: &Rocks, pace: &mut dyn FnMut(usize) -> bool) -> (u64, Option<String>) {
    let (mut records, mut fault) = (0, None);
    for family in rocks.handles::<T>() {
        if !scan_family::<T>(rocks, family, pace, &mut records, &mut fault) {
            break;
        }
    }
    (records, fault)
}

/// Reads one column family of a table. Returns whether `pace` never said no.
fn scan_family<T: Table>(
    rocks: &Rocks,
    family: &ColumnFamily,
    pace: &mut dyn FnMut(usize) -> bool,
    records: &mut u64,
    fault: &mut Option<String>,
) -> bool {
    let mut from = Vec::new();
    loop {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        options.fill_cache(false);
        options.set_readahead_size(2 << 20);
        // Passes from one prefix to the next in tables with filters by prefix.
        options.set_total_order_seek(true);
        let mut cursor = rocks.db.raw_iterator_cf_opt(family, options);
        cursor.seek(&from);
        let mut bytes = 0;
        while let Some((key, value)) = cursor.item() {
            if bytes >= CURSOR_BYTES_MAX {
                break;
            }
            match T::decode_value(value) {
                Some(_) => *records += 1,
                None => {
                    let key = alloy_primitives::hex::encode(key);
                    let text = || format!("table {}: malformed record 0x{key}", T::NAME);
                    fault.get_or_insert_with(text);
                }
            }
            let size = key.len() + value.len();
            bytes += size;
            if !pace(size) {
                return false;
            }
            cursor.next();
        }
        match cursor.key() {
            Some(key) => from = key.to_vec(),
            None => {
                if let Err(error) = cursor.status() {
                    // Damage says more than a record that it led to.
                    *fault = Some(format!("table {}: {error}", T::NAME));
                }
                return true;
            }
        }
    }
}

/// Makes RocksDB check every block of every file. Returns its message about the first fault.
fn verify_files(path: &Path) -> Result<Option<String>> {
    let mut options = options::for_reading();
    // RocksDB opens each file anew to check it. Files that stay open besides would take memory.
    options.set_max_open_files(FILES_OPEN);
    let names = DB::list_cf(&options, path)?;
    let layout = Layout::find(path, &names)?;
    layout.check(path)?;
    let mut families = Vec::with_capacity(names.len());
    for name in names {
        let mut options = options::for_checking();
        place(&mut options, layout.directory_of(&name))?;
        families.push(ColumnFamilyDescriptor::new(name, options));
    }
    // The library gives a raw pointer only for this type of handle, which reads the same files.
    let db = DB::open_cf_descriptors_read_only(&options, path, families, false)?;
    let mut error: *mut c_char = ptr::null_mut();
    // SAFETY: `db` is open until the end of this function, the read options until they are
    // destroyed here. `error` is a place for a pointer, as the call requires.
    unsafe {
        let reading = librocksdb_sys::rocksdb_readoptions_create();
        librocksdb_sys::rocksdb_verify_checksum_with_options(db.as_raw_ptr(), reading, &mut error);
        librocksdb_sys::rocksdb_readoptions_destroy(reading);
    }
    if error.is_null() {
        return Ok(None);
    }
    // SAFETY: a pointer that is not null is a string of RocksDB's, which the caller frees.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        librocksdb_sys::rocksdb_free(error.cast());
        text
    };
    Ok(Some(text))
}
