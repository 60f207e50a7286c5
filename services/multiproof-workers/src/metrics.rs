//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const PROOF_SECONDS: &str = "tandem_multiproof_workers_root_seconds";
pub const QUEUE_WAIT_SECONDS: &str = "tandem_multiproof_workers_queue_wait_seconds";
pub const WALK_SECONDS: &str = "tandem_multiproof_workers_walk_seconds";
pub const TARGETS: &str = "tandem_multiproof_workers_walk_targets_total";
pub const NODES: &str = "tandem_multiproof_workers_nodes_changed_total";
pub const TRIE_BYTES: &str = "tandem_multiproof_workers_trie_bytes";
pub const CLEARED: &str = "tandem_multiproof_workers_tries_cleared_total";
pub const STREAMS: &str = "tandem_multiproof_workers_streams";
pub const CONNECTIONS: &str = "tandem_multiproof_workers_client_connections_total";
pub const CONNECTIONS_LOST: &str = "tandem_multiproof_workers_client_connections_lost_total";
pub const TIMEOUTS: &str = "tandem_multiproof_workers_client_timeouts_total";
pub const ADVICE_DROPPED: &str = "tandem_multiproof_workers_client_advice_dropped_total";

pub fn describe() {
    let seconds = Unit::Seconds;
    describe_histogram!(PROOF_SECONDS, seconds, "From the end of the updates to a worker's roots");
    describe_histogram!(
        QUEUE_WAIT_SECONDS,
        seconds,
        "Longest wait of an update in the mailbox, per block"
    );
    describe_histogram!(WALK_SECONDS, seconds, "One batched trie walk, layers and storage-writer");
    describe_counter!(TARGETS, Unit::Count, "Keys walked to");
    describe_counter!(NODES, Unit::Count, "Trie nodes changed by blocks");
    describe_gauge!(TRIE_BYTES, Unit::Bytes, "Memory of one worker's revealed tries");
    describe_counter!(
        CLEARED,
        Unit::Count,
        "Times that a worker dropped its tries (reorg, invalid block)"
    );
}

/// The metrics of a server of the proof stream.
pub fn describe_server() {
    describe_gauge!(STREAMS, Unit::Count, "Proof streams that clients have open");
}

/// The metrics of a client of the proof stream.
pub fn describe_client() {
    describe_counter!(CONNECTIONS, Unit::Count, "Proof streams opened to the workers");
    describe_counter!(CONNECTIONS_LOST, Unit::Count, "Proof streams that broke or were ended");
    describe_counter!(TIMEOUTS, Unit::Count, "Blocks given up because the workers took too long");
    describe_counter!(ADVICE_DROPPED, Unit::Count, "Prefetches dropped: no room, or no connection");
}
