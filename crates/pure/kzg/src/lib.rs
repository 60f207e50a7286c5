//! KZG commitments of blobs (EIP-4844) and of their cells (EIP-7594). The crate verifies by
//! content, in batches, and gives a precise reason for every refusal. Only this crate names the
//! library, c-kzg.
//!
//! ```text
//! items ─► field elements below the modulus? ─► one batch ─┬─ holds: all valid
//!          (each by itself, microseconds)                  ├─ a point is malformed: look which,
//!                                                          │  batch what is between them
//!                                                          └─ does not hold: bisect
//! ```
//!
//! Nothing here is asynchronous or threaded. A call takes milliseconds and belongs on a thread for
//! blocking work. The trusted setup takes over a second to load, so call [`Setup::load`] early.
#![forbid(unsafe_code)]
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
pub use setup::{CellsAndProofs, Setup, select_cells};
pub use verify::{Item, Proofs, Report, Verifier, verify};

/// Number of bytes in a blob: 4096 field elements of 32 bytes (EIP-4844).
pub const BLOB_BYTES: usize = c_kzg::BYTES_PER_BLOB;

/// Number of cells in an extended blob (EIP-7594).
pub const CELLS: usize = c_kzg::CELLS_PER_EXT_BLOB;

/// Number of bytes in a cell: 64 field elements (EIP-7594).
pub const CELL_BYTES: usize = c_kzg::BYTES_PER_CELL;

/// Commitment to a blob: a compressed point of G1, unchecked.
pub type Commitment = [u8; 48];

/// Proof of a blob or cell: a compressed point of G1, unchecked.
pub type Proof = [u8; 48];
