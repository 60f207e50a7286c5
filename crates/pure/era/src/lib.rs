//! History files of execution clients: era1, which end at the merge, and ere, which go on after it.
//! Both are sequences of e2store entries, with an index at the end
//! (<https://github.com/eth-clients/e2store-format-specs>).
//!
//! [`Reader`] reads both and checks a file as a whole before its blocks are used; [`write()`]
//! writes both. A file holds at most [`BLOCKS_MAX`] blocks.

#![forbid(unsafe_code)]

mod accumulator;
mod e2store;
mod error;
mod reader;
mod writer;

pub use accumulator::accumulator;
pub use error::{Error, WriteError};
pub use reader::{Reader, is_era};
pub use writer::{Part, Written, write};

/// Largest number of blocks in a file.
pub const BLOCKS_MAX: u64 = 8192;

/// Kinds of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Blocks up to the merge, with receipts as they are hashed and the total difficulty of each.
    Era1,
    /// Blocks of any age, with receipts as eth/69 has them (EIP-7642). Blocks of a file that begins
    /// before the merge have their total difficulty.
    Ere,
}

impl Format {
    /// Returns the extension of file names.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Era1 => "era1",
            Self::Ere => "ere",
        }
    }
}
