use crate::{
    Error, Result, Store, Table,
    deep::{PROBE, Read},
    memory::{Memory, MemoryCursor, Tables},
    rocks::{Db, Rocks},
    store::Backend,
};
use rocksdb::{DBRawIteratorWithThreadMode, ReadOptions, SnapshotWithThreadMode};
use std::{marker::PhantomData, ops::RangeInclusive, sync::Arc};

/// Read access to a store: the latest state, or one consistent state if it is a snapshot.
pub struct View<'a> {
    source: Source<'a>,
}

enum Source<'a> {
    Rocks(RocksView<'a>),
    Memory(&'a Memory),
    MemorySnapshot(Arc<Tables>),
}

struct RocksView<'a> {
    rocks: &'a Arc<Rocks>,
    options: Arc<ReadOptions>,
    /// Whether what is read stays in the block cache.
    is_cached: bool,
    snapshot: Option<SnapshotWithThreadMode<'a, Db>>,
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let snapshot = match &self.source {
            Source::Rocks(view) => view.snapshot.is_some(),
            Source::Memory(_) => false,
            Source::MemorySnapshot(_) => true,
        };
        f.debug_struct("View").field("snapshot", &snapshot).finish()
    }
}

impl<'a> View<'a> {
    pub(crate) fn latest(store: &'a Store) -> Self {
        let source = match &store.backend {
            Backend::Rocks(rocks) => {
                let options = Arc::default();
                Source::Rocks(RocksView { rocks, options, is_cached: true, snapshot: None })
            }
            Backend::Memory(memory) => Source::Memory(memory),
        };
        Self { source }
    }

    pub(crate) fn snapshot(store: &'a Store, is_cached: bool) -> Self {
        let source = match &store.backend {
            Backend::Rocks(rocks) => {
                let snapshot = rocks.db.snapshot();
                let mut options = ReadOptions::default();
                options.set_snapshot(&snapshot);
                options.fill_cache(is_cached);
                let (options, snapshot) = (Arc::new(options), Some(snapshot));
                Source::Rocks(RocksView { rocks, options, is_cached, snapshot })
            }
            Backend::Memory(memory) => Source::MemorySnapshot(memory.snapshot()),
        };
        Self { source }
    }

    /// Returns the value of a key; `None` if it is absent.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Database`].
    pub fn get<T: Table>(&self, key: T::Key<'_>) -> Result<Option<T::Read>> {
        let mut bytes = Vec::with_capacity(64);
        T::encode_key(key, &mut bytes);
        match &self.source {
            Source::Rocks(view) => view.get::<T>(&bytes),
            Source::Memory(memory) => memory.latest(|tables| get_in::<T>(tables, &bytes)),
            Source::MemorySnapshot(tables) => get_in::<T>(tables, &bytes),
        }
    }

    /// Returns the values of many keys in the order of the keys, with one call to the database.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Database`].
    pub fn multi_get<'k, T: Table>(
        &self,
        keys: impl IntoIterator<Item = T::Key<'k>>,
    ) -> Result<Vec<Option<T::Read>>> {
        let keys = Keys::encode::<T>(keys.into_iter());
        if keys.ends.is_empty() {
            return Ok(Vec::new());
        }
        match &self.source {
            Source::Rocks(view) => view.multi_get::<T>(keys),
            Source::Memory(memory) => {
                memory.latest(|tables| keys.iter().map(|key| get_in::<T>(tables, key)).collect())
            }
            Source::MemorySnapshot(tables) => {
                keys.iter().map(|key| get_in::<T>(tables, key)).collect()
            }
        }
    }

    /// Returns a cursor over all records whose key starts with `prefix`, in key order. An empty
    /// prefix means all. Writes after this call are not seen.
    pub fn cursor<T: Table>(&self, prefix: &[u8]) -> Cursor<'_, T> {
        self.cursor_over(
            |view| {
                let span = match prefix.is_empty() {
                    true => view.rocks.span::<T>(prefix, None),
                    // All keys of a prefix are of one shard.
                    false => view.rocks.span::<T>(prefix, Some(prefix)),
                };
                view.cursor::<T>(span, rocksdb::PrefixRange(prefix))
            },
            |tables| MemoryCursor::with_prefix::<T>(tables, prefix),
        )
    }

    /// Returns a cursor from the key `start` to before the key `end` (to the last key if that is
    /// `None`), in key order. Writes after this call are not seen.
    pub fn range<T: Table>(&self, start: &[u8], end: Option<&[u8]>) -> Cursor<'_, T> {
        self.cursor_over(
            |view| {
                let span = view.rocks.span::<T>(start, end);
                match end {
                    Some(end) => view.cursor::<T>(span, start..end),
                    None => view.cursor::<T>(span, start..),
                }
            },
            |tables| MemoryCursor::new::<T>(tables, start, end),
        )
    }

    /// Returns a cursor that is at no record, for a table whose records are found by a prefix of their
    /// key. [`Cursor::seek`] finds records that have the prefix of the sought key. Past those, it may
    /// be at any record or none. Filters answer for prefixes without a record, mostly from memory.
    pub fn prefix_cursor<T: Table>(&self) -> Cursor<'_, T> {
        self.cursor_over(
            |view| view.prefix_cursor::<T>(),
            |tables| MemoryCursor::new::<T>(tables, &[], None),
        )
    }

    fn cursor_over<'v, T: Table>(
        &'v self,
        rocks: impl FnOnce(&'v RocksView<'a>) -> RocksCursor<'v>,
        memory: impl FnOnce(&Tables) -> MemoryCursor,
    ) -> Cursor<'v, T> {
        let place = match &self.source {
            Source::Rocks(view) => Place::Rocks(rocks(view)),
            Source::Memory(latest) => Place::Memory(latest.latest(memory)),
            Source::MemorySnapshot(tables) => Place::Memory(memory(tables)),
        };
        Cursor { place, table: PhantomData }
    }
}

impl RocksView<'_> {
    fn get<T: Table>(&self, key: &[u8]) -> Result<Option<T::Read>> {
        let family = self.rocks.handle_of::<T>(key);
        match self.rocks.db.get_pinned_cf_opt(family, key, &self.options)? {
            Some(value) => decode::<T>(key, &value).map(Some),
            None => Ok(None),
        }
    }

    fn multi_get<T: Table>(&self, keys: Keys) -> Result<Vec<Option<T::Read>>> {
        let count = keys.ends.len();
        if count <= PROBE {
            let keys: Vec<_> = keys.iter().collect();
            return multi_get_of::<T>(self.rocks, &self.options, &keys, false);
        }
        // Neighbours are in one file, and often in one block.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_unstable_by_key(|place| keys.get(*place));
        let order: Arc<[usize]> = order.into();
        // Threads that read end before this view, and with it the state that the options name.
        let (rocks, options, sorted) = (self.rocks.clone(), self.options.clone(), order.clone());
        let read: Arc<Read<Option<T::Read>>> = Arc::new(move |piece| {
            let keys: Vec<_> = sorted[piece].iter().map(|place| keys.get(*place)).collect();
            multi_get_of::<T>(&rocks, &options, &keys, true)
        });
        let found = self.rocks.deep.read(count, &read)?;
        let mut values: Vec<Option<T::Read>> = order.iter().map(|_| None).collect();
        for (place, value) in order.iter().zip(found) {
            values[*place] = value;
        }
        Ok(values)
    }

    /// Returns a cursor at the first record within bounds, over the column families at these positions.
    fn cursor<T: Table>(
        &self,
        span: RangeInclusive<usize>,
        bounds: impl rocksdb::IterateBounds,
    ) -> RocksCursor<'_> {
        let (lower, upper) = bounds.into_bounds();
        // Passes from one prefix to the next in tables with filters by prefix.
        let mut cursor = self.cursor_over::<T>(span, |options| {
            options.set_total_order_seek(true);
            if let Some(lower) = &lower {
                options.set_iterate_lower_bound(lower.clone());
            }
            if let Some(upper) = &upper {
                options.set_iterate_upper_bound(upper.clone());
            }
        });
        cursor.families[0].seek_to_first();
        cursor.settle();
        cursor
    }

    fn prefix_cursor<T: Table>(&self) -> RocksCursor<'_> {
        let all = self.rocks.span::<T>(&[], None);
        self.cursor_over::<T>(all, |options| options.set_prefix_same_as_start(true))
    }

    /// Returns a cursor that is at no record.
    fn cursor_over<T: Table>(
        &self,
        span: RangeInclusive<usize>,
        set: impl Fn(&mut ReadOptions),
    ) -> RocksCursor<'_> {
        let first = *span.start();
        // The column families of one cursor have to show the same state.
        let is_needed = span.end() > span.start() && self.snapshot.is_none();
        let snapshot = is_needed.then(|| self.rocks.db.snapshot());
        let family = |position| {
            let mut options = self.cursor_options();
            if let Some(snapshot) = &snapshot {
                options.set_snapshot(snapshot);
            }
            set(&mut options);
            self.rocks.db.raw_iterator_cf_opt(self.rocks.handle_at::<T>(position), options)
        };
        let families = span.map(family).collect();
        RocksCursor { families, current: 0, first, rocks: self.rocks, _snapshot: snapshot }
    }

    fn cursor_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if let Some(snapshot) = &self.snapshot {
            options.set_snapshot(snapshot);
        }
        options.fill_cache(self.is_cached);
        options
    }
}

/// Encoded keys in one buffer.
struct Keys {
    bytes: Vec<u8>,
    /// End of each key.
    ends: Vec<usize>,
}

impl Keys {
    fn encode<'k, T: Table>(keys: impl Iterator<Item = T::Key<'k>>) -> Self {
        let count = keys.size_hint().0;
        let (mut bytes, mut ends) = (Vec::with_capacity(count * 64), Vec::with_capacity(count));
        for key in keys {
            T::encode_key(key, &mut bytes);
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| self.get(index))
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

/// Returns the values of keys, in the thread that calls, which says whether the keys are in order. Makes one
/// call for each column family.
fn multi_get_of<T: Table>(
    rocks: &Rocks,
    options: &ReadOptions,
    keys: &[&[u8]],
    are_sorted: bool,
) -> Result<Vec<Option<T::Read>>> {
    let parts = rocks.families::<T>().len();
    let read = |position, keys: &[&[u8]]| -> Result<Vec<Option<T::Read>>> {
        let family = rocks.handle_at::<T>(position);
        let some = keys.iter().copied();
        let values = rocks.db.batched_multi_get_cf_opt(family, some, are_sorted, options);
        keys.iter()
            .zip(values)
            .map(|(key, value)| match value? {
                Some(value) => decode::<T>(key, &value).map(Some),
                None => Ok(None),
            })
            .collect()
    };
    if parts == 1 {
        return read(0, keys);
    }
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); parts];
    for (place, key) in keys.iter().enumerate() {
        places[rocks.position::<T>(key)].push(place);
    }
    let mut values: Vec<Option<T::Read>> = keys.iter().map(|_| None).collect();
    for (position, places) in places.iter().enumerate().filter(|(_, places)| !places.is_empty()) {
        let own: Vec<&[u8]> = places.iter().map(|place| keys[*place]).collect();
        for (place, value) in places.iter().zip(read(position, &own)?) {
            values[*place] = value;
        }
    }
    Ok(values)
}

/// Position in a table's key order. It starts at the first record of its range.
pub struct Cursor<'a, T: Table> {
    place: Place<'a>,
    table: PhantomData<T>,
}

enum Place<'a> {
    Rocks(RocksCursor<'a>),
    Memory(MemoryCursor),
}

/// Position in the column families of a table, one after the other.
struct RocksCursor<'a> {
    families: Vec<DBRawIteratorWithThreadMode<'a, Db>>,
    /// Index of the one that the cursor is in.
    current: usize,
    /// Position of the first one among those of the table.
    first: usize,
    rocks: &'a Rocks,
    /// State that all of them show. It ends after them.
    _snapshot: Option<SnapshotWithThreadMode<'a, Db>>,
}

impl RocksCursor<'_> {
    /// Passes on to the next record if there is none left in the current column family.
    fn settle(&mut self) {
        while !self.families[self.current].valid()
            && self.current + 1 < self.families.len()
            && self.families[self.current].status().is_ok()
        {
            self.current += 1;
            self.families[self.current].seek_to_first();
        }
    }

    fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        let item = self.families[self.current].item();
        if item.is_none() {
            self.families[self.current].status()?;
        }
        Ok(item)
    }

    fn advance(&mut self) {
        if self.families[self.current].valid() {
            self.families[self.current].next();
            self.settle();
        }
    }

    fn seek<T: Table>(&mut self, key: &[u8]) {
        let position = self.rocks.position::<T>(key).saturating_sub(self.first);
        self.current = position.min(self.families.len() - 1);
        self.families[self.current].seek(key);
        self.settle();
    }
}

impl<T: Table> std::fmt::Debug for Cursor<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("table", &T::NAME).finish()
    }
}

impl<T: Table> Cursor<'_, T> {
    /// Returns the bytes of the current key and value; `None` past the end.
    ///
    /// # Errors
    /// [`Error::Database`] if reading stopped before the end.
    pub fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        match &self.place {
            Place::Rocks(cursor) => cursor.entry(),
            Place::Memory(cursor) => Ok(cursor.entry()),
        }
    }

    /// Returns the current value; `None` past the end.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Database`].
    pub fn value(&self) -> Result<Option<T::Read>> {
        match self.entry()? {
            Some((key, value)) => decode::<T>(key, value).map(Some),
            None => Ok(None),
        }
    }

    /// Moves forward by one record.
    pub fn advance(&mut self) {
        match &mut self.place {
            Place::Rocks(cursor) => cursor.advance(),
            Place::Memory(cursor) => cursor.advance(),
        }
    }

    /// Moves to the first record of the range whose key is not below these bytes.
    pub fn seek(&mut self, key: &[u8]) {
        match &mut self.place {
            Place::Rocks(cursor) => cursor.seek::<T>(key),
            Place::Memory(cursor) => cursor.seek(key),
        }
    }
}

fn get_in<T: Table>(tables: &Tables, key: &[u8]) -> Result<Option<T::Read>> {
    tables.get::<T>(key).map(|value| decode::<T>(key, value)).transpose()
}

fn decode<T: Table>(key: &[u8], value: &[u8]) -> Result<T::Read> {
    T::decode_value(value)
        .ok_or_else(|| Error::Malformed { table: T::NAME, key: alloy_primitives::hex::encode(key) })
}
