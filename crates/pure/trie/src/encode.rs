//! RLP of trie nodes in one pass: lengths are computed, never found by encoding.

use crate::nibbles::{DEPTH_MAX, nibble};
use tandem_primitives::B256;

/// Length of a reference that is a hash; a shorter one is the node's RLP itself.
pub const HASH_LEN: u8 = 32;

const EMPTY_STRING: u8 = 0x80;

/// Starts a list whose items take `payload` bytes (under 64 KiB).
pub fn start_list(payload: usize, out: &mut Vec<u8>) {
    match payload {
        0..56 => out.push(0xc0 + payload as u8),
        56..256 => out.extend_from_slice(&[0xf8, payload as u8]),
        _ => out.extend_from_slice(&[0xf9, (payload >> 8) as u8, payload as u8]),
    }
}

/// Length of a string (at most 255 bytes) with its header.
#[inline]
pub fn string_len(bytes: &[u8]) -> usize {
    match bytes {
        [byte] if *byte < EMPTY_STRING => 1,
        _ if bytes.len() < 56 => 1 + bytes.len(),
        _ => 2 + bytes.len(),
    }
}

/// Appends a string of at most 255 bytes.
#[inline]
pub fn push_string(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes {
        [byte] if *byte < EMPTY_STRING => {}
        _ if bytes.len() < 56 => out.push(EMPTY_STRING + bytes.len() as u8),
        _ => out.extend_from_slice(&[0xb8, bytes.len() as u8]),
    }
    out.extend_from_slice(bytes);
}

/// Length of a hex-prefix encoded path of this many nibbles, with its string header. A single byte
/// is below 0x40 and so its own encoding.
fn path_len(nibbles: usize) -> usize {
    let bytes = 1 + nibbles / 2;
    if bytes == 1 { 1 } else { 1 + bytes }
}

/// Appends the header of a hex-prefix path and its first byte (yellow paper, appendix C).
fn start_path(flag: u8, start: usize, end: usize, key: &B256, out: &mut Vec<u8>) {
    let nibbles = end - start;
    if nibbles >= 2 {
        out.push(EMPTY_STRING + 1 + (nibbles / 2) as u8);
    }
    let odd = if nibbles.is_multiple_of(2) { 0 } else { 0x10 | nibble(key, start) };
    out.push(flag | odd);
}

/// Appends a leaf that stands at `depth` of its key.
pub fn encode_leaf(key: &B256, depth: usize, value: &[u8], out: &mut Vec<u8>) {
    let payload = path_len(DEPTH_MAX - depth) + string_len(value);
    // The headers of the list, the path and the value take at most seven bytes.
    out.reserve(payload + 7);
    start_list(payload, out);
    start_path(0x20, depth, DEPTH_MAX, key, out);
    out.extend_from_slice(&key[depth.div_ceil(2)..]);
    push_string(value, out);
}

/// Appends an extension over the nibbles `start..end` of the key, given its child's reference (a
/// hash or a whole node below 32 bytes).
pub fn encode_extension(key: &B256, start: usize, end: usize, child: &[u8], out: &mut Vec<u8>) {
    start_list(path_len(end - start) + reference_len(child.len() as u8), out);
    start_path(0, start, end, key, out);
    let mut at = start + (end - start) % 2;
    while at < end {
        out.push(nibble(key, at) << 4 | nibble(key, at + 1));
        at += 2;
    }
    push_reference(child, out);
}

/// Appends a branch without a value. `lens` holds the length of each child's reference, 0 for no
/// child; `references` the references of the children there are, in order.
pub fn encode_branch(lens: &[u8; 16], references: &[[u8; 32]], out: &mut Vec<u8>) {
    const HASHES: u128 = u128::from_ne_bytes([HASH_LEN; 16]);
    if u128::from_ne_bytes(*lens) & !HASHES == 0 {
        return encode_hashes(lens, references, out);
    }
    let payload = 1 + lens.iter().map(|&len| reference_len(len)).sum::<usize>();
    start_list(payload, out);
    let mut references = references.iter();
    for &len in lens {
        if len == 0 {
            out.push(EMPTY_STRING);
        } else if let Some(reference) = references.next() {
            push_reference(&reference[..usize::from(len)], out);
        }
    }
    out.push(EMPTY_STRING);
}

/// Appends a branch all of whose children are held by their hashes, as nearly all are.
fn encode_hashes(lens: &[u8; 16], references: &[[u8; 32]], out: &mut Vec<u8>) {
    let payload = 17 + references.len() * usize::from(HASH_LEN);
    out.reserve(payload + 3);
    start_list(payload, out);
    let start = out.len();
    // Children that are not there, and the value, are empty strings.
    out.resize(start + payload, EMPTY_STRING);
    let body = &mut out[start..];
    let mut present = (0..16).fold(0u16, |bits, at| bits | u16::from(lens[at] != 0) << at);
    for (rank, reference) in references.iter().enumerate() {
        // Before a child there is one byte for each nibble, and the hashes of those before it.
        let at = present.trailing_zeros() as usize + rank * usize::from(HASH_LEN);
        present &= present.wrapping_sub(1);
        body[at] = EMPTY_STRING + HASH_LEN;
        body[at + 1..at + 33].copy_from_slice(reference);
    }
}

/// Bytes that a child's reference takes in its parent, 1 for no child.
#[inline]
fn reference_len(len: u8) -> usize {
    match len {
        0 => 1,
        HASH_LEN => 33,
        embedded => usize::from(embedded),
    }
}

/// Appends a reference: a hash as a string, an embedded node as it is.
fn push_reference(reference: &[u8], out: &mut Vec<u8>) {
    if reference.len() == usize::from(HASH_LEN) {
        out.push(EMPTY_STRING + HASH_LEN);
    }
    out.extend_from_slice(reference);
}
