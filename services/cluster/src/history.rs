//! Writes blocks of the canonical chain into history files.

use std::{io::Write, ops::RangeInclusive};
use tandem_chain::{Header, network_receipts, trie_receipts};
use tandem_era::{BLOCKS_MAX, Format, Part, WriteError, Written};
use tandem_primitives::{B256, BlockNumber, Bytes, U256};
use tandem_proto::storage::{self, BlockRecord, BlockRef, StorageApi};

/// Reason why blocks are not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The database cannot be read.
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// A block of the canonical chain is not there, or its body is pruned.
    #[error("block {0} is not in the database")]
    Missing(BlockNumber),
    /// The record of a block cannot be decoded.
    #[error("block {number}: {part}: {error}")]
    Record {
        /// The block.
        number: BlockNumber,
        /// Part of the record.
        part: &'static str,
        /// Error of the decoder.
        error: alloy_rlp::Error,
    },
    /// A file would not begin with its epoch.
    #[error("first block {0}; expected a multiple of {BLOCKS_MAX}, with which a file begins")]
    First(BlockNumber),
}

/// Writer of history files, epoch by epoch.
pub struct Export<'a> {
    storage: &'a dyn StorageApi,
    format: Format,
    left: RangeInclusive<BlockNumber>,
    /// Total difficulty of the blocks before those that are left.
    total: U256,
    /// Block that was read last: its parts are asked for one after the other.
    record: Option<BlockRecord>,
}

impl<'a> Export<'a> {
    /// Prepares an export of these blocks. The total difficulty of a block from before the merge is
    /// summed up from genesis.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn new(
        storage: &'a dyn StorageApi,
        format: Format,
        blocks: RangeInclusive<BlockNumber>,
    ) -> Result<Self, ExportError> {
        let first = *blocks.start();
        if !first.is_multiple_of(BLOCKS_MAX) {
            return Err(ExportError::First(first));
        }
        let mut export = Self { storage, format, left: blocks, total: U256::ZERO, record: None };
        if !export.difficulty(first)?.is_zero() {
            for number in 0..first {
                export.total += export.difficulty(number)?;
            }
        }
        Ok(export)
    }

    /// Returns the epoch of the next file, `None` if all are written.
    pub fn epoch(&self) -> Option<u64> {
        (!self.left.is_empty()).then(|| self.left.start() / BLOCKS_MAX)
    }

    /// Writes the file of the next epoch.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&mut self, out: impl Write) -> Result<Written, WriteError<ExportError>> {
        let (first, last) = (*self.left.start(), *self.left.end());
        let count = (last - first).saturating_add(1).min(BLOCKS_MAX);
        let (format, total) = (self.format, self.total);
        let part = |number, part| self.part(number, part);
        let written = tandem_era::write(format, out, (first, count), total, part)?;
        self.total = written.total_difficulty;
        self.left = first + count..=last;
        Ok(written)
    }

    fn part(&mut self, number: BlockNumber, part: Part) -> Result<Bytes, ExportError> {
        if part == Part::Header {
            return Ok(self.header(number)?.1);
        }
        let record = match self.record.take() {
            Some(record) if record.id.number == number => record,
            _ => {
                let record = self.storage.block(BlockRef::Number(number))?;
                record.ok_or(ExportError::Missing(number))?
            }
        };
        let error = |error| ExportError::Record { number, part: "receipts", error };
        let bytes = match part {
            Part::Header | Part::Body => record.body.clone(),
            Part::Receipts(Format::Ere) => network_receipts(&record.receipts).map_err(error)?,
            Part::Receipts(Format::Era1) => trie_receipts(&record.receipts).map_err(error)?,
        };
        self.record = Some(record);
        Ok(bytes)
    }

    fn header(&self, number: BlockNumber) -> Result<(B256, Bytes), ExportError> {
        let header = self.storage.header(BlockRef::Number(number))?;
        let (id, header) = header.ok_or(ExportError::Missing(number))?;
        Ok((id.hash, header))
    }

    fn difficulty(&self, number: BlockNumber) -> Result<U256, ExportError> {
        let (_, rlp) = self.header(number)?;
        let header: Result<Header, _> = alloy_rlp::Decodable::decode(&mut &rlp[..]);
        let error = |error| ExportError::Record { number, part: "header", error };
        Ok(header.map_err(error)?.difficulty)
    }
}
