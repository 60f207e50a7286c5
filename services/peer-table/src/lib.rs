//! peer-table: the nodes that are known, and which of them to turn to next.
//!
//! **Role.** One table in memory ([`table`]), owned by one thread. **In:** what discovery learned of
//! nodes, in batches, over the bus or as a call; how many peers are connected. **Out:** a node to
//! ask for others, a node to ask for its record, the nodes closest to a target; `peers.target` when
//! the share of the wanted peers changes ([`Target`]); the best nodes in a file, for the next start.
//!
//! ```text
//!  discovery ── peers.discovered ──► bus ──► peer-table-bus ──► mailbox ──► peer-table: table
//!  discovery ── sample, closest ─────────────────────────────────┘  │            │
//!            ◄───────────────────────── answers ────────────────────┼────────────┤
//!  sessions ─── connected peers ────────────────────────────────────┘            │
//!  discovery ◄── peers.target ── bus ◄───────────────────────────────────────────┘
//! ```
//!
//! Across processes, [`grpc`] stands in for the bus and the calls alike.
//!
//! **Cost.** Sampling and the closest ones touch only what they answer, and nothing runs while
//! nobody asks: the thread sleeps until a message comes or a changed table is to be written.
//!
//! **Overload.** The mailbox is bounded. A call that finds it full is refused at once; a batch from
//! the bus is dropped, because discovery sees the same nodes again. Contacts, contacts per subnet
//! and the snapshot are bounded by the configuration.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod actor;
mod config;
pub mod grpc;
mod metrics;
mod service;
mod snapshot;
pub mod table;
mod target;

pub use config::{Config, Connected, ConnectedError};
pub use metrics::describe_all as describe_metrics;
pub use service::{Deps, PeerTable};
pub use target::Target;
