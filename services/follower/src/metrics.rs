//! Names and descriptions of the metrics.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};

pub const LAG_BLOCKS: &str = "tandem_follower_lag_blocks";
pub const LAG_MILLISECONDS: &str = "tandem_follower_lag_milliseconds";
pub const HEAD_SECONDS: &str = "tandem_follower_head_seconds";
pub const APPLY_SECONDS: &str = "tandem_follower_apply_seconds";
pub const APPLIED: &str = "tandem_follower_blocks_applied_total";
pub const REFUSED: &str = "tandem_follower_blocks_refused_total";
pub const RESUMED: &str = "tandem_follower_resumed_total";
pub const LOST: &str = "tandem_follower_leaders_lost_total";
pub const BYTES: &str = "tandem_follower_block_bytes_total";
pub const DOWNLOADED: &str = "tandem_follower_downloaded_total";

/// Describes the metrics to the recorder.
pub fn describe() {
    let (seconds, count) = (Unit::Seconds, Unit::Count);
    describe_gauge!(LAG_BLOCKS, count, "Blocks from the own head to the leader's");
    let text = "Time since the leader told of a head that is not the own one, 0 at its head";
    describe_gauge!(LAG_MILLISECONDS, Unit::Milliseconds, text);
    describe_histogram!(HEAD_SECONDS, seconds, "From the news of a head to its reads");
    describe_histogram!(APPLY_SECONDS, seconds, "One block checked and stored");
    describe_counter!(APPLIED, count, "Blocks checked and stored");
    describe_counter!(REFUSED, count, "Blocks and messages of leaders that were refused");
    describe_counter!(RESUMED, count, "Times that a leader said where the feed resumes");
    describe_counter!(LOST, count, "Times that a leader was lost");
    describe_counter!(BYTES, Unit::Bytes, "Blocks and their changes, before compression");
    describe_counter!(DOWNLOADED, count, "Parts of a first state, by kind: accounts, slots, codes");
    // Starts at zero, so that the first one shows as a rise.
    counter!(REFUSED).increment(0);
}
