//! Checks of single fields, and conversions that many messages share.

use super::error::{At, ConvertError, Reason};
use crate::wire::types::v1;
use bytes::Bytes;
use tandem_primitives::{B256, BlockId, Bytes as Item, ShardSet};

/// Returns the value of a required field.
pub fn required<T>(field: Option<T>) -> Result<T, Reason> {
    field.ok_or(Reason::Missing)
}

/// Reads a hash.
pub fn hash(bytes: &[u8]) -> Result<B256, Reason> {
    B256::try_from(bytes).map_err(|_| Reason::Length { expected: 32, got: bytes.len() as u64 })
}

/// Encodes a hash as a field.
pub fn hash_bytes(hash: B256) -> Bytes {
    Bytes::copy_from_slice(hash.as_slice())
}

/// Reads a list of items of `N` bytes each.
pub fn items<const N: usize>(bytes: &[u8]) -> Result<&[[u8; N]], Reason> {
    match bytes.as_chunks() {
        (items, []) => Ok(items),
        _ => Err(Reason::Ragged { unit: N, got: bytes.len() }),
    }
}

/// Encodes a list of hashes as a field.
pub fn hash_list<'a>(hashes: impl ExactSizeIterator<Item = &'a B256>) -> Bytes {
    let mut bytes = Vec::with_capacity(hashes.len() * 32);
    for hash in hashes {
        bytes.extend_from_slice(hash.as_slice());
    }
    bytes.into()
}

/// Refuses more than `max`.
pub fn at_most(max: usize, got: usize) -> Result<(), Reason> {
    if got > max { Err(Reason::TooMany { max, got }) } else { Ok(()) }
}

/// Refuses a number of items that differs from the announced number.
pub fn count(expected: u64, got: usize) -> Result<(), Reason> {
    let got = got as u64;
    if got == expected { Ok(()) } else { Err(Reason::Count { expected, got }) }
}

/// Refuses a number of bytes that differs from the announced number.
pub fn length(expected: u64, got: usize) -> Result<(), Reason> {
    let got = got as u64;
    if got == expected { Ok(()) } else { Err(Reason::Length { expected, got }) }
}

/// Refuses a number outside its range.
pub fn range(min: u64, max: u64, got: impl Into<u64>) -> Result<(), Reason> {
    let got = got.into();
    if (min..=max).contains(&got) { Ok(()) } else { Err(Reason::OutOfRange { min, max, got }) }
}

/// Returns the sum, which cannot overflow for a list that fits into memory.
pub fn total<N: Copy + Into<u64>>(sizes: &[N]) -> u64 {
    sizes.iter().map(|&size| size.into()).sum()
}

/// Splits bytes into items of these sizes, which must add up to their number. The items share the
/// memory of the message.
pub fn split(
    sizes: &[u32],
    mut bytes: Bytes,
) -> Result<impl ExactSizeIterator<Item = Item>, Reason> {
    length(total(sizes), bytes.len())?;
    Ok(sizes.iter().map(move |&size| bytes.split_to(size as usize).into()))
}

/// Refuses a size below `min`. The error names its place.
pub fn sizes_from(min: u64, sizes: &[u32]) -> Result<(), ConvertError> {
    let small = sizes.iter().position(|&size| u64::from(size) < min);
    small.map_or(Ok(()), |index| range(min, u32::MAX.into(), sizes[index]).at_index(index))
}

/// Encodes a length as a field. No length here comes near the limit. If one did, the receiver would
/// find that lengths and bytes do not match.
pub fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Reads a set of shards from bits.
pub fn shards(bits: u32) -> Result<ShardSet, Reason> {
    range(0, 0xffff, bits)?;
    Ok(ShardSet::from_bits(bits as u16))
}

/// Encodes a set of shards as a field.
pub fn shard_bits(shards: ShardSet) -> u32 {
    shards.bits().into()
}

impl From<BlockId> for v1::BlockId {
    fn from(block: BlockId) -> Self {
        Self { number: block.number, hash: hash_bytes(block.hash) }
    }
}

impl TryFrom<v1::BlockId> for BlockId {
    type Error = ConvertError;

    fn try_from(wire: v1::BlockId) -> Result<Self, ConvertError> {
        Ok(Self::new(wire.number, hash(&wire.hash).at("hash")?))
    }
}

/// Converts the value of a required message.
pub fn nested<W, T>(field: Option<W>) -> Result<T, ConvertError>
where
    T: TryFrom<W, Error = ConvertError>,
{
    required(field)?.try_into()
}
