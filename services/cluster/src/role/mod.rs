//! Each service as a separate process. Commands such as `tandem storage-writer` are these functions
//! and their flags.
//!
//! ```text
//!  executor ── gRPC ──► storage-writer ◄── gRPC ── multiproof-worker ◄── gRPC ── executor
//!     ├─────── gRPC ──► blob-validator             discovery ── gRPC ──► peer-table
//!     ├─────── gRPC ──► peer-sessions ── gRPC ──► storage-writer, peer-table
//!     └─────── gRPC ──► tx-pool ── gRPC ──► storage-writer, blob-validator, peer-sessions
//!                            follower ── gRPC ──► storage-writer
//!  executor ── gRPC ──► tx-executor
//!
//!  all ◄──── NATS, where there is one: events, who is alive, live settings ────► all
//! ```
//!
//! A role binds its ports, starts its service and reports when it is ready. Services may start in
//! any order: each retries the missing ones, and `/readyz` names them.

mod base;
mod discovery;
mod executor;
mod follower;
mod from_snapshot;
mod lead;
mod peer_sessions;
mod process;
mod promotion;
mod services;
mod standby;
mod stream_end;
mod tx_executor;
mod tx_pool;
mod worker;

pub use discovery::discovery;
pub(crate) use executor::{Access, engine_router, http_router};
pub use executor::{ExecutorIdentity, ExecutorLinks, executor};
pub use follower::{FollowerLinks, follower};
pub use peer_sessions::{SessionsLinks, peer_sessions};
pub use process::Process;
pub(crate) use services::require_storage;
pub use services::{blob_validator, peer_table, storage_writer};
pub use tx_executor::tx_executor;
pub use tx_pool::{PoolLinks, tx_pool};
pub use worker::{WorkerIdentity, multiproof_worker};
