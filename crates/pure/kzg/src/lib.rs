//! KZG commitments of blobs (EIP-4844) and of their cells (EIP-7594): verification by content, in
//! batches, with a precise reason for everything that is refused. The only crate that names the
//! library, c-kzg.
//!
//! ```text
//! items ─► field elements below the modulus? ─► one batch ─┬─ holds: all valid
//!          (each by itself, microseconds)                  ├─ a point is malformed: look which,
//!                                                          │  batch what is between them
//!                                                          └─ does not hold: bisect
//! ```
//!
//! Nothing here is asynchronous or threaded: a call takes milliseconds and belongs on a thread for
//! such work. Loading the trusted setup takes over a second: [`Setup::load`] it early.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bisect;
mod error;
mod hash;
mod point;
mod setup;
pub mod vectors;
mod verify;

pub use bisect::find_bad;
pub use error::{Error, PointFault};
pub use hash::{content_key, versioned_hash};
pub use setup::{CellsAndProofs, Setup};
pub use verify::{Item, Proofs, Report, Verifier, verify};

/// Bytes of a blob: 4096 field elements of 32 bytes (EIP-4844).
pub const BLOB_BYTES: usize = c_kzg::BYTES_PER_BLOB;

/// Cells of an extended blob (EIP-7594).
pub const CELLS: usize = c_kzg::CELLS_PER_EXT_BLOB;

/// Bytes of a cell: 64 field elements (EIP-7594).
pub const CELL_BYTES: usize = c_kzg::BYTES_PER_CELL;

/// A commitment to a blob: a compressed point of G1, not checked.
pub type Commitment = [u8; 48];

/// A proof of a blob or cell: a compressed point of G1, not checked.
pub type Proof = [u8; 48];
