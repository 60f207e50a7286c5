//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter, describe_gauge};

pub const CONNECTIONS: &str = "tandem_multiproof_workers_client_connections_total";
pub const CONNECTIONS_LOST: &str = "tandem_multiproof_workers_client_connections_lost_total";
pub const TIMEOUTS: &str = "tandem_multiproof_workers_client_timeouts_total";
pub const ADVICE_DROPPED: &str = "tandem_multiproof_workers_client_advice_dropped_total";
pub const ALIVE: &str = "tandem_multiproof_workers_alive";
pub const HEARTBEATS_IGNORED: &str = "tandem_multiproof_workers_heartbeats_ignored_total";
pub const FLEET_WORKERS: &str = "tandem_multiproof_workers_fleet_workers";
pub const SHARDS_MOVED: &str = "tandem_multiproof_workers_fleet_shards_moved_total";
pub const REDISPATCHED: &str = "tandem_multiproof_workers_fleet_shards_redispatched_total";
pub const FAILURES: &str = "tandem_multiproof_workers_fleet_failures_total";
pub const QUARANTINES: &str = "tandem_multiproof_workers_fleet_quarantines_total";
pub const COMPUTED_LOCALLY: &str = "tandem_multiproof_workers_fleet_computed_locally_total";

/// Describes the metrics of a client of the proof stream.
pub fn describe_client() {
    describe_counter!(CONNECTIONS, Unit::Count, "Proof streams opened to the workers");
    describe_counter!(CONNECTIONS_LOST, Unit::Count, "Proof streams that broke or were ended");
    describe_counter!(TIMEOUTS, Unit::Count, "Blocks given up because the workers took too long");
    describe_counter!(ADVICE_DROPPED, Unit::Count, "Advice dropped: no room, or no connection");
}

/// Describes the metrics of a listener to heartbeats.
pub fn describe_listener() {
    describe_gauge!(ALIVE, Unit::Count, "Workers that are alive, by their heartbeats");
    let text = "Heartbeats that count for nothing (reason=malformed, name, endpoint, future, stale, no_place)";
    describe_counter!(HEARTBEATS_IGNORED, Unit::Count, text);
}

/// Describes the metrics of a fleet.
pub fn describe_fleet() {
    let count = Unit::Count;
    let text = "Workers by what they are used for (state=active, trial, suspended, quarantined)";
    describe_gauge!(FLEET_WORKERS, count, text);
    describe_counter!(SHARDS_MOVED, count, "Shards that another worker answers for than before");
    let text = "Shards whose roots were asked of another worker within the block";
    describe_counter!(REDISPATCHED, count, text);
    let text = "Blocks that a worker did not answer (reason=late, lost, error)";
    describe_counter!(FAILURES, count, text);
    describe_counter!(QUARANTINES, count, "Times that a worker was found to give wrong roots");
    let text =
        "Blocks with shards that were computed in this process (reason=nobody, missing, again)";
    describe_counter!(COMPUTED_LOCALLY, count, text);
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe_client();
    describe_listener();
    describe_fleet();
}
