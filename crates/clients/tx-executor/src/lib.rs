//! Client of tx-executor, as the executor uses it: one connection, made beforehand and remade after
//! a loss, whose stream carries block after block. The other end is `tandem_tx_executor`.
//!
//! **Names.** A host name may have an address for each tx-executor. The client looks it up every few
//! seconds, so tx-executors may come and go while the executor runs ([`connect`]).
//!
//! **Overload.** Both queues are bounded. The executor waits a moment while the one of commands is
//! full. A tx-executor that answers more than it was asked loses its connection.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod metrics;
mod named;

pub use client::{Client, ClientConfig};
pub use metrics::describe_metrics;
pub use named::{PLACES, connect};
pub use tandem_rpc::EndpointError;
