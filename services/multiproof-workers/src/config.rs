use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, thread::available_parallelism};

/// How many workers there are and how much they may remember.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Worker threads, 1 to 16; the shards are dealt out among them.
    pub threads: usize,
    /// Threads that read trie paths from storage for the workers, 1 to 256.
    pub proof_threads: usize,
    /// Keys that chunks have at least, whatever the policy says, also by taking in what waits behind
    /// them. Each chunk is a call of storage-writer.
    pub chunk_targets_min: usize,
    /// The same where storage-writer is another process.
    pub remote_chunk_targets_min: usize,
    /// Whether workers leave the engine's thread the processor that it runs on, where they may run on
    /// others. Linux would wake them there, to wait for it.
    pub keep_off_engine: bool,
    /// State updates that may wait for one worker before the executor has to.
    pub mailbox_capacity: usize,
    /// Bytes of revealed tries kept from block to block, over all shards.
    pub trie_bytes_max: usize,
    /// Whether a revealed node's hash is checked against its parent. It costs a hash per node read
    /// and turns a wrong node into an error that names it.
    pub verify_nodes: bool,
    /// Where the proof stream is offered to executors of other processes. Not offered by default.
    pub grpc_addr: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        let cores = available_parallelism().map_or(2, usize::from);
        Self {
            // The EVM, ahead of its turn too, and signatures want the other half. Measured on two
            // cores: a second worker takes more from the engine than it gives.
            threads: (cores / 2).clamp(1, 16),
            proof_threads: (cores / 2).clamp(1, 32),
            chunk_targets_min: 1,
            remote_chunk_targets_min: 1024,
            keep_off_engine: true,
            mailbox_capacity: 1024,
            trie_bytes_max: 1 << 30,
            verify_nodes: true,
            grpc_addr: None,
        }
    }
}

impl Config {
    /// The settings where storage-writer and the engine are other processes.
    #[must_use]
    pub fn remote(&self) -> Self {
        Self {
            chunk_targets_min: self.remote_chunk_targets_min,
            keep_off_engine: false,
            ..self.clone()
        }
    }
}
