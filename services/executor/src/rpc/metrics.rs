//! Names of the metrics of the JSON-RPC server.

use metrics::{Unit, describe_counter, describe_histogram};

/// Time from a parsed call to its result, in seconds; labels `method` and `status` (`ok` or the
/// error code).
pub const RPC_SECONDS: &str = "tandem_executor_rpc_seconds";
/// HTTP requests refused before any call was made; label `reason`.
pub const RPC_REFUSED_TOTAL: &str = "tandem_executor_rpc_refused_total";

/// Tells the recorder what the metrics mean.
pub fn describe_metrics() {
    describe_histogram!(RPC_SECONDS, Unit::Seconds, "time of one JSON-RPC call");
    describe_counter!(RPC_REFUSED_TOTAL, "HTTP requests refused before any call was made");
}
