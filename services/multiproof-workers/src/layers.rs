//! Trie changes of the blocks after the base, as layers. A walk must read them before it reads the
//! base.

use alloy_primitives::map::{DefaultHashBuilder, FbBuildHasher};
use std::{hash::BuildHasher, sync::Arc};
pub use tandem_layers::Branch;
use tandem_layers::{Index, Tree};
use tandem_primitives::{B256, BlockId, BlockNumber, NodeChange, ShardSet, TrieDiff};

/// Result of a look-up of one path in the layers.
pub enum Found<'a> {
    /// The node at the path.
    Node(&'a [u8]),
    /// The path has no node any more.
    Absent,
    /// The path is unchanged since the base.
    InBase,
}

/// Changes of one block in some shards' tries.
#[derive(Clone)]
struct Layer {
    shards: ShardSet,
    diff: Arc<TrieDiff>,
}

/// All layers of one worker. A layer need not cover all shards. A reader of a shard first makes
/// sure ([`Layers::lacking`]) that all layers of its branch cover the shard.
#[derive(Default)]
pub struct Layers {
    tree: Tree<Layer>,
    bytes: usize,
    /// Positions in the layers' diffs, by the hash of trie and path. Two paths may share an entry;
    /// the diff itself tells them apart.
    changes: Index<u64, u32>,
    wipes: Index<B256, (), FbBuildHasher<32>>,
    hasher: DefaultHashBuilder,
}

impl Layers {
    /// Adds a block's changes in these shards. Skips shards that are already known, because a
    /// block's changes in a shard are always equal.
    pub fn insert(
        &mut self,
        block: BlockId,
        parent: B256,
        mut shards: ShardSet,
        mut diff: Arc<TrieDiff>,
    ) {
        if let Some(known) = self.tree.get(&block.hash).cloned() {
            let news = shards.difference(known.shards);
            if news.is_empty() {
                return;
            }
            self.remove(&block.hash);
            let news = diff.of_shards(news);
            diff = Arc::new(TrieDiff::concat([&*known.diff, &news].into_iter()));
            shards = shards.union(known.shards);
        }
        let layer = Layer { shards, diff: diff.clone() };
        let Some(stamp) = self.tree.insert(block, parent, layer) else { return };
        self.bytes += diff.byte_len();
        for (position, change) in (0..).zip(diff.iter()) {
            let key = self.hasher.hash_one((change.owner, change.path));
            self.changes.insert(stamp, key, position);
        }
        for owner in &diff.wiped {
            self.wipes.insert(stamp, *owner, ());
        }
    }

    pub fn contains(&self, block: &B256) -> bool {
        self.tree.contains(block)
    }

    /// Returns the block's number and parent, if it has a layer.
    pub fn parent(&self, block: &B256) -> Option<(BlockNumber, B256)> {
        self.tree.parent(block)
    }

    /// Returns the blocks of the branch, ascending, whose layers do not cover all these shards.
    pub fn lacking(&self, branch: &Branch, shards: ShardSet) -> Vec<B256> {
        let tells = |block| {
            self.tree.get(block).is_none_or(|layer: &Layer| layer.shards.contains_all(shards))
        };
        branch.hashes().iter().filter(|block| !tells(block)).copied().collect()
    }

    pub fn remove(&mut self, block: &B256) {
        let Some((stamp, Layer { diff, .. })) = self.tree.remove(block) else { return };
        self.bytes -= diff.byte_len();
        for change in diff.iter() {
            let key = self.hasher.hash_one((change.owner, change.path));
            self.changes.remove(&stamp, key);
        }
        for owner in &diff.wiped {
            self.wipes.remove(&stamp, *owner);
        }
    }

    /// Returns the bytes of the diffs that the layers hold, without the indices.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops one layer, after the base has moved up to this block. Takes the lowest layer that the
    /// base contains, because everything in it can be read from the base. Otherwise takes a layer
    /// that does not lead down to the base, because nothing can be read through it. Returns false
    /// when there is none.
    ///
    /// The event comes after the base's batch is written, and every read of the base takes a
    /// snapshot at its own time. So any read made after this call sees the block there. A layer
    /// that stays longer says the same as the base, or as a later block's own layer.
    pub fn drop_one(&mut self, base: BlockId) -> bool {
        let (mut hash, mut lowest) = (base.hash, None);
        while let Some((_, parent)) = self.tree.parent(&hash) {
            lowest = Some(hash);
            hash = parent;
        }
        let dropped = lowest.or_else(|| self.tree.unreachable(&base).pop());
        dropped.inspect(|hash| self.remove(hash)).is_some()
    }

    /// Returns the layers from `block` downwards, as far as there are any.
    pub fn branch(&self, block: B256) -> Branch {
        self.tree.branch(block)
    }

    /// Returns the node at a path as of the branch.
    pub fn get(&self, branch: &Branch, owner: Option<&B256>, path: &[u8]) -> Found<'_> {
        let key = self.hasher.hash_one((owner.copied(), path));
        let written = self.changes.on_branch(branch, &key).find_map(|version| {
            let change = self.tree.get(version.block)?.diff.get(*version.value as usize)?;
            let same = change.owner.as_ref() == owner && change.path == path;
            same.then_some((version.number, change))
        });
        let wiped = owner.filter(|_| !self.wipes.is_empty());
        let wiped = wiped.and_then(|owner| self.wipes.newest(branch, owner));
        match (written, wiped) {
            // A block wipes before it writes, so at equal height the node exists.
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
        let first = diff(&[(None, &[1], Some(b"a")), (None, &[2], Some(b"b"))], &[]);
        layers.insert(id(1), id(0).hash, ShardSet::ALL, first);
        let second = diff(&[(None, &[1], None), (Some(token), &[], Some(b"t"))], &[]);
        layers.insert(id(2), id(1).hash, ShardSet::ALL, second);
        let other = BlockId::new(2, id(3).hash);
        let side = diff(&[(None, &[1], Some(b"side"))], &[token]);
        layers.insert(other, id(1).hash, ShardSet::ALL, side);
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
            layers.insert(id(n), id(n - 1).hash, ShardSet::ALL, diff(&[], &[]));
        }
        assert!(layers.drop_one(id(3)));
        assert!(!layers.contains(&id(1).hash) && layers.contains(&id(2).hash), "the lowest first");
        assert!(layers.branch(id(5).hash).reaches(&id(3).hash));
        while layers.drop_one(id(3)) {}
        assert_eq!(layers.tree.len(), 2);
        assert!(!layers.contains(&id(1).hash) && !layers.contains(&id(3).hash));
        assert_eq!(layers.branch(id(5).hash).bottom(), id(3).hash);
    }

    #[test]
    fn a_late_base_does_not_drop_what_stands_on_a_newer_one() {
        let mut layers = Layers::default();
        for n in 5..=7 {
            layers.insert(id(n), id(n - 1).hash, ShardSet::ALL, diff(&[], &[]));
        }
        let side = BlockId::new(4, id(40).hash);
        layers.insert(side, id(2).hash, ShardSet::ALL, diff(&[], &[]));
        // The base is at block 4 by now, which contains the layers below 5.
        assert!(layers.drop_one(id(3)), "the side branch leaves below block 3");
        assert!(!layers.contains(&side.hash));
        assert!(!layers.drop_one(id(3)));
        assert_eq!(layers.branch(id(7).hash).bottom(), id(4).hash);
    }

    #[test]
    fn a_layer_is_completed_shard_by_shard() {
        let token = B256::repeat_byte(0x27);
        let whole = diff(
            &[(None, &[1], Some(b"a")), (None, &[2], Some(b"b")), (Some(token), &[], Some(b"t"))],
            &[token],
        );
        let set = |bits| ShardSet::from_bits(bits);
        let mut layers = Layers::default();
        layers.insert(id(1), id(0).hash, set(0b010), Arc::new(whole.of_shards(set(0b010))));
        layers.insert(id(2), id(1).hash, ShardSet::ALL, diff(&[(None, &[1], Some(b"c"))], &[]));
        let branch = layers.branch(id(2).hash);
        assert!(layers.lacking(&branch, set(0b010)).is_empty());
        assert_eq!(layers.lacking(&branch, set(0b110)), [id(1).hash]);
        // A shard that is already known keeps its first changes.
        let other = diff(&[(None, &[1], Some(b"x"))], &[]);
        layers.insert(id(1), id(0).hash, set(0b010), other);
        layers.insert(id(1), id(0).hash, ShardSet::ALL, whole.clone());
        assert_eq!(
            layers.bytes(),
            whole.byte_len() + layers.tree.get(&id(2).hash).unwrap().diff.byte_len()
        );
        let branch = layers.branch(id(1).hash);
        assert!(layers.lacking(&branch, ShardSet::ALL).is_empty());
        assert_eq!(node(&layers, &branch, None, &[1]), Some(Some(&b"a"[..])));
        assert_eq!(node(&layers, &branch, None, &[2]), Some(Some(&b"b"[..])));
        assert_eq!(node(&layers, &branch, Some(&token), &[]), Some(Some(&b"t"[..])));
        assert_eq!(node(&layers, &branch, Some(&token), &[4]), Some(None), "wiped");
        layers.remove(&id(1).hash);
        layers.remove(&id(2).hash);
        assert_eq!(
            (layers.bytes(), layers.changes.is_empty(), layers.wipes.is_empty()),
            (0, true, true)
        );
    }

    proptest! {
        /// Checks on a random tree of blocks that every block sees the changes of its own branch.
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
                let block = BlockId::new(number + 1, hash(n + 1));
                layers.insert(block, hash(parent), ShardSet::ALL, Arc::new(diff));
                models.push((number + 1, model));
            }
            // A leaf of the tree may be removed without a trace.
            let removed = removed.index(models.len());
            let leaf = !(0..models.len()).any(|n| {
                layers.tree.parent(&hash(n)).is_some_and(|(_, parent)| parent == hash(removed))
            });
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
