use crate::{Store, Table, memory::MemoryBatch, rocks::Rocks, store::Backend};
use rocksdb::WriteBatch;

/// Writes to any tables that are applied atomically. Later writes override earlier ones.
pub struct Batch<'a> {
    inner: Inner<'a>,
    key: Vec<u8>,
    value: Vec<u8>,
}

enum Inner<'a> {
    Rocks { rocks: &'a Rocks, writes: WriteBatch },
    Memory(MemoryBatch),
}

/// Content of a batch, for its store.
pub(crate) enum Writes {
    Rocks(WriteBatch),
    Memory(MemoryBatch),
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("writes", &self.len()).finish()
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        let inner = match &store.backend {
            Backend::Rocks(rocks) => Inner::Rocks { rocks, writes: WriteBatch::default() },
            Backend::Memory(_) => Inner::Memory(MemoryBatch::default()),
        };
        Self { inner, key: Vec::new(), value: Vec::new() }
    }

    /// Sets the value of a key.
    pub fn put<T: Table>(&mut self, key: T::Key<'_>, value: T::Write<'_>) {
        self.key.clear();
        self.value.clear();
        T::encode_key(key, &mut self.key);
        T::encode_value(value, &mut self.value);
        match &mut self.inner {
            Inner::Rocks { rocks, writes } => {
                writes.put_cf(rocks.handle_of::<T>(&self.key), &self.key, &self.value);
            }
            Inner::Memory(writes) => writes.push::<T>(&self.key, Some(&self.value)),
        }
    }

    /// Removes a key; does nothing if the key is absent.
    pub fn delete<T: Table>(&mut self, key: T::Key<'_>) {
        let mut bytes = std::mem::take(&mut self.key);
        bytes.clear();
        T::encode_key(key, &mut bytes);
        self.delete_raw::<T>(&bytes);
        self.key = bytes;
    }

    /// Removes a key given as bytes, as a [`crate::Cursor`] shows them.
    pub fn delete_raw<T: Table>(&mut self, key: &[u8]) {
        match &mut self.inner {
            Inner::Rocks { rocks, writes } => writes.delete_cf(rocks.handle_of::<T>(key), key),
            Inner::Memory(writes) => writes.push::<T>(key, None),
        }
    }

    /// Returns the number of puts and deletes so far.
    pub fn len(&self) -> usize {
        match &self.inner {
            Inner::Rocks { writes, .. } => writes.len(),
            Inner::Memory(writes) => writes.len(),
        }
    }

    /// Returns whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that the batch occupies.
    pub fn byte_len(&self) -> usize {
        match &self.inner {
            Inner::Rocks { writes, .. } => writes.size_in_bytes(),
            Inner::Memory(writes) => writes.byte_len(),
        }
    }

    pub(crate) fn into_writes(self) -> Writes {
        match self.inner {
            Inner::Rocks { writes, .. } => Writes::Rocks(writes),
            Inner::Memory(writes) => Writes::Memory(writes),
        }
    }
}
