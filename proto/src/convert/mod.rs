//! Between wire messages and domain types.
//!
//! `From` makes a message of a value and cannot fail. `TryFrom` makes a value of a message and
//! checks everything that the domain type promises: lengths, ranges, order, counts. The receiver
//! calls it once, at the edge, and nothing behind it checks again. A [`ConvertError`] names the
//! field from the name of the call down: `commit.block.parent: expected 32 bytes, got 31`.
//!
//! Byte strings of a value made from a message (RLP, bodies, receipts) share the buffer of that
//! message; code, which lives long in caches, is copied out of it.

mod blob_error;
mod blob_request;
mod blob_validator;
mod error;
mod event;
mod field;
mod multiproof;
mod peer_table;
mod state;
mod status;
mod storage;
mod storage_answers;
mod trie;
mod update_parts;

pub use blob_request::OutgoingBlobRequest;
pub use blob_validator::{BlobRequest, BlobStreamAnswer, BlobStreamRequest};
pub use error::{ConvertError, Reason};
pub use multiproof::{Command, SessionAnswer, SessionCommand};
pub use status::ERROR_METADATA;
pub use storage::EpochRequest;
pub use trie::TrieDiffParts;
pub use update_parts::UpdateParts;
