//! Ranges of a trie: the leaves of its nodes, and proofs that a list of leaves is all there is
//! between two keys ([snap](https://github.com/ethereum/devp2p/blob/master/caps/snap.md)).

use crate::{
    Malformed, TrieBuilder,
    decode::{Child, Decoded, child_depth, decode},
    nibbles::{DEPTH_MAX, common_prefix, nibble, pack, prefix, put_nibble, unpack},
};
use std::collections::HashMap;
use tandem_primitives::{B256, Bytes, EMPTY_TRIE_ROOT, keccak256};

/// Returns the key after this one, `None` after the last.
///
/// ```
/// use tandem_primitives::B256;
/// use tandem_trie::key_after;
///
/// assert_eq!(key_after(&B256::left_padding_from(&[1, 0xff])), Some(B256::left_padding_from(&[2, 0])));
/// assert_eq!(key_after(&B256::repeat_byte(0xff)), None);
/// ```
pub fn key_after(key: &B256) -> Option<B256> {
    let at = key.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = *key;
    next[at] += 1;
    next[at + 1..].fill(0);
    Some(next)
}

/// Returns the nodes from the top of a trie towards a key, as RLP. `node` reads the node at a path
/// (one nibble per byte), `None` where there is none. Embedded nodes are part of their parents.
///
/// # Errors
/// Error of a read.
pub fn path_to<E>(
    key: &B256,
    top: Option<Bytes>,
    mut node: impl FnMut(&[u8]) -> Result<Option<Bytes>, E>,
) -> Result<Vec<Bytes>, E> {
    let nibbles = unpack(key);
    let (mut nodes, mut depth, mut next) = (Vec::new(), 0, top);
    while let Some(rlp) = next {
        let below = child_depth(&rlp, depth, &nibbles);
        nodes.push(rlp);
        next = match below {
            Some(below) => node(&nibbles[..below])?,
            None => None,
        };
        depth = below.unwrap_or(depth);
    }
    Ok(nodes)
}

/// Calls `leaf` with key and value of each leaf that a node contains, in the order of the keys: the
/// node itself, and nodes embedded in it. The node stands at `path`, one nibble per byte.
///
/// # Errors
/// [`Malformed`] if the bytes are not a node of a trie with keys of 64 nibbles.
pub fn leaves_in(
    path: &[u8],
    rlp: &[u8],
    leaf: &mut impl FnMut(B256, &[u8]),
) -> Result<(), Malformed> {
    embedded_leaves(pack(path).ok_or(Malformed::Path)?, path.len(), rlp, leaf)
}

fn embedded_leaves(
    mut key: B256,
    depth: usize,
    rlp: &[u8],
    leaf: &mut impl FnMut(B256, &[u8]),
) -> Result<(), Malformed> {
    match decode(rlp)? {
        Decoded::Leaf(rest, value) => {
            if rest.write(&mut key, depth) != Some(DEPTH_MAX) {
                return Err(Malformed::Path);
            }
            leaf(key, value);
        }
        Decoded::Extension(rest, child) => {
            let end = rest.write(&mut key, depth).ok_or(Malformed::Path)?;
            if let Child::Embedded(rlp) = child {
                embedded_leaves(key, end, rlp, leaf)?;
            }
        }
        Decoded::Branch(children) => {
            if depth >= DEPTH_MAX {
                return Err(Malformed::Path);
            }
            for (at, child) in (0u8..).zip(children) {
                if let Child::Embedded(rlp) = child {
                    let mut key = key;
                    put_nibble(&mut key, depth, at);
                    embedded_leaves(key, depth + 1, rlp, leaf)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the node that stands exactly at a path (one nibble per byte, at most 64) of the trie with
/// this root. It is found by hashes among the nodes of a proof; `None` if they do not lead there, or
/// if the trie has no node of its own there.
pub fn node_at(root: B256, path: &[u8], proof: &[Bytes]) -> Option<Bytes> {
    let nodes: HashMap<B256, &Bytes> = proof.iter().map(|rlp| (keccak256(rlp), rlp)).collect();
    let key = pack(path)?;
    let (mut wanted, mut depth) = (root, 0);
    loop {
        let rlp = *nodes.get(&wanted)?;
        if depth == path.len() {
            return Some(rlp.clone());
        }
        let child = match decode(rlp).ok()? {
            Decoded::Branch(children) => {
                let child = children[usize::from(path[depth])];
                depth += 1;
                child
            }
            Decoded::Extension(rest, child) => {
                let mut below = prefix(&key, depth);
                depth = rest.write(&mut below, depth).filter(|end| *end <= path.len())?;
                if prefix(&below, depth) != prefix(&key, depth) {
                    return None;
                }
                child
            }
            Decoded::Leaf(..) => return None,
        };
        let Child::Hash(hash) = child else { return None };
        wanted = B256::from(*hash);
    }
}

/// Returns the nibbles below which two branches at the same path differ, all of them if a node is
/// missing or no branch.
pub fn differing_children(one: Option<&[u8]>, other: Option<&[u8]>) -> Vec<u8> {
    let (one, other) = (one.map(decode), other.map(decode));
    let (Some(Ok(Decoded::Branch(one))), Some(Ok(Decoded::Branch(other)))) = (one, other) else {
        return (0..16).collect();
    };
    (0..16).filter(|at| one[usize::from(*at)] != other[usize::from(*at)]).collect()
}

/// Reason why leaves are not the ones of a range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeFault {
    /// Keys that do not rise, or a key before the range.
    #[error("key {0} is out of order")]
    OutOfOrder(B256),
    /// Value that no leaf can have: empty, or longer than 255 bytes.
    #[error("value of {0} is empty or too long")]
    Value(B256),
    /// Node on the way to an end of the range that the proof lacks.
    #[error("the proof lacks the node at depth {depth} towards {path}")]
    Missing {
        /// Path of the node, padded with zeros.
        path: B256,
        /// Number of nibbles of the path.
        depth: usize,
    },
    /// Node of the proof that is none.
    #[error("malformed {0} in the proof's node at depth {depth} of {path}", depth = .2, path = .1)]
    Malformed(Malformed, B256, usize),
    /// Leaves below a path that do not lead to what the trie has there.
    #[error("the leaves at depth {depth} of {path} are not the trie's")]
    Leaves {
        /// Path of the node, padded with zeros.
        path: B256,
        /// Number of nibbles of the path.
        depth: usize,
    },
}

/// Checks that `leaves` (keys with their values) are all leaves of the trie from the key `start` on,
/// up to the last of them. Without any, the trie must have none from `start` on. Returns whether the
/// trie has further ones.
///
/// `proof` has the nodes towards `start` and the last key, in any order. Without a proof, the leaves
/// must be the whole trie. The nodes are found by their hashes, so nothing of them is believed.
///
/// # Errors
/// [`RangeFault`].
pub fn check_range<V: AsRef<[u8]>>(
    root: B256,
    start: B256,
    leaves: &[(B256, V)],
    proof: &[Bytes],
) -> Result<bool, RangeFault> {
    let first_at_least = leaves.first().is_none_or(|(key, _)| *key >= start);
    let falls = leaves.windows(2).find(|pair| pair[0].0 >= pair[1].0).map(|pair| pair[1].0);
    if let Some(key) = falls.or(leaves.first().filter(|_| !first_at_least).map(|(key, _)| *key)) {
        return Err(RangeFault::OutOfOrder(key));
    }
    let is_value = |value: &V| (1..=255).contains(&value.as_ref().len());
    if let Some((key, _)) = leaves.iter().find(|(_, value)| !is_value(value)) {
        return Err(RangeFault::Value(*key));
    }
    if proof.is_empty() {
        let whole = top(&[], leaves).map_or(EMPTY_TRIE_ROOT, keccak256);
        return if whole == root { Ok(false) } else { Err(wrong_leaves(&B256::ZERO, 0)) };
    }
    let end = leaves.last().map_or(B256::repeat_byte(0xff), |(key, _)| *key);
    let nodes = proof.iter().map(|rlp| (keccak256(rlp), &rlp[..])).collect();
    let mut check = Check { start, end, nodes, more: false };
    if root == EMPTY_TRIE_ROOT {
        check.node(B256::ZERO, 0, Child::None, leaves)?;
    } else {
        check.node(B256::ZERO, 0, Child::Hash(&root.0), leaves)?;
    }
    Ok(check.more)
}

/// Returns the RLP of the top node of leaves below a path, `None` without leaves.
fn top<V: AsRef<[u8]>>(path: &[u8], leaves: &[(B256, V)]) -> Option<Vec<u8>> {
    let mut builder = TrieBuilder::with_prefix(path, |_, _| {});
    for (key, value) in leaves {
        // The caller has checked order and prefix, so no key is refused.
        let _ = builder.push(key, value.as_ref());
    }
    builder.finish()
}

fn wrong_leaves(path: &B256, depth: usize) -> RangeFault {
    RangeFault::Leaves { path: prefix(path, depth), depth }
}

/// Walk down the ends of a range.
struct Check<'a> {
    start: B256,
    end: B256,
    nodes: HashMap<B256, &'a [u8]>,
    more: bool,
}

impl<'a> Check<'a> {
    /// Checks the leaves below a path, which is padded with zeros, against what their parent says
    /// of their top node.
    fn node<V: AsRef<[u8]>>(
        &mut self,
        path: B256,
        depth: usize,
        child: Child<'_>,
        leaves: &[(B256, V)],
    ) -> Result<(), RangeFault> {
        let wrong = || Err(wrong_leaves(&path, depth));
        let lowest = path;
        let highest = filled(&path, depth);
        if highest < self.start || lowest > self.end {
            self.more |= lowest > self.end && child != Child::None;
            // Leaves are between the ends, so there are none here.
            return if leaves.is_empty() { Ok(()) } else { wrong() };
        }
        if lowest >= self.start && highest <= self.end {
            let fits = match (top(&unpack(&path)[..depth], leaves), child) {
                (None, Child::None) => true,
                (Some(top), Child::Hash(hash)) => {
                    // A root stands alone however short it is.
                    (depth == 0 || top.len() >= 32) && keccak256(&top) == *hash
                }
                (Some(top), Child::Embedded(rlp)) => top == rlp,
                _ => false,
            };
            return if fits { Ok(()) } else { wrong() };
        }
        let rlp = match child {
            Child::None => return if leaves.is_empty() { Ok(()) } else { wrong() },
            Child::Embedded(rlp) => rlp,
            Child::Hash(hash) => {
                let missing = RangeFault::Missing { path, depth };
                self.nodes.get(&B256::from(*hash)).copied().ok_or(missing)?
            }
        };
        let malformed = |what| RangeFault::Malformed(what, path, depth);
        match decode(rlp).map_err(malformed)? {
            Decoded::Leaf(rest, value) => {
                let mut key = path;
                if rest.write(&mut key, depth) != Some(DEPTH_MAX) {
                    return Err(malformed(Malformed::Path));
                }
                let inside = (self.start..=self.end).contains(&key);
                self.more |= key > self.end;
                let fits = match leaves {
                    [] => !inside,
                    [(only, found)] => inside && *only == key && found.as_ref() == value,
                    _ => false,
                };
                if fits { Ok(()) } else { wrong() }
            }
            Decoded::Extension(rest, child) => {
                let mut below = path;
                let end = rest.write(&mut below, depth);
                let end = end.filter(|end| *end < DEPTH_MAX).ok_or(malformed(Malformed::Path))?;
                if leaves.iter().any(|(key, _)| common_prefix(key, &below) < end) {
                    return wrong();
                }
                self.node(below, end, child, leaves)
            }
            Decoded::Branch(children) => {
                if depth >= DEPTH_MAX {
                    return Err(malformed(Malformed::Path));
                }
                let mut rest = leaves;
                for (at, child) in (0u8..).zip(children) {
                    let here = rest.partition_point(|(key, _)| nibble(key, depth) <= at);
                    let (here, others) = rest.split_at(here);
                    rest = others;
                    let mut below = path;
                    put_nibble(&mut below, depth, at);
                    self.node(below, depth + 1, child, here)?;
                }
                Ok(())
            }
        }
    }
}

/// Returns the last key below a path, which is padded with zeros.
fn filled(path: &B256, depth: usize) -> B256 {
    let mut key = *path;
    if depth % 2 == 1 {
        key[depth / 2] |= 0x0f;
    }
    key[depth.div_ceil(2)..].fill(0xff);
    key
}
