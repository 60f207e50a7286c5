//! peer-table between processes, without a bus between them.
//!
//! ```text
//!  discovery's process                                             peer-table's process
//!  bus: peers.discovered ─► forward ── ApplyBatch ───────────────► mailbox ─► table
//!  discovery ── sample, closest ────── calls ────────────────────►    │
//!  bus: peers.target ◄──────────────── WatchTarget (a stream) ◄─── bus: peers.target
//! ```
//!
//! `Client` of `tandem_peer_table_client` is a [`PeerTableApi`](tandem_proto::peer_table::PeerTableApi) over one connection,
//! which it makes again when it is lost. [`Server`] offers a [`PeerTable`](crate::PeerTable) to
//! such clients.
//!
//! **Overload.** A call or batch that finds the mailbox full is refused. Batches are sent one after
//! the other; waiting events are sent together. The bus drops the oldest events that wait too long.
//!
//! **Loss.** Without a connection calls fail at once. discovery then uses its bootnodes, the nodes
//! that answered lately, and the last known target. The batches that the bus still has reach the
//! next connection.

mod server;

pub use server::Server;
