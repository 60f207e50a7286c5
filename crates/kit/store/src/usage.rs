//! Size and health of the database, as RocksDB counts them.

use crate::{Result, Store, rocks::Rocks, store::Backend, tables};
use rocksdb::{properties, statistics::Ticker};
use std::{ffi::CStr, io, time::Duration};

/// Property of a table's blob files in bytes, which the library has no name for.
const BLOB_FILES_SIZE: &CStr = c"rocksdb.total-blob-file-size";

/// State of a database at one moment. The counters start at zero when it is opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes of the files of each table, by table name.
    pub file_bytes: Vec<(&'static str, u64)>,
    /// Bytes of all memtables.
    pub memtable_bytes: u64,
    /// Bytes in the block cache.
    pub cache_bytes: u64,
    /// Counter: blocks that were found in the cache, by kind.
    pub cache_hits: Blocks,
    /// Counter: blocks that were read from files instead, by kind.
    pub cache_misses: Blocks,
    /// Bytes that compactions have yet to rewrite, as estimated.
    pub compaction_pending_bytes: u64,
    /// Number of running flushes.
    pub flushes: u64,
    /// Number of running compactions.
    pub compactions: u64,
    /// Counter: bytes written to the log.
    pub log_written_bytes: u64,
    /// Counter: bytes written by flushes.
    pub flush_written_bytes: u64,
    /// Counter: bytes written by compactions.
    pub compaction_written_bytes: u64,
    /// Counter: time for which writers were stalled because flushes or compactions lagged behind.
    pub stalled: Duration,
    /// Counter: flushes and compactions that failed.
    pub background_errors: u64,
    /// Counter: writes that failed.
    pub write_failures: u64,
    /// Counter: keys that were read in several threads, as the disk took the time.
    pub deep_keys: u64,
}

/// Numbers of blocks of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Blocks {
    /// Blocks with records.
    pub data: u64,
    /// Indices, or parts of them.
    pub index: u64,
    /// Filters, or parts of them.
    pub filter: u64,
}

impl Store {
    /// Returns the bytes that the fullest of its volumes has left for this process; `None` for a store in
    /// memory. Asks the file system, which may block.
    ///
    /// # Errors
    /// Error of the operating system.
    pub fn free_bytes(&self) -> io::Result<Option<u64>> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(None) };
        let mut least = u64::MAX;
        for directory in rocks.layout.directories().chain([&*rocks.path]) {
            let volume = rustix::fs::statvfs(directory)?;
            least = least.min(volume.f_bavail.saturating_mul(volume.f_frsize));
        }
        Ok(Some(least))
    }

    /// Returns the current usage of the database; `None` for a store in memory. Takes short locks
    /// of the database, so call it every few seconds, not on every request.
    ///
    /// # Errors
    /// [`Error::Database`](crate::Error::Database).
    pub fn usage(&self) -> Result<Option<Usage>> {
        let Backend::Rocks(rocks) = &self.backend else { return Ok(None) };
        let Rocks { db, options, deep, .. } = &**rocks;
        let whole = |property| Ok::<_, crate::Error>(db.property_int_value(property)?.unwrap_or(0));
        let count = |ticker| options.get_ticker_count(ticker);
        let mut usage = Usage {
            // All tables share one cache, so any of them can be asked.
            cache_bytes: of_table(rocks, 0, properties::BLOCK_CACHE_USAGE)?,
            cache_hits: Blocks {
                data: count(Ticker::BlockCacheDataHit),
                index: count(Ticker::BlockCacheIndexHit),
                filter: count(Ticker::BlockCacheFilterHit),
            },
            cache_misses: Blocks {
                data: count(Ticker::BlockCacheDataMiss),
                index: count(Ticker::BlockCacheIndexMiss),
                filter: count(Ticker::BlockCacheFilterMiss),
            },
            flushes: whole(properties::NUM_RUNNING_FLUSHES)?,
            compactions: whole(properties::NUM_RUNNING_COMPACTIONS)?,
            log_written_bytes: count(Ticker::WalFileBytes),
            flush_written_bytes: count(Ticker::FlushWriteBytes),
            compaction_written_bytes: count(Ticker::CompactWriteBytes),
            stalled: Duration::from_micros(count(Ticker::StallMicros)),
            background_errors: whole(properties::BACKGROUND_ERRORS)?,
            write_failures: self.write_failures(),
            deep_keys: deep.keys(),
            ..Usage::default()
        };
        for (table, (name, _)) in tables::ALL.iter().enumerate() {
            let sorted = of_table(rocks, table, properties::TOTAL_SST_FILES_SIZE)?;
            let blobs = of_table(rocks, table, BLOB_FILES_SIZE)?;
            usage.file_bytes.push((name, sorted + blobs));
            usage.memtable_bytes += of_table(rocks, table, properties::CUR_SIZE_ALL_MEM_TABLES)?;
            usage.compaction_pending_bytes +=
                of_table(rocks, table, properties::ESTIMATE_PENDING_COMPACTION_BYTES)?;
        }
        Ok(Some(usage))
    }
}

/// Returns a property of a table by its place in [`tables::ALL`]: the sum over its column families.
pub(crate) fn of_table(rocks: &Rocks, table: usize, property: &CStr) -> Result<u64> {
    let mut sum = 0;
    for family in rocks.families_at(table) {
        let value = rocks.db.property_int_value_cf(rocks.handle(family), property)?;
        sum += value.unwrap_or(0);
    }
    Ok(sum)
}
