use crate::speculate::default_threads;
use serde::{Deserialize, Serialize};

/// What the executor may use.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Payloads and forkchoice updates that may wait for the engine.
    pub mailbox_capacity: usize,
    /// Blocks that the base stays behind the head. Not a setting of its own: storage-writer's.
    #[serde(skip)]
    pub persist_depth: u64,
    /// How far below the base side chains are kept. storage-writer's setting, too.
    #[serde(skip)]
    pub side_chain_blocks: u64,
    /// Threads that execute transactions ahead of their turn, beside the engine's. 0 turns that
    /// off. A quarter to half of the cores is sensible.
    pub prewarm_threads: usize,
    /// Whether slots that calls are likely to read are read before they execute, together. In one
    /// process with storage-writer reading is not dear enough for that.
    pub predict_reads: bool,
    /// The same where storage-writer is another process.
    pub remote_predict_reads: bool,
    /// Accounts kept in the cache of base values.
    pub cache_accounts: usize,
    /// Slots kept in the cache of base values.
    pub cache_slots: usize,
    /// Contract codes kept.
    pub cache_codes: usize,
    /// Invalid blocks remembered, so that their children are refused without a look.
    pub invalid_blocks: usize,
    /// Bytes of blob transactions kept with their blobs, which blob-validator holds: its
    /// `store_bytes_max` should be no less.
    pub blob_pool_bytes_max: usize,
    /// Seconds that a blob transaction is kept. blob-validator's `store_seconds` should be no less.
    pub blob_pool_seconds: u64,
    /// Gas limit that the blocks built here move towards.
    pub gas_limit_target: u64,
    /// Gas that an `eth_call` may use.
    pub call_gas_max: u64,
    /// Blocks that one `eth_getLogs` may search.
    pub log_blocks_max: u64,
    /// Logs that one `eth_getLogs` may return.
    pub log_results_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mailbox_capacity: 64,
            persist_depth: 16,
            side_chain_blocks: 256,
            prewarm_threads: default_threads(),
            predict_reads: false,
            remote_predict_reads: true,
            cache_accounts: 500_000,
            cache_slots: 2_000_000,
            cache_codes: 20_000,
            invalid_blocks: 512,
            blob_pool_bytes_max: 192 << 20,
            blob_pool_seconds: 3600,
            gas_limit_target: 60_000_000,
            call_gas_max: 50_000_000,
            log_blocks_max: 10_000,
            log_results_max: 20_000,
        }
    }
}

impl Config {
    /// The settings where storage-writer is another process.
    #[must_use]
    pub fn remote(&self) -> Self {
        Self { predict_reads: self.remote_predict_reads, ..self.clone() }
    }
}
