//! Shape of the tables in files: levels, keys, amplification; and compaction on request.

use crate::{Error, Result, Store, rocks::Rocks, store::Backend, tables, usage::of_table};
use rocksdb::{BottommostLevelCompaction, CompactOptions, properties, statistics::Ticker};
use serde::Serialize;
use std::{
    ffi::CStr,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// Properties of a table's blob files, which the library has no names for.
const BLOB_FILES: &CStr = c"rocksdb.num-blob-files";
const BLOB_BYTES: &CStr = c"rocksdb.total-blob-file-size";

/// Pause between two progress reports of a compaction.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// One level of a table. Level 0 holds flushed files whose keys overlap; the files of every other
/// level are one sorted run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Level {
    /// Number of the level; data moves to higher numbers.
    pub level: u32,
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Number of records, deletions included.
    pub records: u64,
    /// Number of records that delete a key.
    pub deletions: u64,
}

/// Shape of one table at one moment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TableShape {
    /// Name of the table.
    pub table: &'static str,
    /// Levels that have files, in rising order.
    pub levels: Vec<Level>,
    /// Number of keys, as RocksDB estimates it.
    pub keys_estimate: u64,
    /// Bytes of the newest versions of all keys, as RocksDB estimates them.
    pub live_bytes_estimate: u64,
    /// Number of files with large values.
    pub blob_files: u64,
    /// Bytes of the files with large values.
    pub blob_bytes: u64,
    /// Bytes of the memtables.
    pub memtable_bytes: u64,
    /// Bytes that compactions have yet to rewrite, as estimated.
    pub compaction_pending_bytes: u64,
}

impl TableShape {
    /// Returns the bytes of the sorted files, without those of large values.
    #[must_use]
    pub fn sorted_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.bytes).sum()
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.sorted_bytes() + self.blob_bytes
    }

    /// Returns the number of sorted files.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.levels.iter().map(|level| level.files).sum()
    }

    /// Returns the read amplification without filters: the number of sorted runs in which a key may
    /// be. Each file of level 0 is one, and each other level that has files.
    #[must_use]
    pub fn sorted_runs(&self) -> u64 {
        let runs = |level: &Level| if level.level == 0 { level.files } else { 1 };
        self.levels.iter().map(runs).sum()
    }

    /// Returns the space amplification: the bytes of the sorted files for each byte of the newest
    /// versions; `None` for an empty table.
    #[must_use]
    pub fn space_amplification(&self) -> Option<f64> {
        let live = self.live_bytes_estimate;
        (live > 0).then(|| self.sorted_bytes() as f64 / live as f64)
    }
}

/// Work of one compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Compaction {
    /// Bytes of the table's files before.
    pub bytes_before: u64,
    /// Bytes of the table's files afterwards.
    pub bytes_after: u64,
    /// Bytes that were read for it.
    pub read_bytes: u64,
    /// Bytes that were written for it.
    pub written_bytes: u64,
}

impl Store {
    /// Returns the names of all tables.
    pub fn table_names() -> impl Iterator<Item = &'static str> {
        tables::ALL.iter().map(|(name, _)| *name)
    }

    /// Returns the shape of every table; nothing for a store in memory. Lists all files, so it takes
    /// longer the larger the database is.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn shapes(&self) -> Result<Vec<TableShape>> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(Vec::new()) };
        let files = rocks.db.live_files()?;
        let shape = |(table, name): (usize, &'static str)| -> Result<TableShape> {
            let mut levels: Vec<Level> = Vec::new();
            let families = rocks.families_at(table);
            let is_own = |family: &str| families.iter().any(|own| own.name == family);
            for file in files.iter().filter(|file| is_own(&file.column_family_name)) {
                let level = u32::try_from(file.level).unwrap_or(0);
                let at = match levels.binary_search_by_key(&level, |level| level.level) {
                    Ok(at) => at,
                    Err(at) => {
                        let empty = Level { level, files: 0, bytes: 0, records: 0, deletions: 0 };
                        levels.insert(at, empty);
                        at
                    }
                };
                levels[at].files += 1;
                levels[at].bytes += file.size as u64;
                levels[at].records += file.num_entries;
                levels[at].deletions += file.num_deletions;
            }
            let property = |property: &CStr| of_table(rocks, table, property);
            Ok(TableShape {
                table: name,
                levels,
                keys_estimate: property(properties::ESTIMATE_NUM_KEYS)?,
                live_bytes_estimate: property(properties::ESTIMATE_LIVE_DATA_SIZE)?,
                blob_files: property(BLOB_FILES)?,
                blob_bytes: property(BLOB_BYTES)?,
                memtable_bytes: property(properties::CUR_SIZE_ALL_MEM_TABLES)?,
                compaction_pending_bytes: property(properties::ESTIMATE_PENDING_COMPACTION_BYTES)?,
            })
        };
        Self::table_names().enumerate().map(shape).collect()
    }

    /// Writes all data of a table anew into its lowest level, in the form that files have today, and waits until
    /// that is done. `progress` gets the bytes written so far, several times a second. Does nothing for a store in
    /// memory.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::Database`] if a flush or compaction failed meanwhile.
    pub fn compact(&self, table: &str, progress: &mut dyn FnMut(u64)) -> Result<Compaction> {
        let Some(place) = Self::table_names().position(|name| name == table) else {
            return Err(Error::UnknownTable(table.to_owned()));
        };
        let nothing =
            Compaction { bytes_before: 0, bytes_after: 0, read_bytes: 0, written_bytes: 0 };
        let Backend::Rocks(rocks) = &self.backend else { return Ok(nothing) };
        let Rocks { db, options, .. } = &**rocks;
        let bytes = || {
            let sorted = of_table(rocks, place, properties::TOTAL_SST_FILES_SIZE)?;
            Ok::<_, Error>(sorted + of_table(rocks, place, BLOB_BYTES)?)
        };
        let count = |ticker| options.get_ticker_count(ticker);
        let written = || count(Ticker::CompactWriteBytes) + count(Ticker::FlushWriteBytes);
        let errors = || db.property_int_value(properties::BACKGROUND_ERRORS);
        let before = (bytes()?, count(Ticker::CompactReadBytes), written(), errors()?);
        thread::scope(|scope| {
            let (end, ended) = channel::<()>();
            scope.spawn(move || {
                let mut how = CompactOptions::default();
                // Files in the lowest level may have an older form.
                how.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
                let all = None::<&[u8]>;
                for family in rocks.families_at(place) {
                    db.compact_range_cf_opt(rocks.handle(family), all, all, &how);
                }
                drop(end);
            });
            while ended.recv_timeout(REPORT_EVERY) == Err(RecvTimeoutError::Timeout) {
                progress(written() - before.2);
            }
        });
        // The call itself does not say whether it succeeded.
        if errors()? != before.3 {
            let text = format!("compaction of table {table} failed; the file LOG says why");
            return Err(Error::Database(text));
        }
        Ok(Compaction {
            bytes_before: before.0,
            bytes_after: bytes()?,
            read_bytes: count(Ticker::CompactReadBytes) - before.1,
            written_bytes: written() - before.2,
        })
    }
}
