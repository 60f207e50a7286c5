//! Each service as a process of its own. `tandem storage-writer` and its like are these functions and
//! their flags.
//!
//! ```text
//!  executor ── gRPC ──► storage-writer ◄── gRPC ── multiproof-worker ◄── gRPC ── executor
//!     └─────── gRPC ──► blob-validator             discovery ── gRPC ──► peer-table
//!
//!  all ◄──── NATS, where there is one: events, who is alive, live settings ────► all
//! ```
//!
//! A role binds its ports, starts its service and says when it is of use. Nobody has to be there
//! before anybody else: who is missing is asked again, and `/readyz` names who it is.

mod base;
mod discovery;
mod executor;
mod process;
mod services;
mod standby;
mod worker;

pub use discovery::discovery;
pub(crate) use executor::{Access, engine_router, http_router};
pub use executor::{ExecutorIdentity, ExecutorLinks, executor};
pub use process::Process;
pub use services::{blob_validator, peer_table, storage_writer};
pub use worker::{WorkerIdentity, multiproof_worker};
