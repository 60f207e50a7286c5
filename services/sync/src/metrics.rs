//! Names and descriptions of the metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const STAGE: &str = "tandem_sync_stage";
pub const CURRENT: &str = "tandem_sync_current_block";
pub const HIGHEST: &str = "tandem_sync_highest_block";
pub const PEERS: &str = "tandem_sync_peers";
pub const LEFT: &str = "tandem_sync_left_seconds";
pub const HEADERS: &str = "tandem_sync_headers_total";
pub const BLOCKS: &str = "tandem_sync_blocks_total";
pub const BYTES: &str = "tandem_sync_body_bytes_total";
pub const WAITING: &str = "tandem_sync_waiting_bodies";
pub const WAITING_BYTES: &str = "tandem_sync_waiting_body_bytes";
pub const REQUESTS: &str = "tandem_sync_requests_total";
pub const REQUEST_SECONDS: &str = "tandem_sync_request_seconds";
pub const REPORTS: &str = "tandem_sync_reports_total";
pub const REPLAYED: &str = "tandem_sync_replayed_blocks_total";
pub const STARVED: &str = "tandem_sync_starved_milliseconds_total";

/// Describes the metrics to the recorder.
pub fn describe() {
    let (seconds, count) = (Unit::Seconds, Unit::Count);
    describe_gauge!(STAGE, count, "1 for the work under way, by stage: headers, blocks, state");
    describe_gauge!(CURRENT, count, "Newest executed block on the way to the wanted head");
    describe_gauge!(HIGHEST, count, "Highest block on the way, as far as headers say");
    describe_gauge!(PEERS, count, "Peers that may be asked");
    describe_gauge!(LEFT, seconds, "Time that the rest takes at the present pace");
    describe_counter!(HEADERS, count, "Headers received that have the right hash");
    describe_counter!(BLOCKS, count, "Blocks executed");
    describe_counter!(BYTES, Unit::Bytes, "Bodies received that belong to their headers");
    describe_gauge!(WAITING, count, "Bodies that wait for their execution");
    describe_gauge!(WAITING_BYTES, Unit::Bytes, "Bytes of the bodies that wait");
    let text = "Blocks whose access lists moved a downloaded state on to a newer block";
    describe_counter!(REPLAYED, count, text);
    let text = "Requests to peers by kind (headers, bodies) and outcome (full, part, empty, gone, \
                busy, late, lie)";
    describe_counter!(REQUESTS, count, text);
    let text = "From a request to its answer, the check included, by kind";
    describe_histogram!(REQUEST_SECONDS, seconds, text);
    describe_counter!(REPORTS, count, "Peers reported, by misconduct: invalid, useless, slow");
    let text = "Time for which no block was there to execute, while there were blocks to fetch";
    describe_counter!(STARVED, Unit::Milliseconds, text);
}
