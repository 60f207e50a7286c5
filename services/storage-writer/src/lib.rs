//! storage-writer: the only durable state of Tandem, and the only one who writes it.
//!
//! **Holds** the *base* (flat state, trie nodes by path, code, headers, bodies, receipts, indices
//! and reverse diffs, all at one canonical block P) and the *pending* blocks after P, by hash.
//!
//! **Inputs** are the calls of [`tandem_proto::storage::StorageApi`]. Reads run on the caller's
//! thread against one snapshot of the database. A commit writes the pending record on the caller's
//! thread; everything that changes the base runs on one persist thread, a block at a time, each in
//! one atomic batch together with the new P. **Output** is the callback of [`Deps`] for
//! `chain.persisted`.
//!
//! **Overload.** A forkchoice waits while the base is more than `backlog_blocks_max` blocks behind
//! where it should be. Where side branches take too many bytes, the one whose tip is oldest goes as a
//! whole; a block on the branch of the head is always taken (see `chain.rs`).
//!
//! **After a stop** everything is in files and marked as closed. What was acknowledged is kept beside the
//! database, so a start says when something of it is missing.
//!
//! **After a crash.** A block whose commit was answered is in the write-ahead log, so it is
//! pending again. The base is at some block P whose header its tries match, because nothing of a
//! block is written without all of it. The head of the last forkchoice is P or a descendant of it:
//! a forkchoice to another branch moves P back before it is written.
//!
//! Trie diffs are advice: the root they lead to is checked against the header's when they are used,
//! and every node against the one above it before it is written. They are kept in memory only, and
//! computed from the state diff where they are missing or wrong. Tries of the base that turn out
//! damaged are rebuilt from the flat state.
//!
//! Across processes the same calls travel over gRPC: see [`grpc`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod acknowledged;
mod apply;
mod block_tries;
mod body;
mod chain;
mod codec;
mod config;
mod diff_check;
mod error;
mod genesis;
mod grant;
pub mod grpc;
mod heal;
mod health;
mod init;
mod kept;
mod load;
mod meta;
pub mod metrics;
mod overlay;
mod persist;
mod rebuild;
mod replay;
mod rewind;
mod service;
mod shared;
pub mod verify;
mod walk;

pub use acknowledged::{Loss, LossCause};
pub use config::Config;
pub use error::Error;
pub use genesis::{Entry as GenesisEntry, GenesisFile, read as read_genesis};
pub use init::{Initialized, Progress, has_database, init};
pub use metrics::describe_all as describe_metrics;
pub use service::{Deps, StorageWriter};
pub use verify::{Difference, NodeFault, Report, repair, verify};

/// The codecs of the database's records, for those who test them with damaged bytes.
pub mod records {
    pub use crate::codec::{PendingRecord, ReverseDiff, decode_block, decode_forkchoice};
}
