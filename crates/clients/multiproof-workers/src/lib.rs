//! Clients of multiproof-workers, as the executor uses them.
//!
//! * [`Client`] is a [`ProofApi`](tandem_proto::multiproof::ProofApi) over one connection that
//!   carries block after block. The other end is `tandem_multiproof_workers::grpc`.
//! * [`fleet`] makes one `ProofApi` of several workers.
//! * [`Listener`] hears on the bus which workers are alive. A heartbeat counts if its subject is that
//!   of the worker it names, its endpoint is allowed by the configuration, and its time is not in the
//!   future. All others are counted, and the log names each worker once a minute.
//!
//! **Overload.** The queue to a worker is bounded. A full one makes the executor wait, never longer
//! than the client's limit.
//!
//! **Loss.** A lost connection fails the open block with
//! [`Error::Unavailable`](tandem_proto::multiproof::Error::Unavailable) at once. The executor begins
//! it again, which waits a moment for the next connection.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
pub mod fleet;
mod ignored_heartbeats;
mod listener;
mod metrics;
mod proof_stream;
mod session;

pub use client::{Client, ClientConfig};
pub use listener::Listener;
pub use metrics::describe_all as describe_metrics;
pub use tandem_rpc::EndpointError;
