//! Client of tx-executor, as the executor uses it: one connection, made beforehand and remade after
//! a loss, whose stream carries block after block. The other end is `tandem_tx_executor`.
//!
//! **Overload.** Both queues are bounded. The executor waits a moment while the one of commands is
//! full. A tx-executor that answers more than it was asked loses its connection.

#![forbid(unsafe_code)]

mod client;
mod metrics;

pub use client::{Client, ClientConfig};
pub use metrics::describe_metrics;
pub use tandem_rpc::EndpointError;
