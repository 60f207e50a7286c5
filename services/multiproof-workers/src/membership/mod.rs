//! Who offers a proof stream: heartbeats on `workers.alive.NAME`.
//!
//! ```text
//!  worker: Announcer ── workers.alive.NAME, once an interval ──► bus ──► executor: Listener ─► Members
//! ```
//!
//! **What is believed.** A heartbeat counts if its subject is that of the worker it speaks of, its endpoint
//! is one that the configuration allows, and its time is not of the future. All others are counted, and
//! the log names each worker once a minute.
//!
//! It is a hint. That a worker does not answer shows on its stream, sooner and for certain; without
//! NATS the workers of a configured list are used. While the bus has no connection, or hears of
//! nobody for a while, everybody who was alive is taken to be so still
//! ([`tandem_membership::Members`]).

mod announce;
mod listen;
mod refusals;

pub use announce::{Announcer, Identity};
pub use listen::Listener;
pub use tandem_membership::{EndpointRules, Heartbeat, WorkerId};
