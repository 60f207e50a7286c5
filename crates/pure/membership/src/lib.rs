//! Tracks the workers and decides which worker owns which shard. No I/O, no clock: heartbeats and
//! times come in, decisions go out.
//!
//! [`Members`] knows which workers are alive. This is a hint, like everything that arrives over the
//! bus: only the stream to a worker shows that it does not answer. [`assign`] distributes the 16
//! shards among workers, with the same result in every process. [`EndpointRules`] limit the
//! endpoints that a worker may announce for itself.

#![forbid(unsafe_code)]
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
