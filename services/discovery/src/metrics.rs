//! Names and descriptions of the metrics.

use crate::state::{Counters, Dropped};
use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

pub const RECEIVED: &str = "tandem_discovery_packets_received_total";
pub const RECEIVE_CALLS: &str = "tandem_discovery_receive_calls_total";
pub const SENT: &str = "tandem_discovery_packets_sent_total";
pub const DROPPED: &str = "tandem_discovery_packets_dropped_total";
pub const SEND_FAILED: &str = "tandem_discovery_sends_failed_total";
pub const LOOKUPS: &str = "tandem_discovery_lookups_total";
pub const RECORDS: &str = "tandem_discovery_records_received_total";
pub const LISTED: &str = "tandem_discovery_nodes_listed_total";
#[cfg(feature = "discv5")]
pub const V5_FOUND: &str = "tandem_discovery_v5_nodes_found_total";
pub const PUBLISHED: &str = "tandem_discovery_contacts_published_total";
pub const BONDED: &str = "tandem_discovery_endpoints_proven";

/// Describes all metrics of discovery to the recorder.
pub fn describe() {
    describe_counter!(RECEIVED, Unit::Count, "Packets received, those dropped included");
    describe_counter!(RECEIVE_CALLS, Unit::Count, "Calls of the system that brought packets");
    describe_counter!(SENT, Unit::Count, "Packets sent");
    describe_counter!(DROPPED, Unit::Count, "Packets dropped, by reason");
    describe_counter!(SEND_FAILED, Unit::Count, "Packets that the socket did not take");
    describe_counter!(LOOKUPS, Unit::Count, "Node lookups begun");
    describe_counter!(RECORDS, Unit::Count, "Node records received");
    describe_counter!(LISTED, Unit::Count, "Nodes that came from lists in DNS");
    #[cfg(feature = "discv5")]
    describe_counter!(V5_FOUND, Unit::Count, "Nodes heard of over discv5");
    describe_counter!(PUBLISHED, Unit::Count, "Contacts published on the bus");
    describe_gauge!(BONDED, Unit::Count, "Endpoints remembered as proven");
}

/// Metrics of the state, looked up once.
pub struct Handles {
    received: Counter,
    sent: Counter,
    lookups: Counter,
    records: Counter,
    listed: Counter,
    dropped: [Counter; Dropped::ALL.len()],
    bonded: Gauge,
}

impl Handles {
    pub fn new() -> Self {
        Self {
            received: counter!(RECEIVED),
            sent: counter!(SENT),
            lookups: counter!(LOOKUPS),
            records: counter!(RECORDS),
            listed: counter!(LISTED),
            dropped: Dropped::ALL.map(|reason| counter!(DROPPED, "reason" => name(reason))),
            bonded: gauge!(BONDED),
        }
    }

    /// Passes the counts on to the recorder.
    pub fn record(&self, counters: &Counters, bonded: u32) {
        self.received.absolute(counters.received);
        self.sent.absolute(counters.sent);
        self.lookups.absolute(counters.lookups);
        self.records.absolute(counters.records);
        self.listed.absolute(counters.listed);
        for (metric, count) in self.dropped.iter().zip(counters.dropped) {
            metric.absolute(count);
        }
        self.bonded.set(f64::from(bonded));
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
