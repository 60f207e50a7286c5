use serde::{Deserialize, Serialize};
use std::num::NonZero;

/// What the executor may use.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name under which the executor asks for the right to write. Given on the command line alone.
    #[serde(skip)]
    pub name: String,
    /// Payloads and forkchoice updates that may wait for the engine.
    pub mailbox_capacity: usize,
    /// Blocks that the base stays behind the head. Not a setting of its own: storage-writer's.
    #[serde(skip)]
    pub persist_depth: u64,
    /// Blocks that the base stays behind the head at most. storage-writer's setting, too.
    #[serde(skip)]
    pub unfinalized_blocks_max: u64,
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
    /// Seconds that the calls of one request may execute, as a call alone or together as a batch; 0 for
    /// any time. The time that they wait does not count.
    pub call_seconds_max: u64,
    /// Gas that the calls of one request may use together; the call that goes beyond it is the last.
    pub batch_gas_max: u64,
    /// Threads that execute calls and read much for users, at the lowest priority. Half as many more
    /// look single things up.
    pub call_threads: usize,
    /// Calls of each port that may wait for one of those threads.
    pub call_queue_max: usize,
    /// Blocks that one `eth_getLogs` may search.
    pub log_blocks_max: u64,
    /// Logs that one `eth_getLogs` may return.
    pub log_results_max: usize,
    /// Seconds for which an executor that is told to end keeps its ports open, passes calls on to its
    /// successor, and answers 503 where there is none; at most 60. Not for `tandem node`.
    pub linger_seconds: u64,
    /// Names under which the Engine API may be called, besides IP addresses; `*` for all.
    pub authrpc_vhosts: Vec<String>,
    /// The same of the public port.
    pub http_vhosts: Vec<String>,
    /// Origins of the web pages that may read what the public port answers; `*` for all.
    pub http_corsdomain: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "executor".to_owned(),
            mailbox_capacity: 64,
            persist_depth: 16,
            unfinalized_blocks_max: 128,
            prewarm_threads: prewarm_threads(),
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
            call_seconds_max: 5,
            batch_gas_max: 500_000_000,
            call_threads: call_threads(),
            call_queue_max: 256,
            log_blocks_max: 10_000,
            log_results_max: 20_000,
            linger_seconds: 5,
            authrpc_vhosts: vec!["localhost".to_owned()],
            http_vhosts: vec!["localhost".to_owned()],
            http_corsdomain: Vec::new(),
        }
    }
}

/// More threads that execute ahead find too little to do.
const PREWARM_THREADS_MAX: usize = 16;

/// Returns half of the cores, beside the engine and the tries, and none where there is one core.
fn prewarm_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 2).min(PREWARM_THREADS_MAX)
}

/// All cores but one.
fn call_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    cores.saturating_sub(1).max(1)
}

impl Config {
    /// The settings where storage-writer is another process.
    #[must_use]
    pub fn remote(&self) -> Self {
        Self { predict_reads: self.remote_predict_reads, ..self.clone() }
    }
}
