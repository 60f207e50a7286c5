//! Several workers behind one [`ProofApi`](tandem_proto::multiproof::ProofApi).
//!
//! ```text
//!                    ┌─ shards 0 3 7 … ─► grpc::Client ─► worker a ─┐
//! executor ─► Fleet ─┼─ shards 1 2 4 … ─► grpc::Client ─► worker b ─┼─► 16 roots
//!                    └─ what nobody else answers for ─► local ──────┘
//! ```
//!
//! **Who answers for what.** Workers are those of a configured list and those heard on the bus
//! ([`crate::membership`]). The shards are dealt out among them by [`tandem_membership::assign`], when
//! a block begins and at no other time. Each worker gets its part of the updates and of the advice,
//! and keeps the tries of the shards that it has answered for; what lies between the base and the
//! parent of a shard that is new to it, it fetches from storage-writer while the block executes.
//!
//! **A newcomer** is on trial: it gets blocks beside those that answer, and takes over its shards
//! once it was in time with them. So no block waits for a worker whose tries are cold, nor for one
//! that is slow by nature. Where nobody answers yet, newcomers do at once.
//!
//! **Late or lost.** The updates of a block are kept until its roots are in. When a worker's stream
//! breaks, or it is still at work when the others have long been done ([`Patience`]), its shards go to
//! workers that have answered already, and what those have no answer for either is computed in this
//! process, by `local`. The worker is left alone for a while, then on trial again.
//!
//! **Wrong.** Before the executor refuses a block for its root it discards it and begins it again.
//! What is begun again is computed in this process with fresh tries; whose roots differ from that is
//! not used for [`Config::quarantine_seconds`].
//!
//! **Overload.** As [`crate::grpc`]: the queue to each worker is bounded, and one that is full makes
//! the executor wait, for [`Config::late_ms_max`] at most. Nothing is waited for on behalf of a worker
//! on trial.

mod block;
mod config;
mod core;
mod deal;
mod gather;
mod health;
mod patience;
mod roster;
mod trial;

pub use self::core::{Deps, Fleet};
pub use config::Config;
pub use patience::Patience;
