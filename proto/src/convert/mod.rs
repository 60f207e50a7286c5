//! Conversion between wire messages and domain types.
//!
//! `From` makes a message from a value and cannot fail. `TryFrom` makes a value from a message and
//! checks everything that the domain type promises: lengths, ranges, order, counts. The receiver
//! calls it once, at the edge, and later code does not check again. A [`ConvertError`] names the
//! field, beginning with the call: `commit.block.parent: expected 32 bytes, got 31`.
//!
//! Byte strings of a converted value (RLP, bodies, receipts) share the buffer of the message. Code
//! is copied out of it, because it lives long in caches.

mod blob_error;
mod blob_request;
mod blob_validator;
mod download;
mod error;
mod event;
mod exchange;
mod feed;
mod field;
mod multiproof;
mod peer_sessions;
mod peer_table;
mod snap;
mod state;
mod status;
mod storage;
mod storage_answers;
mod trie;
mod tx_executor;
mod tx_outcome;
mod tx_pool;
mod update_parts;

pub use blob_request::OutgoingBlobRequest;
pub use blob_validator::{BlobRequest, BlobStreamAnswer, BlobStreamRequest};
pub use error::{ConvertError, Reason};
pub use feed::{FeedDecoder, FeedParts};
pub use multiproof::{Command, SessionAnswer, SessionCommand};
pub use status::ERROR_METADATA;
pub use storage::EpochRequest;
pub use trie::TrieDiffParts;
pub use tx_executor::{EncodedResults, TxAnswer, TxRequest};
pub use tx_pool::ContentParts;
pub use update_parts::UpdateParts;
