//! Client of tx-pool: a [`TxPoolApi`](tandem_proto::tx_pool::TxPoolApi) over one connection, which is
//! made again when it is lost.
//!
//! **Loss.** Without a connection, calls fail at once with
//! [`Error::Unavailable`](tandem_proto::tx_pool::Error::Unavailable), and so do those whose connection
//! is lost. None is repeated: a block is built without the pool rather than late, and a user whose
//! transaction got no answer sends it again. The other end is `tandem_tx_pool::grpc`.
//!
//! **Memory.** The whole content of the pool may be large. One call for it is made at a time, and its
//! answer is refused beyond [`ClientConfig::content_bytes_max`].

#![forbid(unsafe_code)]

mod client;
mod metrics;

pub use client::{Client, ClientConfig};
pub use metrics::describe_metrics;
pub use tandem_rpc::EndpointError;
