//! Entries of e2store: two bytes of type, four of length, two zeros, all little-endian, then the
//! content.

use crate::Error;
use snap::{read::FrameDecoder, write::FrameEncoder};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Bytes before the content.
pub(crate) const HEADER_BYTES: u64 = 8;

pub(crate) const VERSION: u16 = 0x3265;
pub(crate) const HEADER: u16 = 0x03;
pub(crate) const BODY: u16 = 0x04;
pub(crate) const RECEIPTS: u16 = 0x05;
pub(crate) const TOTAL_DIFFICULTY: u16 = 0x06;
pub(crate) const ACCUMULATOR: u16 = 0x07;
pub(crate) const SLIM_RECEIPTS: u16 = 0x0a;
/// Index of era1.
pub(crate) const BLOCK_INDEX: u16 = 0x3266;
/// Index of ere.
pub(crate) const DYNAMIC_BLOCK_INDEX: u16 = 0x3267;

/// Writes an entry, and returns its length with its header.
pub(crate) fn write_entry(out: &mut impl Write, kind: u16, content: &[u8]) -> io::Result<u64> {
    let length = u32::try_from(content.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&[0; 2])?;
    out.write_all(content)?;
    Ok(HEADER_BYTES + u64::from(length))
}

/// Compresses the content of an entry.
pub(crate) fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = FrameEncoder::new(Vec::new());
    encoder.write_all(content)?;
    encoder.into_inner().map_err(snap::write::IntoInnerError::into_error)
}

/// Reads the type and the length of the entry at `offset`.
pub(crate) fn entry(input: &mut (impl Read + Seek), offset: u64) -> Result<(u16, u64), Error> {
    let read = |error| Error::Read { offset, error };
    input.seek(SeekFrom::Start(offset)).map_err(read)?;
    let mut header = [0; HEADER_BYTES as usize];
    input.read_exact(&mut header).map_err(read)?;
    let [k0, k1, l0, l1, l2, l3, zeros @ ..] = header;
    if zeros != [0; 2] {
        return Err(read(io::Error::new(io::ErrorKind::InvalidData, "not an entry of e2store")));
    }
    Ok((u16::from_le_bytes([k0, k1]), u32::from_le_bytes([l0, l1, l2, l3]).into()))
}

/// Reads the compressed content of `length` bytes that follows an entry's header. Memory grows with
/// the content, up to `max`.
pub(crate) fn decompress(
    input: &mut impl Read,
    offset: u64,
    length: u64,
    max: u64,
) -> Result<Vec<u8>, Error> {
    let mut content = Vec::new();
    let mut decoder = FrameDecoder::new(input.take(length)).take(max + 1);
    decoder.read_to_end(&mut content).map_err(|error| Error::Read { offset, error })?;
    let got = content.len() as u64;
    if got > max {
        return Err(Error::Length { offset, got, max });
    }
    Ok(content)
}
