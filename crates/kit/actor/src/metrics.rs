//! Names of the metrics of mailboxes, and their descriptions.

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

/// Gauge: messages that wait, by mailbox.
const MESSAGES: &str = "tandem_actor_mailbox_messages";
/// Counter: messages refused because the mailbox was full, by mailbox.
const REFUSED: &str = "tandem_actor_mailbox_refused_total";

/// Describes the metrics of mailboxes to the recorder.
pub fn describe() {
    describe_gauge!(MESSAGES, Unit::Count, "Messages that wait, by mailbox");
    let text = "Messages refused because the mailbox was full, by mailbox";
    describe_counter!(REFUSED, Unit::Count, text);
}

/// Those of one mailbox, looked up once.
pub fn of(mailbox: &'static str) -> (Gauge, Counter) {
    (gauge!(MESSAGES, "mailbox" => mailbox), counter!(REFUSED, "mailbox" => mailbox))
}
