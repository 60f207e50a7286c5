//! RLP of trie nodes in one pass: lengths are computed, not found by encoding.

use crate::nibbles::{DEPTH_MAX, nibble};
use tandem_primitives::B256;

/// Length of a reference that is a hash. A shorter reference is the node's RLP itself.
pub const HASH_LEN: u8 = 32;

const EMPTY_STRING: u8 = 0x80;

/// Copies bytes to the start of a slice that is at least as long. Short inputs, as most values are,
/// take two moves of a fixed length.
#[inline]
pub fn copy_short(from: &[u8], to: &mut [u8]) {
    let to = &mut to[..from.len()];
    if let (9..=16, Some(start), Some(end)) =
        (from.len(), from.first_chunk::<8>(), from.last_chunk::<8>())
    {
        to[..8].copy_from_slice(start);
        to[from.len() - 8..].copy_from_slice(end);
        return;
    }
    to.copy_from_slice(from);
}

/// Starts a list whose items take `payload` bytes (under 64 KiB).
pub fn start_list(payload: usize, out: &mut Vec<u8>) {
    match payload {
        0..56 => out.push(0xc0 + payload as u8),
        56..256 => out.extend_from_slice(&[0xf8, payload as u8]),
        _ => out.extend_from_slice(&[0xf9, (payload >> 8) as u8, payload as u8]),
    }
}

/// Returns the length of a string (at most 255 bytes) with its header.
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

/// Room for a leaf (294 bytes with the longest value), an extension or a branch (532). It includes
/// scratch bytes behind a branch that are overwritten later.
const NODE_ROOM: usize = 560;

/// Buffer for one node, behind its path of at most 64 nibbles, one per byte. Its length is fixed,
/// so nearly all writes are moves of a fixed length.
pub type Room = [u8; DEPTH_MAX + NODE_ROOM];

/// Empty room.
pub const ROOM: Room = [0; _];

/// Returns the length of a hex-prefix encoded path of this many nibbles, with its string header. A
/// single byte is below 0x40 and so its own encoding.
#[inline]
fn path_len(nibbles: usize) -> usize {
    let bytes = 1 + nibbles / 2;
    if bytes == 1 { 1 } else { 1 + bytes }
}

/// Returns the length of the header of a list whose items take `payload` bytes (under 64 KiB).
#[inline]
fn list_header_len(payload: usize) -> usize {
    match payload {
        0..56 => 1,
        56..256 => 2,
        _ => 3,
    }
}

/// Writes the header of a list and returns its end.
#[inline]
fn write_list(payload: usize, out: &mut Room, at: usize) -> usize {
    let header = &mut out[at..at + 3];
    match list_header_len(payload) {
        1 => header[0] = 0xc0 + payload as u8,
        2 => header[..2].copy_from_slice(&[0xf8, payload as u8]),
        _ => header.copy_from_slice(&[0xf9, (payload >> 8) as u8, payload as u8]),
    }
    at + list_header_len(payload)
}

/// Writes the header of the hex-prefix path over the nibbles `start..end` of a key, and its first
/// byte (yellow paper, appendix C). Returns the end of both.
#[inline]
fn write_path(flag: u8, key: &B256, start: usize, end: usize, out: &mut Room, at: usize) -> usize {
    let nibbles = end - start;
    let odd = if nibbles.is_multiple_of(2) { 0 } else { 0x10 | nibble(key, start) };
    out[at] = EMPTY_STRING + 1 + (nibbles / 2) as u8;
    let at = at + usize::from(nibbles >= 2);
    out[at] = flag | odd;
    at + 1
}

/// Writes a leaf that stands at `depth` of its key and returns its end. The leaf, like all nodes,
/// is written from `at` on, which is at most 64.
pub fn write_leaf(key: &B256, depth: usize, value: &[u8], out: &mut Room, at: usize) -> usize {
    let (path_len, value_len) = (path_len(DEPTH_MAX - depth), string_len(value));
    let payload = path_len + value_len;
    // The key from the first whole byte on stands at the end of the path.
    let path_end = at + list_header_len(payload) + path_len;
    let skipped = depth.div_ceil(2);
    if path_end >= at + 32 {
        // The whole key is one move. The headers overwrite its unwanted start.
        out[path_end - 32..path_end].copy_from_slice(key.as_slice());
    } else {
        out[path_end + skipped - 32..path_end].copy_from_slice(&key[skipped..]);
    }
    let payload_start = write_list(payload, out, at);
    write_path(0x20, key, depth, DEPTH_MAX, out, payload_start);
    write_string(value, value_len, out, path_end)
}

/// Writes a string of at most 255 bytes, given its length with the header. Returns its end.
#[inline]
fn write_string(bytes: &[u8], len: usize, out: &mut Room, at: usize) -> usize {
    let out = &mut out[at..at + len];
    match len - bytes.len() {
        0 => {}
        1 => out[0] = EMPTY_STRING + bytes.len() as u8,
        _ => out[..2].copy_from_slice(&[0xb8, bytes.len() as u8]),
    }
    copy_short(bytes, &mut out[len - bytes.len()..]);
    at + len
}

/// Writes an extension over the nibbles `start..end` of the key, given its child's reference (a
/// hash or a whole node below 32 bytes). Returns its end.
pub fn write_extension(
    key: &B256,
    (start, end): (usize, usize),
    child: &[u8],
    out: &mut Room,
    at: usize,
) -> usize {
    let at = write_list(path_len(end - start) + reference_len(child.len() as u8), out, at);
    let mut at = write_path(0, key, start, end, out, at);
    let mut next = start + (end - start) % 2;
    while next < end {
        out[at] = nibble(key, next) << 4 | nibble(key, next + 1);
        (at, next) = (at + 1, next + 2);
    }
    write_child(child, out, at)
}

/// Writes a branch without a value and returns its end. `present` has a bit for each nibble with a
/// child, and `lens` the length of each child's reference. `references` holds the references of the
/// present children, in order.
pub fn write_branch(
    present: u16,
    lens: &[u8; 16],
    references: &[[u8; 32]],
    out: &mut Room,
    at: usize,
) -> usize {
    const HASHES: u128 = u128::from_ne_bytes([HASH_LEN; 16]);
    if u128::from_ne_bytes(*lens) & !HASHES == 0 {
        return write_hashes(present, references, out, at);
    }
    let payload = 1 + lens.iter().map(|&len| reference_len(len)).sum::<usize>();
    let mut at = write_list(payload, out, at);
    let mut references = references.iter();
    for &len in lens {
        if len == 0 {
            out[at] = EMPTY_STRING;
            at += 1;
        } else if let Some(reference) = references.next() {
            at = write_child(&reference[..usize::from(len)], out, at);
        }
    }
    out[at] = EMPTY_STRING;
    at + 1
}

/// Writes a branch whose children are all held by their hashes, as in nearly all branches.
#[inline]
fn write_hashes(mut present: u16, references: &[[u8; 32]], out: &mut Room, at: usize) -> usize {
    let payload = 17 + references.len() * usize::from(HASH_LEN);
    let mut at = write_list(payload, out, at);
    let mut next = 0;
    for reference in references {
        let nibble = present.trailing_zeros() as usize;
        present &= present.wrapping_sub(1);
        // The fill is the greatest possible gap between two children. The child overwrites the
        // excess empty strings.
        let out = &mut out[at..at + 49];
        out[..16].fill(EMPTY_STRING);
        let gap = nibble - next;
        out[gap] = EMPTY_STRING + HASH_LEN;
        out[gap + 1..gap + 33].copy_from_slice(reference);
        (at, next) = (at + gap + 33, nibble + 1);
    }
    out[at..at + 17].fill(EMPTY_STRING);
    at + 17 - next
}

/// Appends a leaf, see [`write_leaf`].
pub fn encode_leaf(key: &B256, depth: usize, value: &[u8], out: &mut Vec<u8>) {
    append(out, |room| write_leaf(key, depth, value, room, 0));
}

/// Appends an extension, see [`write_extension`].
pub fn encode_extension(key: &B256, start: usize, end: usize, child: &[u8], out: &mut Vec<u8>) {
    append(out, |room| write_extension(key, (start, end), child, room, 0));
}

/// Appends a branch, see [`write_branch`].
pub fn encode_branch(lens: &[u8; 16], references: &[[u8; 32]], out: &mut Vec<u8>) {
    let present = (0..16).fold(0, |bits, at| bits | u16::from(lens[at] != 0) << at);
    append(out, |room| write_branch(present, lens, references, room, 0));
}

fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Room) -> usize) {
    let mut room = ROOM;
    let end = write(&mut room);
    out.extend_from_slice(&room[..end]);
}

/// Returns the number of bytes that a child's reference takes in its parent, 1 for no child.
#[inline]
fn reference_len(len: u8) -> usize {
    match len {
        0 => 1,
        HASH_LEN => 33,
        embedded => usize::from(embedded),
    }
}

/// Writes a reference and returns its end: a hash as a string, an embedded node as it is.
#[inline]
fn write_child(reference: &[u8], out: &mut Room, at: usize) -> usize {
    if reference.len() == usize::from(HASH_LEN) {
        out[at] = EMPTY_STRING + HASH_LEN;
    }
    let end = at + reference_len(reference.len() as u8);
    out[end - reference.len()..end].copy_from_slice(reference);
    end
}
