//! Trie changes of the blocks after the base, by block, as a tree: what a walk must see before it
//! sees the base.

use alloy_primitives::map::{B256Map, DefaultHashBuilder, HashMap};
use std::{collections::hash_map::Entry, hash::BuildHasher, sync::Arc};
use tandem_primitives::{B256, BlockId, BlockNumber, NodeChange, TrieDiff};

/// Side-chain layers this far below the base are dropped: nobody builds on them any more.
const SIDE_CHAIN_DEPTH: BlockNumber = 256;

/// Names one layer for as long as the worker lives.
type LayerId = u64;

/// The changed trie nodes of one block.
struct Layer {
    id: LayerId,
    block: BlockId,
    parent: B256,
    diff: Arc<TrieDiff>,
}

/// One layer's change of a path.
#[derive(Clone, Copy)]
struct Version {
    layer: LayerId,
    number: BlockNumber,
    /// Position in the layer's diff.
    position: u32,
}

/// Changes of one path in ascending order of block number. Nearly all paths below the top are
/// changed by one block only, so the first stands inline.
enum Versions {
    One(Version),
    Many(Vec<Version>),
}

/// What the layers know of one path.
pub enum Found<'a> {
    /// The node that stands there.
    Node(&'a [u8]),
    /// No node stands there any more.
    Absent,
    /// Unchanged since the base.
    InBase,
}

/// All layers of one worker, with an index from each path to the layers that changed it: a lookup
/// costs the same over 1 layer or 128.
#[derive(Default)]
pub struct Layers {
    next_id: LayerId,
    by_hash: B256Map<Layer>,
    /// By the hash of trie and path. Two paths may share an entry; the diff itself tells them
    /// apart.
    changes: HashMap<u64, Versions>,
    wipes: B256Map<Vec<Version>>,
    hasher: DefaultHashBuilder,
}

/// The layers between one block and the base.
#[derive(Clone)]
pub struct Branch {
    /// Number of the block of the lowest layer.
    lowest: BlockNumber,
    /// Ids and blocks of the layers in ascending order.
    layers: Vec<(LayerId, B256)>,
    /// Parent of the lowest layer: a block that must be in the base.
    pub bottom: B256,
}

impl Branch {
    /// Whether a base at this block can stand below the layers: it is one of their blocks, or the
    /// one right below them.
    pub fn reaches(&self, base: &B256) -> bool {
        self.bottom == *base || self.layers.iter().any(|(_, block)| block == base)
    }

    fn contains(&self, version: &Version) -> bool {
        let position = version.number.checked_sub(self.lowest);
        let layer = position.and_then(|position| self.layers.get(position as usize));
        layer.is_some_and(|(id, _)| *id == version.layer)
    }

    /// The block whose layer this is, if it is on the branch.
    fn block(&self, version: &Version) -> Option<&B256> {
        let position = version.number.checked_sub(self.lowest)?;
        let (id, block) = self.layers.get(position as usize)?;
        (*id == version.layer).then_some(block)
    }
}

impl Versions {
    fn as_slice(&self) -> &[Version] {
        match self {
            Self::One(version) => std::slice::from_ref(version),
            Self::Many(versions) => versions,
        }
    }

    fn push(&mut self, version: Version) {
        if let Self::One(first) = self {
            *self = Self::Many(vec![*first]);
        }
        if let Self::Many(versions) = self {
            let place = versions.partition_point(|before| before.number <= version.number);
            versions.insert(place, version);
        }
    }
}

impl Layers {
    pub fn insert(&mut self, block: BlockId, parent: B256, diff: Arc<TrieDiff>) {
        if self.by_hash.contains_key(&block.hash) {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let version = |position| Version { layer: id, number: block.number, position };
        for (position, change) in (0..).zip(diff.iter()) {
            let key = self.hasher.hash_one((change.owner, change.path));
            match self.changes.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(Versions::One(version(position)));
                }
                Entry::Occupied(mut entry) => entry.get_mut().push(version(position)),
            }
        }
        for owner in &diff.wiped {
            let wipes = self.wipes.entry(*owner).or_default();
            let place = wipes.partition_point(|before| before.number <= block.number);
            wipes.insert(place, version(0));
        }
        self.by_hash.insert(block.hash, Layer { id, block, parent, diff });
    }

    pub fn contains(&self, block: &B256) -> bool {
        self.by_hash.contains_key(block)
    }

    pub fn remove(&mut self, block: &B256) {
        let Some(layer) = self.by_hash.remove(block) else { return };
        for change in layer.diff.iter() {
            let key = self.hasher.hash_one((change.owner, change.path));
            if let Entry::Occupied(mut entry) = self.changes.entry(key) {
                let gone = match entry.get_mut() {
                    Versions::One(version) => version.layer == layer.id,
                    Versions::Many(versions) => {
                        versions.retain(|version| version.layer != layer.id);
                        versions.is_empty()
                    }
                };
                if gone {
                    entry.remove();
                }
            }
        }
        for owner in &layer.diff.wiped {
            if let Some(wipes) = self.wipes.get_mut(owner) {
                wipes.retain(|version| version.layer != layer.id);
                if wipes.is_empty() {
                    self.wipes.remove(owner);
                }
            }
        }
    }

    /// The base has moved up to this block: everything it contains can be read there.
    ///
    /// A layer may only go once the next read of the base is known to come from at or after it. The
    /// event is published after the base's batch is written, and every read takes a snapshot at its
    /// own time, so any read made after this call qualifies.
    pub fn persisted(&mut self, base: BlockId) {
        let mut hash = base.hash;
        while let Some(parent) = self.by_hash.get(&hash).map(|layer| layer.parent) {
            self.remove(&hash);
            hash = parent;
        }
        let old = |layer: &&Layer| layer.block.number + SIDE_CHAIN_DEPTH <= base.number;
        let old: Vec<B256> =
            self.by_hash.values().filter(old).map(|layer| layer.block.hash).collect();
        old.iter().for_each(|block| self.remove(block));
    }

    /// The layers from `block` downwards as far as there are any.
    pub fn branch(&self, block: B256) -> Branch {
        let mut layers = Vec::new();
        let (mut bottom, mut lowest) = (block, 0);
        while let Some(layer) = self.by_hash.get(&bottom) {
            layers.push((layer.id, bottom));
            lowest = layer.block.number;
            bottom = layer.parent;
        }
        layers.reverse();
        Branch { lowest, layers, bottom }
    }

    /// What stands at a path as of the branch.
    pub fn get(&self, branch: &Branch, owner: Option<&B256>, path: &[u8]) -> Found<'_> {
        let key = self.hasher.hash_one((owner.copied(), path));
        let versions = self.changes.get(&key).map_or(&[][..], Versions::as_slice);
        let written = versions.iter().rev().find_map(|version| {
            let layer = self.by_hash.get(branch.block(version)?)?;
            let change = layer.diff.get(version.position as usize)?;
            let same = change.owner.as_ref() == owner && change.path == path;
            same.then_some((version.number, change))
        });
        let wiped = owner.filter(|_| !self.wipes.is_empty()).and_then(|owner| {
            let wipes = self.wipes.get(owner)?;
            wipes.iter().rev().find(|version| branch.contains(version))
        });
        match (written, wiped) {
            // A block wipes before it writes, so at equal height the node stands.
            (Some((number, _)), Some(wiped)) if wiped.number > number => Found::Absent,
            (Some((_, NodeChange { rlp: Some(rlp), .. })), _) => Found::Node(rlp),
            (Some(_), _) | (None, Some(_)) => Found::Absent,
            (None, None) => Found::InBase,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn id(number: u64) -> BlockId {
        BlockId::new(number, B256::with_last_byte(number as u8))
    }

    type Change<'a> = (Option<B256>, &'a [u8], Option<&'a [u8]>);

    fn diff(changes: &[Change<'_>], wiped: &[B256]) -> Arc<TrieDiff> {
        let mut diff = TrieDiff::default();
        diff.wiped.extend_from_slice(wiped);
        for &(owner, path, rlp) in changes {
            diff.push(NodeChange { owner, path, rlp });
        }
        Arc::new(diff)
    }

    fn node<'a>(
        layers: &'a Layers,
        branch: &Branch,
        owner: Option<&B256>,
        path: &[u8],
    ) -> Option<Option<&'a [u8]>> {
        match layers.get(branch, owner, path) {
            Found::Node(rlp) => Some(Some(rlp)),
            Found::Absent => Some(None),
            Found::InBase => None,
        }
    }

    #[test]
    fn the_newest_layer_of_the_own_branch_wins() {
        let token = B256::repeat_byte(7);
        let mut layers = Layers::default();
        layers.insert(
            id(1),
            id(0).hash,
            diff(&[(None, &[1], Some(b"a")), (None, &[2], Some(b"b"))], &[]),
        );
        layers.insert(
            id(2),
            id(1).hash,
            diff(&[(None, &[1], None), (Some(token), &[], Some(b"t"))], &[]),
        );
        let other = BlockId::new(2, id(3).hash);
        layers.insert(other, id(1).hash, diff(&[(None, &[1], Some(b"side"))], &[token]));
        let main = layers.branch(id(2).hash);
        assert_eq!(node(&layers, &main, None, &[1]), Some(None));
        assert_eq!(node(&layers, &main, None, &[2]), Some(Some(&b"b"[..])));
        assert_eq!(node(&layers, &main, None, &[3]), None);
        assert_eq!(node(&layers, &main, Some(&token), &[]), Some(Some(&b"t"[..])));
        let side = layers.branch(other.hash);
        assert_eq!(node(&layers, &side, None, &[1]), Some(Some(&b"side"[..])));
        assert_eq!(node(&layers, &side, Some(&token), &[4]), Some(None), "wiped");
        assert!(side.reaches(&id(0).hash) && side.reaches(&id(1).hash));
        assert!(!side.reaches(&id(2).hash));
    }

    #[test]
    fn what_the_base_contains_is_dropped() {
        let mut layers = Layers::default();
        for n in 1..=5 {
            layers.insert(id(n), id(n - 1).hash, diff(&[], &[]));
        }
        layers.persisted(id(3));
        assert_eq!(layers.by_hash.len(), 2);
        assert!(!layers.contains(&id(1).hash) && !layers.contains(&id(3).hash));
        assert_eq!(layers.branch(id(5).hash).bottom, id(3).hash);
    }

    proptest! {
        /// On a random tree of blocks, every block sees what the changes of its own branch give.
        #[test]
        fn every_block_sees_its_own_branch(
            blocks in prop::collection::vec(
                (any::<prop::sample::Index>(), changes(), prop::bool::weighted(0.2)), 1..20),
            removed in any::<prop::sample::Index>(),
        ) {
            type Model = BTreeMap<(Option<u8>, Vec<u8>), Option<u8>>;
            let hash = |n: usize| B256::with_last_byte(n as u8 + 1);
            let owner = |n: Option<u8>| n.map(B256::repeat_byte);
            let mut layers = Layers::default();
            let mut models: Vec<(u64, Model)> = vec![(0, Model::new())];
            for (n, (parent, changes, wipe)) in blocks.iter().enumerate() {
                let parent = parent.index(n + 1);
                let (number, mut model) = models[parent].clone();
                let mut diff = TrieDiff::default();
                if *wipe {
                    diff.wiped.push(B256::repeat_byte(7));
                    let old = (0..8u8).map(|path| ((Some(7), vec![path]), None));
                    model.extend(old);
                }
                for (token, path, value) in changes {
                    let (token, path) = (token.then_some(7), vec![*path]);
                    let rlp = value.map(|value| [value]);
                    diff.push(NodeChange {
                        owner: owner(token), path: &path, rlp: rlp.as_ref().map(|rlp| &rlp[..]),
                    });
                    model.insert((token, path), *value);
                }
                layers.insert(BlockId::new(number + 1, hash(n + 1)), hash(parent), Arc::new(diff));
                models.push((number + 1, model));
            }
            // A leaf of the tree may go without a trace.
            let removed = removed.index(models.len());
            let leaf = !layers.by_hash.values().any(|layer| layer.parent == hash(removed));
            if leaf {
                layers.remove(&hash(removed));
            }
            for (n, (_, model)) in models.iter().enumerate() {
                if leaf && n == removed {
                    continue;
                }
                let branch = layers.branch(hash(n));
                for token in [None, Some(7)] {
                    for path in 0..8u8 {
                        let want = model.get(&(token, vec![path])).copied();
                        let got = node(&layers, &branch, owner(token).as_ref(), &[path]);
                        prop_assert_eq!(got.map(|rlp| rlp.map(|rlp| rlp[0])), want);
                    }
                }
            }
        }
    }

    fn changes() -> impl Strategy<Value = Vec<(bool, u8, Option<u8>)>> {
        let change = (any::<bool>(), 0..8u8, prop::option::of(any::<u8>()));
        prop::collection::vec(change, 0..6).prop_map(|changes| {
            let by_path: BTreeMap<_, _> =
                changes.into_iter().map(|(token, path, value)| ((token, path), value)).collect();
            by_path.into_iter().map(|((token, path), value)| (token, path, value)).collect()
        })
    }
}
