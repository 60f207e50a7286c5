//! peer-table between processes, without a bus between them.
//!
//! ```text
//!  discovery's process                                             peer-table's process
//!  bus: peers.discovered ─► forward ── ApplyBatch ───────────────► mailbox ─► table
//!  discovery ── sample, closest ────── calls ────────────────────►    │
//!  bus: peers.target ◄──────────────── WatchTarget (a stream) ◄─── bus: peers.target
//! ```
//!
//! [`Client`] is a [`PeerTableApi`](tandem_proto::peer_table::PeerTableApi) over one connection, which
//! it makes again when it is lost; [`Server`] offers a [`PeerTable`](crate::PeerTable) to such clients.
//!
//! **Overload.** A call that finds the mailbox full is refused, a batch too. Batches go one after the
//! other, what waits goes together; the bus drops the oldest of those that wait for too long.
//!
//! **Loss.** Without a connection calls fail at once, and discovery does without: with its bootnodes,
//! with the nodes that answered lately, and with the target last heard of. The batches that the bus
//! still has reach the next connection.

mod client;
mod server;

pub use client::{Client, ClientConfig};
pub use server::Server;
pub use tandem_rpc::EndpointError;
