//! storage-writer: holds the durable state of Tandem, and is its only writer.
//!
//! **Holds** the *base* and the *pending* blocks after it, by hash. The base is flat state, trie
//! nodes by path, code, headers, bodies, receipts, indices and reverse diffs, all at one canonical
//! block P.
//!
//! **Inputs** are the calls of [`tandem_proto::storage::StorageApi`]. Reads run on the caller's
//! thread against one snapshot of the database. A commit writes the pending record on the caller's
//! thread. All changes of the base run on one persist thread, a few blocks at a time. They are one
//! atomic batch together with the new P. **Output** is the callback of [`Deps`] for
//! `chain.persisted`. The feed of canonical blocks goes to followers, and to a stream of NATS if
//! `feed.stream` says so.
//!
//! **Overload.** A forkchoice waits while the base lags more than `backlog_blocks_max` blocks
//! behind its goal. When side branches take too many bytes, the branch with the oldest tip is
//! evicted as a whole. A block on the head's branch is always accepted (see `chain.rs`).
//!
//! **After a stop** all data is in files and marked as closed. A record of the acknowledged writes
//! is kept beside the database, so the next start reports missing ones.
//!
//! **After a crash.** A block whose commit was answered is in the write-ahead log, so it is pending
//! again. The base is at some block P whose header matches its tries, because blocks are written
//! as a whole or not at all. The head of the last forkchoice is P or a descendant of P: a forkchoice
//! to another branch moves P back before it is written.
//!
//! Trie diffs are advice. Their root is checked against the header's root when they are used, and
//! every node against its parent before it is written. They are kept in memory only, and are
//! computed from the state diff where they are missing or wrong. Damaged tries of the base are
//! rebuilt from the flat state.
//!
//! Across processes the same calls travel over gRPC: see [`grpc`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod acknowledged;
mod apply;
mod block_reads;
mod block_tries;
mod body;
mod chain;
mod checked;
mod checkpoint;
mod codec;
mod config;
mod diff_check;
mod download;
mod error;
mod feed;
mod feed_stream;
mod genesis;
mod grant;
pub mod grpc;
mod heal;
mod health;
mod history;
mod init;
mod kept;
mod lead;
mod load;
mod maintenance;
mod meta;
pub mod metrics;
mod node_runs;
mod overlay;
mod own_workers;
mod persist;
mod pruning;
mod ranges;
mod rebuild;
mod replay;
mod rewind;
mod rights;
mod scrub;
mod service;
mod shared;
mod state_load;
mod state_parts;
pub mod verify;
mod walk;

pub use acknowledged::{Loss, LossCause};
pub use checkpoint::{
    CHECKPOINT_FOLDER, DatabaseSubject, StateBlock, checkpoint_path, database_subject,
    make_checkpoint, remove_checkpoint, seal_checkpoint,
};
pub use config::{Config, History, StartsAs, database_path, restore_path};
pub use error::Error;
pub use feed_stream::{FeedAcks, FeedConfig, FeedPublisher, FeedStream};
pub use genesis::{Entry as GenesisEntry, GenesisFile, read as read_genesis};
pub use init::{
    Initialized, Progress, StateAt, has_database, init, init_copy, mark_as_copy, remove_database,
};
pub use lead::{LeadConfig, LeadLease};
pub use maintenance::{
    DatabaseFiles, compact_tables, copy_database, database_files, spread_state, table_names,
};
pub use metrics::describe_all as describe_metrics;
pub use own_workers::OwnWorkers;
pub use scrub::{ScrubConfig, ScrubStatus};
pub use service::{Deps, StorageWriter};
pub use state_load::{ShardLoad, StateLoad, load_plan};
pub use tandem_store::{Compaction, MARK_FILE, SCHEMA_VERSION, Sorter, TableShape};
pub use verify::{Difference, NodeFault, Report, repair, verify};

/// Codecs of the database's records, for tests that feed them damaged bytes.
pub mod records {
    pub use crate::codec::{PendingRecord, ReverseDiff, decode_block, decode_forkchoice};
}
