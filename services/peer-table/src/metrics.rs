//! Names and descriptions of the metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const CONTACTS: &str = "tandem_peer_table_contacts";
pub const CANDIDATES: &str = "tandem_peer_table_candidates";
pub const EVICTED: &str = "tandem_peer_table_evicted_total";
pub const REFUSED: &str = "tandem_peer_table_refused_total";
pub const UPDATES: &str = "tandem_peer_table_updates_total";
pub const DROPPED_BATCHES: &str = "tandem_peer_table_dropped_batches_total";
pub const BATCH_SECONDS: &str = "tandem_peer_table_batch_seconds";
pub const SNAPSHOT_SECONDS: &str = "tandem_peer_table_snapshot_seconds";
pub const CONNECTED: &str = "tandem_peer_table_connected_peers";
pub const WATCHERS: &str = "tandem_peer_table_watchers";

/// Describes the metrics of a server.
pub fn describe_server() {
    describe_gauge!(WATCHERS, Unit::Count, "Clients that watch the target");
}

pub fn describe() {
    let (seconds, count) = (Unit::Seconds, Unit::Count);
    describe_gauge!(CONTACTS, count, "Contacts by class: proven, unproven, disposed");
    describe_gauge!(CANDIDATES, count, "Contacts whose turn it may be, by purpose: lookup, enr");
    describe_counter!(EVICTED, count, "Contacts that made room for others");
    describe_counter!(
        REFUSED,
        count,
        "Contacts not taken in: table or subnet full, no usable address"
    );
    describe_counter!(UPDATES, count, "Updates of contacts received");
    describe_counter!(DROPPED_BATCHES, count, "Batches lost: mailbox full, or malformed");
    describe_histogram!(BATCH_SECONDS, seconds, "Taking in one batch of updates");
    describe_histogram!(SNAPSHOT_SECONDS, seconds, "Writing the snapshot");
    describe_gauge!(CONNECTED, count, "Peers connected, as last reported");
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe();
    describe_server();
}
