//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter};

pub const CONNECTIONS: &str = "tandem_blob_validator_client_connections_total";
pub const CONNECTIONS_LOST: &str = "tandem_blob_validator_client_connections_lost_total";
pub const ADVICE_DROPPED: &str = "tandem_blob_validator_client_advice_dropped_total";
pub const RECALLED: &str = "tandem_blob_validator_client_recalled_total";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_counter!(CONNECTIONS, Unit::Count, "Connections to blob-validator made");
    describe_counter!(CONNECTIONS_LOST, Unit::Count, "Connections to blob-validator lost");
    describe_counter!(RECALLED, Unit::Count, "Blobs known by their content, which were not sent");
    describe_counter!(ADVICE_DROPPED, Unit::Count, "Messages about blobs in blocks not sent");
}
