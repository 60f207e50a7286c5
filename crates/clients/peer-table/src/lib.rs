//! Client of peer-table: a [`PeerTableApi`](tandem_proto::peer_table::PeerTableApi) over one
//! connection, which is made again when it is lost. It hands events of the bus over and brings the
//! target back, for processes without a bus between them.
//!
//! **Loss.** Without a connection calls fail at once. discovery then uses its bootnodes, the nodes
//! that answered lately, and the last known target. The other end is `tandem_peer_table::grpc`.

#![forbid(unsafe_code)]

mod client;
mod metrics;

pub use client::{Client, ClientConfig};
pub use metrics::describe_metrics;
pub use tandem_rpc::EndpointError;
