use crate::{Store, Table};
use rocksdb::WriteBatch;

/// Writes to any tables that happen together or not at all. Later ones win over earlier ones.
pub struct Batch<'a> {
    store: &'a Store,
    inner: WriteBatch,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("writes", &self.inner.len()).finish()
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store, inner: WriteBatch::default(), key: Vec::new(), value: Vec::new() }
    }

    /// Sets the value of a key.
    pub fn put<T: Table>(&mut self, key: T::Key<'_>, value: T::Write<'_>) {
        self.key.clear();
        self.value.clear();
        T::encode_key(key, &mut self.key);
        T::encode_value(value, &mut self.value);
        self.inner.put_cf(self.store.family_of::<T>(), &self.key, &self.value);
    }

    /// Removes a key; nothing happens when it is absent.
    pub fn delete<T: Table>(&mut self, key: T::Key<'_>) {
        self.key.clear();
        T::encode_key(key, &mut self.key);
        self.inner.delete_cf(self.store.family_of::<T>(), &self.key);
    }

    /// Removes a key by its bytes, as a [`crate::Cursor`] shows them.
    pub fn delete_raw<T: Table>(&mut self, key: &[u8]) {
        self.inner.delete_cf(self.store.family_of::<T>(), key);
    }

    /// Puts and deletes so far.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Bytes that the batch occupies.
    pub fn byte_len(&self) -> usize {
        self.inner.size_in_bytes()
    }

    pub(crate) fn into_inner(self) -> WriteBatch {
        self.inner
    }
}
