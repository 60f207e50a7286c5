//! Contracts between the services: the calls, in domain types, and the events on the bus. No logic
//! lives here.
//!
//! Each synchronous contract is a trait that the owning service implements:
//! [`storage::StorageApi`], [`multiproof::ProofApi`]. In one process, the caller holds the service
//! itself behind that trait. Across processes, it holds a gRPC client behind the same trait.
//! Everything that crosses is coarse, batched and bounded.
//!
//! ```text
//!   domain types ──From──► wire messages ══ bytes ══► wire messages ──TryFrom──► domain types
//!   storage, multiproof    wire (generated)           wire             convert    storage, …
//!                                                                     checks once
//! ```
//!
//! The `.proto` files under `tandem/` define the same contracts for other languages; `README.md`
//! has the rules for changing them. [`limits`] bounds the size of messages, and [`access`] defines
//! which roles may call which methods.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
pub mod blob_validator;
pub mod convert;
pub mod discovery;
pub mod event;
pub mod exchange;
pub mod feed;
pub mod feed_log;
pub mod limits;
pub mod multiproof;
pub mod peer_sessions;
pub mod peer_table;
pub mod snap;
pub mod storage;
pub mod sync;
pub mod tx_executor;
pub mod tx_pool;
pub mod wire;
