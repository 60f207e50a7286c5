//! Sessions with peers over RLPx: who may have one, handshake, requests in both directions, end.
//!
//! ```text
//!  peers ─TCP─► accept ── Admission ──┐                       ┌─► Session: reads, decides, writes
//!  peers ◄─TCP─ dial ◄── Dialler ─────┴─► Link: keys, Hello, ─┤      │  ▲
//!                 ▲                       Status; Admission   │      │  └── PeerSessionsApi ◄─ sync
//!  peer-table ────┴── candidates, connected peers ────────────┘      └──► BlockSource (answers)
//! ```
//!
//! * **Role.** Keeps sessions with limits by number, direction and subnet. Speaks eth/69 to 72, snap/1
//!   and snap/2. It answers headers, bodies, receipts, access lists and parts of recent states from a
//!   [`BlockSource`], and asks peers for the same on behalf of callers of
//!   [`PeerSessionsApi`](tandem_proto::peer_sessions::PeerSessionsApi).
//! * **Inputs.** Connections; [`ChainStatus`] of the own chain; peers to dial, from the
//!   configuration and from peer-table.
//! * **Transactions** go to and come from a
//!   [`TransactionExchange`](tandem_proto::peer_sessions::TransactionExchange), the pool.
//! * **Outputs.** Answers; the number of connected peers, for peer-table. Callers in other
//!   processes call over gRPC ([`grpc`]).
//! * **Overload.** A connection beyond a limit is closed before a byte is read. A handshake has one
//!   deadline for all of it, so a peer gains no time by sending single bytes. A session is read at
//!   the pace of [`Config::messages_per_second_max`], answers to this node aside, and not while
//!   [`Config::answers_max`] of its requests are being answered. A message without a request has
//!   at most 1 MiB; memory for one grows with the bytes that have arrived. Requests and messages to
//!   a peer wait in bounded queues. A peer that does not read, answer or send in time loses its
//!   session. A peer that breaks the protocol, or is reported, gets none for a while.
//! * **Threads.** One of its own has the sockets and the cryptography, and few read blocks for
//!   peers. All have the class idle.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod answer;
mod api;
mod bans;
mod chain;
mod config;
mod dial;
mod error;
pub mod grpc;
mod link;
mod metrics;
mod request;
mod service;
mod session;
mod snap;
mod table;
mod transactions;

pub use chain::{BlockSource, ChainStatus, StatusError};
pub use config::{Config, check};
pub use dial::PeerAddress;
pub use error::{Error, SessionError};
pub use metrics::describe as describe_metrics;
pub use service::{Deps, PeerSessions};
pub use session::{Peer, PeerInfo};
pub use tandem_eth_wire::eth::BlockRange;
