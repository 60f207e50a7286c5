use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, thread::available_parallelism, time::Duration};
use tandem_proto::limits::{BLOB_MESSAGE_BYTES_MAX, BLOBS_PER_BUNDLE_MAX};

/// Policy for repeated verification of a blob.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verification {
    /// Once: requests for the same content share a verification, its verdict is remembered, and
    /// waiting blobs are verified together.
    #[default]
    Once,
    /// As in clients that verify wherever a blob passes. Every sidecar is verified by itself, once
    /// on arrival and once more in the pool. Nothing is shared or remembered. Verdicts are the
    /// same; this exists for comparison.
    Legacy,
}

impl Verification {
    /// Returns how many layers verify a valid sidecar.
    pub(crate) fn layers(self) -> u32 {
        match self {
            Self::Once => 1,
            Self::Legacy => 2,
        }
    }
}

/// Limits on concurrent, waiting and remembered verifications.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Policy for repeated verification of a blob.
    pub verification: Verification,
    /// Number of verifying threads.
    pub threads: usize,
    /// Number of blobs that may wait for a thread, at least those of one sidecar. Each holds 128
    /// KiB.
    pub queue_blobs_max: usize,
    /// Largest number of blobs that one thread verifies together. More save little and delay
    /// callers.
    pub batch_blobs_max: usize,
    /// Number of sidecars whose callers may wait at once.
    pub requests_max: usize,
    /// Bytes of all sidecars whose callers wait, at least those of one. A sidecar counts from its
    /// arrival to its answer, even while it waits for a verification that another one started.
    pub waiting_bytes_max: usize,
    /// Number of valid verdicts remembered.
    pub verdicts_max: usize,
    /// Bytes that valid verdicts may take; the smaller of the two bounds counts.
    pub verdict_bytes_max: usize,
    /// Number of invalid verdicts remembered.
    pub refusals_max: usize,
    /// Seconds for which an invalid verdict is remembered.
    pub refusal_seconds: u64,
    /// Bytes of validated blobs kept for the Engine API.
    pub store_bytes_max: usize,
    /// Seconds for which a blob is kept after its last validation.
    pub store_seconds: u64,
    /// Address at which the service is offered to other processes over gRPC. Not offered by
    /// default.
    pub grpc_addr: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            verification: Verification::default(),
            threads: available_parallelism().map_or(2, usize::from),
            queue_blobs_max: 512,
            batch_blobs_max: 32,
            requests_max: 1024,
            waiting_bytes_max: 256 << 20,
            verdicts_max: 1 << 18,
            verdict_bytes_max: 32 << 20,
            refusals_max: 1 << 14,
            refusal_seconds: 30,
            store_bytes_max: 256 << 20,
            store_seconds: 3600,
            grpc_addr: None,
        }
    }
}

impl Config {
    /// Returns the configuration with every bound at a usable value: nothing is zero, and the
    /// largest sidecar fits into the queue.
    pub(crate) fn clamped(mut self) -> Self {
        self.threads = self.threads.clamp(1, 256);
        self.queue_blobs_max = self.queue_blobs_max.max(BLOBS_PER_BUNDLE_MAX);
        self.batch_blobs_max = self.batch_blobs_max.clamp(1, 128);
        self.requests_max = self.requests_max.max(1);
        self.waiting_bytes_max = self.waiting_bytes_max.max(BLOB_MESSAGE_BYTES_MAX);
        self
    }

    pub(crate) fn refusal_time(&self) -> Duration {
        Duration::from_secs(self.refusal_seconds)
    }

    pub(crate) fn store_time(&self) -> Duration {
        Duration::from_secs(self.store_seconds)
    }
}
