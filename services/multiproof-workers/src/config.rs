use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, thread::available_parallelism};
use tandem_actor::at_most_of_memory;

/// Number of workers, and limits on their memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of worker threads, 1 to 16; the shards are dealt out among them.
    pub threads: usize,
    /// Number of threads that read trie paths from storage for the workers, 1 to 256.
    pub proof_threads: usize,
    /// Minimum number of keys in a chunk, whatever the policy says. A smaller chunk takes in the
    /// chunks that wait behind it. Each chunk is a call of storage-writer. By default 1024 if
    /// storage-writer is another process. Otherwise 1, and 1024 for a chunk that has waited for a proof
    /// thread for a millisecond, as chunks do where paths come from a disk.
    pub chunk_targets_min: Option<usize>,
    /// Whether workers leave the engine's thread the processor that it runs on, when they may run
    /// on others. Linux would wake them on that processor, where they would wait for the engine.
    pub keep_off_engine: bool,
    /// State updates that may wait for one worker before the executor must wait.
    pub mailbox_capacity: usize,
    /// Maximum bytes of revealed tries kept from block to block, over all shards.
    pub trie_bytes_max: usize,
    /// Whether a revealed node's hash is checked against its parent. This costs a hash per node
    /// read, and turns a wrong node into an error that names it.
    pub verify_nodes: bool,
    /// Address at which executors of other processes get the proof stream. Not offered by default.
    pub grpc_addr: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        let cores = available_parallelism().map_or(2, usize::from);
        Self {
            // The other half is for signatures and the EVM, which also executes ahead of its turn.
            // Measured on two cores: a second worker takes more from the engine than it gives.
            threads: (cores / 2).clamp(1, 16),
            proof_threads: (cores / 2).clamp(1, 32),
            chunk_targets_min: None,
            keep_off_engine: true,
            mailbox_capacity: 1024,
            trie_bytes_max: at_most_of_memory(1 << 30, 4).try_into().unwrap_or(usize::MAX),
            verify_nodes: true,
            grpc_addr: None,
        }
    }
}

impl Config {
    /// Returns the settings with the defaults for a storage-writer and an engine in other
    /// processes.
    #[must_use]
    pub fn remote(&self) -> Self {
        Self {
            chunk_targets_min: self.chunk_targets_min.or(Some(1024)),
            keep_off_engine: false,
            ..self.clone()
        }
    }

    /// Returns the minimum number of keys in a chunk.
    pub(crate) fn targets_min(&self) -> usize {
        self.chunk_targets_min.unwrap_or(1)
    }
}
