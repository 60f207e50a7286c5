//! Both sides of gRPC between services: offering a service ([`Host`]), and a client's one
//! connection to it, which is made, watched and made again.
//!
//! ```text
//! Peer::keep:   connect ─► open (streams, …) ─► live until it ends ─► wait ─► connect …
//! Links::keep:  like Peer::keep, with the server's health stream as its sign of life
//! Links::call:  waits for a connection, calls, and retries over the next one if it was lost
//! ```
//!
//! A client that depends on a stream of its own takes [`Peer`] alone; a client that makes calls
//! takes [`Links`] too. Nothing here waits without a limit except [`Peer::keep`], which never ends.
//!
//! **Identity.** Both sides have an [`Identity`]. If a certificate proves it, connections are
//! encrypted, and both ends show theirs. A call then passes only if the caller's role may make it
//! ([`Host::access`]). Certificates are read again as their files change. Without certificates
//! nothing is checked.
//!
//! ```text
//! Peer: Dial ─ TCP, counted ─ TLS: is it of that role? ──────► Incoming ─ TLS: of our authority?
//!                                                              └► Guarded: may that role call this?
//! ```
//!
//! **Bounds of a server.** A listener has at most 512 connections, 128 from one address. The HTTP/2
//! preface must arrive within five seconds, after the handshake if there is one. A client that
//! takes nothing of an answer for twenty seconds loses its connection, with all that is ready for
//! it. If there is no room, the oldest connection that has sent nothing is evicted.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backoff;
pub mod certificates;
mod connections;
mod context;
mod dial;
mod guard;
mod handshake;
mod host;
mod identity;
mod incoming;
mod links;
mod log_once;
mod log_rate_limit;
mod metrics;
mod peer;
mod roles;
mod socket;
mod tls;
mod unread;

pub use context::{continued, remote_span, set_traceparent, traced};
pub use guard::Access;
pub use host::{DRAIN_MAX, Host, Limits};
pub use identity::Identity;
pub use links::{Failure, Links, Terms};
pub use log_rate_limit::LogRateLimit;
pub use metrics::describe_all as describe_metrics;
pub use peer::{EndpointError, Peer, Server, check_endpoint};
pub use socket::{Caller, EVENT_INTERVAL};
pub use tls::{TlsConfig, TlsError};
