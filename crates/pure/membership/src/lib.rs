//! Which workers there are, and which of them owns which shard. No I/O, no clock: heartbeats and
//! times come in, decisions go out.
//!
//! [`Members`] says who is alive. It is a hint, like everything that comes over the bus: that a worker
//! does not answer shows on its stream. [`assign`] deals the 16 shards out among workers, the same
//! way wherever it is asked. [`EndpointRules`] say where a worker may be that is known by what it says of
//! itself.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assign;
mod endpoints;
mod members;
mod worker;

pub use assign::{Assignment, assign};
pub use endpoints::{EndpointRefusal, EndpointRules, NamePattern, Network, RuleError};
pub use members::{
    AHEAD_MAX, FORGOTTEN_AFTER, Heard, Ignored, MEMBERS_MAX, MISSED_MAX, Members, Now, PROBATION,
    SILENT_MAX, UNPROVEN_INTERVAL_MAX, UNPROVEN_MAX,
};
pub use worker::{Heartbeat, ID_BYTES_MAX, IdError, WorkerId};
