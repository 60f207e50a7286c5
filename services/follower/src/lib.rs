//! follower: keeps a verified copy of a leader's chain and state.
//!
//! ```text
//!  leader's storage-writer ── feed ──► check ──► storage-writer of this process ──► view ──► JSON-RPC
//!                             blocks   links,    changes, state root                recent
//!                                      roots     (no EVM)                           blocks
//! ```
//!
//! * **Role.** Applies the blocks of the feed. No transaction is executed: a block brings the values
//!   that it leaves, as its access list or as a state diff. The state root after them is computed with
//!   the shards and tries of storage-writer and compared with the header before anything is stored.
//!   Body and receipts are compared with the roots in the header.
//! * **What is trusted.** The leader chooses the chain, as its consensus client does. Everything
//!   about a block follows from its header.
//! * **Inputs.** Feeds of one or several leaders ([`LeaderApi`]), one at a time. One of them may be a
//!   copy of the feed in a stream, which has the last blocks and no state. **Outputs.** Commits and
//!   forkchoices to [`FollowerStorage`], and the same to a [`ChainView`] for readers.
//! * **Faults.** A lost leader is asked again after a pause that grows, or another one is asked. A
//!   leader whose block is refused is not asked again; when no other is left, the process stops with a
//!   message that names the block and the shards. Nothing of a refused block is stored.
//! * **Overload.** One block is applied at a time, and two wait. The feed itself waits for the reader.
//! * **Durable.** Everything, in the database of storage-writer. A restart resumes at its head.
//! * **Threads.** `follower` applies blocks.
//!
//! [`LeaderApi`]: tandem_proto::feed::LeaderApi

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apply;
mod bootstrap;
mod check;
mod config;
mod diagnose;
mod error;
mod known;
mod metrics;
mod service;
mod status;

pub use config::Config;
pub use error::Error;
pub use metrics::describe as describe_metrics;
pub use service::{Deps, Follower, FollowerStorage, Leader};
pub use status::{ChainView, Status};
