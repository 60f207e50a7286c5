//! Both sides of gRPC between services: offering a service ([`Host`]), and a client's one
//! connection to it ([`ClientConnection`]), which is made, watched and remade in the background.
//!
//! ```text
//! keep_connected: connect ─► open (streams, …) ─► live until it ends ─► wait ─► connect …
//! keep_serving:   like keep_connected, with the server's health stream as its sign of life
//! call:           waits for a connection, calls, and retries over the next one if it was lost
//! ```
//!
//! A new client states its server ([`ServerDescription`]) and its settings ([`ConnectionConfig`]).
//! If it only makes calls, a task of its own runs `keep_serving`, and `call` makes the calls. If it
//! depends on a stream, the task runs `keep_connected`: `open` opens the stream, and `live` reads it
//! until it ends. A client has its task in an `AbortOnDropHandle`, so the connection ends with it.
//! Nothing here waits without a limit except the two that keep a connection, which never end, and
//! [`ClientConnection::newer_than`].
//!
//! **Identity.** Both sides have an [`Identity`]. If a certificate proves it, connections are
//! encrypted, and both ends show theirs. A call then passes only if the caller's role may make it
//! ([`Host::access`]). Certificates are read again as their files change. Without certificates
//! nothing is checked.
//!
//! ```text
//! Connector ─ socket, counted ─ TLS: is it of that role? ───► Incoming ─ TLS: of our authority?
//!                                                            └► Guarded: may that role call this?
//! ```
//!
//! **Sockets.** A server that is reached over loopback listens on a Unix socket beside its port
//! ([`Listener`]), and a client whose URL names loopback uses it. All others use TCP.
//!
//! **Direct calls.** A server may offer some calls without HTTP/2 ([`Host::direct`]) to clients that reach
//! its Unix socket. The thread that wants the answer makes such a call itself.
//!
//! **Bounds of a server.** A listener has at most 512 connections, 128 from one address. The HTTP/2
//! preface must arrive within five seconds, after the handshake if there is one. A client that
//! takes nothing of an answer for twenty seconds loses its connection, with all that is ready for
//! it. If there is no room, the oldest connection that has sent nothing is evicted.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backoff;
mod call;
pub mod certificates;
mod client;
mod connections;
mod connector;
mod context;
mod direct;
mod endpoint;
mod guard;
mod handshake;
mod host;
mod identity;
mod incoming;
mod listener;
mod log_once;
mod log_rate_limit;
mod metrics;
mod roles;
mod socket;
mod stream;
mod tls;
mod unread;

pub use call::{CallError, CallPolicy};
pub use client::{
    ClientConnection, ConnectionConfig, LiveConnection, LiveGuard, ServerDescription,
};
pub use context::{continued, remote_span, set_traceparent, span_within, traced};
pub use direct::{DirectCall, DirectCalls, DirectConnections};
pub use endpoint::{EndpointError, check_endpoint};
pub use guard::Access;
pub use host::{DRAIN_MAX, Host, Limits};
pub use identity::Identity;
pub use listener::Listener;
pub use log_rate_limit::LogRateLimit;
pub use metrics::describe_all as describe_metrics;
pub use socket::{Caller, EVENT_INTERVAL};
pub use tls::{TlsConfig, TlsError, install_ring};
