//! What storage-writer measures. Times are in seconds.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Histogram: from a commit's call to its record in the log.
pub const COMMIT_SECONDS: &str = "tandem_storage_writer_commit_seconds";
/// Histogram: making one forkchoice durable, waiting for the backlog included.
pub const CANONICALIZE_SECONDS: &str = "tandem_storage_writer_canonicalize_seconds";
/// Histogram: moving one block into the base.
pub const PERSIST_SECONDS: &str = "tandem_storage_writer_persist_seconds";
/// Histogram: stepping the base back by one block.
pub const REWIND_SECONDS: &str = "tandem_storage_writer_rewind_seconds";
/// Histogram: one batched read of the flat state.
pub const READ_STATE_SECONDS: &str = "tandem_storage_writer_read_state_seconds";
/// Histogram: one batched walk of the tries.
pub const WALK_TRIE_SECONDS: &str = "tandem_storage_writer_walk_trie_seconds";
/// Gauge: number of the block whose state the base holds.
pub const BASE_BLOCK: &str = "tandem_storage_writer_base_block";
/// Gauge: blocks pending, side chains included.
pub const PENDING_BLOCKS: &str = "tandem_storage_writer_pending_blocks";
/// Counter: trie diffs that had to be computed here.
pub const TRIE_DIFFS_RECOMPUTED: &str = "tandem_storage_writer_trie_diffs_recomputed_total";
/// Counter: trie diffs that were handed over and did not fit their block.
pub const TRIE_DIFFS_REFUSED: &str = "tandem_storage_writer_trie_diffs_refused_total";

/// Gauge: calls of other processes that run or wait for their turn, by lane.
pub const CALLS: &str = "tandem_storage_writer_calls";
/// Counter: connections that a client made.
pub const CLIENT_CONNECTIONS: &str = "tandem_storage_writer_client_connections_total";
/// Counter: connections that a client lost.
pub const CLIENT_CONNECTIONS_LOST: &str = "tandem_storage_writer_client_connections_lost_total";
/// Histogram: one call of a client, by call, from its beginning to its answer or failure.
pub const CLIENT_SECONDS: &str = "tandem_storage_writer_client_seconds";
/// Counter: calls of a client without an answer in time.
pub const CLIENT_TIMEOUTS: &str = "tandem_storage_writer_client_timeouts_total";
/// Counter: trie diffs that a client could not hand over.
pub const CLIENT_DIFFS_DROPPED: &str = "tandem_storage_writer_client_trie_diffs_dropped_total";

/// The metrics of a server.
pub fn describe_server() {
    describe_gauge!(CALLS, Unit::Count, "calls of other processes that run or wait, by lane");
}

/// The metrics of a client.
pub fn describe_client() {
    describe_counter!(CLIENT_CONNECTIONS, Unit::Count, "connections made to storage-writer");
    describe_counter!(CLIENT_CONNECTIONS_LOST, Unit::Count, "connections to storage-writer lost");
    describe_histogram!(CLIENT_SECONDS, Unit::Seconds, "one call to storage-writer, by call");
    describe_counter!(CLIENT_TIMEOUTS, Unit::Count, "calls without an answer in time");
    describe_counter!(CLIENT_DIFFS_DROPPED, Unit::Count, "trie diffs not handed over");
}

/// The metrics of the service itself.
pub fn describe() {
    let seconds = [
        (COMMIT_SECONDS, "commit of a pending block"),
        (CANONICALIZE_SECONDS, "forkchoice made durable"),
        (PERSIST_SECONDS, "one block moved into the base"),
        (REWIND_SECONDS, "base stepped back by one block"),
        (READ_STATE_SECONDS, "batched read of flat state"),
        (WALK_TRIE_SECONDS, "batched trie walk"),
    ];
    for (name, text) in seconds {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_gauge!(BASE_BLOCK, "block whose state the base holds");
    describe_gauge!(PENDING_BLOCKS, "pending blocks, side chains included");
    describe_counter!(TRIE_DIFFS_RECOMPUTED, "trie diffs computed by storage-writer itself");
    describe_counter!(TRIE_DIFFS_REFUSED, "trie diffs handed over with a wrong root");
}

/// Describes all of them to the recorder, as a catalogue wants it.
pub fn describe_all() {
    describe();
    describe_server();
    describe_client();
}
