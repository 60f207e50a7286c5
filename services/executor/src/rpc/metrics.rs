//! Names of the metrics of the JSON-RPC server.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Time from a parsed call to its result, in seconds; labels `method` and `status` (`ok` or the
/// error code).
pub const RPC_SECONDS: &str = "tandem_executor_rpc_seconds";
/// HTTP requests refused without an answer to their calls, and connections refused or cut off;
/// label `reason`.
pub const RPC_REFUSED_TOTAL: &str = "tandem_executor_rpc_refused_total";
/// Whether the executor has the right to write: 1, or 0. Unused by `tandem node`.
pub const RIGHT_TO_WRITE: &str = "tandem_executor_right_to_write";
/// HTTP requests that arrived while another executor had the right to write; labels `port`
/// (`engine`, `http`) and `outcome` (`answered`, `here`, `no_holder`, `unreachable`, `broken`,
/// `passed_on`, `no_room`).
pub const FORWARDED_TOTAL: &str = "tandem_executor_forwarded_total";
/// Time from such a request to its answer, in seconds; label `port`.
pub const FORWARD_SECONDS: &str = "tandem_executor_forward_seconds";
/// Calls handed to their threads; labels `pool` (`call`, `read`) and `outcome` (`answered`, `cut`,
/// `abandoned`, `refused`, `late`, `panicked`).
pub const CALLS_TOTAL: &str = "tandem_executor_calls_total";
/// Number of calls that wait for a thread; label `pool`.
pub const CALLS_WAITING: &str = "tandem_executor_calls_waiting";
/// Time a call waits for a thread, in seconds; label `pool`.
pub const CALL_WAIT_SECONDS: &str = "tandem_executor_call_wait_seconds";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    describe_histogram!(RPC_SECONDS, Unit::Seconds, "time of one JSON-RPC call");
    describe_counter!(RPC_REFUSED_TOTAL, "requests and connections refused over HTTP, by reason");
    let text = "1 while the executor has the right to write, else 0";
    describe_gauge!(RIGHT_TO_WRITE, Unit::Count, text);
    let text =
        "Requests that came while another executor had the right to write, by port and outcome";
    describe_counter!(FORWARDED_TOTAL, text);
    let text = "From such a request to its answer";
    describe_histogram!(FORWARD_SECONDS, Unit::Seconds, text);
    let text = "Calls of users by pool of threads (call, read) and outcome: answered, cut, abandoned, \
                refused, late, panicked";
    describe_counter!(CALLS_TOTAL, text);
    describe_gauge!(CALLS_WAITING, Unit::Count, "Calls of users that wait for a thread, by pool");
    let text = "From a call of a user until a thread takes it, by pool";
    describe_histogram!(CALL_WAIT_SECONDS, Unit::Seconds, text);
}
