//! blob-validator: verifies every blob once, by content, never on a hot thread.
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
//! bytes that it depends on: the blob, its commitment, all proofs, the form. Another blob under a
//! known commitment and proof is therefore verified, and refused.
//!
//! **Batches.** A verifier takes its share of the waiting blobs and never waits for more. That is
//! one blob if there is no other, and up to [`Config::batch_blobs_max`] if the queue is long. A bad
//! blob in a batch is found by bisection, and the others are not affected.
//!
//! **Overload.** The queue is bounded in blobs, the waiting requests in number and in bytes. A
//! request that does not fit is refused whole and at once, with a hint when to retry; it is
//! counted. A blob is not verified if no caller waits for it when its turn comes: their deadlines
//! have passed, or they are gone.
//!
//! Across processes the same calls travel over gRPC: see [`grpc`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod config;
pub mod grpc;
mod intake;
mod metrics;
mod pool;
mod service;
mod state;
mod store;
mod trusted_setup;

pub use config::{Config, Verification};
pub use metrics::describe_all as describe_metrics;
pub use service::{BlobValidator, Deps};
