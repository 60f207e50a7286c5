use serde::{Deserialize, Serialize};
use std::num::NonZero;
use tandem_actor::at_most_of_memory;

/// Settings of the executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name under which the executor requests the right to write. Given on the command line only.
    #[serde(skip)]
    pub name: String,
    /// Maximum number of payloads and forkchoice updates that wait for the engine.
    pub mailbox_capacity: usize,
    /// Distance between base and head, in blocks. Not a separate setting: taken from
    /// storage-writer.
    #[serde(skip)]
    pub persist_depth: u64,
    /// Maximum distance between base and head, in blocks. Taken from storage-writer, too.
    #[serde(skip)]
    pub unfinalized_blocks_max: u64,
    /// Number of threads that execute transactions ahead of their turn, besides the engine's
    /// thread. 0 disables this. A quarter to half of the cores is sensible.
    pub prewarm_threads: usize,
    /// Addresses of tx-executors, such as `http://10.0.0.7:9606`, at most 64. A host name counts as
    /// 16: each of its addresses is a tx-executor, and it is looked up every five seconds. They
    /// execute transactions of blocks with access lists beside this process, where that is measured
    /// to be faster. None by default.
    pub tx_executors: Vec<String>,
    /// Whether slots that calls are likely to read are read together before they execute. By
    /// default while a call of storage-writer takes long, as it does in another process or on a
    /// disk: reads from memory are too cheap for this to pay off.
    pub predict_reads: Option<bool>,
    /// Number of accounts kept in the cache of base values.
    pub cache_accounts: usize,
    /// Number of slots kept in the cache of base values.
    pub cache_slots: usize,
    /// Number of contract codes kept in the cache.
    pub cache_codes: usize,
    /// Number of invalid blocks remembered, so that their children are refused unchecked.
    pub invalid_blocks: usize,
    /// Gas limit that locally built blocks move towards.
    pub gas_limit_target: u64,
    /// Maximum number of blobs in a locally built block. By default the fork's limit alone counts.
    pub blobs_per_block_max: Option<u64>,
    /// Whether `testing_buildBlockV1` is served, which lets any caller have blocks built.
    pub testing_methods: bool,
    /// Maximum gas of an `eth_call`.
    pub call_gas_max: u64,
    /// Maximum seconds of execution of one request: a single call, or all calls of a batch
    /// together. 0 means no limit. The time that calls wait does not count.
    pub call_seconds_max: u64,
    /// Maximum gas of all calls of one request. The call that exceeds this limit is the last one.
    pub batch_gas_max: u64,
    /// Number of threads that execute calls and read much for users, at the lowest priority. Half
    /// as many additional threads serve single lookups.
    pub call_threads: usize,
    /// Maximum number of calls of each port that wait for one of those threads.
    pub call_queue_max: usize,
    /// Maximum number of blocks that one `eth_getLogs` searches.
    pub log_blocks_max: u64,
    /// Maximum number of logs that one `eth_getLogs` returns.
    pub log_results_max: usize,
    /// Seconds, at most 60, for which a stopping executor keeps its ports open. It forwards calls
    /// to its successor, or answers 503 without one. Unused by `tandem node`.
    pub linger_seconds: u64,
    /// Names under which the Engine API may be called, besides IP addresses; `*` for all.
    pub authrpc_vhosts: Vec<String>,
    /// Names under which the public port may be called, besides IP addresses; `*` for all.
    pub http_vhosts: Vec<String>,
    /// Origins of the web pages that may read the public port's answers; `*` for all.
    pub http_corsdomain: Vec<String>,
    /// Number of WebSockets of the public port at once, 0 for none.
    pub websockets_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "executor".to_owned(),
            mailbox_capacity: 64,
            persist_depth: 16,
            unfinalized_blocks_max: 128,
            prewarm_threads: prewarm_threads(),
            tx_executors: Vec::new(),
            predict_reads: None,
            cache_accounts: values(500_000, 130, 64),
            cache_slots: values(2_000_000, 120, 32),
            cache_codes: 20_000,
            invalid_blocks: 512,
            gas_limit_target: 60_000_000,
            blobs_per_block_max: None,
            testing_methods: false,
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
            websockets_max: 64,
        }
    }
}

/// Returns a number of cached values of so many bytes each, or as many as fit into a part of the memory.
fn values(count: usize, bytes: usize, part: u64) -> usize {
    let bytes_max = at_most_of_memory((count * bytes) as u64, part);
    usize::try_from(bytes_max).unwrap_or(usize::MAX) / bytes
}

/// More threads that execute ahead find too little to do.
const PREWARM_THREADS_MAX: usize = 16;

/// Returns half of the cores, beside the engine and the tries, and none where there is one core.
fn prewarm_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 2).min(PREWARM_THREADS_MAX)
}

/// Returns the number of cores minus one, at least one.
fn call_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    cores.saturating_sub(1).max(1)
}
