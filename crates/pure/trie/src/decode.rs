//! Strict decoding of trie nodes. The bytes may come from anywhere.

use crate::{
    Malformed,
    nibbles::{DEPTH_MAX, nibble, put_nibble},
};
use alloy_rlp::Header;
use tandem_primitives::B256;

/// What a node says about one child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Child<'a> {
    /// There is none.
    None,
    /// The hash of a node that stands alone.
    Hash(&'a [u8; 32]),
    /// The whole RLP of a node below 32 bytes.
    Embedded(&'a [u8]),
}

/// A node's hex-prefix encoded path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HexPrefix<'a>(&'a [u8]);

/// A node as its RLP has it.
#[derive(PartialEq, Eq, Debug)]
// Lives on the stack for a moment; a box would cost more than the copy.
#[allow(clippy::large_enum_variant)]
pub enum Decoded<'a> {
    /// The rest of a key and its value.
    Leaf(HexPrefix<'a>, &'a [u8]),
    /// Nibbles that all keys below share, and the node below them.
    Extension(HexPrefix<'a>, Child<'a>),
    /// Up to sixteen children, at least two.
    Branch([Child<'a>; 16]),
}

impl HexPrefix<'_> {
    /// Writes the nibbles into a key that holds zeros from `depth` on. Returns the depth after
    /// them, `None` when they reach past the key's end.
    pub fn write(self, key: &mut B256, depth: usize) -> Option<usize> {
        let odd = self.0[0] & 0x10 != 0;
        let end = depth + 2 * (self.0.len() - 1) + usize::from(odd);
        if end > DEPTH_MAX {
            return None;
        }
        let mut at = depth;
        if odd {
            put_nibble(key, at, self.0[0] & 0x0f);
            at += 1;
        }
        for byte in &self.0[1..] {
            put_nibble(key, at, byte >> 4);
            put_nibble(key, at + 1, byte & 0x0f);
            at += 2;
        }
        Some(end)
    }
}

struct Item<'a> {
    list: bool,
    payload: &'a [u8],
    /// With its header.
    whole: &'a [u8],
}

fn split_item<'a>(bytes: &mut &'a [u8]) -> Result<Item<'a>, Malformed> {
    let start = *bytes;
    let header = Header::decode(bytes).map_err(|_| Malformed::Rlp)?;
    let (payload, rest) = bytes.split_at_checked(header.payload_length).ok_or(Malformed::Rlp)?;
    *bytes = rest;
    Ok(Item { list: header.list, payload, whole: &start[..start.len() - rest.len()] })
}

fn child<'a>(item: &Item<'a>) -> Result<Child<'a>, Malformed> {
    if item.list {
        return if item.whole.len() < 32 {
            Ok(Child::Embedded(item.whole))
        } else {
            Err(Malformed::Child)
        };
    }
    if item.payload.is_empty() {
        return Ok(Child::None);
    }
    item.payload.try_into().map(Child::Hash).map_err(|_| Malformed::Child)
}

/// Decodes a node that takes up all of the bytes.
pub fn decode(mut rlp: &[u8]) -> Result<Decoded<'_>, Malformed> {
    let node = split_item(&mut rlp)?;
    if !node.list || !rlp.is_empty() {
        return Err(Malformed::Rlp);
    }
    let mut rest = node.payload;
    let first = split_item(&mut rest)?;
    let second = split_item(&mut rest)?;
    if rest.is_empty() {
        return decode_short(&first, &second);
    }
    let mut children = [Child::None; 16];
    children[0] = child(&first)?;
    children[1] = child(&second)?;
    for slot in &mut children[2..] {
        *slot = child(&split_item(&mut rest)?)?;
    }
    let value = split_item(&mut rest)?;
    if !rest.is_empty() {
        return Err(Malformed::Items);
    }
    // All keys have 64 nibbles, so none ends in a branch.
    if value.list || !value.payload.is_empty() {
        return Err(Malformed::Value);
    }
    if children.iter().filter(|&&child| child != Child::None).count() < 2 {
        return Err(Malformed::Child);
    }
    Ok(Decoded::Branch(children))
}

fn decode_short<'a>(path: &Item<'a>, second: &Item<'a>) -> Result<Decoded<'a>, Malformed> {
    let &flags = path.payload.first().ok_or(Malformed::Path)?;
    let odd = flags & 0x10 != 0;
    if path.list || flags > 0x3f || (!odd && flags & 0x0f != 0) {
        return Err(Malformed::Path);
    }
    let hex_prefix = HexPrefix(path.payload);
    if flags & 0x20 != 0 {
        if second.list || second.payload.is_empty() {
            return Err(Malformed::Value);
        }
        return Ok(Decoded::Leaf(hex_prefix, second.payload));
    }
    if !odd && path.payload.len() == 1 {
        return Err(Malformed::Path);
    }
    match child(second)? {
        Child::None => Err(Malformed::Child),
        child => Ok(Decoded::Extension(hex_prefix, child)),
    }
}

/// Depth of the stand-alone node that follows `rlp`, which stands at `depth` of the key with these
/// nibbles, on the way to that key. `None` when the way ends: at a leaf, at an empty place, where
/// an extension leads elsewhere, at an embedded node, or at bytes that are no node.
pub fn child_depth(rlp: &[u8], depth: usize, path: &[u8; DEPTH_MAX]) -> Option<usize> {
    let (child, end) = match decode(rlp).ok()? {
        Decoded::Leaf(..) => return None,
        Decoded::Extension(hex_prefix, child) => {
            let mut key = B256::ZERO;
            let end = hex_prefix.write(&mut key, depth)?;
            if (depth..end).any(|at| nibble(&key, at) != path[at]) {
                return None;
            }
            (child, end)
        }
        Decoded::Branch(children) => (*children.get(usize::from(*path.get(depth)?))?, depth + 1),
    };
    matches!(child, Child::Hash(_)).then_some(end)
}
