//! peer-table: the known nodes, and the choice of those to contact next.
//!
//! **Role.** One table in memory ([`table`]), owned by one thread. **In:** news of nodes from
//! discovery, in batches, over the bus or as a call; the number of connected peers. **Out:** a node
//! to ask for others, a node to ask for its record, the nodes closest to a target; `peers.target`
//! when the share of the wanted peers changes ([`Target`]); the best nodes in a file, for the next
//! start.
//!
//! ```text
//!  discovery ── peers.discovered ──► bus ──► peer-table-bus ──► mailbox ──► peer-table: table
//!  discovery ── sample, closest ─────────────────────────────────┘  │            │
//!            ◄───────────────────────── answers ────────────────────┼────────────┤
//!  sessions ─── connected peers ────────────────────────────────────┘            │
//!  discovery ◄── peers.target ── bus ◄───────────────────────────────────────────┘
//! ```
//!
//! Across processes, [`grpc`] replaces both the bus and the calls.
//!
//! **Cost.** Sampling and finding the closest ones touch only what they answer. Nothing runs
//! without a request: the thread sleeps until a message arrives or a changed table must be written.
//!
//! **Overload.** The mailbox is bounded. A call that finds it full is refused at once. A batch from
//! the bus is dropped, because discovery sees the same nodes again. Contacts, contacts per subnet
//! and the snapshot are bounded by the configuration.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod actor;
mod config;
pub mod grpc;
mod metrics;
mod service;
mod snapshot;
pub mod table;
mod target;

pub use config::Config;
pub use metrics::describe_all as describe_metrics;
pub use service::{Deps, PeerTable};
pub use target::Target;
