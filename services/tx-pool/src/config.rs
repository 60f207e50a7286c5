use crate::pool::{Limits, ShelfLimits};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// Slots of the largest transaction: 128 KiB with 4,854 authorizations of 27 bytes, the shortest, and
/// 96 bytes for the account of each.
const LARGEST_SLOTS: usize = 19;

/// Limits of the pool. The defaults for transactions without blobs are go-ethereum's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Data directory; the journal is the file `transactions.journal` in it. Empty for no journal.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Slots of 32 KiB for transactions without blobs. An account whose code a transaction sets takes
    /// 96 bytes of them besides the transaction.
    pub slots_max: usize,
    /// Number of transactions without blobs that wait for an earlier nonce.
    pub queued_max: usize,
    /// Number of one sender's transactions that wait for an earlier nonce.
    pub sender_queued_max: usize,
    /// Number of one sender's pending transactions that are evicted only after those of senders
    /// with more.
    pub sender_guaranteed: usize,
    /// Seconds for which a transaction may wait for an earlier nonce.
    pub queued_seconds: u64,
    /// Bytes of transactions with blobs, blobs included, which blob-validator holds. Its
    /// `store_bytes_max` should not be smaller.
    pub blob_bytes_max: usize,
    /// Number of transactions with blobs that wait for an earlier nonce.
    pub blob_queued_max: usize,
    /// Number of one sender's transactions with blobs.
    pub blob_sender_max: u64,
    /// Seconds for which a transaction with blobs is kept. blob-validator's `store_seconds` should
    /// not be smaller.
    pub blob_seconds: u64,
    /// Wei for each gas that a transaction has to pay besides the base fee, at least.
    pub tip_min: u64,
    /// Number of transactions of this node's users that are protected: kept in the journal, and
    /// added again when they were evicted.
    pub local_max: usize,
    /// Bytes of those transactions, blobs included.
    pub local_bytes_max: usize,
    /// Seconds after which an evicted transaction of a user is added again.
    pub local_retry_seconds: u64,
    /// Number of threads that check signatures and ask for verdicts on blobs, at the lowest
    /// priority.
    pub intake_threads: usize,
    /// Number of users' calls that wait for such a thread; messages of peers, as many again.
    pub intake_max: usize,
    /// Bytes of them.
    pub intake_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            datadir: PathBuf::new(),
            slots_max: 6144,
            queued_max: 1024,
            sender_queued_max: 64,
            sender_guaranteed: 16,
            queued_seconds: 3 * 3600,
            blob_bytes_max: 192 << 20,
            blob_queued_max: 64,
            blob_sender_max: 16,
            blob_seconds: 3600,
            tip_min: 1,
            local_max: 4096,
            local_bytes_max: 64 << 20,
            local_retry_seconds: 60,
            intake_threads: 2,
            intake_max: 4096,
            intake_bytes_max: 32 << 20,
        }
    }
}

impl Config {
    /// Returns the limits of the pool. Each admits at least one transaction.
    pub fn limits(&self) -> Limits {
        let seconds = Duration::from_secs;
        Limits {
            plain: ShelfLimits {
                units_max: self.slots_max.max(LARGEST_SLOTS),
                queued_max: self.queued_max,
                sender_queued_max: self.sender_queued_max,
                sender_guaranteed: self.sender_guaranteed,
                bump: 10,
            },
            blobs: ShelfLimits {
                units_max: self.blob_bytes_max,
                queued_max: self.blob_queued_max,
                sender_queued_max: usize::try_from(self.blob_sender_max).unwrap_or(usize::MAX),
                sender_guaranteed: usize::MAX,
                bump: 100,
            },
            blob_nonces_max: self.blob_sender_max.max(1),
            queued_for_max: seconds(self.queued_seconds),
            blobs_for_max: seconds(self.blob_seconds),
        }
    }
}
