//! Snapshots of a database in a directory or a bucket: made, restored and listed.
//!
//! ```text
//! STORE/chunks/ab/abcd…             a piece of a file, compressed; its name is the BLAKE3 hash of the piece
//! STORE/snapshots/NAME.json         a manifest: block, root, versions, and the pieces of every file
//! ```
//!
//! * [`Repository`] is such a directory or bucket.
//! * [`create`] uploads the files of a checkpoint. A chunk that is there is not uploaded again. The manifest
//!   comes last, so an interrupted upload leaves no snapshot, and the next one skips the chunks that are there.
//! * [`restore`] writes the files of a snapshot beside the place of the database, and gives them their name
//!   at the end. Every chunk is checked before it is written. An interrupted restore goes on where it was.
//! * [`Repository::list`] returns the manifests.
//!
//! **Trust.** A manifest and its chunks may come from strangers. Names of files are those of a database
//! ([`Manifest::parse`]), sizes are bounded before memory or disk is taken for them, and no chunk is
//! unpacked beyond its stated size. A manifest is not signed: the state root says whether the state is
//! the one of the chain, and the caller compares it.
//!
//! **Memory.** A chunk under way takes up to [`CHUNK_BYTES`] plain and as much compressed, whatever
//! the size of the database.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod create;
mod files;
mod manifest;
mod repository;
mod restore;

pub use create::{Created, create};
pub use files::{is_database_file, lock_directory};
pub use manifest::{
    Block, CHUNK_BYTES, Chunk, FORMAT, FileEntry, MANIFEST_BYTES_MAX, Manifest, Subject,
};
pub use repository::Repository;
pub use restore::{Restored, abandon, refuse_occupied, restore};

/// Chunks under way at the same time, unless the caller says otherwise.
pub const PARALLEL: usize = 4;

/// Receiver of progress: bytes done so far and in total. It is called by several tasks and must not wait.
pub type Progress<'a> = dyn Fn(u64, u64) + Send + Sync + 'a;
