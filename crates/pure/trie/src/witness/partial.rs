//! Application of blocks to a partial trie: the shards of the cluster, fed from a witness.

use super::{NodePlace, Reference, Witness, WitnessError};
use crate::{
    ApplyError, Error, Malformed, NodeSink, NodeSource, ShardTrie,
    apply::apply_touched,
    combine::{Top, combine_tops},
    decode::{Child, Decoded, decode},
    encode::{encode_extension, encode_leaf},
    nibbles::{DEPTH_MAX, nibble, put_nibble, unpack},
};
use alloy_primitives::map::B256Map;
use tandem_primitives::{AccountUpdate, B256, EMPTY_TRIE_ROOT, Shard, WalkTarget, keccak256};

/// State of which a witness holds some nodes, with the updates applied to it: sixteen
/// [`ShardTrie`]s that take the nodes they need from the witness.
///
/// A shard that no update touches may be known by the hash of its top node alone.
#[derive(Debug)]
pub struct PartialState<'a> {
    nodes: Nodes<'a>,
    shards: Vec<ShardTrie>,
    /// Top nodes of the subtries in their present state.
    tops: [Top; Shard::COUNT],
}

/// Nodes before the first update.
#[derive(Debug)]
struct Nodes<'a> {
    witness: &'a Witness,
    root: B256,
    tops: [Top; Shard::COUNT],
    /// Roots of storage tries that were looked up, by their owners.
    storage_roots: B256Map<B256>,
}

impl<'a> PartialState<'a> {
    /// Creates the state with this root.
    ///
    /// # Errors
    /// Returns [`WitnessError::Missing`] or [`WitnessError::Malformed`] for the root node.
    pub fn new(witness: &'a Witness, root: B256) -> Result<Self, WitnessError> {
        let tops = tops(witness, root)?;
        let mut shards: Vec<_> = Shard::all()
            .zip(&tops)
            .map(|(shard, top)| match top {
                Top::Empty => ShardTrie::blinded(shard, None),
                Top::Hash(hash) => ShardTrie::blinded(shard, Some(*hash)),
                Top::Node(rlp) => ShardTrie::blinded(shard, Some(keccak256(rlp))),
            })
            .collect();
        // Nodes are found by their hash, so there is nothing left to verify.
        shards.iter_mut().for_each(|shard| shard.verify_nodes = false);
        let storage_roots = B256Map::default();
        let nodes = Nodes { witness, root, tops: tops.clone(), storage_roots };
        Ok(Self { nodes, shards, tops })
    }

    /// Applies updates in the order in which they happened, and returns the state root after them.
    /// Further calls apply later updates.
    ///
    /// # Errors
    /// Returns a [`WitnessError`] when nodes are missing or invalid. The state is unusable
    /// afterwards.
    pub fn apply(&mut self, updates: &[AccountUpdate]) -> Result<B256, WitnessError> {
        let Self { nodes, shards, tops } = self;
        let changed = apply_touched(shards, updates, nodes).map_err(|error| match error {
            ApplyError::Trie(error) => nodes.name(error),
            ApplyError::Source(error) => error,
        })?;
        for (top, changed) in tops.iter_mut().zip(changed) {
            if let Some(changed) = changed {
                *top = changed.map_or(Top::Empty, Top::Node);
            }
        }
        if self.tops == self.nodes.tops {
            return Ok(self.nodes.root);
        }
        self.resolve_only_top()?;
        let (root, _) = combine_tops(&self.tops)?;
        Ok(root)
    }

    /// Loads the top node of the only subtrie, because the root merges it.
    fn resolve_only_top(&mut self) -> Result<(), WitnessError> {
        let mut tops = (0u8..).zip(&mut self.tops).filter(|(_, top)| **top != Top::Empty);
        let (Some((nibble, top)), None) = (tops.next(), tops.next()) else { return Ok(()) };
        if let Top::Hash(hash) = *top {
            let node = self.nodes.witness.node(&hash).ok_or_else(|| {
                let mut path = B256::ZERO;
                put_nibble(&mut path, 0, nibble);
                WitnessError::Missing(NodePlace { owner: None, path, depth: 1, hash })
            })?;
            *top = Top::Node(node.clone());
        }
        Ok(())
    }
}

impl Nodes<'_> {
    /// Walks towards a key, as far as there are nodes.
    fn follow(
        &mut self,
        target: &WalkTarget,
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), WitnessError> {
        let WalkTarget { owner, key, .. } = target;
        let Some(owner) = owner else {
            let top = &self.tops[usize::from(nibble(key, 0))];
            let reference = match top {
                Top::Empty => return Ok(()),
                Top::Hash(hash) => Reference::Hash(*hash),
                Top::Node(rlp) => {
                    visit(1, rlp);
                    Reference::Node(rlp, self.root)
                }
            };
            return self.witness.follow(None, reference, 1, key, visit).map(|_| ());
        };
        let root = match self.storage_roots.get(owner) {
            Some(&root) => root,
            None => {
                let account = self.witness.account(self.root, owner)?;
                let root = account.map_or(EMPTY_TRIE_ROOT, |(_, root)| root);
                self.storage_roots.insert(*owner, root);
                root
            }
        };
        self.witness.value(Some(owner), root, key, visit).map(|_| ())
    }

    /// Adds the place of a missing node to its error.
    fn name(&mut self, error: Error) -> WitnessError {
        let Error::Missing { owner, key, .. } = error else { return error.into() };
        let target = WalkTarget { owner, key, from_depth: 0 };
        self.follow(&target, &mut |_, _| {}).err().unwrap_or_else(|| error.into())
    }
}

impl NodeSource for Nodes<'_> {
    type Error = WitnessError;

    /// Walks to each target. A missing node ends its walk, and is an error only if it turns out to
    /// be needed. Shards also request nodes that they might need, such as the sibling of a deleted
    /// node, and a witness may rightly lack those. The top of a storage trie is always needed.
    /// Without it, an unknown trie would pass for empty.
    fn walk(
        &mut self,
        targets: &[WalkTarget],
        node: &mut NodeSink<'_>,
    ) -> Result<(), WitnessError> {
        for target in targets {
            let path = unpack(&target.key);
            let from_depth = usize::from(target.from_depth);
            let mut visit = |depth: usize, rlp: &[u8]| {
                if depth >= from_depth {
                    node(target.owner, &path[..depth], rlp);
                }
            };
            match self.follow(target, &mut visit) {
                Err(error @ WitnessError::Missing(NodePlace { owner: Some(_), depth: 0, .. })) => {
                    return Err(error);
                }
                Ok(()) | Err(WitnessError::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the tops of the sixteen subtries of the state with this root.
fn tops(witness: &Witness, root: B256) -> Result<[Top; Shard::COUNT], WitnessError> {
    let mut tops = [const { Top::Empty }; Shard::COUNT];
    if root == EMPTY_TRIE_ROOT {
        return Ok(tops);
    }
    let place = NodePlace { owner: None, path: B256::ZERO, depth: 0, hash: root };
    let rlp = witness.node(&root).ok_or(WitnessError::Missing(place))?;
    split_root(rlp, &mut tops).map_err(|what| WitnessError::Malformed(what, place))?;
    Ok(tops)
}

/// Splits the root node, the reverse of [`combine_tops`]. A root that merges the only subtrie's top
/// is that top with the first nibble before its path.
fn split_root(rlp: &[u8], tops: &mut [Top; Shard::COUNT]) -> Result<(), Malformed> {
    let child_top = |child: Child<'_>| match child {
        Child::None => Top::Empty,
        Child::Hash(hash) => Top::Hash(hash.into()),
        Child::Embedded(rlp) => Top::Node(rlp.to_vec().into()),
    };
    let mut key = B256::ZERO;
    match decode(rlp)? {
        Decoded::Branch(children) => {
            for (top, child) in tops.iter_mut().zip(children) {
                *top = child_top(child);
            }
        }
        Decoded::Leaf(hex_prefix, value) => {
            if hex_prefix.write(&mut key, 0) != Some(DEPTH_MAX) {
                return Err(Malformed::Path);
            }
            if value.len() > 255 {
                return Err(Malformed::Value);
            }
            let mut rlp = Vec::new();
            encode_leaf(&key, 1, value, &mut rlp);
            tops[usize::from(nibble(&key, 0))] = Top::Node(rlp.into());
        }
        Decoded::Extension(hex_prefix, child) => {
            let end = hex_prefix.write(&mut key, 0).ok_or(Malformed::Path)?;
            let top = match child {
                child if end == 1 => child_top(child),
                Child::None => return Err(Malformed::Child),
                Child::Hash(hash) => shorter_extension(&key, end, hash),
                Child::Embedded(rlp) => shorter_extension(&key, end, rlp),
            };
            tops[usize::from(nibble(&key, 0))] = top;
        }
    }
    Ok(())
}

fn shorter_extension(key: &B256, end: usize, child: &[u8]) -> Top {
    let mut rlp = Vec::new();
    encode_extension(key, 1, end, child, &mut rlp);
    Top::Node(rlp.into())
}
