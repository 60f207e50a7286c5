//! Names and descriptions of the metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const VERIFIED: &str = "tandem_blob_validator_verifications_total";
pub const REFUSED: &str = "tandem_blob_validator_refused_total";
pub const BATCHES: &str = "tandem_blob_validator_batches_total";
pub const SHARED: &str = "tandem_blob_validator_shared_total";
pub const HITS: &str = "tandem_blob_validator_hits_total";
pub const OVERLOADED: &str = "tandem_blob_validator_overloaded_total";
pub const EXPIRED: &str = "tandem_blob_validator_expired_total";
pub const ABANDONED: &str = "tandem_blob_validator_abandoned_total";
pub const VERIFY_SECONDS: &str = "tandem_blob_validator_verify_seconds";
pub const BATCH_BLOBS: &str = "tandem_blob_validator_batch_blobs";
pub const QUEUE_WAIT_SECONDS: &str = "tandem_blob_validator_queue_wait_seconds";
pub const QUEUE_BLOBS: &str = "tandem_blob_validator_queue_blobs";
pub const STORE_BLOBS: &str = "tandem_blob_validator_store_blobs";
pub const STORE_BYTES: &str = "tandem_blob_validator_store_bytes";
pub const VERDICTS: &str = "tandem_blob_validator_verdicts";
pub const STREAMS: &str = "tandem_blob_validator_streams";

pub fn describe() {
    let seconds = Unit::Seconds;
    describe_counter!(VERIFIED, Unit::Count, "Blobs verified, by form");
    describe_counter!(REFUSED, Unit::Count, "Blobs that were verified and found invalid");
    describe_counter!(BATCHES, Unit::Count, "Batch verifications, those of bisections too");
    describe_counter!(SHARED, Unit::Count, "Blobs that shared the verification of another request");
    describe_counter!(HITS, Unit::Count, "Blobs whose verdict was known");
    describe_counter!(OVERLOADED, Unit::Count, "Requests refused because a queue was full");
    describe_counter!(EXPIRED, Unit::Count, "Requests without a verdict in time");
    describe_counter!(ABANDONED, Unit::Count, "Requests whose caller went away before their turn");
    describe_histogram!(VERIFY_SECONDS, seconds, "One batch, by form");
    describe_histogram!(BATCH_BLOBS, Unit::Count, "Blobs verified together");
    describe_histogram!(
        QUEUE_WAIT_SECONDS,
        seconds,
        "Longest wait of a blob for its thread, per batch"
    );
    describe_gauge!(QUEUE_BLOBS, Unit::Count, "Blobs that wait for a thread");
    describe_gauge!(STORE_BLOBS, Unit::Count, "Validated blobs kept");
    describe_gauge!(STORE_BYTES, Unit::Bytes, "Memory of the validated blobs kept");
    describe_gauge!(VERDICTS, Unit::Count, "Verdicts remembered");
}

pub fn describe_server() {
    describe_gauge!(STREAMS, Unit::Count, "Open streams of sidecars");
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe();
    describe_server();
}
