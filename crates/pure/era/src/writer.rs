//! Writes files.

use crate::{
    BLOCKS_MAX, Format, WriteError,
    accumulator::accumulator,
    e2store::{
        ACCUMULATOR, BLOCK_INDEX, BODY, DYNAMIC_BLOCK_INDEX, HEADER, RECEIPTS, SLIM_RECEIPTS,
        TOTAL_DIFFICULTY, VERSION, compress, write_entry,
    },
    reader::header_fields,
};
use alloy_primitives::{B256, Bytes, U256, keccak256};
use std::io::Write;

/// Part of a block, in RLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The header.
    Header,
    /// The list of transactions, ommers, and withdrawals where there are any.
    Body,
    /// The receipts in the form that the format has.
    Receipts(Format),
}

/// A file that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Root by which the file is named: the accumulator of era1, the hash of the last block of ere.
    pub root: B256,
    /// Total difficulty up to the last block.
    pub total_difficulty: U256,
}

/// Writes a file of `count` blocks from `first` on. `part` gives their parts; it is asked more than
/// once for a header, so that no more than one block is in memory. `total` is the total difficulty
/// of the blocks before.
///
/// # Errors
/// [`WriteError`].
pub fn write<E>(
    format: Format,
    out: impl Write,
    (first, count): (u64, u64),
    total: U256,
    part: impl FnMut(u64, Part) -> Result<Bytes, E>,
) -> Result<Written, WriteError<E>> {
    if !(1..=BLOCKS_MAX).contains(&count) {
        return Err(WriteError::Count(count));
    }
    let mut writer = Writer { out, part, written: 0, records: Vec::new(), total, last: B256::ZERO };
    writer.entry(VERSION, &[])?;
    match format {
        Format::Era1 => writer.era1(first, count),
        Format::Ere => writer.ere(first, count),
    }
}

struct Writer<W, P> {
    out: W,
    part: P,
    written: u64,
    /// Hashes and total difficulties of the blocks from before the merge.
    records: Vec<(B256, U256)>,
    total: U256,
    last: B256,
}

impl<E, W: Write, P: FnMut(u64, Part) -> Result<Bytes, E>> Writer<W, P> {
    fn era1(mut self, first: u64, count: u64) -> Result<Written, WriteError<E>> {
        let mut offsets = Vec::new();
        for number in first..first + count {
            offsets.push(self.written);
            if !self.header(number)? {
                return Err(WriteError::AfterMerge(number));
            }
            self.compressed(BODY, number, Part::Body)?;
            self.compressed(RECEIPTS, number, Part::Receipts(Format::Era1))?;
            let total = self.total.to_le_bytes::<32>();
            self.entry(TOTAL_DIFFICULTY, &total)?;
        }
        let root = self.accumulator()?;
        let mut index = first.to_le_bytes().to_vec();
        offsets.into_iter().for_each(|offset| index.extend(self.relative(offset)));
        index.extend(count.to_le_bytes());
        self.entry(BLOCK_INDEX, &index)?;
        self.end(root)
    }

    fn ere(mut self, first: u64, count: u64) -> Result<Written, WriteError<E>> {
        let numbers = first..first + count;
        let mut parts = [const { Vec::new() }; 4];
        for number in numbers.clone() {
            parts[0].push(self.written);
            self.header(number)?;
        }
        for number in numbers.clone() {
            parts[1].push(self.written);
            self.compressed(BODY, number, Part::Body)?;
        }
        for number in numbers {
            parts[2].push(self.written);
            self.compressed(SLIM_RECEIPTS, number, Part::Receipts(Format::Ere))?;
        }
        if !self.records.is_empty() {
            // Blocks after the merge have the total difficulty of the last one before it.
            let after = (self.records.len() as u64..count).map(|_| self.total);
            let totals: Vec<_> = self.records.iter().map(|record| record.1).chain(after).collect();
            for total in totals {
                parts[3].push(self.written);
                self.entry(TOTAL_DIFFICULTY, &total.to_le_bytes::<32>())?;
            }
            self.accumulator()?;
        }
        let used = parts.iter().filter(|offsets| !offsets.is_empty()).count();
        let mut index = first.to_le_bytes().to_vec();
        for block in 0..count as usize {
            for offsets in &parts[..used] {
                index.extend(self.relative(offsets[block]));
            }
        }
        index.extend((used as u64).to_le_bytes());
        index.extend(count.to_le_bytes());
        self.entry(DYNAMIC_BLOCK_INDEX, &index)?;
        let last = self.last;
        self.end(last)
    }

    /// Writes a header. Returns whether it is from before the merge.
    fn header(&mut self, number: u64) -> Result<bool, WriteError<E>> {
        let rlp = self.compressed(HEADER, number, Part::Header)?;
        let fields = header_fields(&rlp);
        let (_, difficulty, _) = fields.map_err(|error| WriteError::Rlp { number, error })?;
        self.last = keccak256(&rlp);
        if difficulty.is_zero() {
            return Ok(false);
        }
        self.total = self.total.saturating_add(difficulty);
        self.records.push((self.last, self.total));
        Ok(true)
    }

    fn accumulator(&mut self) -> Result<B256, WriteError<E>> {
        let root = accumulator(&self.records);
        self.entry(ACCUMULATOR, root.as_slice())?;
        Ok(root)
    }

    fn compressed(&mut self, kind: u16, number: u64, part: Part) -> Result<Bytes, WriteError<E>> {
        let content = (self.part)(number, part).map_err(WriteError::Source)?;
        self.entry(kind, &compress(&content)?)?;
        Ok(content)
    }

    fn entry(&mut self, kind: u16, content: &[u8]) -> Result<(), WriteError<E>> {
        self.written += write_entry(&mut self.out, kind, content)?;
        Ok(())
    }

    /// Returns an offset as the index has it: from the index on, backwards.
    fn relative(&self, offset: u64) -> [u8; 8] {
        offset.wrapping_sub(self.written).to_le_bytes()
    }

    fn end(mut self, root: B256) -> Result<Written, WriteError<E>> {
        self.out.flush()?;
        Ok(Written { root, total_difficulty: self.total })
    }
}
