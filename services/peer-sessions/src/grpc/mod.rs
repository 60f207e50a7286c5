//! peer-sessions between processes.
//!
//! ```text
//!  sync, net_peerCount, admin_peers          process of peer-sessions
//!  Client ── ListSessions, Report ─────────► Server ──► PeerSessionsApi ──► sessions
//!         ── Fetch (a call for each request to a peer)
//!
//!  tx-pool
//!  Client ◄── ExchangeTransactions, a stream ──► Server ──► RemotePool ◄─► sessions
//! ```
//!
//! `Client` of `tandem_peer_sessions_client` is a
//! [`PeerSessionsApi`](tandem_proto::peer_sessions::PeerSessionsApi) over one connection.
//! [`Server`] offers any such API, beside gRPC's own health service.
//!
//! **Overload.** A connection carries a bounded number of calls; further ones wait at the caller.
//! Each session bounds its own requests, and refuses the next with `RESOURCE_EXHAUSTED`.
//!
//! **Loss.** A caller that gives up its call, or loses its connection, leaves the request to the
//! peer under way; its answer is dropped.

mod exchange;
mod server;

pub use exchange::RemotePool;
pub use server::Server;
