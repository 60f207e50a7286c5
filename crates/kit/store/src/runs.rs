//! Bulk loads past log and memtables: records in key order become sorted files, which a table takes
//! over all at once.

use crate::{
    Durability, Error, Result, Sorter, Store, Table,
    memory::{Memory, MemoryBatch},
    rocks::Rocks,
    store::Backend,
};
use rocksdb::{IngestExternalFileOptions, SstFileWriter, WriteBatch};
use std::{
    fs,
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Start of the names of files in the folder of the database that are not part of it yet. RocksDB leaves
/// files alone whose names it does not know.
const PREFIX: &str = "run-";

/// Bytes that are more than any key has: a hash and a path of 64 nibbles.
const KEY_LEN_MAX: usize = 128;

/// Bytes at which a file is closed and the next one begun; as large as those of compactions.
const FILE_BYTES: u64 = 64 << 20;

/// Bytes up to which a run is one write of the log. A file, with its syncs, would take longer.
const SMALL_BYTES: usize = 1 << 20;

/// Records between two looks at the size of the file.
const LOOK_EVERY: u64 = 256;

/// Number of the next file of this process.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

/// Writer of records of one table in strictly ascending order of their keys. The table has none of
/// them before [`SortedRun::finish`], and all of them afterwards. A run that is dropped leaves nothing.
pub struct SortedRun<'s, T: Table> {
    target: Target<'s, T>,
    key: Vec<u8>,
    value: Vec<u8>,
}

enum Target<'s, T: Table> {
    Rocks(Files<'s, T>),
    Memory { memory: &'s Memory, writes: MemoryBatch, last: Option<Vec<u8>> },
}

/// Key and value.
type Record = (Box<[u8]>, Box<[u8]>);

/// Files of a run. Each has keys of one column family.
pub(crate) struct Files<'s, T: Table> {
    rocks: &'s Rocks,
    /// Records so far, as long as the run is small.
    small: Vec<Record>,
    small_bytes: usize,
    open: Option<SstFileWriter<'s>>,
    /// Records in the open file.
    records: u64,
    /// Position of the column family that the open file is for.
    position: usize,
    /// All files, the open one last, and the positions of their column families. They are removed when this is
    /// dropped.
    paths: Vec<(usize, PathBuf)>,
    table: PhantomData<T>,
}

impl<T: Table> std::fmt::Debug for SortedRun<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortedRun").field("table", &T::NAME).finish_non_exhaustive()
    }
}

impl Store {
    /// Begins a bulk load of a table.
    pub fn sorted_run<T: Table>(&self) -> SortedRun<'_, T> {
        let target = match &self.backend {
            Backend::Rocks(rocks) => Target::Rocks(Files::new(rocks)),
            Backend::Memory(memory) => {
                Target::Memory { memory, writes: MemoryBatch::default(), last: None }
            }
        };
        SortedRun { target, key: Vec::new(), value: Vec::new() }
    }
}

impl Store {
    /// Creates a sorter that holds about `bytes_max` bytes, and writes what is beyond to the volume of
    /// the database. For a database in memory, it holds everything.
    pub fn sorter(&self, bytes_max: usize) -> Sorter {
        match &self.backend {
            Backend::Rocks(rocks) => Sorter::new(&rocks.path, bytes_max),
            Backend::Memory(_) => Sorter::new(Path::new(""), usize::MAX),
        }
    }

    /// Removes all records whose keys start with anything from `first` to `last`; both have the same
    /// length, and empty ones mean the whole table. Files of which nothing is left go at once, and the
    /// others are written anew. The records vanish from snapshots too. Not atomic: a process that dies may
    /// leave a part.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn clear<T: Table>(&self, first: &[u8], last: &[u8]) -> Result<()> {
        if let Some(end) = self.drop_range::<T>(first, last)?
            && let Backend::Rocks(rocks) = &self.backend
        {
            for position in rocks.span::<T>(first, Some(&end)) {
                let family = rocks.handle_at::<T>(position);
                rocks.db.compact_range_cf(family, Some(first), Some(&end));
            }
        }
        Ok(())
    }

    /// Removes records as [`Self::clear`] does, except that files with other records stay as they are
    /// until a compaction meets them. So it takes little time, however much is removed.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn forget<T: Table>(&self, first: &[u8], last: &[u8]) -> Result<()> {
        self.drop_range::<T>(first, last).map(drop)
    }

    /// Removes a range of records. Returns its end, `None` if there was no record.
    fn drop_range<T: Table>(&self, first: &[u8], last: &[u8]) -> Result<Option<Vec<u8>>> {
        // No key is this long.
        let end = [last, &[0xff; KEY_LEN_MAX]].concat();
        let is_empty = self.view().range::<T>(first, Some(&end)).entry()?.is_none();
        if is_empty {
            return Ok(None);
        }
        match &self.backend {
            Backend::Rocks(rocks) => {
                for position in rocks.span::<T>(first, Some(&end)) {
                    let family = rocks.handle_at::<T>(position);
                    rocks.db.delete_file_in_range_cf(family, first, &end)?;
                    rocks.db.delete_range_cf(family, first, end.as_slice())?;
                }
            }
            Backend::Memory(_) => {
                let view = self.view();
                let mut records = view.range::<T>(first, Some(&end));
                let mut batch = self.batch();
                while let Some((key, _)) = records.entry()? {
                    batch.delete_raw::<T>(key);
                    records.advance();
                }
                self.write(batch, Durability::Memory)?;
            }
        }
        Ok(Some(end))
    }

    /// Removes files in a directory that an earlier process wrote and did not finish.
    pub(crate) fn remove_unfinished_runs(directory: &Path) -> Result<()> {
        let failed = |source| Error::Io { context: "list", path: directory.to_owned(), source };
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with(PREFIX)) {
                let removed = fs::remove_file(&path);
                removed.map_err(|source| Error::Io { context: "remove", path, source })?;
            }
        }
        Ok(())
    }
}

impl<T: Table> SortedRun<'_, T> {
    /// Adds a record.
    ///
    /// # Errors
    /// [`Error::Database`] if the key is not above the last one, or a file cannot be written.
    pub fn put(&mut self, key: T::Key<'_>, value: T::Write<'_>) -> Result<()> {
        self.key.clear();
        self.value.clear();
        T::encode_key(key, &mut self.key);
        T::encode_value(value, &mut self.value);
        match &mut self.target {
            Target::Rocks(files) => files.put(&self.key, &self.value),
            Target::Memory { writes, last, .. } => {
                if last.as_ref().is_some_and(|last| *last >= self.key) {
                    return Err(Error::Database("keys must be added in strict order".to_owned()));
                }
                writes.push::<T>(&self.key, Some(&self.value));
                *last = Some(self.key.clone());
                Ok(())
            }
        }
    }

    /// Gives all records to the table. They replace older ones with the same keys, and survive the
    /// death of the process; those of a run of more than a mebibyte survive a power cut as well. A process
    /// that dies meanwhile may leave the records of some of the directories that a database is spread over.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn finish(self) -> Result<()> {
        match self.target {
            Target::Rocks(files) => files.finish(),
            Target::Memory { memory, writes, .. } => {
                memory.write(writes);
                Ok(())
            }
        }
    }
}

impl<'s, T: Table> Files<'s, T> {
    pub(crate) fn new(rocks: &'s Rocks) -> Self {
        Self {
            rocks,
            small: Vec::new(),
            small_bytes: 0,
            open: None,
            records: 0,
            position: 0,
            paths: Vec::new(),
            table: PhantomData,
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.paths.is_empty() {
            return self.put_in_file(key, value);
        }
        if self.small.last().is_some_and(|(last, _)| **last >= *key) {
            return Err(Error::Database("keys must be added in strict order".to_owned()));
        }
        self.small_bytes += key.len() + value.len();
        self.small.push((key.into(), value.into()));
        if self.small_bytes <= SMALL_BYTES {
            return Ok(());
        }
        for (key, value) in std::mem::take(&mut self.small) {
            self.put_in_file(&key, &value)?;
        }
        Ok(())
    }

    fn put_in_file(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let position = self.rocks.position::<T>(key);
        let is_full = |writer: &SstFileWriter<'_>| writer.file_size() >= FILE_BYTES;
        let is_due = self.records.is_multiple_of(LOOK_EVERY);
        if position < self.position {
            return Err(Error::Database("keys must be added in strict order".to_owned()));
        }
        if position > self.position || is_due && self.open.as_ref().is_some_and(is_full) {
            self.close()?;
        }
        self.position = position;
        let writer = match &mut self.open {
            Some(writer) => writer,
            None => {
                let number = NEXT_FILE.fetch_add(1, Relaxed);
                let name = format!("{PREFIX}{number}");
                let rocks = self.rocks;
                let family = &rocks.families::<T>()[position];
                let path = family.directory.join(name);
                let writer = SstFileWriter::create(&family.options);
                self.paths.push((position, path.clone()));
                writer.open(&path)?;
                self.records = 0;
                self.open.insert(writer)
            }
        };
        self.records += 1;
        Ok(writer.put(key, value)?)
    }

    fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some(mut writer) => Ok(writer.finish()?),
            None => Ok(()),
        }
    }

    /// Gives all records to the table.
    pub(crate) fn finish(mut self) -> Result<()> {
        // A small run is one write of the log.
        let mut writes = WriteBatch::default();
        for (key, value) in std::mem::take(&mut self.small) {
            writes.put_cf(self.rocks.handle_of::<T>(&key), key, value);
        }
        if !writes.is_empty() {
            self.rocks.db.write(writes)?;
        }
        self.close()?;
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        for files in self.paths.chunk_by(|(one, _), (other, _)| one == other) {
            let family = self.rocks.handle_at::<T>(files[0].0);
            let paths = files.iter().map(|(_, path)| path).collect();
            self.rocks.db.ingest_external_file_cf_opts(family, &options, paths)?;
        }
        Ok(())
    }
}

impl<T: Table> Drop for Files<'_, T> {
    fn drop(&mut self) {
        drop(self.open.take());
        for (_, path) in &self.paths {
            // Files of a finished run are in the database by now, under other names.
            // One that cannot be removed costs space until the directory is.
            let _ = fs::remove_file(path);
        }
    }
}
