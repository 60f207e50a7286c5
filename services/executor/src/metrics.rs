//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const NEW_PAYLOAD_SECONDS: &str = "tandem_executor_new_payload_seconds";
pub const FORKCHOICE_SECONDS: &str = "tandem_executor_forkchoice_updated_seconds";
pub const EXECUTION_SECONDS: &str = "tandem_executor_execution_seconds";
pub const ROOT_WAIT_SECONDS: &str = "tandem_executor_root_wait_seconds";
pub const COMMIT_SECONDS: &str = "tandem_executor_commit_seconds";
pub const GAS: &str = "tandem_executor_gas_total";
pub const TRANSACTIONS: &str = "tandem_executor_transactions_total";
pub const INVALID: &str = "tandem_executor_invalid_blocks_total";
pub const READS: &str = "tandem_executor_state_reads_total";
pub const SPECULATED: &str = "tandem_executor_speculated_transactions_total";
pub const ACCESS_LISTS: &str = "tandem_executor_access_lists_total";
pub const LEASED_TRANSACTIONS: &str = "tandem_executor_leased_transactions_total";
pub const LEASES: &str = "tandem_executor_leases_total";
pub const LEASE_BYTES: &str = "tandem_executor_lease_bytes_total";
pub const TX_EXECUTORS: &str = "tandem_executor_tx_executors";
pub const TX_EXECUTOR_FAILURES: &str = "tandem_executor_tx_executor_failures_total";
pub const READ_AHEAD: &str = "tandem_executor_read_ahead_total";
pub const ROUNDS: &str = "tandem_executor_read_rounds";
pub const ROUND_KEYS: &str = "tandem_executor_read_round_keys";
pub const ROUND_SECONDS: &str = "tandem_executor_read_round_seconds";
pub const UNFORESEEN_READS: &str = "tandem_executor_unforeseen_reads";
pub const EXECUTION_WAITS: &str = "tandem_executor_execution_wait_seconds";
pub const OVERLAP_REACHED: &str = "tandem_executor_overlap_reached_ratio";
pub const OVERLAP_WEIGHT: &str = "tandem_executor_overlap_weight_ratio";
pub const OVERLAP_TAIL: &str = "tandem_executor_overlap_tail_ratio";
pub const OVERLAP_MICROSECONDS: &str = "tandem_executor_overlap_microseconds_total";
pub const OVERLAP_VERDICTS: &str = "tandem_executor_overlap_verdicts_total";
pub const ROOT_RETRIES: &str = "tandem_executor_root_retries_total";
pub const LAYERS: &str = "tandem_executor_layers";
pub const POLICIES: &str = "tandem_executor_policies_info";
pub const LAYER_BYTES: &str = "tandem_executor_layer_bytes";
pub const LAYER_COPIES: &str = "tandem_executor_layer_copies_total";
pub const CACHE_ENTRIES: &str = "tandem_executor_cache_entries";
pub const CACHE_BYTES: &str = "tandem_executor_cache_bytes";
pub const RECOMMITTED: &str = "tandem_executor_recommitted_blocks_total";
pub const BUILDS: &str = "tandem_executor_builds_total";
pub const BUILD_SECONDS: &str = "tandem_executor_build_seconds";
pub const GET_PAYLOAD_SECONDS: &str = "tandem_executor_get_payload_seconds";
pub const BUILT_BLOCKS: &str = "tandem_executor_own_blocks_total";
pub const HEAD: &str = "tandem_executor_head_block";

pub fn describe() {
    let seconds = Unit::Seconds;
    describe_histogram!(
        NEW_PAYLOAD_SECONDS,
        seconds,
        "engine_newPayload, decoding to answer, by status"
    );
    describe_histogram!(FORKCHOICE_SECONDS, seconds, "engine_forkchoiceUpdated, by status");
    describe_histogram!(EXECUTION_SECONDS, seconds, "Execution of a block's transactions");
    let text = "From the end of execution to the state root, the commit included";
    describe_histogram!(ROOT_WAIT_SECONDS, seconds, text);
    describe_histogram!(COMMIT_SECONDS, seconds, "Commit of a block, while its root is computed");
    let text =
        "Calls for the parked reads of a block's transactions, one after the other, by block";
    describe_histogram!(ROUNDS, Unit::Count, text);
    describe_histogram!(ROUND_KEYS, Unit::Count, "Keys of one call for parked reads");
    describe_histogram!(ROUND_SECONDS, seconds, "One call for parked reads");
    let text =
        "Calls for one key that execution needed at once, as nobody had foreseen it, by block";
    describe_histogram!(UNFORESEEN_READS, Unit::Count, text);
    let text = "Time for which execution waited, for calls for state or for room in a worker's queue, \
        by block";
    describe_histogram!(EXECUTION_WAITS, seconds, text);
    let text = "Part of the time that overlapping execution and state root can save, that it saved, by block";
    describe_histogram!(OVERLAP_REACHED, Unit::Count, text);
    let text =
        "Part of a block's time that overlapping can save at most: the shorter side, by block";
    describe_histogram!(OVERLAP_WEIGHT, Unit::Count, text);
    let text = "Part of a block's time that lies after its last transaction, by block";
    describe_histogram!(OVERLAP_TAIL, Unit::Count, text);
    let text = "Times of blocks: busy times of execution and state_root, state_root's wasted work, time of \
        both at once, that of the shorter side, the tail after the last transaction, and the payload \
        from the begin of execution to the root";
    describe_counter!(OVERLAP_MICROSECONDS, Unit::Microseconds, text);
    let text = "Blocks by the verdict on their overlap";
    describe_counter!(OVERLAP_VERDICTS, Unit::Count, text);
    describe_counter!(
        RECOMMITTED,
        Unit::Count,
        "Blocks committed again because storage-writer lost them"
    );
    describe_counter!(GAS, Unit::Count, "Gas of valid blocks");
    describe_counter!(TRANSACTIONS, Unit::Count, "Transactions of valid blocks");
    describe_counter!(INVALID, Unit::Count, "Blocks refused, by the rule they break");
    describe_counter!(READS, Unit::Count, "State reads of blocks, by where they were answered");
    describe_counter!(
        SPECULATED,
        Unit::Count,
        "Transactions executed ahead of their turn, and how they fared: executed, committed, conflict"
    );
    describe_counter!(
        ACCESS_LISTS,
        Unit::Count,
        "Access lists that drove their block, by outcome: confirmed, followed, left, too_long, differing, repeated"
    );
    describe_counter!(
        READ_AHEAD,
        Unit::Count,
        "Values that blocks name, read into the cache before they execute, by kind"
    );
    let text = "Transactions leased to tx-executors, by outcome: executed, compared, copied, not_executed, \
        unanswered, late; and repeated_block for each block executed again without them";
    describe_counter!(LEASED_TRANSACTIONS, Unit::Count, text);
    describe_counter!(LEASES, Unit::Count, "Leases of transactions to tx-executors");
    let text = "Lists, values and transactions sent to tx-executors, before encoding";
    describe_counter!(LEASE_BYTES, Unit::Bytes, text);
    let text = "Tx-executors by state at the newest block with an access list: used, active, trial, suspended, quarantined";
    describe_gauge!(TX_EXECUTORS, Unit::Count, text);
    let text = "Failures of tx-executors: late, lost, refused, silent, wrong";
    describe_counter!(TX_EXECUTOR_FAILURES, Unit::Count, text);
    describe_counter!(
        ROOT_RETRIES,
        Unit::Count,
        "Roots computed a second time before a block was refused"
    );
    describe_gauge!(LAYERS, Unit::Count, "Blocks whose state changes are held in memory");
    describe_gauge!(POLICIES, Unit::Count, "The policies of the newest block: 1 for these labels");
    describe_gauge!(LAYER_BYTES, Unit::Bytes, "State changes held in memory, without indices");
    describe_counter!(
        LAYER_COPIES,
        Unit::Count,
        "Copies made of the layers because a block that had ended still held them"
    );
    describe_gauge!(CACHE_ENTRIES, Unit::Count, "Values of the base that are cached, by kind");
    describe_gauge!(CACHE_BYTES, Unit::Bytes, "Memory of those values, by kind");
    let text =
        "Attempts at payloads by outcome: better than the one before, no_better, given_up, failed";
    describe_counter!(BUILDS, Unit::Count, text);
    let text = "From the begin of the work at a payload until it is there, by payload: empty, full, better";
    describe_histogram!(BUILD_SECONDS, seconds, text);
    let text = "engine_getPayload, without its transport";
    describe_histogram!(GET_PAYLOAD_SECONDS, seconds, text);
    let text = "Payloads that were built here, and so not executed again";
    describe_counter!(BUILT_BLOCKS, Unit::Count, text);
    describe_gauge!(HEAD, Unit::Count, "Number of the canonical head");
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe();
    crate::rpc::metrics::describe_metrics();
}
