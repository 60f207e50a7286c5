//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const PROOF_SECONDS: &str = "tandem_multiproof_workers_root_seconds";
pub const QUEUE_WAIT_SECONDS: &str = "tandem_multiproof_workers_queue_wait_seconds";
pub const WALK_SECONDS: &str = "tandem_multiproof_workers_walk_seconds";
pub const TARGETS: &str = "tandem_multiproof_workers_walk_targets_total";
pub const NODES: &str = "tandem_multiproof_workers_nodes_changed_total";
pub const TRIE_BYTES: &str = "tandem_multiproof_workers_trie_bytes";
pub const CLEARED: &str = "tandem_multiproof_workers_tries_cleared_total";

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
