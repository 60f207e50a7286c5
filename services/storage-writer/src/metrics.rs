//! Metrics of storage-writer. Times are in seconds.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use tandem_store::{Blocks, Usage};

/// Histogram: from the call of a commit to its record in the log.
pub const COMMIT_SECONDS: &str = "tandem_storage_writer_commit_seconds";
/// Histogram: making one forkchoice durable, waiting for the backlog included.
pub const CANONICALIZE_SECONDS: &str = "tandem_storage_writer_canonicalize_seconds";
/// Histogram: moving one step of blocks into the base.
pub const PERSIST_SECONDS: &str = "tandem_storage_writer_persist_seconds";
/// Histogram: blocks of one such step.
pub const PERSIST_BLOCKS: &str = "tandem_storage_writer_persist_blocks";
/// Histogram: stepping the base back by one batch of blocks.
pub const REWIND_SECONDS: &str = "tandem_storage_writer_rewind_seconds";
/// Histogram: one batched read of the flat state.
pub const READ_STATE_SECONDS: &str = "tandem_storage_writer_read_state_seconds";
/// Histogram: one batched walk of the tries.
pub const WALK_TRIE_SECONDS: &str = "tandem_storage_writer_walk_trie_seconds";
/// Histogram: one part of a state for a peer.
pub const STATE_ITEMS_SECONDS: &str = "tandem_storage_writer_state_items_seconds";
/// Gauge: states that are held for peers.
pub const PEER_STATES: &str = "tandem_storage_writer_peer_states";
/// Bytes that the volume of the database has left for the process.
pub const VOLUME_FREE_BYTES: &str = "tandem_storage_writer_volume_free_bytes";
/// Gauge: number of the block whose state the base holds.
pub const BASE_BLOCK: &str = "tandem_storage_writer_base_block";
/// Gauge: blocks that are due to enter the base.
pub const BACKLOG_BLOCKS: &str = "tandem_storage_writer_backlog_blocks";
/// Gauge: pending blocks, side branches included.
pub const PENDING_BLOCKS: &str = "tandem_storage_writer_pending_blocks";
/// Gauge: bytes of pending blocks, by place: in the database or in memory.
pub const PENDING_BYTES: &str = "tandem_storage_writer_pending_bytes";
/// Counter: side branches dropped because all of them together took too many bytes.
pub const BRANCHES_DROPPED: &str = "tandem_storage_writer_side_branches_dropped_total";
/// Counter: trie diffs that had to be computed here.
pub const TRIE_DIFFS_RECOMPUTED: &str = "tandem_storage_writer_trie_diffs_recomputed_total";
/// Gauge: height from which on all blocks have bodies and receipts.
pub const OLDEST_BLOCK: &str = "tandem_storage_writer_oldest_block";
/// Counter: trie diffs that were handed over and did not fit their block.
pub const TRIE_DIFFS_REFUSED: &str = "tandem_storage_writer_trie_diffs_refused_total";
/// Histogram: checking the nodes of one step's trie diffs before they enter the base.
pub const TRIE_DIFF_CHECK_SECONDS: &str = "tandem_storage_writer_trie_diff_check_seconds";
/// Counter: damaged parts of the base's tries that were rebuilt from the flat state.
pub const TRIES_REBUILT: &str = "tandem_storage_writer_tries_rebuilt_total";
/// Gauge: share of a pass of the background check that is done.
pub const SCRUB_PROGRESS: &str = "tandem_storage_writer_scrub_progress";
/// Counter: bytes that the background check has read.
pub const SCRUB_BYTES: &str = "tandem_storage_writer_scrub_bytes_total";
/// Counter: faults that the background check has found.
pub const SCRUB_FAULTS: &str = "tandem_storage_writer_scrub_faults_total";
/// Gauge: acknowledged writes that the database had lost when it was opened.
pub const LOST_WRITES: &str = "tandem_storage_writer_lost_writes";
/// Gauge: heights whose blocks the database had lost when it was opened.
pub const LOST_BLOCKS: &str = "tandem_storage_writer_lost_blocks";
/// Gauge: oldest block whose state history leads to.
pub const HISTORY_OLDEST_BLOCK: &str = "tandem_storage_writer_history_oldest_block";
/// Histogram: bytes that one block adds to history, before compression.
pub const HISTORY_BLOCK_BYTES: &str = "tandem_storage_writer_history_block_bytes";
/// Histogram: one batched read of an earlier state.
pub const READ_HISTORY_SECONDS: &str = "tandem_storage_writer_read_history_seconds";
/// Counter: times that the right to write was granted.
pub const EPOCHS_GRANTED: &str = "tandem_storage_writer_epochs_granted_total";
/// Gauge: whether this storage-writer leads, so that executors may write: 1 or 0.
pub const LEADS: &str = "tandem_storage_writer_leads";
/// Gauge: 1 while this storage-writer holds the lease of the lead.
pub const LEASE_HELD: &str = "tandem_storage_writer_lease_held";
/// Counter: times that this storage-writer came to hold the lease of the lead.
pub const LEASE_TAKEN: &str = "tandem_storage_writer_lease_taken_total";
/// Counter: requests for the lease of the lead that NATS did not answer.
pub const LEASE_FAILURES: &str = "tandem_storage_writer_lease_failures_total";
/// Gauge: highest term that is known here.
pub const TERM: &str = "tandem_storage_writer_term";
/// Gauge: whether the record of the acknowledged writes was missing when the database was opened.
pub const MARK_MISSING: &str = "tandem_storage_writer_acknowledged_record_missing";

/// Gauge: bytes of the database's files, by table.
pub const FILE_BYTES: &str = "tandem_storage_writer_database_file_bytes";
/// Gauge: bytes that the database has not yet written to files.
pub const MEMTABLE_BYTES: &str = "tandem_storage_writer_database_memtable_bytes";
/// Gauge: bytes in the database's block cache.
pub const CACHE_BYTES: &str = "tandem_storage_writer_database_cache_bytes";
/// Counter: look-ups of blocks in the block cache, by outcome and kind.
pub const CACHE_BLOCKS: &str = "tandem_storage_writer_database_cache_blocks_total";
/// Gauge: bytes that the database's compactions have yet to rewrite.
pub const COMPACTION_PENDING_BYTES: &str =
    "tandem_storage_writer_database_compaction_pending_bytes";
/// Gauge: flushes and compactions that run, by kind.
pub const JOBS: &str = "tandem_storage_writer_database_jobs";
/// Counter: bytes that the database wrote, by kind.
pub const WRITTEN_BYTES: &str = "tandem_storage_writer_database_written_bytes_total";
/// Counter: milliseconds for which the database held up writers.
pub const STALLED_MILLISECONDS: &str = "tandem_storage_writer_database_stalled_milliseconds_total";
/// Counter: keys that were read in several threads.
pub const DEEP_KEYS: &str = "tandem_storage_writer_database_deep_keys_total";
/// Counter: failed writes, such as those to a full disk.
pub const WRITE_FAILURES: &str = "tandem_storage_writer_database_write_failures_total";
/// Counter: flushes and compactions that failed.
pub const BACKGROUND_ERRORS: &str = "tandem_storage_writer_database_background_errors_total";

/// Gauge: calls of other processes that run or wait for their turn, by lane.
pub const CALLS: &str = "tandem_storage_writer_calls";
/// Gauge: answers in parts that are not yet complete.
pub const STREAMS: &str = "tandem_storage_writer_streams";
/// Counter: answers in parts that ended because the client read nothing.
pub const STREAMS_UNREAD: &str = "tandem_storage_writer_streams_unread_total";
/// Gauge: followers that read the feed.
pub const FEED_READERS: &str = "tandem_storage_writer_feed_readers";
/// Counter: blocks sent to followers.
pub const FEED_BLOCKS: &str = "tandem_storage_writer_feed_blocks_total";

/// Counter: blocks that the stream of NATS has acknowledged.
pub const STREAM_BLOCKS: &str = "tandem_storage_writer_stream_blocks_total";
/// Counter: bytes of messages that the stream has acknowledged.
pub const STREAM_BYTES: &str = "tandem_storage_writer_stream_bytes_total";
/// Gauge: blocks from the newest acknowledged one to the head.
pub const STREAM_LAG_BLOCKS: &str = "tandem_storage_writer_stream_lag_blocks";
/// Gauge: time since which the stream has not had the head.
pub const STREAM_LAG_MILLISECONDS: &str = "tandem_storage_writer_stream_lag_milliseconds";
/// Counter: times that publishing had to begin again, by reason.
pub const STREAM_FAILURES: &str = "tandem_storage_writer_stream_failures_total";
/// Counter: times that the stream went on at the base.
pub const STREAM_HOLES: &str = "tandem_storage_writer_stream_holes_total";
/// Gauge: whether another publisher took over.
pub const STREAM_FENCED: &str = "tandem_storage_writer_stream_fenced";
/// Histogram: wait of a forkchoice for the stream.
pub const STREAM_WAIT_SECONDS: &str = "tandem_storage_writer_stream_wait_seconds";
/// Counter: forkchoices that failed because the stream did not acknowledge them in time.
pub const STREAM_ACKS_MISSED: &str = "tandem_storage_writer_stream_acks_missed_total";

/// Describes the metrics of the published feed.
fn describe_stream() {
    describe_counter!(STREAM_BLOCKS, Unit::Count, "blocks that the stream acknowledged");
    describe_counter!(STREAM_BYTES, Unit::Bytes, "messages that the stream acknowledged");
    let text = "blocks from the newest that the stream acknowledged to the head";
    describe_gauge!(STREAM_LAG_BLOCKS, Unit::Count, text);
    let text = "time since which the stream has not had the head, 0 while it has";
    describe_gauge!(STREAM_LAG_MILLISECONDS, Unit::Milliseconds, text);
    let text = "times that publishing to the stream had to begin again, by reason";
    describe_counter!(STREAM_FAILURES, Unit::Count, text);
    let text = "times that the stream went on at the base, and left out blocks";
    describe_counter!(STREAM_HOLES, Unit::Count, text);
    describe_gauge!(STREAM_FENCED, "1 once another publisher took over");
    describe_histogram!(STREAM_WAIT_SECONDS, Unit::Seconds, "wait of a forkchoice for the stream");
    let text = "forkchoices that failed because the stream did not acknowledge them in time";
    describe_counter!(STREAM_ACKS_MISSED, Unit::Count, text);
    // Starts at zero, so that the first one shows as a rise.
    counter!(STREAM_ACKS_MISSED).increment(0);
}

/// Describes the metrics of the lease of the lead.
pub fn describe_lease() {
    describe_gauge!(LEASE_HELD, "1 while this storage-writer holds the lease of the lead");
    let text = "times that this storage-writer came to hold the lease of the lead";
    describe_counter!(LEASE_TAKEN, Unit::Count, text);
    let text = "requests for the lease of the lead that NATS did not answer";
    describe_counter!(LEASE_FAILURES, Unit::Count, text);
    gauge!(LEASE_HELD).set(0.0);
    // They start at zero, so that the first one shows as a rise.
    counter!(LEASE_TAKEN).increment(0);
    counter!(LEASE_FAILURES).increment(0);
}

/// Describes the metrics of a server.
pub fn describe_server() {
    describe_gauge!(CALLS, Unit::Count, "calls of other processes that run or wait, by lane");
    describe_gauge!(STREAMS, Unit::Count, "answers in parts that are not over");
    let text = "answers in parts that ended because the client took nothing of them";
    describe_counter!(STREAMS_UNREAD, Unit::Count, text);
    describe_gauge!(FEED_READERS, Unit::Count, "followers that read the feed");
    describe_counter!(FEED_BLOCKS, Unit::Count, "blocks sent to followers");
}

/// Describes the metrics of the service itself.
pub fn describe() {
    let seconds = [
        (COMMIT_SECONDS, "commit of a pending block"),
        (CANONICALIZE_SECONDS, "forkchoice made durable"),
        (PERSIST_SECONDS, "one step of blocks moved into the base"),
        (REWIND_SECONDS, "base stepped back by one batch of blocks"),
        (READ_STATE_SECONDS, "batched read of flat state"),
        (READ_HISTORY_SECONDS, "batched read of an earlier state"),
        (WALK_TRIE_SECONDS, "batched trie walk"),
        (STATE_ITEMS_SECONDS, "part of a state for a peer"),
        (TRIE_DIFF_CHECK_SECONDS, "nodes of one step's trie diffs checked"),
    ];
    for (name, text) in seconds {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_gauge!(VOLUME_FREE_BYTES, Unit::Bytes, "bytes that the volume has left");
    describe_gauge!(BASE_BLOCK, "block whose state the base holds");
    describe_gauge!(HISTORY_OLDEST_BLOCK, "oldest block whose state history leads to");
    let text = "what one block adds to history, before compression";
    describe_histogram!(HISTORY_BLOCK_BYTES, Unit::Bytes, text);
    describe_histogram!(PERSIST_BLOCKS, Unit::Count, "blocks that entered the base together");
    describe_gauge!(BACKLOG_BLOCKS, "blocks that are due to enter the base");
    describe_gauge!(PEER_STATES, Unit::Count, "states that are held for peers");
    describe_gauge!(PENDING_BLOCKS, "pending blocks, side branches included");
    let text = "pending blocks, by place: in the database, and what of them is in memory";
    describe_gauge!(PENDING_BYTES, Unit::Bytes, text);
    let text = "side branches dropped because all of them together took too many bytes";
    describe_counter!(BRANCHES_DROPPED, text);
    describe_counter!(TRIE_DIFFS_RECOMPUTED, "trie diffs computed by storage-writer itself");
    describe_gauge!(OLDEST_BLOCK, "height from which on all blocks have bodies and receipts");
    describe_counter!(TRIE_DIFFS_REFUSED, "trie diffs handed over with a wrong root or node");
    describe_counter!(TRIES_REBUILT, "damaged parts of the tries rebuilt from the flat state");
    describe_counter!(EPOCHS_GRANTED, "times that the right to write was granted to an executor");
    // Starts at zero, so that the first grant shows as a rise.
    counter!(EPOCHS_GRANTED).increment(0);
    describe_gauge!(LEADS, "whether this storage-writer leads, so that executors may write");
    describe_gauge!(TERM, "highest term of a storage-writer that is known here");
    describe_gauge!(LOST_WRITES, "acknowledged writes that were gone at the start");
    describe_gauge!(LOST_BLOCKS, "heights whose blocks were gone at the start");
    let text = "whether the record of what was acknowledged was missing at the start";
    describe_gauge!(MARK_MISSING, text);
    describe_stream();
    describe_database();
    describe_scrub();
}

fn describe_scrub() {
    describe_gauge!(
        SCRUB_PROGRESS,
        "share of the parts that this pass of the background check has done"
    );
    describe_counter!(SCRUB_BYTES, Unit::Bytes, "bytes that the background check has read, nearly");
    describe_counter!(SCRUB_FAULTS, "faults that the background check has found in the database");
}

/// Describes the metrics that RocksDB reports every few seconds.
fn describe_database() {
    let bytes = Unit::Bytes;
    describe_gauge!(FILE_BYTES, bytes, "files of the database, by table");
    describe_gauge!(MEMTABLE_BYTES, bytes, "what the database has not yet written to files");
    describe_gauge!(CACHE_BYTES, bytes, "the database's block cache");
    describe_counter!(
        CACHE_BLOCKS,
        "look-ups in the database's cache, by outcome (hit, miss) and kind (data, index, filter)"
    );
    describe_gauge!(COMPACTION_PENDING_BYTES, bytes, "what compactions have yet to rewrite");
    describe_gauge!(JOBS, "background jobs that run, by kind: flush, compaction");
    describe_counter!(WRITTEN_BYTES, bytes, "bytes written, by kind: log, flush, compaction");
    let text = "writers held up because flushes or compactions lagged behind";
    describe_counter!(STALLED_MILLISECONDS, Unit::Milliseconds, text);
    let text = "keys that were read in several threads, as the disk took the time";
    describe_counter!(DEEP_KEYS, text);
    describe_counter!(WRITE_FAILURES, "writes that failed, as those to a full disk do");
    describe_counter!(BACKGROUND_ERRORS, "flushes and compactions that failed");
}

/// Publishes the current usage of the database.
pub fn publish(usage: &Usage) {
    for (table, bytes) in &usage.file_bytes {
        gauge!(FILE_BYTES, "table" => *table).set(*bytes as f64);
    }
    gauge!(MEMTABLE_BYTES).set(usage.memtable_bytes as f64);
    gauge!(CACHE_BYTES).set(usage.cache_bytes as f64);
    for (outcome, blocks) in [("hit", usage.cache_hits), ("miss", usage.cache_misses)] {
        let Blocks { data, index, filter } = blocks;
        for (kind, count) in [("data", data), ("index", index), ("filter", filter)] {
            counter!(CACHE_BLOCKS, "outcome" => outcome, "kind" => kind).absolute(count);
        }
    }
    gauge!(COMPACTION_PENDING_BYTES).set(usage.compaction_pending_bytes as f64);
    gauge!(JOBS, "kind" => "flush").set(usage.flushes as f64);
    gauge!(JOBS, "kind" => "compaction").set(usage.compactions as f64);
    counter!(WRITTEN_BYTES, "kind" => "log").absolute(usage.log_written_bytes);
    counter!(WRITTEN_BYTES, "kind" => "flush").absolute(usage.flush_written_bytes);
    counter!(WRITTEN_BYTES, "kind" => "compaction").absolute(usage.compaction_written_bytes);
    counter!(STALLED_MILLISECONDS).absolute(usage.stalled.as_millis() as u64);
    counter!(BACKGROUND_ERRORS).absolute(usage.background_errors);
    counter!(WRITE_FAILURES).absolute(usage.write_failures);
    counter!(DEEP_KEYS).absolute(usage.deep_keys);
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe();
    describe_server();
    describe_lease();
}
