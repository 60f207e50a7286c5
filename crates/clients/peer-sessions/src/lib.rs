//! Client of peer-sessions: a [`PeerSessionsApi`](tandem_proto::peer_sessions::PeerSessionsApi)
//! over one connection, which is made again when it is lost.
//!
//! **Loss.** Without a connection, calls fail at once with
//! [`Error::Unavailable`](tandem_proto::peer_sessions::Error::Unavailable), and so do those whose
//! connection is lost. None is repeated: the sessions of a process that ended are gone, so the
//! caller needs a new list of them. An [`Exchange`] of transactions goes on over the next connection.
//! The other end is `tandem_peer_sessions::grpc`.

#![forbid(unsafe_code)]

mod client;
mod exchange;
mod metrics;

pub use client::{Client, ClientConfig};
pub use exchange::Exchange;
pub use metrics::describe_metrics;
pub use tandem_rpc::EndpointError;
