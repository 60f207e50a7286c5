//! multiproof-workers: the state root, computed while the block executes.
//!
//! **Role.** Sixteen shards of the state's tries ([`tandem_primitives::Shard`]), spread over worker
//! threads, survive in memory from block to block. **In:** one stream of state updates per block,
//! in the order of execution. **Out:** sixteen subtrie roots, and afterwards the changed trie nodes
//! to storage-writer. **Reads:** trie nodes that are not in memory, batched, from storage-writer.
//!
//! ```text
//! executor ── Begin, Update…, Finish ──► worker 0 (shards 0 2 4 …) ── walk trie ──► storage-writer
//!                                    └─► worker 1 (shards 1 3 5 …)
//!          ◄──── 16 subtrie roots ─────┘  └──────────── trie diffs ──────────────► storage-writer
//! ```
//!
//! **Overload.** Each worker's mailbox is bounded; a full one makes the executor wait, which is the
//! right thing: it cannot get further ahead than the root it will need. Nothing here is durable. A
//! worker that is restarted rebuilds what it needs from storage-writer.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod board;
mod config;
pub mod grpc;
mod layers;
mod metrics;
mod service;
mod session;
mod walk;
mod worker;

pub use config::Config;
pub use service::{Deps, MultiproofWorkers};
