//! discovery: finds nodes of the network and proves that they are there.
//!
//! **Role.** Speaks Node Discovery v4 on one UDP socket. **In:** packets; the completion of the
//! peer target on `peers.target`. **Out:** news of nodes, in batches, on `peers.discovered`.
//! **Asks:** peer-table for the nodes closest to a target, and for nodes whose records are wanted.
//!
//! ```text
//! network ◄─── UDP ───► discovery ──── peers.discovered ────► peer-table
//!                          │  ▲ ◄───── peers.target ─────────────┘
//!                          └──┴── closest, sample_for_enr ──► (a thread of its own: it waits)
//! ```
//!
//! If it is built with the feature `discv5` and the configuration asks for it, it speaks Node
//! Discovery v5 too. That uses the same socket and record, and its nodes take the same path.
//!
//! If node lists in DNS are configured (EIP-1459), a third thread reads them while peers are
//! scarce. DNS is not asked otherwise.
//!
//! One timer alternates lookups of nodes and of records. It is fast while peers are scarce and
//! lookups find nodes, and slow once there are enough or nothing new is found. It wakes at once
//! when peers are lost, when the own address changes, and when a node answers after silence.
//! Nothing else wakes a node at rest.
//!
//! **Overload.** Packets beyond the rate of their address, or of all strangers together, are
//! dropped and counted before any expensive work. Endpoints without a proof are sent less than they
//! send. The ping of a distant one is answered with a shorter ping, and with the pong once that
//! ping was answered. Both are sent at once to this host and to private networks, whose addresses
//! an outsider cannot forge. Questions that peer-table has no room for are dropped; packets that
//! the socket does not accept are lost, as in any network. All maps are bounded and forget unused
//! entries.
//!
//! Only the node key is durable. Everything else that is forgotten is found again.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod actor;
mod config;
mod dns;
mod error;
mod events;
mod key;
mod metrics;
mod network;
mod report;
mod service;
pub mod state;
mod table;
mod udp;
#[cfg(feature = "discv5")]
mod v5;

pub use config::Config;
pub use error::Error;
pub use key::load_or_create as load_or_create_node_key;
pub use metrics::describe as describe_metrics;
pub use network::Network;
pub use service::{Deps, Discovery, check};
