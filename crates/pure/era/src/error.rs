//! Reasons why a file is not read or written.

use alloy_primitives::{B256, U256};
use std::io;

/// Fault of a file that is read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("byte {offset}: {error}")]
    Read {
        /// Offset of the entry.
        offset: u64,
        /// Error of the operating system, or of the decompressor.
        error: io::Error,
    },
    /// The file has no index at its end, or one that does not fit it.
    #[error("{0}; expected an era1 or ere file with an index at its end")]
    Index(&'static str),
    /// Another entry stands where the index points to.
    #[error("byte {offset}: entry of type {got:#06x}; expected {want}")]
    Entry {
        /// Offset of the entry.
        offset: u64,
        /// Type of the entry.
        got: u16,
        /// Name of the entry that was expected.
        want: &'static str,
    },
    /// An entry is longer than its kind can be.
    #[error("byte {offset}: entry of {got} bytes; expected at most {max}")]
    Length {
        /// Offset of the entry.
        offset: u64,
        /// Length that the entry states, or its content has.
        got: u64,
        /// Longest for this kind.
        max: u64,
    },
    /// A header or body is not RLP of its kind.
    #[error("block {number}: {part} is no RLP of its kind: {error}")]
    Rlp {
        /// Number that the index gives to the block.
        number: u64,
        /// Part of the block.
        part: &'static str,
        /// Error of the decoder.
        error: alloy_rlp::Error,
    },
    /// A header has another number than the index says.
    #[error("block {want} of the index has the header of block {got}")]
    Number {
        /// Number that the index gives to the block.
        want: u64,
        /// Number in the header.
        got: u64,
    },
    /// A block is not the child of the one before it.
    #[error("block {number}: its parent is {got}; expected {want}, the block before it")]
    Parent {
        /// The block.
        number: u64,
        /// Parent in the header.
        got: B256,
        /// Hash of the block before.
        want: B256,
    },
    /// A total difficulty is not the sum.
    #[error("block {number}: total difficulty {got}; expected {want}")]
    TotalDifficulty {
        /// The block.
        number: u64,
        /// Number in the file.
        got: U256,
        /// Total difficulty of the block before, and the block's difficulty.
        want: U256,
    },
    /// The blocks are not those of the accumulator.
    #[error("accumulator {got}; the blocks of the file have {want}")]
    Accumulator {
        /// Root in the file.
        got: B256,
        /// Root of the blocks.
        want: B256,
    },
}

/// Reason why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    /// The file cannot be written.
    #[error("write: {0}")]
    Io(#[from] io::Error),
    /// A part of a block cannot be had.
    #[error(transparent)]
    Source(E),
    /// The number of blocks is none, or more than a file holds.
    #[error("{0} blocks; expected 1 to {max}", max = crate::BLOCKS_MAX)]
    Count(u64),
    /// A header is not RLP of its kind.
    #[error("block {number}: header is no RLP of its kind: {error}")]
    Rlp {
        /// The block.
        number: u64,
        /// Error of the decoder.
        error: alloy_rlp::Error,
    },
    /// An era1 file holds no block from after the merge.
    #[error("block {0} is from after the merge, which era1 cannot hold; expected ere")]
    AfterMerge(u64),
}
