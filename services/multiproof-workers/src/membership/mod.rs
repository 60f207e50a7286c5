//! Who offers a proof stream: heartbeats on `workers.alive`.
//!
//! ```text
//!  worker: Announcer ── workers.alive, once an interval ──► bus ──► executor: Listener ─► Members
//! ```
//!
//! It is a hint. That a worker does not answer shows on its stream, sooner and for certain; without
//! NATS the workers of a configured list are used. While the bus has no connection, or hears of
//! nobody for a while, everybody who was alive is taken to be so still
//! ([`tandem_membership::Members`]).

mod announce;
mod listen;

pub use announce::{Announcer, Identity};
pub use listen::Listener;
pub use tandem_membership::{Heartbeat, WorkerId};
