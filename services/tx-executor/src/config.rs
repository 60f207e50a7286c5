use serde::{Deserialize, Serialize};
use std::thread::available_parallelism;

/// Settings of tx-executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of threads that execute transactions, at least 1. By default the number of cores.
    pub threads: usize,
    /// Maximum bytes of contract code kept from block to block.
    pub code_bytes_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { threads: available_parallelism().map_or(1, usize::from), code_bytes_max: 256 << 20 }
    }
}
