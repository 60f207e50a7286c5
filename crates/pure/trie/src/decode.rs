//! Strict decoding of trie nodes. The bytes may come from an untrusted source.

use crate::{
    Malformed,
    nibbles::{DEPTH_MAX, nibble, pack, put_nibble},
};
use alloy_rlp::Header;
use tandem_primitives::B256;

/// Reference that a node holds to one child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Child<'a> {
    /// No child.
    None,
    /// Hash of a node that stands alone.
    Hash(&'a [u8; 32]),
    /// Whole RLP of a node below 32 bytes.
    Embedded(&'a [u8]),
}

/// Hex-prefix encoded path of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HexPrefix<'a>(&'a [u8]);

/// Node as its RLP encodes it.
#[derive(PartialEq, Eq, Debug)]
// The value lives on the stack for a moment. A box would cost more than the copy.
#[allow(clippy::large_enum_variant)]
pub enum Decoded<'a> {
    /// Rest of a key and its value.
    Leaf(HexPrefix<'a>, &'a [u8]),
    /// Nibbles that all keys below share, and the node below them.
    Extension(HexPrefix<'a>, Child<'a>),
    /// Two to sixteen children.
    Branch([Child<'a>; 16]),
}

impl HexPrefix<'_> {
    /// Writes the nibbles into a key that holds zeros from `depth` on. Returns the depth after
    /// them, or `None` when they reach past the key's end.
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
    /// Item with its header.
    whole: &'a [u8],
}

#[inline]
fn split_item<'a>(bytes: &mut &'a [u8]) -> Result<Item<'a>, Malformed> {
    let start = *bytes;
    // Hashes and empty places, which make up most of a branch, come before the general case.
    let len = match start.first() {
        Some(0xa0) => 33,
        Some(0x80) => 1,
        _ => return split_any_item(bytes),
    };
    let (whole, rest) = start.split_at_checked(len).ok_or(Malformed::Rlp)?;
    *bytes = rest;
    Ok(Item { list: false, payload: &whole[1..], whole })
}

fn split_any_item<'a>(bytes: &mut &'a [u8]) -> Result<Item<'a>, Malformed> {
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
    // All keys have 64 nibbles, so no key ends in a branch.
    if value.list || !value.payload.is_empty() {
        return Err(Malformed::Value);
    }
    if children.iter().filter(|&&child| child != Child::None).count() < 2 {
        return Err(Malformed::Child);
    }
    Ok(Decoded::Branch(children))
}

/// Returns the child of a branch at a nibble, without looking at later children. Returns `None`
/// when the node is not a branch or is malformed as far as it was read. [`decode`] then gives the
/// reason.
pub fn branch_child(rlp: &[u8], nibble: u8) -> Option<Child<'_>> {
    // A branch with at least two hashes is a list with one or two bytes of length.
    let (len, mut rest) = match rlp {
        [0xf8, len @ 56..=255, rest @ ..] => (usize::from(*len), rest),
        [0xf9, high @ 1..=255, low, rest @ ..] => {
            (usize::from(*high) << 8 | usize::from(*low), rest)
        }
        _ => return None,
    };
    // A leaf or an extension has two items, so nothing is left after them.
    if rest.len() != len || is_short(rest)? {
        return None;
    }
    for _ in 0..nibble {
        skip_child(&mut rest)?;
    }
    child(&split_item(&mut rest).ok()?).ok()
}

/// Returns whether there are only two items.
fn is_short(mut items: &[u8]) -> Option<bool> {
    split_item(&mut items).ok()?;
    split_item(&mut items).ok()?;
    Some(items.is_empty())
}

fn skip_child(items: &mut &[u8]) -> Option<()> {
    let len = match *items.first()? {
        0xa0 => 33,
        0x80 => 1,
        embedded @ 0xc0..=0xde => 1 + usize::from(embedded - 0xc0),
        _ => return None,
    };
    *items = items.get(len..)?;
    Some(())
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

/// Returns the depth of the next stand-alone node below `rlp` on the way to a key. `rlp` stands at
/// `depth` of the key, whose nibbles are `path`.
///
/// Returns `None` when the way ends. That is at a leaf, an empty place, an embedded node, an
/// invalid node, or an extension that leads elsewhere.
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

/// Returns key and value of the leaf `rlp`, which stands at `path` (one nibble per byte). Returns
/// `None` when it is not a leaf, or its key does not have 64 nibbles.
pub fn leaf_value<'a>(path: &[u8], rlp: &'a [u8]) -> Option<(B256, &'a [u8])> {
    let Ok(Decoded::Leaf(rest, value)) = decode(rlp) else { return None };
    let mut key = pack(path)?;
    (rest.write(&mut key, path.len())? == DEPTH_MAX).then_some((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_rlp::{Encodable, Header};

    /// Encodes a branch whose children have the given `sizes` in bytes: 0 for none, 32 for a hash,
    /// any other for an embedded node.
    fn branch(sizes: [usize; 16]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (at, size) in sizes.into_iter().enumerate() {
            match size {
                0 => payload.push(0x80),
                32 => [at as u8; 32].encode(&mut payload),
                size => {
                    payload.push(0xc0 + size as u8 - 1);
                    payload.extend(vec![0x11; size - 1]);
                }
            }
        }
        payload.push(0x80);
        let mut rlp = Vec::new();
        Header { list: true, payload_length: payload.len() }.encode(&mut rlp);
        rlp.extend(payload);
        rlp
    }

    #[test]
    fn a_glance_at_a_branch_finds_what_decoding_finds() {
        let mut full = [32; 16];
        (full[1], full[7], full[14]) = (0, 12, 31);
        let mut sparse = [0; 16];
        (sparse[3], sparse[9]) = (32, 32);
        for rlp in [branch(full), branch(sparse)] {
            let Ok(Decoded::Branch(children)) = decode(&rlp) else { panic!("no branch") };
            for (nibble, child) in (0..).zip(children) {
                assert_eq!(branch_child(&rlp, nibble), Some(child));
            }
            // Truncated, with bytes appended, or with another first byte.
            for end in 0..rlp.len() {
                assert_eq!(branch_child(&rlp[..end], 15), None);
            }
            assert_eq!(branch_child(&[&rlp[..], &[0x80]].concat(), 0), None);
            let mut other = rlp.clone();
            for first in 0..=0xff {
                other[0] = first;
                assert!(first == rlp[0] || branch_child(&other, 0).is_none());
            }
        }
    }

    /// Checks that a glance never finds another child than decoding does, whichever bit is flipped.
    #[test]
    fn a_glance_never_contradicts_decoding() {
        let mut sizes = [32; 16];
        (sizes[0], sizes[5]) = (0, 20);
        let whole = branch(sizes);
        for bit in 0..whole.len() * 8 {
            let mut rlp = whole.clone();
            rlp[bit / 8] ^= 1 << (bit % 8);
            let Ok(node) = decode(&rlp) else { continue };
            for nibble in 0..16 {
                match (&node, branch_child(&rlp, nibble)) {
                    (Decoded::Branch(children), Some(child)) => {
                        assert_eq!(children[usize::from(nibble)], child);
                    }
                    (_, child) => assert_eq!(child, None),
                }
            }
        }
    }

    #[test]
    fn leaves_and_extensions_are_no_branches() {
        for path in [vec![0x20; 33], vec![0x00; 20]] {
            for value in [vec![7; 32], vec![7; 70]] {
                let mut rlp = Vec::new();
                alloy_rlp::encode_list::<&[u8], [u8]>(&[&path, &value], &mut rlp);
                assert_eq!(branch_child(&rlp, 0), None);
            }
        }
    }
}
