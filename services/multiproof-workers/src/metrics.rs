//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const ROOT_SECONDS: &str = "tandem_multiproof_workers_root_seconds";
pub const QUEUE_WAIT_SECONDS: &str = "tandem_multiproof_workers_queue_wait_seconds";
pub const BATCH_UPDATES: &str = "tandem_multiproof_workers_batch_updates";
pub const DISPATCH_TARGETS: &str = "tandem_multiproof_workers_dispatch_targets";
pub const DISPATCH_CHUNKS: &str = "tandem_multiproof_workers_dispatch_chunks";
pub const IDLE_WORKERS: &str = "tandem_multiproof_workers_idle_workers";
pub const ACTIVE_STORAGE_WORKERS: &str = "tandem_multiproof_workers_active_storage_workers";
pub const ACTIVE_ACCOUNT_WORKERS: &str = "tandem_multiproof_workers_active_account_workers";
pub const CHUNKING_SKIPPED: &str = "tandem_multiproof_workers_chunking_skipped_total";
pub const PROOF_SECONDS: &str = "tandem_multiproof_workers_proof_seconds";
pub const PROOF_GAP_SECONDS: &str = "tandem_multiproof_workers_proof_gap_seconds";
pub const STALE_PROOFS: &str = "tandem_multiproof_workers_stale_proofs_total";
pub const BLOCK_TARGETS: &str = "tandem_multiproof_workers_block_targets";
pub const TARGETS: &str = "tandem_multiproof_workers_targets_total";
pub const DUPLICATES: &str = "tandem_multiproof_workers_duplicate_targets_total";
pub const PREFETCH_DROPPED: &str = "tandem_multiproof_workers_prefetch_dropped_total";
pub const NODES: &str = "tandem_multiproof_workers_nodes_changed_total";
pub const HASHED: &str = "tandem_multiproof_workers_nodes_hashed_total";
pub const HASHED_AGAIN: &str = "tandem_multiproof_workers_nodes_hashed_again_total";
pub const FORESEEN: &str = "tandem_multiproof_workers_foreseen_total";
pub const TRIE_BYTES: &str = "tandem_multiproof_workers_trie_bytes";
pub const LAYER_BYTES: &str = "tandem_multiproof_workers_layer_bytes";
pub const CLEARED: &str = "tandem_multiproof_workers_tries_cleared_total";
pub const STREAMS: &str = "tandem_multiproof_workers_streams";

pub fn describe() {
    let (seconds, count) = (Unit::Seconds, Unit::Count);
    describe_histogram!(ROOT_SECONDS, seconds, "From the end of the updates to a worker's roots");
    let text = "Longest wait of an update in the mailbox, per worker and block";
    describe_histogram!(QUEUE_WAIT_SECONDS, seconds, text);
    describe_histogram!(
        BATCH_UPDATES,
        count,
        "State updates merged before their keys are asked for"
    );
    describe_histogram!(DISPATCH_TARGETS, count, "Keys asked for at once");
    describe_histogram!(
        DISPATCH_CHUNKS,
        count,
        "Jobs that the keys asked for at once were cut into"
    );
    describe_histogram!(IDLE_WORKERS, count, "Proof threads without work at a dispatch");
    let text = "Proof threads that work on storage tries at a dispatch";
    describe_histogram!(ACTIVE_STORAGE_WORKERS, count, text);
    let text = "Proof threads that work on the account trie at a dispatch";
    describe_histogram!(ACTIVE_ACCOUNT_WORKERS, count, text);
    let text = "Dispatches left whole because the proof threads were busy";
    describe_counter!(CHUNKING_SKIPPED, count, text);
    describe_histogram!(PROOF_SECONDS, seconds, "One job of a proof thread: layers, base, hashes");
    let text = "From the end of a job until a worker takes its answer";
    describe_histogram!(PROOF_GAP_SECONDS, seconds, text);
    describe_counter!(STALE_PROOFS, count, "Answers that came after their block was over");
    describe_histogram!(BLOCK_TARGETS, count, "Keys asked for in one block, all workers");
    describe_counter!(TARGETS, count, "Keys asked for");
    let text = "Keys needed again while they had been asked for";
    describe_counter!(DUPLICATES, count, text);
    describe_counter!(PREFETCH_DROPPED, count, "Advice dropped because a worker had enough to do");
    describe_counter!(NODES, count, "Trie nodes changed by blocks");
    let text = "Trie nodes hashed while a block went on (when=ahead) and at its end (when=end)";
    describe_counter!(HASHED, count, text);
    describe_counter!(
        HASHED_AGAIN,
        count,
        "Trie nodes hashed whose path a block had hashed before"
    );
    let text = "Values written before their update came (outcome=confirmed) or did not (withdrawn)";
    describe_counter!(FORESEEN, count, text);
    describe_gauge!(TRIE_BYTES, Unit::Bytes, "Memory of one worker's revealed tries");
    let text = "Trie changes that one worker holds, without indices";
    describe_gauge!(LAYER_BYTES, Unit::Bytes, text);
    let text = "Times that a worker dropped its tries (reorg, invalid block)";
    describe_counter!(CLEARED, count, text);
}

/// Describes the metrics of a server of the proof stream.
pub fn describe_server() {
    describe_gauge!(STREAMS, Unit::Count, "Proof streams that clients have open");
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe();
    describe_server();
}
