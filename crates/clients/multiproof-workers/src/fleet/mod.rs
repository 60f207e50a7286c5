//! Several workers behind one [`ProofApi`](tandem_proto::multiproof::ProofApi).
//!
//! ```text
//!                    ┌─ shards 0 3 7 … ─► Client ──────► worker a ─┐
//! executor ─► Fleet ─┼─ shards 1 2 4 … ─► Client ──────► worker b ─┼─► 16 roots
//!                    └─ shards without a worker ──────► local ──────┘
//! ```
//!
//! **Assignment.** Workers come from a configured list and from the bus ([`Listener`](crate::Listener)).
//! [`tandem_membership::assign`] deals the shards out among them when a block begins, and at no
//! other time. Each worker gets its part of the updates and of the advice, and keeps the tries of
//! the shards that it has answered for. For a shard that is new to it, it fetches the changes
//! between the base and the parent from storage-writer while the block executes.
//!
//! **A newcomer** is on trial: it gets blocks beside the workers that answer, and takes over its
//! shards once it was in time with them. So no block waits for a worker whose tries are cold, nor
//! for one that is slow by nature. While no worker answers yet, newcomers answer at once.
//!
//! **Late or lost.** The updates of a block are kept until its roots are in. A worker may lose its
//! stream, or may still be at work long after the others ([`LatenessPolicy`]). Its shards then go to
//! workers that have answered already. Shards without an answer from them are computed in this
//! process, by `local`. The worker is suspended for a while, then on trial again.
//!
//! **Wrong.** Before the executor refuses a block for its root, it discards the block and begins it
//! again. This process computes a repeated block with fresh tries. A worker whose roots differ from
//! those is not used for [`Config::quarantine_seconds`].
//!
//! **Overload.** As in [`Client`](crate::Client), the queue to each worker is bounded. A full queue makes the
//! executor wait, for [`Config::late_ms_max`] at most. The executor never waits for a worker on
//! trial.

mod assignment;
mod collect;
mod config;
mod core;
mod health;
mod lateness;
mod roster;
mod session;
mod trial_block;

pub use self::core::{Deps, Fleet};
pub use config::Config;
pub use lateness::LatenessPolicy;
