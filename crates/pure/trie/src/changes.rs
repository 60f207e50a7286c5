//! Check that the changed nodes of a trie fit together. A diff must pass it before it is written
//! over the trie that it starts from.
//!
//! Each new node must hash to the value in the new node above it, up to the top of the trie, which
//! the caller knows. If a new node refers to a node outside the diff, the old trie must contain it
//! under the same hash. If an old node referred to a node that still exists, a new node must refer
//! to it too. A complete trie therefore stays complete, and gains no unreferenced node.
//!
//! Hashes of old nodes are not computed: the old trie is assumed to be correct. An incorrect old
//! trie shows as a fault of the diff, or when the block is computed.

use crate::{
    decode::{Child, Decoded, decode},
    nibbles::{DEPTH_MAX, nibble, pack},
};
use tandem_primitives::B256;

/// Node of a diff, with the node that it replaces.
#[derive(Clone, Copy, Debug)]
pub struct ChangedNode<'a> {
    /// Path of the node, one nibble per byte.
    pub path: &'a [u8],
    /// Node at the path before the change, `None` when there is none.
    pub old: Option<&'a [u8]>,
    /// Node at the path after the change, `None` when it is removed.
    pub new: Option<&'a [u8]>,
    /// Hash of `new`.
    pub hash: B256,
}

/// Hashes of the node at the top of a trie, before and after the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopHashes {
    /// Length of the top node's path: 1 in an account subtrie, otherwise 0.
    pub depth: usize,
    /// Hash before the change, `None` for an empty trie.
    pub old: Option<B256>,
    /// Hash after the change, `None` for an empty trie.
    pub new: Option<B256>,
}

/// Fault of a node in a diff.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeFault {
    /// Bytes or path that are not those of a trie node.
    #[error("is malformed")]
    Malformed,
    /// Hash that differs from the hash in the node above.
    #[error("has another hash than the node above it says")]
    Hash,
    /// Node in the diff that no changed node refers to.
    #[error("is changed, but no changed node refers to it")]
    Unreferenced,
    /// Node that a changed node refers to, but that is neither in the diff nor unchanged.
    #[error("is missing: a changed node refers to it")]
    Missing,
    /// Node that is not removed although no node refers to it any more.
    #[error("is not removed, though no node refers to it any more")]
    Stale,
}

/// Side of a change from which a leaf's value comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafSide {
    /// Value before the change.
    Old,
    /// Value after the change.
    New,
}

/// Callback that takes the leaves among changed nodes: side, key and value.
pub type LeafSink<'a> = dyn FnMut(LeafSide, B256, &[u8]) + 'a;

/// Checks the changed nodes of one trie (one subtrie for the account trie). The nodes come in
/// ascending order of their paths, each path once.
///
/// # Errors
/// Returns the first fault found, with the path of its node.
pub fn check_changes(
    top: TopHashes,
    nodes: &[ChangedNode<'_>],
    leaf: &mut LeafSink<'_>,
) -> Result<(), (Vec<u8>, ChangeFault)> {
    let mut check = Check { stack: Vec::new(), left: [Vec::new(), Vec::new()] };
    let path = nodes.first().map_or(&[][..], |node| node.path);
    let path = path.get(..top.depth).ok_or((path.to_vec(), ChangeFault::Malformed))?;
    let refers = |hash: Option<B256>| match hash {
        Some(hash) => References::Top { end: top.depth, hash },
        None => References::None,
    };
    let sides = [refers(top.old), refers(top.new)].map(|references| Side { references, open: 1 });
    check.stack.push(Open { path, sides });
    for node in nodes {
        check.node(node, leaf).map_err(|fault| (node.path.to_vec(), fault))?;
    }
    check.finish()
}

const OLD: usize = 0;
const NEW: usize = 1;

/// References of a node to the stand-alone nodes below it.
// The value lives on the stack of one check. A box would cost more than the copy.
#[allow(clippy::large_enum_variant)]
enum References<'a> {
    /// No node, or a node without such references.
    None,
    /// Reference to the top of the trie.
    Top {
        end: usize,
        hash: B256,
    },
    Extension {
        key: B256,
        end: usize,
        hash: B256,
    },
    Branch([Child<'a>; 16]),
}

struct Side<'a> {
    references: References<'a>,
    /// Children that have not been met in the diff, one bit each. Bit 0 stands for a single child.
    open: u16,
}

/// Changed node whose descendants are being checked.
struct Open<'a> {
    path: &'a [u8],
    sides: [Side<'a>; 2],
}

struct Check<'a> {
    /// Open nodes from the top down, below an entry that refers to the top of the trie.
    stack: Vec<Open<'a>>,
    /// Children by path and hash that were not met in the diff, for either side.
    left: [Vec<(Vec<u8>, B256)>; 2],
}

impl<'a> Check<'a> {
    fn node(&mut self, node: &ChangedNode<'a>, leaf: &mut LeafSink<'_>) -> Result<(), ChangeFault> {
        let key = pack(node.path).ok_or(ChangeFault::Malformed)?;
        while self.stack.len() > 1
            && self.stack.last().is_some_and(|open| !is_above(open.path, node.path))
        {
            self.close();
        }
        match (self.meet(NEW, node.path), node.new) {
            (Some(hash), Some(_)) if hash != node.hash => return Err(ChangeFault::Hash),
            (Some(_), None) => return Err(ChangeFault::Missing),
            (None, Some(_)) => return Err(ChangeFault::Unreferenced),
            _ => {}
        }
        if self.meet(OLD, node.path).is_none() && node.old.is_some() && node.new.is_none() {
            return Err(ChangeFault::Unreferenced);
        }
        let depth = node.path.len();
        let mut side = |rlp: Option<&'a [u8]>, which| -> Result<_, ChangeFault> {
            let Some(rlp) = rlp else { return Ok(Side { references: References::None, open: 0 }) };
            references(rlp, key, depth, &mut |key, value| leaf(which, key, value))
        };
        let old = match side(node.old, LeafSide::Old) {
            // An unreadable node in the database refers to nothing.
            Err(_) => Side { references: References::None, open: 0 },
            Ok(old) => old,
        };
        let new = side(node.new, LeafSide::New)?;
        self.stack.push(Open { path: node.path, sides: [old, new] });
        Ok(())
    }

    /// Returns the hash by which the nearest node above, on one side, refers to this path.
    fn meet(&mut self, side: usize, path: &[u8]) -> Option<B256> {
        let above = self.stack.iter_mut().rev().find(|open| open.stands(side))?;
        let (depth, side) = (above.path.len(), &mut above.sides[side]);
        match &side.references {
            References::None => None,
            References::Top { end, hash } => {
                (path.len() == *end).then_some(*hash).inspect(|_| side.open = 0)
            }
            References::Extension { key, end, hash } => {
                let met = path.len() == *end && (depth..*end).all(|at| path[at] == nibble(key, at));
                met.then_some(*hash).inspect(|_| side.open = 0)
            }
            References::Branch(children) => {
                let at = *path.get(depth)?;
                match children.get(usize::from(at))? {
                    Child::Hash(hash) if path.len() == depth + 1 => {
                        side.open &= !(1 << at);
                        Some(B256::new(**hash))
                    }
                    _ => None,
                }
            }
        }
    }

    /// Closes the last node of the stack, whose descendants are done. Keeps its children that were
    /// not met.
    fn close(&mut self) {
        let Some(Open { path, sides: [old, new] }) = self.stack.pop() else { return };
        let (mut old_open, mut new_open) = (old.open, new.open);
        if let (References::Branch(before), References::Branch(after)) =
            (&old.references, &new.references)
        {
            for at in 0..16 {
                let bit = 1 << at;
                if old_open & new_open & bit != 0 && before[at] == after[at] {
                    (old_open, new_open) = (old_open & !bit, new_open & !bit);
                }
            }
        }
        let [left_old, left_new] = &mut self.left;
        keep(path, &old.references, old_open, left_old);
        keep(path, &new.references, new_open, left_new);
    }

    /// Checks that the children left on both sides are equal.
    fn finish(mut self) -> Result<(), (Vec<u8>, ChangeFault)> {
        while !self.stack.is_empty() {
            self.close();
        }
        let [mut old, mut new] = self.left;
        old.sort_unstable();
        new.sort_unstable();
        let mut old = old.into_iter().peekable();
        for (path, hash) in new {
            if let Some((path, _)) = old.next_if(|(before, _)| *before < path) {
                return Err((path, ChangeFault::Stale));
            }
            if old.next_if(|before| *before == (path.clone(), hash)).is_none() {
                return Err((path, ChangeFault::Missing));
            }
        }
        old.next().map_or(Ok(()), |(path, _)| Err((path, ChangeFault::Stale)))
    }
}

impl Open<'_> {
    /// Returns whether there is a node with references on this side. A node without references may
    /// be a leaf, which has nothing below it either.
    fn stands(&self, side: usize) -> bool {
        !matches!(self.sides[side].references, References::None)
    }
}

/// Returns whether the node at path `above` is above the node at `path`.
fn is_above(above: &[u8], path: &[u8]) -> bool {
    above.len() < path.len() && path.starts_with(above)
}

fn references<'a>(
    rlp: &'a [u8],
    mut key: B256,
    depth: usize,
    leaf: &mut dyn FnMut(B256, &[u8]),
) -> Result<Side<'a>, ChangeFault> {
    let (references, open) = match decode(rlp).map_err(|_| ChangeFault::Malformed)? {
        Decoded::Leaf(path, value) => {
            if path.write(&mut key, depth) != Some(DEPTH_MAX) {
                return Err(ChangeFault::Malformed);
            }
            leaf(key, value);
            (References::None, 0)
        }
        Decoded::Extension(path, child) => {
            let end = path.write(&mut key, depth).ok_or(ChangeFault::Malformed)?;
            match child {
                Child::Hash(hash) => {
                    (References::Extension { key, end, hash: B256::new(*hash) }, 1)
                }
                _ => (References::None, 0),
            }
        }
        Decoded::Branch(children) => {
            let hashes = (0..16).filter(|&at| matches!(children[at], Child::Hash(_)));
            let open = hashes.fold(0, |open, at| open | 1 << at);
            (References::Branch(children), open)
        }
    };
    Ok(Side { references, open })
}

/// Adds the children of the node at `path` whose bits are set.
fn keep(path: &[u8], references: &References<'_>, open: u16, left: &mut Vec<(Vec<u8>, B256)>) {
    match references {
        References::None => {}
        References::Top { end, hash } => {
            if open != 0 {
                left.push((path[..*end].to_vec(), *hash));
            }
        }
        References::Extension { key, end, hash } => {
            if open != 0 {
                let rest = (path.len()..*end).map(|at| nibble(key, at));
                left.push((path.iter().copied().chain(rest).collect(), *hash));
            }
        }
        References::Branch(children) => {
            for (at, child) in (0u8..).zip(children) {
                if let (true, Child::Hash(hash)) = (open & 1 << at != 0, child) {
                    left.push(([path, &[at]].concat(), B256::new(**hash)));
                }
            }
        }
    }
}
