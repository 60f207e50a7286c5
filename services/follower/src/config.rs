use serde::{Deserialize, Serialize};

/// Settings of a follower.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Blocks that the follower may be behind the leader's head to be ready.
    pub lag_blocks_max: u64,
    /// Seconds without a word of a leader after which the connection counts as lost, and the follower
    /// is no longer ready. Leaders speak each second.
    pub silence_seconds_max: u64,
    /// Shortest pause before a lost leader is asked again, in milliseconds. It doubles each time.
    pub retry_ms_min: u64,
    /// Longest pause before a lost leader is asked again, in milliseconds.
    pub retry_ms_max: u64,
    /// Directory or bucket with snapshots, such as `s3://BUCKET/PATH`. A data directory without a database
    /// gets that of the newest snapshot after which a leader has the changes. `None`: the state is copied
    /// from a leader.
    pub snapshot: Option<String>,
    /// Blocks below the base whose states JSON-RPC reads: balances, nonces, codes, slots and calls. 0 for
    /// none. The default is the time for which access lists are kept (EIP-7928).
    pub history_blocks: u64,
    /// Blocks after which the head moves while the follower catches up. The leader's head is taken
    /// over at once when it is reached.
    pub head_step_blocks: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lag_blocks_max: 4,
            silence_seconds_max: 10,
            retry_ms_min: 100,
            retry_ms_max: 10_000,
            snapshot: None,
            history_blocks: 3_533 * 32,
            head_step_blocks: 16,
        }
    }
}
