use crate::{Branch, Stamp};
use alloy_primitives::map::{DefaultHashBuilder, HashMap};
use std::{
    collections::hash_map::Entry,
    hash::{BuildHasher, Hash},
};
use tandem_primitives::{B256, BlockNumber};

/// Maps each key to its versions in all layers.
#[derive(Clone, Debug)]
pub struct Index<K, V, S = DefaultHashBuilder> {
    versions: HashMap<K, Versions<V>, S>,
}

/// Version of a key that lies on a reader's branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version<'a, V> {
    /// Number of the block that wrote the version.
    pub number: BlockNumber,
    /// Hash of that block.
    pub block: &'a B256,
    /// Value that the block wrote.
    pub value: &'a V,
}

/// Versions of one key in ascending order of block number. Most keys are changed by only one block,
/// so a single version is stored inline.
#[derive(Clone, Debug)]
enum Versions<V> {
    One((Stamp, V)),
    Many(Vec<(Stamp, V)>),
}

impl<V> Versions<V> {
    fn as_slice(&self) -> &[(Stamp, V)] {
        match self {
            Self::One(version) => std::slice::from_ref(version),
            Self::Many(versions) => versions,
        }
    }

    /// Returns the versions with one more, in order.
    fn with(self, stamp: Stamp, value: V) -> Self {
        let mut versions = match self {
            Self::One(version) => vec![version],
            Self::Many(versions) => versions,
        };
        let place = versions.partition_point(|(before, _)| before.number <= stamp.number);
        versions.insert(place, (stamp, value));
        Self::Many(versions)
    }

    /// Removes the versions of a layer. Returns false when no version is left.
    fn remove(&mut self, stamp: &Stamp) -> bool {
        match self {
            Self::One((one, _)) => one != stamp,
            Self::Many(versions) => {
                versions.retain(|(other, _)| other != stamp);
                !versions.is_empty()
            }
        }
    }
}

impl<K, V, S: Default> Default for Index<K, V, S> {
    fn default() -> Self {
        Self { versions: HashMap::default() }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Index<K, V, S> {
    /// Adds a layer's version of a key.
    pub fn insert(&mut self, stamp: Stamp, key: K, value: V) {
        match self.versions.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Versions::One((stamp, value)));
            }
            Entry::Occupied(mut entry) => {
                // An empty vector allocates nothing; it stands in while the versions move.
                let versions = std::mem::replace(entry.get_mut(), Versions::Many(Vec::new()));
                *entry.get_mut() = versions.with(stamp, value);
            }
        }
    }

    /// Removes a layer's version of a key, if there is one.
    pub fn remove(&mut self, stamp: &Stamp, key: K) {
        if let Entry::Occupied(mut entry) = self.versions.entry(key)
            && !entry.get_mut().remove(stamp)
        {
            entry.remove();
        }
    }

    /// Returns whether the index holds no version of any key.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Returns the versions of a key that lie on the branch, newest first.
    pub fn on_branch<'a>(
        &'a self,
        branch: &'a Branch,
        key: &K,
    ) -> impl Iterator<Item = Version<'a, V>> {
        let versions = self.versions.get(key).map_or(&[][..], Versions::as_slice);
        versions.iter().rev().filter_map(|(stamp, value)| {
            let block = branch.block_of(stamp)?;
            Some(Version { number: stamp.number, block, value })
        })
    }

    /// Returns the newest version of a key on the branch, `None` when no layer of the branch has
    /// one.
    pub fn newest<'a>(&'a self, branch: &'a Branch, key: &K) -> Option<Version<'a, V>> {
        self.on_branch(branch, key).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tree;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tandem_primitives::BlockId;

    fn hash(n: usize) -> B256 {
        B256::with_last_byte(n as u8)
    }

    type Writes = Vec<(u8, u32)>;

    /// Inserts a layer into the tree and its versions into the index.
    fn insert(
        tree: &mut Tree<Writes>,
        index: &mut Index<u8, u32>,
        block: BlockId,
        parent: B256,
        writes: &Writes,
    ) {
        let stamp = tree.insert(block, parent, writes.clone()).unwrap();
        writes.iter().for_each(|&(key, value)| index.insert(stamp, key, value));
    }

    fn remove(tree: &mut Tree<Writes>, index: &mut Index<u8, u32>, block: &B256) {
        let (stamp, writes) = tree.remove(block).unwrap();
        writes.iter().for_each(|&(key, _)| index.remove(&stamp, key));
    }

    #[test]
    fn a_block_inserted_again_does_not_see_what_it_wrote_before() {
        let (mut tree, mut index) = (Tree::default(), Index::default());
        let block = BlockId::new(1, hash(1));
        insert(&mut tree, &mut index, block, hash(0), &vec![(7, 1)]);
        assert_eq!(tree.insert(block, hash(0), vec![]), None);
        let old = tree.branch(block.hash);
        remove(&mut tree, &mut index, &block.hash);
        assert!(index.is_empty() && tree.is_empty());
        insert(&mut tree, &mut index, block, hash(0), &vec![(7, 2)]);
        assert_eq!(index.newest(&old, &7), None, "another layer of the same block");
        let version = index.newest(&tree.branch(block.hash), &7).map(|version| *version.value);
        assert_eq!(version, Some(2));
    }

    proptest! {
        /// On a random tree of blocks, every block reads what its own branch wrote, newest first.
        /// This also holds after layers were removed at the bottom of a branch and at its top.
        #[test]
        fn every_block_reads_its_own_branch(
            blocks in prop::collection::vec(
                (any::<prop::sample::Index>(), prop::collection::btree_map(0..4u8, 0..99u32, 0..4)),
                1..24),
            in_base in 0..4usize,
        ) {
            let (mut tree, mut index) = (Tree::default(), Index::default());
            let mut models: Vec<Vec<(usize, BTreeMap<u8, u32>)>> = vec![Vec::new()];
            for (n, (parent, writes)) in blocks.iter().enumerate() {
                let (block, parent) = (n + 1, parent.index(n + 1));
                let mut model = models[parent].clone();
                model.push((block, writes.clone()));
                let id = BlockId::new(model.len() as u64, hash(block));
                let writes = writes.iter().map(|(key, value)| (*key, *value)).collect();
                insert(&mut tree, &mut index, id, hash(parent), &writes);
                models.push(model);
            }
            let last = models[blocks.len()].clone();
            let gone: Vec<usize> = last.iter().take(in_base).map(|(block, _)| *block).collect();
            gone.iter().for_each(|&block| remove(&mut tree, &mut index, &hash(block)));
            let base = gone.last().copied().unwrap_or(0);
            for (block, model) in models.iter().enumerate() {
                let branch = tree.branch(hash(block));
                let stays: Vec<_> = model.iter().filter(|(n, _)| !gone.contains(n)).collect();
                let whole = block == base || model.iter().any(|(n, _)| *n == base) || base == 0;
                prop_assert_eq!(branch.reaches(&hash(base)), whole && !(gone.contains(&block) && block != base));
                if !branch.reaches(&hash(base)) {
                    continue;
                }
                let hashes: Vec<B256> = stays.iter().map(|(n, _)| hash(*n)).collect();
                prop_assert_eq!(branch.hashes(), &hashes[..]);
                for key in 0..4u8 {
                    let want = stays.iter().rev().filter_map(|(n, writes)| {
                        Some((hash(*n), *writes.get(&key)?))
                    });
                    let got = index.on_branch(&branch, &key).map(|v| (*v.block, *v.value));
                    prop_assert!(got.eq(want));
                }
            }
        }
    }
}
