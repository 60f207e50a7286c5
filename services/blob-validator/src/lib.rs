//! blob-validator: every blob verified once, by content, never on a hot thread.
//!
//! **Role.** The only place where blobs are checked against their commitments. **In:** sidecars of
//! blob transactions, in both forms. **Out:** a verdict with its reason; validated blobs by
//! versioned hash; `blobs.validated` on the bus. **Holds:** verdicts and blobs, in memory only.
//!
//! ```text
//! async callers ──► blob-intake ─┐ hash       ┌─ verdict known ───────────────────► answer
//!                   (one thread) ├───────────►├─ being verified: wait with the others
//! threads that may wait ─────────┘ the content└─ new ─► queue ─► blob-verifier-N ──► answer all
//! ```
//!
//! **Verified once.** A verdict is remembered, and a verification shared, under a hash over all
//! bytes that it depends on: the blob, its commitment, all proofs, the form. Whoever sends another
//! blob under a known commitment and proof gets that blob verified, and refused.
//!
//! **Batches.** A verifier takes its share of what waits, never waits for more: one blob when
//! nothing else is there, up to [`Config::batch_blobs_max`] when the queue is long. A bad blob in a
//! batch is found by bisection, the others are not harmed.
//!
//! **Overload.** The queue is bounded in blobs, the waiting requests in number and in bytes. What
//! does not fit is refused as a whole and at once, with a hint when to come back; it is counted. A
//! blob that nobody waits for any more by the time its turn comes is not verified: time is up for
//! all who wanted it, or they have gone.
//!
//! Across processes the same calls travel over gRPC: see [`grpc`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod bundle;
mod config;
pub mod grpc;
mod intake;
mod metrics;
mod pool;
mod service;
mod state;
mod store;
mod verdicts;

pub use config::{Config, Verification};
pub use metrics::describe_all as describe_metrics;
pub use service::{BlobValidator, Deps};

/// The longest that a caller can wait.
const TIMEOUT_MAX: std::time::Duration = std::time::Duration::from_secs(600);
