//! Durable tables of storage-writer: a typed interface to RocksDB, and the only crate that names
//! it.
//!
//! A [`Store`] is one database directory with one column family per [`Table`], or with several for
//! tables of the state, whose files then are in directories of their own ([`Store::spread`]). Reads go
//! through a [`View`] (of the latest state, or of a snapshot), writes through a [`Batch`] that is
//! atomic over all tables. Nothing else of RocksDB is exposed. So the same tables also work on ordered maps in
//! memory ([`Store::in_memory`]), for chains that live for one test.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod batch;
mod copy;
mod deep;
mod error;
mod layout;
mod mark;
mod memory;
mod options;
mod rocks;
mod runs;
mod scrub;
mod shape;
mod sort;
mod spread;
mod store;
pub mod tables;
mod usage;
mod view;

pub use batch::Batch;
pub use error::Error;
pub use mark::{FoundMark, MARK_FILE, Mark, MarkFile};
pub use options::Options;
pub use runs::SortedRun;
pub use scrub::Scrubbed;
pub use shape::{Compaction, Level, TableShape};
pub use sort::Sorter;
pub use store::{Durability, SCHEMA_VERSION, Store};
pub use tables::Table;
pub use usage::{Blocks, Usage};
pub use view::{Cursor, View};

/// Result of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
