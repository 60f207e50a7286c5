//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter};

pub const CONNECTIONS: &str = "tandem_tx_pool_client_connections_total";
pub const CONNECTIONS_LOST: &str = "tandem_tx_pool_client_connections_lost_total";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_counter!(CONNECTIONS, Unit::Count, "Connections made to tx-pool");
    describe_counter!(CONNECTIONS_LOST, Unit::Count, "Connections to tx-pool that ended");
}
