//! RLP of trie nodes in one pass: lengths are computed, never found by encoding.

use crate::nibbles::{DEPTH_MAX, nibble};
use tandem_primitives::B256;

/// Length of a reference that is a hash; a shorter one is the node's RLP itself.
pub const HASH_LEN: u8 = 32;

const EMPTY_STRING: u8 = 0x80;

/// Copies bytes to the start of others that are at least as many. Short ones, as most values are,
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

/// Bytes of a leaf (294 with the longest value), an extension or a branch (532), and of what is
/// written behind a branch only to be written over.
const NODE_ROOM: usize = 560;

/// Where one node is written, behind its path of at most 64 nibbles, one a byte. Its length is
/// fixed, so that nearly all is written by moves of a fixed length.
pub type Room = [u8; DEPTH_MAX + NODE_ROOM];

/// Room that nothing was written to.
pub const ROOM: Room = [0; _];

/// Length of a hex-prefix encoded path of this many nibbles, with its string header. A single byte
/// is below 0x40 and so its own encoding.
#[inline]
fn path_len(nibbles: usize) -> usize {
    let bytes = 1 + nibbles / 2;
    if bytes == 1 { 1 } else { 1 + bytes }
}

/// Length of the header of a list whose items take `payload` bytes (under 64 KiB).
#[inline]
fn list_header_len(payload: usize) -> usize {
    match payload {
        0..56 => 1,
        56..256 => 2,
        _ => 3,
    }
}

/// Writes the header of a list; where it ends.
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
/// byte (yellow paper, appendix C); where they end.
#[inline]
fn write_path(flag: u8, key: &B256, start: usize, end: usize, out: &mut Room, at: usize) -> usize {
    let nibbles = end - start;
    let odd = if nibbles.is_multiple_of(2) { 0 } else { 0x10 | nibble(key, start) };
    out[at] = EMPTY_STRING + 1 + (nibbles / 2) as u8;
    let at = at + usize::from(nibbles >= 2);
    out[at] = flag | odd;
    at + 1
}

/// Writes a leaf that stands at `depth` of its key; where it ends. Like all nodes it is written
/// from `at` on, which is at most 64.
pub fn write_leaf(key: &B256, depth: usize, value: &[u8], out: &mut Room, at: usize) -> usize {
    let (path_len, value_len) = (path_len(DEPTH_MAX - depth), string_len(value));
    let payload = path_len + value_len;
    // The key from the first whole byte on stands at the end of the path.
    let path_end = at + list_header_len(payload) + path_len;
    let skipped = depth.div_ceil(2);
    if path_end >= at + 32 {
        // All of the key is one move. The headers go over what is not wanted of it.
        out[path_end - 32..path_end].copy_from_slice(key.as_slice());
    } else {
        out[path_end + skipped - 32..path_end].copy_from_slice(&key[skipped..]);
    }
    let payload_start = write_list(payload, out, at);
    write_path(0x20, key, depth, DEPTH_MAX, out, payload_start);
    write_string(value, value_len, out, path_end)
}

/// Writes a string of at most 255 bytes, given its length with the header; where it ends.
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
/// hash or a whole node below 32 bytes); where it ends.
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

/// Writes a branch without a value; where it ends. `present` has a bit for each nibble at which
/// there is a child, `lens` the length of its reference; `references` are those of the children
/// there are, in order.
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

/// Writes a branch all of whose children are held by their hashes, as nearly all are.
#[inline]
fn write_hashes(mut present: u16, references: &[[u8; 32]], out: &mut Room, at: usize) -> usize {
    let payload = 17 + references.len() * usize::from(HASH_LEN);
    let mut at = write_list(payload, out, at);
    let mut next = 0;
    for reference in references {
        let nibble = present.trailing_zeros() as usize;
        present &= present.wrapping_sub(1);
        // As many empty strings as there can be between two children; the child goes over those
        // that are too many.
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

/// Bytes that a child's reference takes in its parent, 1 for no child.
#[inline]
fn reference_len(len: u8) -> usize {
    match len {
        0 => 1,
        HASH_LEN => 33,
        embedded => usize::from(embedded),
    }
}

/// Writes a reference, a hash as a string, an embedded node as it is; where it ends.
#[inline]
fn write_child(reference: &[u8], out: &mut Room, at: usize) -> usize {
    if reference.len() == usize::from(HASH_LEN) {
        out[at] = EMPTY_STRING + HASH_LEN;
    }
    let end = at + reference_len(reference.len() as u8);
    out[end - reference.len()..end].copy_from_slice(reference);
    end
}
