//! executor: the Engine API and JSON-RPC, the tree of recent blocks, the EVM.
//!
//! **Role.** Takes payloads from the consensus layer, validates and executes them, and has their
//! state root computed meanwhile. It answers VALID once root and commit are there. **In:** Engine
//! API and JSON-RPC over HTTP; `chain.persisted`. **Out:** one proof stream per block to
//! multiproof-workers; commits and forkchoices to storage-writer; `chain.executed`, `chain.head`.
//!
//! ```text
//! HTTP ─► rpc ─► Handle ─ decode, senders (rayon) ─► engine thread
//!                                                      │ validate header and body
//!                                                      │ execute ── updates ──► multiproof-workers
//!                                                      │ check outcome             (hash)
//!                                                      │ commit ───────────────► storage-writer
//!                                                      │ await roots, compare
//!                                                      └ VALID, block becomes a layer
//! ```
//!
//! **Overload.** The engine's mailbox is bounded. A full mailbox answers with an error that the
//! consensus layer retries. Nothing here is durable: after a restart the recent blocks are loaded
//! from storage-writer.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ahead;
mod block;
mod builder;
mod chain;
mod config;
mod engine;
mod error;
mod handle;
pub mod machines;
mod metrics;
mod queries;
mod reads;
mod replica;
pub mod rpc;
mod service;
mod state;
pub mod stateless;
mod status;
mod wanted;

/// Code that the benches measure. Not a public interface: it changes with the implementation.
#[doc(hidden)]
pub mod internals {
    pub use crate::state::{
        StateReader, cache::BaseCache, layers::Layers, recent::Recent, view::StateView,
    };
}

pub use block::build::{BuiltPayload, PayloadAttributes, PayloadId};
pub use chain::{BlockTag, Chain};
pub use config::Config;
pub use engine::Deps;
pub use error::Error;
pub use handle::{Handle, PreparedBlock};
pub use metrics::describe_all as describe_metrics;
pub use queries::call::{AccessListOutcome, CallOutcome, CallRequest, GasEstimate};
pub use queries::proof::{AccountProof, SlotProof};
pub use reads::ChainReads;
pub use replica::Replica;
pub use service::Executor;
pub use status::{Condemned, ForkchoiceState, PayloadStatus, Status};
