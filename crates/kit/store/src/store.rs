use crate::{
    Batch, Error, Options, Result, Table, View,
    batch::Writes,
    copy::copy,
    layout::{Layout, Record},
    memory::{Memory, MemoryBatch},
    options,
    rocks::{Db, Rocks, is_lock_error},
    tables,
    tables::Meta,
};
use rocksdb::{FlushOptions, WriteBatch, WriteOptions, checkpoint::Checkpoint};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Version of the tables and records. It rises with every change that an older Tandem would
/// misread.
pub const SCHEMA_VERSION: u32 = 5;

const SCHEMA_KEY: &str = "schema_version";

/// Largest write with which a store probes whether there is space again, in bytes.
const PROBE_BYTES_MAX: usize = 16 << 20;

/// Point at which a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// The write is on disk: it survives a power cut.
    Disk,
    /// The operating system has the write: it survives the death of the process.
    Process,
    /// The write stays in memory until [`Store::flush`]: for bulk loads that start over after a
    /// failure.
    Memory,
}

/// Open database directory, or a database in memory. All methods may be called from any thread.
pub struct Store {
    pub(crate) backend: Backend,
    pub(crate) writes: WriteState,
}

/// Status of a store's writes.
#[derive(Debug, Default)]
pub(crate) struct WriteState {
    /// Number up to which all writes are known to be on disk.
    synced: AtomicU64,
    /// Number of failed writes.
    failures: AtomicU64,
    /// Bytes of the last write if it failed, otherwise zero.
    failing_bytes: AtomicUsize,
}

/// Storage behind a store's tables.
pub(crate) enum Backend {
    Rocks(Arc<Rocks>),
    Memory(Memory),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish()
    }
}

impl Store {
    /// Creates a new database in a directory that is missing or empty.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the directory is not empty.
    pub fn create(path: &Path, options: &Options) -> Result<Self> {
        if holds_anything(path)? {
            return Err(Error::Foreign {
                path: path.to_owned(),
                reason: "the directory is not empty".to_owned(),
            });
        }
        let mut database = options.database();
        database.create_if_missing(true);
        database.create_missing_column_families(true);
        database.set_error_if_exists(true);
        let store = Self::open_with(path, options, database, Layout::default())?;
        let mut batch = store.batch();
        batch.put::<Meta>(SCHEMA_KEY, &SCHEMA_VERSION.to_be_bytes());
        store.write(batch, Durability::Disk)?;
        Ok(store)
    }

    /// Creates a new database in memory only, which is gone when it is dropped. It is cheap to
    /// make, so it suits short-lived chains.
    pub fn in_memory() -> Self {
        let memory = Memory::default();
        let mut writes = MemoryBatch::default();
        writes.push::<Meta>(SCHEMA_KEY.as_bytes(), Some(&SCHEMA_VERSION.to_be_bytes()));
        memory.write(writes);
        Self { backend: Backend::Memory(memory), writes: WriteState::default() }
    }

    /// Opens a database that [`Store::create`] made.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Foreign`], [`Error::Locked`] or [`Error::NewerSchema`].
    pub fn open(path: &Path, options: &Options) -> Result<Self> {
        if !path.join("CURRENT").is_file() {
            return Err(match holds_anything(path)? {
                false => Error::Missing(path.to_owned()),
                true => Error::Foreign {
                    path: path.to_owned(),
                    reason: "there are files, but no database".to_owned(),
                },
            });
        }
        let database = options.database();
        let found = Db::list_cf(&database, path)?;
        let layout = Layout::find(path, &found)?;
        let expected = |entry: &tables::Entry| layout.families(entry).into_iter();
        let lacks = |name: &str| !found.iter().any(|have| have == name);
        let old = |name: &str| !tables::ADDED.contains(&name);
        let missing = tables::ALL
            .iter()
            .find(|entry| old(entry.0) && expected(entry).any(|(name, _)| lacks(&name)));
        let added = tables::ADDED.iter().filter(|name| lacks(name)).count();
        let all: usize = tables::ALL.iter().map(|entry| expected(entry).len()).sum();
        // A database with other tables must not be opened for writing. So its version is read
        // first, only to report the fault.
        if missing.is_some() || found.len() + added != all + 1 {
            refuse_newer(path, peek_schema(path, &found)?)?;
            return Err(Error::Foreign {
                path: path.to_owned(),
                reason: match missing {
                    Some((name, _)) => format!("the table {name} is missing"),
                    None => format!("unknown tables among {}", found.join(", ")),
                },
            });
        }
        layout.check(path)?;
        let mut database = database;
        database.create_missing_column_families(added > 0);
        let store = Self::open_with(path, options, database, layout)?;
        let schema = store.view().get::<Meta>(SCHEMA_KEY)?;
        let schema = schema.and_then(|bytes| decode_schema(&bytes));
        refuse_newer(path, schema)?;
        if schema != Some(SCHEMA_VERSION) {
            let mut batch = store.batch();
            batch.put::<Meta>(SCHEMA_KEY, &SCHEMA_VERSION.to_be_bytes());
            store.write(batch, Durability::Disk)?;
        }
        Ok(store)
    }

    fn open_with(
        path: &Path,
        options: &Options,
        database: rocksdb::Options,
        layout: Layout,
    ) -> Result<Self> {
        let rocks = Rocks::open(path, options, database, layout, &[])?;
        for directory in rocks.layout.directories().chain([path]) {
            Self::remove_unfinished_runs(directory)?;
        }
        // Recovery has written the content of the log to files.
        let synced = AtomicU64::new(rocks.db.latest_sequence_number());
        let writes = WriteState { synced, ..WriteState::default() };
        Ok(Self { backend: Backend::Rocks(Arc::new(rocks)), writes })
    }

    /// Removes a database with all its files. Does nothing if the directory is missing.
    ///
    /// # Errors
    /// [`Error::Locked`] if a process has it open.
    pub fn destroy(path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let layout = Record::read(path)?.map(|record| record.layout).unwrap_or_default();
        // RocksDB takes the lock first, which a plain removal of the directory would not do.
        match Db::destroy(&rocksdb::Options::default(), path) {
            Err(error) if is_lock_error(&error) => return Err(Error::Locked(path.to_owned())),
            Err(error) => return Err(error.into()),
            Ok(()) => {}
        }
        layout.clear();
        match std::fs::remove_dir_all(path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { context: "remove", path: path.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    /// Copies the database into a directory that does not exist, which gets all files of it. Files that
    /// never change are shared by hard links if both are on one volume. Does nothing for a database in
    /// memory.
    ///
    /// # Errors
    /// [`Error::Database`] or [`Error::Io`], also if the directory exists.
    pub fn copy_to(&self, path: &Path) -> Result<()> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(()) };
        if rocks.layout.directories().next().is_some() {
            // Writes without the log have to be in files.
            self.flush()?;
            return copy(rocks, path);
        }
        Ok(Checkpoint::new(&rocks.db)?.create_checkpoint(path)?)
    }

    /// Returns the directory of the database; `None` if it is in memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.backend {
            Backend::Rocks(rocks) => Some(&rocks.path),
            Backend::Memory(_) => None,
        }
    }

    /// Returns a view whose every call reads the newest state.
    pub fn view(&self) -> View<'_> {
        View::latest(self)
    }

    /// Returns a view of one consistent state, the current one. It keeps old data alive, so it
    /// should not be held for long.
    pub fn snapshot(&self) -> View<'_> {
        View::snapshot(self, true)
    }

    /// Returns a view as [`Store::snapshot`], whose reads leave the block cache as it is: for a look at
    /// everything.
    pub fn scan_snapshot(&self) -> View<'_> {
        View::snapshot(self, false)
    }

    /// Makes an empty batch for this store.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// Writes a whole batch; writes nothing if it fails.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn write(&self, batch: Batch<'_>, durability: Durability) -> Result<()> {
        match (&self.backend, batch.into_writes()) {
            (Backend::Rocks(rocks), Writes::Rocks(writes)) => {
                let db = &rocks.db;
                let (before, bytes) = (db.latest_sequence_number(), writes.size_in_bytes());
                let mut options = WriteOptions::default();
                match durability {
                    Durability::Disk => options.set_sync(true),
                    Durability::Process => {}
                    Durability::Memory => options.disable_wal(true),
                }
                let written = db.write_opt(writes, &options);
                self.note_write(written.is_ok(), bytes);
                if durability == Durability::Disk && written.is_ok() {
                    // The first record of this batch, at least, has a higher number.
                    self.writes.synced.fetch_max(before + 1, Relaxed);
                }
                Ok(written?)
            }
            (Backend::Memory(memory), Writes::Memory(writes)) => {
                memory.write(writes);
                Ok(())
            }
            _ => Err(Error::Database("the batch was made by another store".to_owned())),
        }
    }

    fn note_write(&self, ok: bool, bytes: usize) {
        self.writes.failing_bytes.store(if ok { 0 } else { bytes.max(1) }, Relaxed);
        if !ok {
            self.writes.failures.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of writes that failed since the store was opened.
    pub fn write_failures(&self) -> u64 {
        self.writes.failures.load(Relaxed)
    }

    /// Returns whether the last write failed.
    pub fn is_failing(&self) -> bool {
        self.writes.failing_bytes.load(Relaxed) != 0
    }

    /// Checks whether there is space again. Writes as many bytes to the log as the last failed
    /// write had, but changes no table. Does nothing if the last write succeeded.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn probe(&self) -> Result<()> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(()) };
        let bytes = self.writes.failing_bytes.load(Relaxed);
        if bytes == 0 {
            return Ok(());
        }
        let mut writes = WriteBatch::default();
        writes.put_log_data(vec![0; bytes.min(PROBE_BYTES_MAX)]);
        // The batch repeats an existing record: a batch of log data alone might not be written.
        let schema = SCHEMA_VERSION.to_be_bytes();
        writes.put_cf(rocks.handle_at::<Meta>(0), SCHEMA_KEY.as_bytes(), schema);
        let written = rocks.db.write_opt(writes, &WriteOptions::default());
        self.note_write(written.is_ok(), bytes);
        Ok(written?)
    }

    /// Returns RocksDB's number of the last write; `None` in memory.
    pub fn sequence(&self) -> Option<u64> {
        match &self.backend {
            Backend::Rocks(rocks) => Some(rocks.db.latest_sequence_number()),
            Backend::Memory(_) => None,
        }
    }

    /// Returns a number up to which all writes are known to be on disk.
    pub fn synced_sequence(&self) -> u64 {
        self.writes.synced.load(Relaxed)
    }

    /// Waits until the log is on disk.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn sync(&self) -> Result<()> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(()) };
        let before = rocks.db.latest_sequence_number();
        rocks.db.flush_wal(true)?;
        self.writes.synced.fetch_max(before, Relaxed);
        Ok(())
    }

    /// Writes everything that is still in memory to files, and waits for it. Does nothing for a
    /// database in memory.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn flush(&self) -> Result<()> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(()) };
        let tables = 0..tables::ALL.len();
        let families = tables.flat_map(|table| rocks.families_at(table));
        let families: Vec<_> = families.map(|family| rocks.handle(family)).collect();
        let mut options = FlushOptions::default();
        options.set_wait(true);
        Ok(rocks.db.flush_cfs_opt(&families, &options)?)
    }
}

pub(crate) fn holds_anything(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Io { context: "read", path: path.to_owned(), source }),
    }
}

fn decode_schema(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

/// Returns the schema version of a database that may have other tables than this build.
fn peek_schema(path: &Path, families: &[String]) -> Result<Option<u32>> {
    if !families.iter().any(|name| name == Meta::NAME) {
        return Ok(None);
    }
    let names = ["default", Meta::NAME];
    let db = Db::open_cf_for_read_only(&options::for_reading(), path, names, false)?;
    let Some(meta) = db.cf_handle(Meta::NAME) else { return Ok(None) };
    Ok(db.get_cf(meta, SCHEMA_KEY)?.as_deref().and_then(decode_schema))
}

fn refuse_newer(path: &Path, found: Option<u32>) -> Result<()> {
    match found {
        Some(found) if found > SCHEMA_VERSION => {
            Err(Error::NewerSchema { path: path.to_owned(), found, supported: SCHEMA_VERSION })
        }
        Some(_) => Ok(()),
        None => Err(Error::Foreign {
            path: path.to_owned(),
            reason: "it has no schema version".to_owned(),
        }),
    }
}
