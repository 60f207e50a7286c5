//! Both sides of gRPC between services: how a service is offered ([`Host`]), and the one connection
//! of a client to it: made, watched, made again.
//!
//! ```text
//! Peer::keep:   connect ─► open (streams, …) ─► live until it ends ─► wait ─► connect …
//! Links::keep:  the same, with the server's health as the stream that says whether it lives
//! Links::call:  waits for a connection, calls, and once more over the next one if it went
//! ```
//!
//! A client that lives by a stream of its own takes [`Peer`] alone; one that makes calls takes
//! [`Links`] too. Nothing here waits without a limit but [`Peer::keep`], which never ends.
//!
//! **Who is who.** Both sides have an [`Identity`]. Where it is proven by a certificate, connections are
//! encrypted, both ends show theirs, and a call passes only if the caller's role may make it
//! ([`Host::access`]); certificates are read again as their files change. Otherwise nothing is asked.
//!
//! ```text
//! Peer: Dial ─ TCP, counted ─ TLS: is it of that role? ──────► Incoming ─ TLS: of our authority?
//!                                                              └► Guarded: may that role call this?
//! ```
//!
//! **Bounds of a server.** A listener has 512 connections at most, 128 of one address. The HTTP/2 preface
//! comes within five seconds, after the handshake if there is one. A client that takes nothing of an
//! answer for twenty seconds loses its connection, and with it all that lies there for it. When there
//! is no room, the oldest connection that has sent nothing gives way.
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
mod metrics;
mod peer;
mod roles;
mod seldom;
mod socket;
mod tls;
mod told;
mod unread;

pub use context::{continued, remote_span, set_traceparent, traced};
pub use guard::Access;
pub use host::{DRAIN_MAX, Host, Limits};
pub use identity::Identity;
pub use links::{Failure, Links, Terms};
pub use metrics::describe_all as describe_metrics;
pub use peer::{EndpointError, Peer, Server, check_endpoint};
pub use seldom::Seldom;
pub use socket::{Caller, EVENT_INTERVAL};
pub use tls::{TlsConfig, TlsError};
