//! Names and descriptions of the metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};

pub const SESSIONS: &str = "tandem_peer_sessions_sessions";
pub const REFUSED: &str = "tandem_peer_sessions_refused_total";
pub const REPORTS: &str = "tandem_peer_sessions_reports_total";
pub const BANNED: &str = "tandem_peer_sessions_bans_total";
pub const ENDED: &str = "tandem_peer_sessions_ended_total";
pub const MESSAGES: &str = "tandem_peer_sessions_messages_total";
pub const BYTES: &str = "tandem_peer_sessions_bytes_total";
pub const DROPPED_TRANSACTIONS: &str = "tandem_peer_sessions_dropped_transactions_total";
pub const ANSWER_SECONDS: &str = "tandem_peer_sessions_answer_seconds";
pub const REQUEST_SECONDS: &str = "tandem_peer_sessions_request_seconds";

/// Describes the metrics to the recorder. The number of sessions is there from now on: it is 0 until
/// the first session, not absent.
pub fn describe() {
    let (seconds, count) = (Unit::Seconds, Unit::Count);
    describe_gauge!(SESSIONS, count, "Established sessions");
    gauge!(SESSIONS).set(0.0);
    let text = "Connections closed before a byte was read, by limit: handshakes, rate, subnet";
    describe_counter!(REFUSED, count, text);
    let text = "Handshakes that failed and sessions that ended, by stage and cause";
    describe_counter!(ENDED, count, text);
    let text = "Peers reported by callers, by misconduct: invalid, useless, slow";
    describe_counter!(REPORTS, count, text);
    describe_counter!(BANNED, count, "Peers banned for a while, after a breach or a report");
    describe_counter!(MESSAGES, count, "Messages by direction: in, out");
    let text = "Bytes of messages by direction, not compressed";
    describe_counter!(BYTES, Unit::Bytes, text);
    let text = "Messages between peers and tx-pool that were dropped, by direction: in, out";
    describe_counter!(DROPPED_TRANSACTIONS, count, text);
    let text = "Reading blocks to answer one request of a peer";
    describe_histogram!(ANSWER_SECONDS, seconds, text);
    let text = "From a request to a peer until its answer";
    describe_histogram!(REQUEST_SECONDS, seconds, text);
}
