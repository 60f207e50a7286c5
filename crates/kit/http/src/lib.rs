//! HTTP and JSON-RPC server of every port: the Engine API, which requires a token with each request,
//! the public port, and the operator's port of each role.
//!
//! ```text
//! listener   connections: few, watched, the idle ones make room (table, connection, socket)
//!   │
//! server     token, host, body in one piece, a place (access, body, places)
//!   │
//! envelope   calls of the body; parameters stay slices of it
//!   │
//! methods    handlers by name, which a service adds
//! ```
//!
//! **Overload rule:** a request over a limit of [`Limits`] is refused with an HTTP status. The
//! connection goes on, unless the head alone shows the violation. A connection over a limit of
//! [`ConnectionLimits`] ends. If there are too many connections, the oldest without a running
//! request ends.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod body;
mod budget;
mod connection;
mod entry;
mod envelope;
mod error;
mod forward;
mod gate;
mod limits;
mod listener;
mod methods;
mod metrics;
mod pieces;
mod places;
mod refusals;
mod reports;
mod server;
mod socket;
mod table;
pub mod usage;
mod websocket;

pub use access::{Hosts, Origins};
pub use error::{RpcError, code};
pub use forward::Target;
pub use gate::Gate;
pub use limits::{ConnectionLimits, Limits};
pub use listener::{serve, serve_lingering, serve_within};
pub use methods::{
    Answer, Methods, Output, Params, Positional, Streamed, off_reactor, required, to_result,
};
pub use metrics::{describe_gate_metrics, describe_metrics};
pub use pieces::Pieces;
pub use reports::{Text, Traces, reports_router};
pub use server::{engine_router, public_router, public_router_with};
pub use websocket::{
    MESSAGE_BYTES_MAX, Notice, SUBSCRIPTIONS_MAX, Subscriber, Subscription, Subscriptions,
    WebSockets, subscription,
};
