//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter};

pub const CONNECTIONS: &str = "tandem_tx_executor_client_connections_total";
pub const CONNECTIONS_LOST: &str = "tandem_tx_executor_client_connections_lost_total";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_counter!(CONNECTIONS, Unit::Count, "Streams opened to tx-executors");
    describe_counter!(CONNECTIONS_LOST, Unit::Count, "Streams to tx-executors that ended");
}
