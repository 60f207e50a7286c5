//! Tuning of RocksDB.

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BlockBasedTablePinningTier, Cache, DBCompressionType,
    DBRecoveryMode, DataBlockIndexType, Env, LogLevel, SliceTransform, statistics::StatsLevel,
};
use serde::{Deserialize, Serialize};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Number of shards of the state.
pub(crate) const SHARDS: usize = 16;

/// Fewest bytes of a memtable of a table that is divided.
const MEMTABLE_BYTES_MIN: usize = 16 * MIB;

/// Part of a key that tells its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shard {
    /// The table has no shards.
    None,
    /// High nibble of the first byte.
    HighNibble,
    /// First byte, which is a nibble. An empty key is of shard 0.
    Byte,
}

/// Settings that an operator may choose.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Bytes of the block cache that all tables share: data, index and filter blocks.
    pub cache_bytes_max: usize,
    /// Bytes of all memtables together; above this limit the largest is flushed.
    pub memtable_bytes_max: usize,
    /// Threads for flushes and compactions.
    pub background_threads: u16,
    /// Threads that read the keys of one call at the same time, where the disk is what takes the time. With less
    /// than two, the caller reads one after the other.
    pub read_threads: u16,
    /// Whether reads go past the page cache (`O_DIRECT`), so that the block cache is all the memory that
    /// keeps what was read. Not every file system can do that.
    pub direct_reads: bool,
    /// For experiments: whether the database measures how long its work takes, and keeps histograms.
    /// Its counters are kept in any case.
    pub time_statistics: bool,
    /// Whether a database that lacks a closed log is refused. Turn it off only to open such a
    /// database anyway.
    #[serde(skip, default = "yes")]
    pub verify_logs: bool,
    /// Whether compactions start by themselves. Turn it off only to look at a database without changing
    /// its files.
    #[serde(skip, default = "yes")]
    pub auto_compaction: bool,
}

fn yes() -> bool {
    true
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes_max: 512 * MIB,
            memtable_bytes_max: 512 * MIB,
            background_threads: 2,
            read_threads: 16,
            direct_reads: false,
            time_statistics: false,
            verify_logs: true,
            auto_compaction: true,
        }
    }
}

/// Properties of a table that matter for tuning.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    memtable_bytes: usize,
    block_bytes: usize,
    compression: DBCompressionType,
    /// Whether values from 4 KiB on go to blob files, so that compaction does not copy them
    /// repeatedly.
    blobs: bool,
    /// Whether keys are read one at a time, so that a hash index inside each block pays off.
    points: bool,
    /// Whether a key that is read is nearly always there. The lowest level then needs no filter, which would
    /// only cost a further read.
    hits: bool,
    /// Bytes of a key by which readers look for the records of one thing. Filters are by this part then,
    /// not by the whole key. 0 for none.
    prefix_bytes: usize,
    /// Part of a key that tells its shard.
    shard: Shard,
}

impl Tuning {
    /// Flat state and tries: small values under hashed keys, read at random.
    pub(crate) const STATE: Self = Self {
        memtable_bytes: 96 * MIB,
        block_bytes: 8 * KIB,
        compression: DBCompressionType::None,
        blobs: false,
        points: true,
        hits: false,
        prefix_bytes: 0,
        shard: Shard::HighNibble,
    };
    /// Nodes of storage tries: a walk reads the nodes that their parents name.
    pub(crate) const STORAGE_TRIE: Self = Self { hits: true, ..Self::STATE };
    /// Nodes of the account trie, by path.
    pub(crate) const ACCOUNT_TRIE: Self = Self { shard: Shard::Byte, ..Self::STORAGE_TRIE };
    /// Large values written once: bodies, receipts, code.
    pub(crate) const BULK: Self = Self {
        memtable_bytes: 32 * MIB,
        block_bytes: 16 * KIB,
        compression: DBCompressionType::Lz4,
        blobs: true,
        points: false,
        hits: false,
        prefix_bytes: 0,
        shard: Shard::None,
    };
    /// Records that are written, read once or never, and deleted.
    pub(crate) const LOG: Self = Self {
        memtable_bytes: 32 * MIB,
        block_bytes: 16 * KIB,
        compression: DBCompressionType::Lz4,
        blobs: false,
        points: false,
        hits: false,
        prefix_bytes: 0,
        shard: Shard::None,
    };
    /// An index by random hash.
    pub(crate) const INDEX: Self = Self {
        memtable_bytes: 16 * MIB,
        block_bytes: 8 * KIB,
        compression: DBCompressionType::None,
        blobs: false,
        points: true,
        hits: false,
        prefix_bytes: 0,
        shard: Shard::None,
    };
    /// Little data.
    pub(crate) const SMALL: Self = Self {
        memtable_bytes: 8 * MIB,
        block_bytes: 8 * KIB,
        compression: DBCompressionType::Lz4,
        blobs: false,
        points: false,
        hits: false,
        prefix_bytes: 0,
        shard: Shard::None,
    };

    /// Values of earlier states by key and block, found by the part of the key before the block.
    pub(crate) const fn history(prefix_bytes: usize) -> Self {
        Self {
            memtable_bytes: 32 * MIB,
            block_bytes: 8 * KIB,
            compression: DBCompressionType::Lz4,
            blobs: false,
            points: false,
            hits: false,
            prefix_bytes,
            shard: Shard::None,
        }
    }

    pub(crate) const fn shard(self) -> Shard {
        self.shard
    }

    /// Returns whether the table has shards, and so may be divided.
    pub(crate) const fn is_sharded(self) -> bool {
        !matches!(self.shard, Shard::None)
    }

    /// Returns RocksDB's options for one of so many column families of a table of this kind.
    pub(crate) fn column_family(self, cache: &Cache, parts: usize) -> rocksdb::Options {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(cache);
        table.set_block_size(self.block_bytes);
        table.set_bloom_filter(10.0, false);
        // Index and filter blocks are charged to the cache, so the cache size bounds them too.
        // The blocks of level 0 are pinned, because every read passes them.
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        if self.points || self.prefix_bytes > 0 {
            // One read needs little of a file's filter and index, which have a megabyte and more together, so
            // they are read in parts. Larger parts are in the cache sooner.
            table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            table.set_partition_filters(true);
            table.set_metadata_block_size(32 * KIB);
            table.set_pin_top_level_index_and_filter(true);
        }
        if self.points {
            table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
            table.set_data_block_hash_ratio(0.75);
        }
        let mut options = rocksdb::Options::default();
        if self.prefix_bytes > 0 {
            options.set_prefix_extractor(SliceTransform::create_fixed_prefix(self.prefix_bytes));
            table.set_whole_key_filtering(false);
        }
        options.set_block_based_table_factory(&table);
        options.set_optimize_filters_for_hits(self.hits);
        let memtable = self.memtable_bytes / parts;
        options.set_write_buffer_size(memtable.max(MEMTABLE_BYTES_MIN.min(self.memtable_bytes)));
        options.set_max_write_buffer_number(3);
        // Most keys that are read are not in the memtable; its filter rules them out without a
        // search.
        options.set_memtable_prefix_bloom_ratio(0.02);
        options.set_memtable_whole_key_filtering(true);
        options.set_compression_type(self.compression);
        options.set_target_file_size_base(64 * MIB as u64);
        if self.blobs {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(4 * KIB as u64);
            options.set_blob_compression_type(self.compression);
            options.set_enable_blob_gc(true);
        }
        options
    }
}

/// Returns RocksDB's options for a look at a database's files.
///
/// RocksDB 11.8 reads a null pointer where a database has followed its logs (`track_and_verify_wals_in_manifest`), and
/// is opened for reading by options that do not.
pub(crate) fn for_reading() -> rocksdb::Options {
    let mut options = rocksdb::Options::default();
    options.set_track_and_verify_wals_in_manifest(true);
    options
}

/// Returns RocksDB's options for a column family whose files are checked one after the other: opening a file
/// reads all parts of its filter and of its index.
pub(crate) fn for_checking() -> rocksdb::Options {
    let mut table = BlockBasedOptions::default();
    // A file's filter is found by the kind of filter.
    table.set_bloom_filter(10.0, false);
    table.set_partition_pinning_tier(BlockBasedTablePinningTier::All);
    let mut options = rocksdb::Options::default();
    options.set_block_based_table_factory(&table);
    options
}

/// Returns how many files a database may keep open: half of what the process may, as sockets need the rest. A
/// file that is opened anew for a read costs further reads.
fn open_files_max() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = limit.unwrap_or(u64::MAX) / 2;
    files.clamp(128, 16_384) as i32
}

impl Options {
    /// Makes the block cache that all column families share.
    pub(crate) fn cache(&self) -> Cache {
        Cache::new_hyper_clock_cache(self.cache_bytes_max, 0)
    }

    /// Returns RocksDB's options for the database as a whole.
    pub(crate) fn database(&self) -> rocksdb::Options {
        let mut options = rocksdb::Options::default();
        options.set_max_background_jobs(i32::from(self.background_threads.max(1)));
        options.set_db_write_buffer_size(self.memtable_bytes_max);
        // This bounds the log that is replayed after a crash.
        options.set_max_total_wal_size(256 * MIB as u64);
        // With two writing threads, a pipelining database often stays read-only after its disk was
        // full (tests/full_disk.rs).
        options.set_enable_pipelined_write(false);
        // After a power cut the log ends at the first torn record; the records before it are kept.
        options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
        // A closed log that is missing or shortened is reported.
        options.set_track_and_verify_wals_in_manifest(self.verify_logs);
        // Dirty pages are written to disk bit by bit, not in one burst that stalls a commit.
        options.set_bytes_per_sync(MIB as u64);
        options.set_wal_bytes_per_sync(512 * KIB as u64);
        options.set_use_direct_reads(self.direct_reads);
        options.set_max_open_files(open_files_max());
        options.set_keep_log_file_num(2);
        options.set_log_level(LogLevel::Warn);
        // Counters are plain, one for each processor; clocks and histograms would cost time.
        options.enable_statistics();
        options.set_statistics_level(match self.time_statistics {
            true => StatsLevel::All,
            false => StatsLevel::ExceptHistogramOrTimers,
        });
        // Compaction can wait; a commit may wait for a flush.
        if let Ok(mut threads) = Env::new() {
            threads.lower_thread_pool_cpu_priority();
            options.set_env(&threads);
        }
        options
    }
}
