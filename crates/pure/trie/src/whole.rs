//! Root of a whole trie whose keys have any length, directly after the yellow paper's appendix D.

use crate::combine::write_reference;
use alloy_rlp::{Encodable, Header};
use std::collections::BTreeMap;
use tandem_primitives::{B256, EMPTY_TRIE_ROOT, keccak256};

/// Returns the root of the trie that holds these values under these keys. A key may be a prefix of
/// another. An empty value means that there is no entry.
pub fn trie_root(items: &BTreeMap<Vec<u8>, Vec<u8>>) -> B256 {
    let items = items.iter().filter(|(_, value)| !value.is_empty());
    root(&items.map(|(key, value)| (&key[..], &value[..])).collect::<Vec<_>>())
}

/// Key and value.
type Item<'a> = (&'a [u8], &'a [u8]);

/// Returns the root over items that are sorted by key.
fn root(items: &[Item<'_>]) -> B256 {
    if items.is_empty() {
        return EMPTY_TRIE_ROOT;
    }
    let mut rlp = Vec::new();
    push_node(items, 0, &mut rlp);
    keccak256(&rlp)
}

/// Appends the node over all items, whose keys share their first `depth` nibbles.
fn push_node(items: &[Item<'_>], depth: usize, out: &mut Vec<u8>) {
    let ([(first, value), ..], Some((last, _))) = (items, items.last()) else {
        return;
    };
    if items.len() == 1 {
        return push_leaf(first, depth, value, out);
    }
    let shared = shared_nibbles(first, last);
    if shared == depth {
        return push_branch(items, depth, out);
    }
    let child = Reference::of(items, shared, out);
    push_extension(first, depth, shared, &child, out);
}

/// Appends the leaf of a key whose path begins at `depth`.
pub(crate) fn push_leaf(key: &[u8], depth: usize, value: &[u8], out: &mut Vec<u8>) {
    let path = hex_prefix(0x20, key, depth, nibbles(key));
    Header { list: true, payload_length: path.as_slice().length() + value.length() }.encode(out);
    path.as_slice().encode(out);
    value.encode(out);
}

/// Appends the extension over the nibbles `start..end` of a key.
pub(crate) fn push_extension(
    key: &[u8],
    start: usize,
    end: usize,
    child: &Reference,
    out: &mut Vec<u8>,
) {
    let path = hex_prefix(0, key, start, end);
    Header { list: true, payload_length: path.as_slice().length() + child.length() }.encode(out);
    path.as_slice().encode(out);
    child.push(out);
}

/// Appends the branch at `depth`, where the items' keys diverge or the first one ends.
fn push_branch(items: &[Item<'_>], depth: usize, out: &mut Vec<u8>) {
    let (value, mut rest): (&[u8], _) = match items {
        [(key, value), rest @ ..] if nibbles(key) == depth => (value, rest),
        _ => (&[], items),
    };
    let mut children = [Reference::NONE; 16];
    for (child, slot) in (0u8..).zip(&mut children) {
        let (below, others) =
            rest.split_at(rest.partition_point(|(key, _)| nibble(key, depth) <= child));
        rest = others;
        *slot = Reference::of(below, depth + 1, out);
    }
    push_children(&children, value, out);
}

/// Appends a branch.
pub(crate) fn push_children(children: &[Reference; 16], value: &[u8], out: &mut Vec<u8>) {
    let payload_length = children.iter().map(Reference::length).sum::<usize>() + value.length();
    Header { list: true, payload_length }.encode(out);
    children.iter().for_each(|child| child.push(out));
    value.encode(out);
}

/// Reference to a child, as its parent holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    bytes: [u8; 32],
    /// Length: 0 for no child, 32 for a hash, the length of the whole node otherwise.
    len: u8,
}

impl Reference {
    pub(crate) const NONE: Self = Self { bytes: [0; 32], len: 0 };

    /// Returns the reference to the node over these items. The buffer is used beyond its end and
    /// then truncated to its former length.
    fn of(items: &[Item<'_>], depth: usize, buffer: &mut Vec<u8>) -> Self {
        if items.is_empty() {
            return Self::NONE;
        }
        let start = buffer.len();
        push_node(items, depth, buffer);
        let reference = Self::to(&buffer[start..]);
        buffer.truncate(start);
        reference
    }

    /// Returns the reference to this encoded node, whose hash is already known.
    pub(crate) fn hashed(node: &[u8], hash: &B256) -> Self {
        let mut reference = Self::NONE;
        if node.len() < 32 {
            reference.bytes[..node.len()].copy_from_slice(node);
            reference.len = node.len() as u8;
        } else {
            (reference.bytes, reference.len) = (hash.0, 32);
        }
        reference
    }

    /// Returns the reference to this encoded node.
    pub(crate) fn to(node: &[u8]) -> Self {
        let mut reference = Self::NONE;
        reference.len = write_reference(node, &mut reference.bytes);
        reference
    }

    fn length(&self) -> usize {
        match self.len {
            0 => 1,
            32 => 33,
            embedded => usize::from(embedded),
        }
    }

    fn push(&self, out: &mut Vec<u8>) {
        match self.len {
            0 => out.push(alloy_rlp::EMPTY_STRING_CODE),
            32 => self.bytes.as_slice().encode(out),
            embedded => out.extend_from_slice(&self.bytes[..usize::from(embedded)]),
        }
    }
}

fn nibbles(key: &[u8]) -> usize {
    2 * key.len()
}

/// Returns the nibble of a key that has one at this depth.
pub(crate) fn nibble(key: &[u8], depth: usize) -> u8 {
    let byte = key[depth / 2];
    if depth.is_multiple_of(2) { byte >> 4 } else { byte & 0x0f }
}

pub(crate) fn shared_nibbles(a: &[u8], b: &[u8]) -> usize {
    let bytes = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    match (a.get(bytes), b.get(bytes)) {
        (Some(a), Some(b)) if a >> 4 == b >> 4 => 2 * bytes + 1,
        _ => 2 * bytes,
    }
}

/// Returns the nibbles `start..end` of a key in hex-prefix encoding (appendix C).
fn hex_prefix(flag: u8, key: &[u8], start: usize, end: usize) -> Vec<u8> {
    let odd = (end - start) % 2;
    let mut path = Vec::with_capacity(1 + (end - start) / 2);
    path.push(flag | if odd == 1 { 0x10 | nibble(key, start) } else { 0 });
    let pairs = (start + odd..end).step_by(2);
    path.extend(pairs.map(|at| nibble(key, at) << 4 | nibble(key, at + 1)));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_end_where_others_go_on() {
        // Root from ethereum/tests' TrieTests/trieanyorder.json, case "puppy".
        let items = [("do", "verb"), ("horse", "stallion"), ("doge", "coin"), ("dog", "puppy")];
        let mut items: BTreeMap<_, _> = items.map(|(key, value)| (key.into(), value.into())).into();
        let root = trie_root(&items);
        assert_eq!(
            root.to_string(),
            "0x5991bb8c6514148a29db676a14ac506cd2cd5775ace63c30a4fe457715e9ac84"
        );
        items.insert("doges".into(), Vec::new());
        assert_eq!(trie_root(&items), root, "an empty value is none");
        items.clear();
        assert_eq!(trie_root(&items), EMPTY_TRIE_ROOT);
    }
}
