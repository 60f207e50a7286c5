//! Names of the metrics of the calls of users.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Calls handed to their threads; labels `pool` (`call`, `read`) and `outcome` (`answered`, `cut`,
/// `abandoned`, `refused`, `late`, `panicked`).
pub const CALLS_TOTAL: &str = "tandem_executor_calls_total";
/// Number of calls that wait for a thread; label `pool`.
pub const CALLS_WAITING: &str = "tandem_executor_calls_waiting";
/// Time a call waits for a thread, in seconds; label `pool`.
pub const CALL_WAIT_SECONDS: &str = "tandem_executor_call_wait_seconds";

/// Describes the metrics to the recorder.
pub fn describe_metrics() {
    tandem_http::describe_gate_metrics();
    let text = "Calls of users by pool of threads (call, read) and outcome: answered, cut, abandoned, \
                refused, late, panicked";
    describe_counter!(CALLS_TOTAL, text);
    describe_gauge!(CALLS_WAITING, Unit::Count, "Calls of users that wait for a thread, by pool");
    let text = "From a call of a user until a thread takes it, by pool";
    describe_histogram!(CALL_WAIT_SECONDS, Unit::Seconds, text);
}
