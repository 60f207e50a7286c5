//! Names and descriptions of the metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const TRANSACTIONS: &str = "tandem_tx_pool_transactions_total";
pub const POOLED: &str = "tandem_tx_pool_pooled";
pub const SLOTS: &str = "tandem_tx_pool_slots";
pub const BLOB_BYTES: &str = "tandem_tx_pool_blob_bytes";
pub const LOCALS: &str = "tandem_tx_pool_locals";
pub const UNPROTECTED: &str = "tandem_tx_pool_unprotected_total";
pub const JOURNAL_ERRORS: &str = "tandem_tx_pool_journal_errors_total";
pub const HEAD_SECONDS: &str = "tandem_tx_pool_head_seconds";
pub const ANNOUNCED: &str = "tandem_tx_pool_announced_total";
pub const REQUESTED: &str = "tandem_tx_pool_requested_total";
pub const DROPPED_NEWS: &str = "tandem_tx_pool_dropped_news_total";

/// Describes the metrics to the recorder.
pub fn describe() {
    let count = Unit::Count;
    let text = "Transactions by source (local, again, reorg, peer) and by what became of them";
    describe_counter!(TRANSACTIONS, count, text);
    let text = "Pooled transactions by kind (plain, blobs) and state (pending, queued)";
    describe_gauge!(POOLED, count, text);
    describe_gauge!(SLOTS, count, "Slots of 32 KiB of pooled transactions without blobs");
    let text = "Bytes of pooled transactions with blobs, blobs included";
    describe_gauge!(BLOB_BYTES, Unit::Bytes, text);
    describe_gauge!(LOCALS, count, "Protected transactions of this node's users");
    let text = "Accepted transactions of this node's users for whose protection there was no room";
    describe_counter!(UNPROTECTED, count, text);
    describe_counter!(JOURNAL_ERRORS, count, "Failed writes of the journal");
    let text = "From a new head until the pool stands on it";
    describe_histogram!(HEAD_SECONDS, Unit::Seconds, text);
    let text = "Announcements by direction: in, out; and out in full";
    describe_counter!(ANNOUNCED, count, text);
    describe_counter!(REQUESTED, count, "Announced transactions that peers were asked for");
    let text = "News between the pool and its peers that found the queue full";
    describe_counter!(DROPPED_NEWS, count, text);
}
