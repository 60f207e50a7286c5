//! Names of the metrics, and their descriptions. Every process has those of its HTTP ports; only an
//! executor has those of a gate.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Time from a parsed call to its result, in seconds; labels `method` and `status` (`ok` or the
/// error code).
pub const CALL_SECONDS: &str = "tandem_http_call_seconds";
/// HTTP requests refused without an answer to their calls, and connections refused or cut off;
/// label `reason`.
pub const REFUSED_TOTAL: &str = "tandem_http_refused_total";
/// Whether the executor has the right to write: 1, or 0. Unused by `tandem node`.
pub const RIGHT_TO_WRITE: &str = "tandem_executor_right_to_write";
/// HTTP requests that arrived while another executor had the right to write; labels `port`
/// (`engine`, `http`) and `outcome` (`answered`, `here`, `no_holder`, `unreachable`, `broken`,
/// `passed_on`, `no_room`).
pub const FORWARDED_TOTAL: &str = "tandem_executor_forwarded_total";
/// Time from such a request to its answer, in seconds; label `port`.
pub const FORWARD_SECONDS: &str = "tandem_executor_forward_seconds";

/// Describes the metrics of HTTP ports to the recorder.
pub fn describe_metrics() {
    describe_histogram!(CALL_SECONDS, Unit::Seconds, "time of one JSON-RPC call");
    describe_counter!(REFUSED_TOTAL, "requests and connections refused over HTTP, by reason");
}

/// Describes the metrics of a [`Gate`](crate::Gate) to the recorder.
pub fn describe_gate_metrics() {
    let text = "1 while the executor has the right to write, else 0";
    describe_gauge!(RIGHT_TO_WRITE, Unit::Count, text);
    let text =
        "Requests that came while another executor had the right to write, by port and outcome";
    describe_counter!(FORWARDED_TOTAL, text);
    let text = "From such a request to its answer";
    describe_histogram!(FORWARD_SECONDS, Unit::Seconds, text);
}
