//! Nibbles of 32-byte keys. A path is held as a key of which only the first nibbles count, the
//! rest being zero: nothing is shifted when a node moves up or down.

use tandem_primitives::B256;

/// Nibbles of a key, and so the greatest depth.
pub const DEPTH_MAX: usize = 64;

/// The nibble of a key at a depth below 64.
#[inline]
pub fn nibble(key: &B256, depth: usize) -> u8 {
    let byte = key[depth / 2];
    if depth.is_multiple_of(2) { byte >> 4 } else { byte & 0x0f }
}

/// Writes the nibble at a depth at which the key holds zero so far.
#[inline]
pub fn put_nibble(key: &mut B256, depth: usize, nibble: u8) {
    key[depth / 2] |= if depth.is_multiple_of(2) { nibble << 4 } else { nibble };
}

/// Number of leading nibbles that two keys share, 64 when they are equal.
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

/// The first `depth` nibbles of a key, padded with zeros.
pub fn prefix(key: &B256, depth: usize) -> B256 {
    let mut prefix = B256::ZERO;
    prefix[..depth / 2].copy_from_slice(&key[..depth / 2]);
    if !depth.is_multiple_of(2) {
        prefix[depth / 2] = key[depth / 2] & 0xf0;
    }
    prefix
}

/// A path as a padded key, `None` when it has more than 64 nibbles or a byte that is none.
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

/// The nibbles of a key, one a byte.
pub fn unpack(key: &B256) -> [u8; DEPTH_MAX] {
    let mut path = [0; DEPTH_MAX];
    for (pair, byte) in path.chunks_exact_mut(2).zip(key) {
        pair[0] = byte >> 4;
        pair[1] = byte & 0x0f;
    }
    path
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
