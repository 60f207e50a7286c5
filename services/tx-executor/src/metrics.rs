//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const STREAMS: &str = "tandem_tx_executor_streams";
pub const BLOCKS: &str = "tandem_tx_executor_blocks_total";
pub const TRANSACTIONS: &str = "tandem_tx_executor_transactions_total";
pub const OPEN_SECONDS: &str = "tandem_tx_executor_open_seconds";
pub const WAIT_SECONDS: &str = "tandem_tx_executor_wait_seconds";
pub const UTILIZATION: &str = "tandem_tx_executor_utilization";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_gauge!(STREAMS, Unit::Count, "Streams that executors have open");
    describe_counter!(BLOCKS, Unit::Count, "Blocks by outcome: opened, refused");
    let text = "Transactions by outcome: executed, not_executed, dropped after the block's end";
    describe_counter!(TRANSACTIONS, Unit::Count, text);
    let text = "From the last value of a block until transactions can be executed";
    describe_histogram!(OPEN_SECONDS, Unit::Seconds, text);
    let text = "Wait of a transaction for a thread, from its arrival on";
    describe_histogram!(WAIT_SECONDS, Unit::Seconds, text);
    let text =
        "Share of the threads' time that executes while a block is open, averaged over blocks";
    describe_gauge!(UTILIZATION, text);
}
