//! The tables in memory: one persistent ordered map for each table.
//!
//! A snapshot is one more handle on all the maps. A write copies only the map nodes that a snapshot
//! still holds. So both are cheap at any size, and a database that lives for one test costs nothing
//! to make.

use crate::{Table, tables, tables::index_of};
use imbl::OrdMap;
use parking_lot::RwLock;
use std::{
    collections::VecDeque,
    ops::Bound::{Excluded, Included, Unbounded},
    sync::Arc,
};

type Bytes = Arc<[u8]>;

/// Largest number of records that a cursor takes from its map at once.
const AHEAD_MAX: usize = 64;

/// All tables at one moment.
#[derive(Clone, Default)]
pub(crate) struct Tables([OrdMap<Bytes, Bytes>; tables::ALL.len()]);

impl Tables {
    /// Returns the value of a key.
    pub(crate) fn get<T: Table>(&self, key: &[u8]) -> Option<&[u8]> {
        self.0[index_of::<T>()].get(key).map(|value| &**value)
    }
}

/// The newest tables, shared with the snapshots that were taken of them.
#[derive(Default)]
pub(crate) struct Memory {
    tables: RwLock<Arc<Tables>>,
}

impl Memory {
    /// Calls `read` with the newest tables. It must not write.
    pub(crate) fn latest<R>(&self, read: impl FnOnce(&Tables) -> R) -> R {
        read(&self.tables.read())
    }

    /// Returns the current tables, which later writes do not change.
    pub(crate) fn snapshot(&self) -> Arc<Tables> {
        self.tables.read().clone()
    }

    /// Writes a batch atomically.
    pub(crate) fn write(&self, batch: MemoryBatch) {
        let mut latest = self.tables.write();
        let tables = Arc::make_mut(&mut latest);
        for Write { table, key, value } in batch.writes {
            match value {
                Some(value) => drop(tables.0[table].insert(key, value)),
                None => drop(tables.0[table].remove(&*key)),
            }
        }
    }
}

struct Write {
    table: usize,
    key: Bytes,
    /// Value to set; `None` removes the key.
    value: Option<Bytes>,
}

/// Writes in the order in which they are applied.
#[derive(Default)]
pub(crate) struct MemoryBatch {
    writes: Vec<Write>,
    bytes: usize,
}

impl MemoryBatch {
    pub(crate) fn push<T: Table>(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.bytes += size_of::<Write>() + key.len() + value.map_or(0, <[u8]>::len);
        let (key, value) = (key.into(), value.map(Bytes::from));
        self.writes.push(Write { table: index_of::<T>(), key, value });
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.bytes
    }
}

/// Position in the key order of one table, as the table was when the cursor was made.
pub(crate) struct MemoryCursor {
    map: OrdMap<Bytes, Bytes>,
    start: Vec<u8>,
    /// Exclusive end of the range.
    end: Option<Vec<u8>>,
    /// Records from the current one on, as far as they were taken from the map.
    ahead: VecDeque<(Bytes, Bytes)>,
    /// Number of records to take next: few at first, because most cursors read few.
    take: usize,
}

impl MemoryCursor {
    /// Makes a cursor at the first record from the key `start` to before the key `end`.
    pub(crate) fn new<T: Table>(tables: &Tables, start: &[u8], end: Option<&[u8]>) -> Self {
        let mut cursor = Self {
            map: tables.0[index_of::<T>()].clone(),
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
            ahead: VecDeque::new(),
            take: 1,
        };
        cursor.seek(start);
        cursor
    }

    /// Makes a cursor at the first record whose key starts with `prefix`.
    pub(crate) fn with_prefix<T: Table>(tables: &Tables, prefix: &[u8]) -> Self {
        Self::new::<T>(tables, prefix, prefix_end(prefix).as_deref())
    }

    pub(crate) fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.ahead.front().map(|(key, value)| (&**key, &**value))
    }

    pub(crate) fn advance(&mut self) {
        let Some((key, _)) = self.ahead.pop_front() else { return };
        if self.ahead.is_empty() {
            self.fill(Excluded(&key));
        }
    }

    pub(crate) fn seek(&mut self, key: &[u8]) {
        let from = key.max(&self.start).to_vec();
        self.ahead.clear();
        self.take = 1;
        self.fill(Included(&from));
    }

    fn fill(&mut self, from: std::ops::Bound<&[u8]>) {
        let (Included(first) | Excluded(first)) = from else { return };
        // The map panics on a range that ends before it starts.
        if self.end.as_deref().is_some_and(|end| end <= first) {
            return;
        }
        let to = self.end.as_deref().map_or(Unbounded, Excluded);
        let records = self.map.range::<_, [u8]>((from, to)).take(self.take);
        self.ahead.extend(records.map(|(key, value)| (key.clone(), value.clone())));
        self.take = (self.take * 2).min(AHEAD_MAX);
    }
}

/// Returns the first key after all keys that start with `prefix`; `None` if there is none.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
