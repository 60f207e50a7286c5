//! Names of the metrics, and their descriptions.

use crate::state::{Counters, Dropped};
use metrics::{Unit, counter, describe_counter, describe_gauge};

pub const RECEIVED: &str = "tandem_discovery_packets_received_total";
pub const RECEIVE_CALLS: &str = "tandem_discovery_receive_calls_total";
pub const SENT: &str = "tandem_discovery_packets_sent_total";
pub const DROPPED: &str = "tandem_discovery_packets_dropped_total";
pub const SEND_FAILED: &str = "tandem_discovery_sends_failed_total";
pub const LOOKUPS: &str = "tandem_discovery_lookups_total";
pub const RECORDS: &str = "tandem_discovery_records_received_total";
pub const LISTED: &str = "tandem_discovery_nodes_listed_total";
pub const PUBLISHED: &str = "tandem_discovery_contacts_published_total";
pub const BONDED: &str = "tandem_discovery_endpoints_proven";

pub fn describe() {
    describe_counter!(RECEIVED, Unit::Count, "Packets received, those dropped included");
    describe_counter!(RECEIVE_CALLS, Unit::Count, "Calls of the system that brought packets");
    describe_counter!(SENT, Unit::Count, "Packets sent");
    describe_counter!(DROPPED, Unit::Count, "Packets dropped, by reason");
    describe_counter!(SEND_FAILED, Unit::Count, "Packets that the socket did not take");
    describe_counter!(LOOKUPS, Unit::Count, "Node lookups begun");
    describe_counter!(RECORDS, Unit::Count, "Node records received");
    describe_counter!(LISTED, Unit::Count, "Nodes that came from lists in DNS");
    describe_counter!(PUBLISHED, Unit::Count, "Contacts published on the bus");
    describe_gauge!(BONDED, Unit::Count, "Endpoints remembered as proven");
}

/// Hands the counts over to the recorder.
pub fn record(counters: &Counters) {
    counter!(RECEIVED).absolute(counters.received);
    counter!(SENT).absolute(counters.sent);
    counter!(LOOKUPS).absolute(counters.lookups);
    counter!(RECORDS).absolute(counters.records);
    counter!(LISTED).absolute(counters.listed);
    for (reason, count) in Dropped::ALL.into_iter().zip(counters.dropped) {
        counter!(DROPPED, "reason" => name(reason)).absolute(count);
    }
}

fn name(reason: Dropped) -> &'static str {
    match reason {
        Dropped::Malformed => "malformed",
        Dropped::Expired => "expired",
        Dropped::RateLimited => "rate_limited",
        Dropped::Unsolicited => "unsolicited",
        Dropped::Unproven => "unproven",
        Dropped::Overloaded => "overloaded",
    }
}
