//! Names and descriptions of the metrics of queues.

use crate::queue::Meters;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

/// Gauge of waiting messages, by queue.
const MESSAGES: &str = "tandem_queue_messages";
/// Histogram of the time messages wait, by queue.
const WAIT_SECONDS: &str = "tandem_queue_wait_seconds";
/// Counter of messages refused because the queue was full, by queue.
const REFUSED: &str = "tandem_queue_refused_total";

/// Describes the metrics of queues to the recorder.
pub fn describe() {
    describe_gauge!(MESSAGES, Unit::Count, "Messages that wait, by queue");
    let text = "From the sending of a message until it is taken up, by queue";
    describe_histogram!(WAIT_SECONDS, Unit::Seconds, text);
    let text = "Messages refused because the queue was full, by queue";
    describe_counter!(REFUSED, Unit::Count, text);
}

/// Returns the metrics of one queue, looked up once.
pub fn of(queue: &'static str) -> Meters {
    Meters {
        messages: gauge!(MESSAGES, "queue" => queue),
        wait: histogram!(WAIT_SECONDS, "queue" => queue),
        refused: counter!(REFUSED, "queue" => queue),
    }
}
