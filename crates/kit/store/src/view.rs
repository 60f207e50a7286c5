use crate::{Error, Result, Store, Table, store::Db};
use rocksdb::{DBRawIteratorWithThreadMode, ReadOptions, SnapshotWithThreadMode};
use std::marker::PhantomData;

/// Reads from a store: the latest state, or one consistent state when it is a snapshot.
pub struct View<'a> {
    store: &'a Store,
    options: ReadOptions,
    snapshot: Option<SnapshotWithThreadMode<'a, Db>>,
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("snapshot", &self.snapshot.is_some()).finish()
    }
}

impl<'a> View<'a> {
    pub(crate) fn latest(store: &'a Store) -> Self {
        Self { store, options: ReadOptions::default(), snapshot: None }
    }

    pub(crate) fn snapshot(store: &'a Store) -> Self {
        let snapshot = store.db().snapshot();
        let mut options = ReadOptions::default();
        options.set_snapshot(&snapshot);
        Self { store, options, snapshot: Some(snapshot) }
    }

    /// The value of a key, `None` when it is absent.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Database`].
    pub fn get<T: Table>(&self, key: T::Key<'_>) -> Result<Option<T::Read>> {
        let mut bytes = Vec::with_capacity(64);
        T::encode_key(key, &mut bytes);
        let family = self.store.family_of::<T>();
        match self.store.db().get_pinned_cf_opt(family, &bytes, &self.options)? {
            Some(value) => decode::<T>(&bytes, &value).map(Some),
            None => Ok(None),
        }
    }

    /// The values of many keys in the order of the keys: one call to the database.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Database`].
    pub fn multi_get<'k, T: Table>(
        &self,
        keys: impl IntoIterator<Item = T::Key<'k>>,
    ) -> Result<Vec<Option<T::Read>>> {
        let keys = keys.into_iter();
        let mut bytes = Vec::with_capacity(keys.size_hint().0 * 64);
        let mut ends = Vec::with_capacity(keys.size_hint().0);
        for key in keys {
            T::encode_key(key, &mut bytes);
            ends.push(bytes.len());
        }
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let key = |index: usize| {
            let start = if index == 0 { 0 } else { ends[index - 1] };
            &bytes[start..ends[index]]
        };
        let family = self.store.family_of::<T>();
        let values = self.store.db().batched_multi_get_cf_opt(
            family,
            (0..ends.len()).map(key),
            false,
            &self.options,
        );
        values
            .into_iter()
            .enumerate()
            .map(|(index, value)| match value? {
                Some(value) => decode::<T>(key(index), &value).map(Some),
                None => Ok(None),
            })
            .collect()
    }

    /// All records whose key starts with `prefix`, in key order. An empty prefix means all.
    pub fn cursor<T: Table>(&self, prefix: &[u8]) -> Cursor<'_, T> {
        self.cursor_over(rocksdb::PrefixRange(prefix))
    }

    /// All records from the key `start` to before the key `end` (to the last one when that is
    /// `None`), in key order.
    pub fn range<T: Table>(&self, start: &[u8], end: Option<&[u8]>) -> Cursor<'_, T> {
        match end {
            Some(end) => self.cursor_over(start..end),
            None => self.cursor_over(start..),
        }
    }

    fn cursor_over<T: Table>(&self, bounds: impl rocksdb::IterateBounds) -> Cursor<'_, T> {
        let mut options = ReadOptions::default();
        if let Some(snapshot) = &self.snapshot {
            options.set_snapshot(snapshot);
        }
        options.set_iterate_range(bounds);
        let family = self.store.family_of::<T>();
        let mut inner = self.store.db().raw_iterator_cf_opt(family, options);
        inner.seek_to_first();
        Cursor { inner, table: PhantomData }
    }
}

/// A place in a table's key order. It starts at the first record of its range.
pub struct Cursor<'a, T: Table> {
    inner: DBRawIteratorWithThreadMode<'a, Db>,
    table: PhantomData<T>,
}

impl<T: Table> std::fmt::Debug for Cursor<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor").field("table", &T::NAME).finish()
    }
}

impl<T: Table> Cursor<'_, T> {
    /// The bytes of key and value here, `None` past the end.
    ///
    /// # Errors
    /// [`Error::Database`] when reading stopped before the end.
    pub fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        let item = self.inner.item();
        if item.is_none() {
            self.inner.status()?;
        }
        Ok(item)
    }

    /// The value here, `None` past the end.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::Database`].
    pub fn value(&self) -> Result<Option<T::Read>> {
        match self.entry()? {
            Some((key, value)) => decode::<T>(key, value).map(Some),
            None => Ok(None),
        }
    }

    /// Moves on by one record.
    pub fn advance(&mut self) {
        if self.inner.valid() {
            self.inner.next();
        }
    }

    /// Moves to the first record of the range whose key is not below these bytes.
    pub fn seek(&mut self, key: &[u8]) {
        self.inner.seek(key);
    }
}

fn decode<T: Table>(key: &[u8], value: &[u8]) -> Result<T::Read> {
    T::decode_value(value)
        .ok_or_else(|| Error::Malformed { table: T::NAME, key: alloy_primitives::hex::encode(key) })
}
