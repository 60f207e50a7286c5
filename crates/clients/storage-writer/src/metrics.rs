//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_histogram};

/// Counter: connections that a client made.
pub const CLIENT_CONNECTIONS: &str = "tandem_storage_writer_client_connections_total";
/// Counter: connections that a client lost.
pub const CLIENT_CONNECTIONS_LOST: &str = "tandem_storage_writer_client_connections_lost_total";
/// Histogram: one call of a client, by name, from its beginning to its answer or failure.
pub const CLIENT_SECONDS: &str = "tandem_storage_writer_client_seconds";
/// Counter: calls of a client without an answer in time.
pub const CLIENT_TIMEOUTS: &str = "tandem_storage_writer_client_timeouts_total";
/// Counter: trie diffs that a client could not hand over.
pub const CLIENT_DIFFS_DROPPED: &str = "tandem_storage_writer_client_trie_diffs_dropped_total";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_counter!(CLIENT_CONNECTIONS, Unit::Count, "connections made to storage-writer");
    describe_counter!(CLIENT_CONNECTIONS_LOST, Unit::Count, "connections to storage-writer lost");
    describe_histogram!(CLIENT_SECONDS, Unit::Seconds, "one call to storage-writer, by call");
    describe_counter!(CLIENT_TIMEOUTS, Unit::Count, "calls without an answer in time");
    describe_counter!(CLIENT_DIFFS_DROPPED, Unit::Count, "trie diffs not handed over");
}
