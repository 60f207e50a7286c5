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
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backoff;
mod context;
mod host;
mod links;
mod paced;
mod peer;

pub use context::{continued, remote_span, set_traceparent, traced};
pub use host::{DRAIN_MAX, Host, Limits};
pub use links::{Failure, Links, Terms};
pub use peer::{EndpointError, Peer, Server};
