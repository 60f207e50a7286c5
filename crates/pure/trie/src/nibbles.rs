//! Nibbles of 32-byte keys. A path is held as a key of which only the first nibbles count, the rest
//! being zero. A node that moves up or down therefore shifts nothing.

use crate::encode::Room;
use tandem_primitives::B256;

/// Number of nibbles of a key, and so the greatest depth.
pub const DEPTH_MAX: usize = 64;

/// Returns the nibble of a key at a depth below 64.
#[inline]
pub fn nibble(key: &B256, depth: usize) -> u8 {
    let byte = key[depth / 2];
    if depth.is_multiple_of(2) { byte >> 4 } else { byte & 0x0f }
}

/// Writes the nibble at a depth where the key still holds zero.
#[inline]
pub fn put_nibble(key: &mut B256, depth: usize, nibble: u8) {
    key[depth / 2] |= if depth.is_multiple_of(2) { nibble << 4 } else { nibble };
}

/// Returns the number of leading nibbles that two keys share, 64 when they are equal.
#[inline]
pub fn common_prefix(a: &B256, b: &B256) -> usize {
    let word = |key: &B256, at: usize| {
        key[at * 8..at * 8 + 8].iter().fold(0, |word: u64, &byte| word << 8 | u64::from(byte))
    };
    for at in 0..4 {
        let differing = word(a, at) ^ word(b, at);
        if differing != 0 {
            return at * 16 + differing.leading_zeros() as usize / 4;
        }
    }
    DEPTH_MAX
}

/// Returns the first `depth` nibbles of a key, padded with zeros.
pub fn prefix(key: &B256, depth: usize) -> B256 {
    let mut prefix = B256::ZERO;
    prefix[..depth / 2].copy_from_slice(&key[..depth / 2]);
    if !depth.is_multiple_of(2) {
        prefix[depth / 2] = key[depth / 2] & 0xf0;
    }
    prefix
}

/// Packs a path into a padded key. Returns `None` when the path has more than 64 nibbles or a byte
/// above 15.
pub fn pack(path: &[u8]) -> Option<B256> {
    if path.len() > DEPTH_MAX || path.iter().any(|&nibble| nibble > 15) {
        return None;
    }
    let mut key = B256::ZERO;
    for (depth, &nibble) in path.iter().enumerate() {
        put_nibble(&mut key, depth, nibble);
    }
    Some(key)
}

/// Returns the nibbles of a key, one per byte.
pub fn unpack(key: &B256) -> [u8; DEPTH_MAX] {
    let mut path = [0; DEPTH_MAX];
    for (pair, byte) in path.chunks_exact_mut(2).zip(key) {
        pair[0] = byte >> 4;
        pair[1] = byte & 0x0f;
    }
    path
}

/// Greatest number of nibbles that a [`Path`] holds inline.
const SHORT: usize = 16;

/// Path to some depth, which the user of the path knows. It holds its nibbles from the highest bits
/// down, or an index into a list of long paths. The nibbles behind the depth are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path(u64);

impl Path {
    /// Creates a path from the first `depth` nibbles of a key.
    pub fn of(key: &B256, depth: usize, long: &mut Vec<B256>) -> Self {
        if depth > SHORT {
            return Self::list(prefix(key, depth), long);
        }
        let head = key.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
        // For 16 nibbles, all bits are shifted out of the mask.
        Self(head & !u64::MAX.checked_shr(4 * depth as u32).unwrap_or(0))
    }

    /// Returns the path to a child of the branch at this path, which is at `depth`.
    #[inline]
    pub fn child(self, depth: usize, nibble: u8, long: &mut Vec<B256>) -> Self {
        if depth < SHORT {
            return Self(self.0 | u64::from(nibble) << (60 - 4 * depth));
        }
        let mut key = self.key(depth, long);
        put_nibble(&mut key, depth, nibble);
        Self::list(key, long)
    }

    /// Writes the nibbles, one per byte. The bytes behind them may be overwritten with anything.
    #[inline]
    pub fn write(self, depth: usize, long: &[B256], out: &mut Room) {
        if depth > SHORT {
            out[..DEPTH_MAX].copy_from_slice(&unpack(&self.key(depth, long)));
            return;
        }
        out[..8].copy_from_slice(&spread((self.0 >> 32) as u32));
        if depth > 8 {
            out[8..16].copy_from_slice(&spread(self.0 as u32));
        }
    }

    /// Returns the path, padded with zeros.
    fn key(self, depth: usize, long: &[B256]) -> B256 {
        if depth > SHORT {
            return long[self.0 as usize];
        }
        let mut key = B256::ZERO;
        key[..8].copy_from_slice(&self.0.to_be_bytes());
        key
    }

    fn list(key: B256, long: &mut Vec<B256>) -> Self {
        long.push(key);
        Self(long.len() as u64 - 1)
    }
}

/// Spreads eight nibbles to one per byte, the highest first.
#[inline]
fn spread(nibbles: u32) -> [u8; 8] {
    let mut bits = u64::from(nibbles);
    for (shift, mask) in
        [(16, 0x0000_ffff_0000_ffff), (8, 0x00ff_00ff_00ff_00ff), (4, 0x0f0f_0f0f_0f0f_0f0f)]
    {
        bits = (bits | bits << shift) & mask;
    }
    bits.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_packing() {
        let path: Vec<u8> = (0..64).map(|depth| (depth * 7 % 16) as u8).collect();
        let key = pack(&path).unwrap();
        assert_eq!(unpack(&key).as_slice(), path);
        for depth in 0..=64 {
            assert_eq!(pack(&path[..depth]).unwrap(), prefix(&key, depth));
        }
        assert_eq!(pack(&[16]), None);
        assert_eq!(pack(&[0; 65]), None);
    }

    #[test]
    fn a_path_grows_to_any_depth() {
        let nibbles: Vec<u8> = (0..64).map(|depth| (depth * 11 % 16) as u8).collect();
        let key = pack(&nibbles).unwrap();
        let mut long = Vec::new();
        let mut path = Path::of(&key, 0, &mut long);
        for depth in 0..=64 {
            assert_eq!(path.key(depth, &long), prefix(&key, depth));
            assert_eq!(Path::of(&key, depth, &mut long).key(depth, &long), prefix(&key, depth));
            let mut room = [0xff; size_of::<Room>()];
            path.write(depth, &long, &mut room);
            assert_eq!(room[..depth], nibbles[..depth]);
            if depth < 64 {
                path = path.child(depth, nibbles[depth], &mut long);
            }
        }
    }

    #[test]
    fn common_prefix_counts_nibbles() {
        let key = B256::repeat_byte(0x5a);
        assert_eq!(common_prefix(&key, &key), 64);
        for depth in 0..64 {
            let mut other = key;
            other[depth / 2] ^= if depth % 2 == 0 { 0x10 } else { 0x08 };
            assert_eq!(common_prefix(&key, &other), depth);
            assert_eq!(common_prefix(&other, &key), depth);
        }
    }
}
