//! Reads files. Nothing in a file is believed: sizes are bounded, and [`Reader::check`] tells
//! whether its headers are a chain with the file's accumulator.

use crate::{
    BLOCKS_MAX, Error, Format,
    accumulator::accumulator,
    e2store::{
        ACCUMULATOR, BLOCK_INDEX, BODY, DYNAMIC_BLOCK_INDEX, HEADER, HEADER_BYTES,
        TOTAL_DIFFICULTY, VERSION, decompress, entry,
    },
};
use alloy_primitives::{B256, U256, keccak256};
use alloy_rlp::{Decodable, PayloadView};
use std::io::{self, Read, Seek, SeekFrom};

/// Longest header, in bytes of RLP: far beyond what any fork has.
const HEADER_BYTES_MAX: u64 = 16 << 10;

/// Longest body, in bytes of RLP: eight times the limit of Osaka.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// Largest number of parts of a block: header, body, receipts, total difficulty, proof.
const PARTS_MAX: u64 = 5;

/// Returns whether a file begins as era1 and ere files do.
pub fn is_era(first_bytes: &[u8]) -> bool {
    let [low, high] = VERSION.to_le_bytes();
    first_bytes.starts_with(&[low, high, 0, 0, 0, 0, 0, 0])
}

/// Reader of a file.
pub struct Reader<R> {
    input: R,
    format: Format,
    first: u64,
    count: u64,
    /// Offset of the index entry, from which the index counts.
    index_at: u64,
    /// Offsets of all parts, block by block.
    index: Vec<u64>,
    parts: usize,
}

/// Facts of a header that a file's check needs.
struct Header {
    hash: B256,
    parent: B256,
    difficulty: U256,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the index of a file.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Index`].
    pub fn new(mut input: R) -> Result<Self, Error> {
        let read = |offset| move |error: io::Error| Error::Read { offset, error };
        let length = input.seek(SeekFrom::End(0)).map_err(read(0))?;
        let tail_at = length.checked_sub(16).ok_or(Error::Index("the file is too short"))?;
        input.seek(SeekFrom::Start(tail_at)).map_err(read(tail_at))?;
        let [parts, count] = words(&mut input).map_err(read(tail_at))?;
        if !(1..=BLOCKS_MAX).contains(&count) {
            return Err(Error::Index("the number of blocks is none, or more than a file holds"));
        }
        let content = |parts: u64, after: u64| 8 + 8 * parts * count + after;
        let mut is_there = |kind, content: u64| {
            let at = length.checked_sub(HEADER_BYTES + content)?;
            let is_there = matches!(entry(&mut input, at), Ok(found) if found == (kind, content));
            is_there.then_some(at)
        };
        let era1 = is_there(BLOCK_INDEX, content(1, 8)).map(|at| (Format::Era1, 1, at));
        let found = era1.or_else(|| {
            let content = (2..=PARTS_MAX).contains(&parts).then(|| content(parts, 16))?;
            is_there(DYNAMIC_BLOCK_INDEX, content).map(|at| (Format::Ere, parts, at))
        });
        let Some((format, parts, index_at)) = found else {
            return Err(Error::Index("no index of a known kind"));
        };
        input.seek(SeekFrom::Start(index_at + HEADER_BYTES)).map_err(read(index_at))?;
        let [first] = words(&mut input).map_err(read(index_at))?;
        let mut index = Vec::new();
        for _ in 0..parts * count {
            let [relative] = words(&mut input).map_err(read(index_at))?;
            let offset = index_at.wrapping_add(relative);
            if offset >= index_at {
                return Err(Error::Index("an offset of the index is outside of the file"));
            }
            index.push(offset);
        }
        if first.checked_add(count).is_none() {
            return Err(Error::Index("the numbers of the blocks are too large"));
        }
        // At most five parts.
        let parts = parts as usize;
        Ok(Self { input, format, first, count, index_at, index, parts })
    }

    /// Returns the kind of the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the numbers of the first block and of the one after the last.
    pub fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }

    /// Returns where a block stands in the file, as an offset in bytes.
    ///
    /// # Panics
    /// If the file has no such block.
    pub fn offset(&self, number: u64) -> u64 {
        self.index[(number - self.first) as usize * self.parts]
    }

    /// Checks that the headers are a chain with the numbers of the index, and that of a file from
    /// before the merge the total difficulties are right and the accumulator is that of the blocks.
    /// Returns the root by which the file is named: the accumulator of era1, the hash of the last
    /// block of ere.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(&mut self) -> Result<B256, Error> {
        let (mut last, mut total, mut records) = (None, None, Vec::new());
        for number in self.numbers() {
            let header = self.read_header(number)?;
            if let Some(want) = last.filter(|last| *last != header.parent) {
                return Err(Error::Parent { number, got: header.parent, want });
            }
            last = Some(header.hash);
            let Some(got) = self.total_difficulty(number)? else { continue };
            // The total before the first block is not in the file; the accumulator covers it.
            let want = total.map_or(got, |total: U256| total.saturating_add(header.difficulty));
            if got != want {
                return Err(Error::TotalDifficulty { number, got, want });
            }
            total = Some(got);
            if !header.difficulty.is_zero() {
                records.push((header.hash, got));
            }
        }
        let got = self.accumulator()?;
        let want =
            (self.format == Format::Era1 || !records.is_empty()).then(|| accumulator(&records));
        match (got, want) {
            (got, Some(want)) if got != Some(want) => {
                Err(Error::Accumulator { got: got.unwrap_or_default(), want })
            }
            (Some(got), None) => Err(Error::Accumulator { got, want: B256::ZERO }),
            (Some(root), _) if self.format == Format::Era1 => Ok(root),
            _ => Ok(last.unwrap_or_default()),
        }
    }

    /// Returns the RLP of a block: header, transactions, ommers, and withdrawals where there are
    /// any.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Panics
    /// If the file has no such block.
    pub fn block(&mut self, number: u64) -> Result<Vec<u8>, Error> {
        let header = self.part(number, HEADER, HEADER_BYTES_MAX)?;
        let body = self.part(number, BODY, BODY_BYTES_MAX)?;
        let error = |error| Error::Rlp { number, part: "body", error };
        let mut rest = &body[..];
        let items = alloy_rlp::Header::decode_bytes(&mut rest, true).map_err(error)?;
        if !rest.is_empty() {
            return Err(error(alloy_rlp::Error::UnexpectedLength));
        }
        let payload_length = header.len() + items.len();
        let mut block = Vec::with_capacity(payload_length + 9);
        alloy_rlp::Header { list: true, payload_length }.encode(&mut block);
        block.extend_from_slice(&header);
        block.extend_from_slice(items);
        Ok(block)
    }

    fn read_header(&mut self, number: u64) -> Result<Header, Error> {
        let rlp = self.part(number, HEADER, HEADER_BYTES_MAX)?;
        let error = |error| Error::Rlp { number, part: "header", error };
        let (parent, difficulty, got) = header_fields(&rlp).map_err(error)?;
        if got != number {
            return Err(Error::Number { want: number, got });
        }
        Ok(Header { hash: keccak256(&rlp), parent, difficulty })
    }

    fn total_difficulty(&mut self, number: u64) -> Result<Option<U256>, Error> {
        // An era1 block's total difficulty is its fourth entry, that of ere its fourth part.
        let Some((offset, length)) = self.find(number, TOTAL_DIFFICULTY)? else { return Ok(None) };
        let mut content = [0; 32];
        if length != 32 {
            return Err(Error::Length { offset, got: length, max: 32 });
        }
        self.input.read_exact(&mut content).map_err(|error| Error::Read { offset, error })?;
        Ok(Some(U256::from_le_bytes(content)))
    }

    /// Returns the root that stands before the index.
    fn accumulator(&mut self) -> Result<Option<B256>, Error> {
        let Some(offset) = self.index_at.checked_sub(HEADER_BYTES + 32) else { return Ok(None) };
        // Other entries may stand there, whose content looks like anything.
        if !matches!(entry(&mut self.input, offset), Ok((ACCUMULATOR, 32))) {
            return Ok(None);
        }
        let mut root = B256::ZERO;
        self.input.read_exact(&mut root.0).map_err(|error| Error::Read { offset, error })?;
        Ok(Some(root))
    }

    /// Reads a compressed part of a block.
    fn part(&mut self, number: u64, kind: u16, max: u64) -> Result<Vec<u8>, Error> {
        let want = if kind == HEADER { "a header" } else { "a body" };
        let Some((offset, length)) = self.find(number, kind)? else {
            let offset = self.offset(number);
            let (got, _) = entry(&mut self.input, offset)?;
            return Err(Error::Entry { offset, got, want });
        };
        decompress(&mut self.input, offset, length, max)
    }

    /// Finds an entry of a block, and returns its offset and length. The input stands at its
    /// content.
    fn find(&mut self, number: u64, kind: u16) -> Result<Option<(u64, u64)>, Error> {
        let at = (number - self.first) as usize * self.parts;
        match self.format {
            Format::Ere => {
                for part in at..at + self.parts {
                    let offset = self.index[part];
                    let (found, length) = entry(&mut self.input, offset)?;
                    if found == kind {
                        return Ok(Some((offset, length)));
                    }
                }
            }
            Format::Era1 => {
                // The index has the header; the other three entries follow it.
                let mut offset = self.index[at];
                for _ in 0..4 {
                    let (found, length) = entry(&mut self.input, offset)?;
                    if found == kind {
                        return Ok(Some((offset, length)));
                    }
                    offset = offset.saturating_add(HEADER_BYTES + length);
                }
            }
        }
        Ok(None)
    }
}

fn words<const N: usize>(input: &mut impl Read) -> io::Result<[u64; N]> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        input.read_exact(&mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

/// Returns a header's parent, difficulty and number.
pub(crate) fn header_fields(mut rlp: &[u8]) -> alloy_rlp::Result<(B256, U256, u64)> {
    let PayloadView::List(items) = alloy_rlp::Header::decode_raw(&mut rlp)? else {
        return Err(alloy_rlp::Error::UnexpectedString);
    };
    let item = |index: usize| items.get(index).copied().ok_or(alloy_rlp::Error::InputTooShort);
    if !rlp.is_empty() {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    Ok((B256::decode(&mut item(0)?)?, U256::decode(&mut item(7)?)?, u64::decode(&mut item(8)?)?))
}
