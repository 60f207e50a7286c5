//! multiproof-workers: the state root, computed while the block executes.
//!
//! **Role.** Sixteen shards of the state's tries ([`tandem_primitives::Shard`]), spread over worker
//! threads, survive in memory from block to block. **In:** one stream of state updates per block,
//! in the order of execution. **Out:** sixteen subtrie roots, and afterwards the changed trie nodes
//! to storage-writer. **Reads:** trie nodes that are not in memory, batched, from storage-writer.
//!
//! ```text
//! executor ── Begin, Update…, Finish ──► worker 0 (shards 0 2 4 …) ─┐ jobs    ┌─► proof thread 0 ─┐
//!    │                               └─► worker 1 (shards 1 3 5 …) ─┴──────►──┴─► proof thread 1 ─┤
//!    └─ Prefetch (any thread) ──────────►     ▲  ▲                                                │
//!          ◄──── 16 subtrie roots ────────────┘  └────────────── nodes, hashed ◄──────────────────┤
//!                                                    layers, then storage-writer ◄── walk trie ───┘
//! ```
//!
//! A **worker** owns the tries of its shards and never waits for storage. It does the most urgent
//! work first: takes an answer (reveals nodes, writes the leaves that waited for them), takes a
//! message (writes leaves, gathers keys whose paths are missing), requests the gathered keys,
//! closes the block, hashes ahead. A **proof thread** reads the paths of one job in the worker's
//! layers, and below them in storage-writer, and hashes the nodes, many at a time. When all paths
//! are in memory, which is the usual case, proof threads sleep.
//!
//! A block may ask for **some shards** only. A worker then does no work for the others. Each
//! shard's tries stand at the last block that asked for it. Tries of a shard that another worker
//! had meanwhile are read anew, and the trie changes between base and parent come from
//! storage-writer.
//!
//! **Policies** ([`tandem_policy::Policies`]) apply to a block: how many updates are gathered
//! before their keys are requested, and into how many jobs the keys are split.
//!
//! Across processes the same stream travels over gRPC: see [`grpc`]. Workers announce their streams
//! on the bus: see [`membership`]. Several workers share the shards of a block: see
//! `tandem_multiproof_workers_client::fleet`.
//!
//! **Overload.** Each worker's mailbox is bounded. A full one makes the executor wait, which is
//! right: it cannot get further ahead than the root that it will need. A worker has a bounded
//! number of jobs in flight, and the queues to and from the proof threads have room for all of
//! them. So neither side waits for the other. Further jobs wait in a backlog. While the backlog is
//! full, the worker takes no messages. Advice (prefetch) is dropped instead.
//!
//! **Giving up.** Every message and every answer names its session, so those of a block that was
//! given up never get into the next one. The tries then step back to the parent's state, and keep
//! its revealed nodes. Nothing here is durable: a restarted worker rebuilds its state from
//! storage-writer.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod block;
mod config;
mod dispatch;
pub mod grpc;
mod key_batch;
mod lane;
mod layers;
pub mod membership;
mod message;
mod metrics;
mod nodes;
mod owner;
mod pool;
mod service;
mod session;
mod spans;
mod stats;
mod status;
mod tracked_layers;
mod tries;
mod walk;

pub use config::Config;
pub use metrics::describe_all as describe_metrics;
pub use service::{Deps, MultiproofWorkers};
