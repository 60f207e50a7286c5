//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter};

pub const CONNECTIONS: &str = "tandem_peer_table_client_connections_total";
pub const CONNECTIONS_LOST: &str = "tandem_peer_table_client_connections_lost_total";
pub const LOST_BATCHES: &str = "tandem_peer_table_client_lost_batches_total";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_counter!(CONNECTIONS, Unit::Count, "Connections made to peer-table");
    describe_counter!(CONNECTIONS_LOST, Unit::Count, "Connections to peer-table that ended");
    describe_counter!(LOST_BATCHES, Unit::Count, "Batches that peer-table did not take");
}
