//! Workers that offer a proof stream: heartbeats on `workers.alive.NAME`.
//!
//! ```text
//!  worker: Announcer ── workers.alive.NAME, once an interval ──► bus ──► executor: Listener ─► Members
//! ```
//!
//! **Trust.** A heartbeat counts if its subject is that of the worker it names, its endpoint is
//! allowed by the configuration, and its time is not in the future. All others are counted, and the
//! log names each worker once a minute.
//!
//! A heartbeat is a hint. A worker that does not answer shows on its stream, sooner and for
//! certain. Without NATS, the workers of a configured list are used. While the bus has no
//! connection, or hears of no worker for a while, all live workers are taken to be still alive
//! ([`tandem_membership::Members`]).

mod announce;

pub use announce::{Announcer, Identity};
pub use tandem_membership::{EndpointRules, Heartbeat, WorkerId};
