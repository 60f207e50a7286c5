//! The state changes of the blocks after the base, as a tree of layers.
//!
//! An index leads from each key to its versions, so a read looks at the versions of one key, newest
//! first, and takes the first that lies on its own branch. It costs the same over 1 layer or 128.
//!
//! **When a layer may go.** A read that misses here goes to the base. That is right exactly as long
//! as every block between the base that answers and the reader's own block has its layer here. So a
//! layer is dropped only after `chain.persisted` said that the base contains it, and every read of
//! the base made later takes its snapshot later. A base that stands on another branch, or above the
//! reader's block, is caught by [`Branch::reaches`].

use alloy_primitives::map::{B256Map, HashMap};
use std::sync::Arc;
use tandem_primitives::{Account, B256, BlockId, BlockNumber, Bytes, StateDiff, U256};

/// Names one layer for as long as the process lives.
type LayerId = u64;

struct Layer {
    id: LayerId,
    block: BlockId,
    parent: B256,
    diff: Arc<StateDiff>,
}

struct Version<T> {
    layer: LayerId,
    number: BlockNumber,
    value: T,
}

/// Versions of one key in ascending order of block number.
type Versions<T> = Vec<Version<T>>;

/// All layers, of all branches.
#[derive(Default)]
pub struct Layers {
    base: BlockId,
    next_id: LayerId,
    by_hash: B256Map<Layer>,
    accounts: B256Map<Versions<Option<Account>>>,
    slots: HashMap<(B256, B256), Versions<U256>>,
    /// Layers that wiped the storage of an account before they wrote to it.
    wipes: B256Map<Versions<()>>,
}

/// The layers between one block and the base.
#[derive(Clone, Debug)]
pub struct Branch {
    block: B256,
    /// Number of the block of the lowest layer.
    lowest: BlockNumber,
    /// Layers in ascending order of block number.
    ids: Vec<LayerId>,
    hashes: Vec<B256>,
    /// Parent of the lowest layer's block (or the block itself, without any layer).
    bottom: B256,
}

impl Branch {
    /// Whether a base at this block can stand below these layers.
    pub fn reaches(&self, base: &B256) -> bool {
        self.bottom == *base || self.hashes.contains(base)
    }

    /// The blocks of the layers, ascending.
    pub fn hashes(&self) -> &[B256] {
        &self.hashes
    }

    /// The block whose state this is.
    pub fn block(&self) -> B256 {
        self.block
    }

    fn contains<T>(&self, version: &Version<T>) -> bool {
        let Some(position) = version.number.checked_sub(self.lowest) else { return false };
        self.ids.get(position as usize) == Some(&version.layer)
    }

    fn newest<'a, T>(&self, versions: &'a Versions<T>) -> Option<&'a Version<T>> {
        versions.iter().rev().find(|version| self.contains(version))
    }
}

impl Layers {
    /// Adds a block's changes on top of its parent's.
    pub fn insert(&mut self, block: BlockId, parent: B256, diff: Arc<StateDiff>) {
        if self.by_hash.contains_key(&block.hash) {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        for update in &diff.accounts {
            let hash = update.address_hash;
            push(self.accounts.entry(hash).or_default(), id, block.number, update.account);
            if update.wiped {
                push(self.wipes.entry(hash).or_default(), id, block.number, ());
            }
            for slot in &update.slots {
                let versions = self.slots.entry((hash, slot.key)).or_default();
                push(versions, id, block.number, slot.value);
            }
        }
        self.by_hash.insert(block.hash, Layer { id, block, parent, diff });
    }

    /// Takes a block's layer out and gives its changes back.
    pub fn remove(&mut self, block: &B256) -> Option<Arc<StateDiff>> {
        let layer = self.by_hash.remove(block)?;
        for update in &layer.diff.accounts {
            let hash = update.address_hash;
            drop_version(&mut self.accounts, &hash, layer.id);
            if update.wiped {
                drop_version(&mut self.wipes, &hash, layer.id);
            }
            for slot in &update.slots {
                drop_version(&mut self.slots, &(hash, slot.key), layer.id);
            }
        }
        Some(layer.diff)
    }

    /// The block that the layers stand on, as far as the executor knows: the database may be
    /// further along.
    pub fn base(&self) -> BlockId {
        self.base
    }

    /// The layers up to this block are gone, or will be before the lock is released.
    pub fn set_base(&mut self, base: BlockId) {
        self.base = base;
    }

    /// Number and parent of a block that has a layer.
    pub fn parent(&self, block: &B256) -> Option<(BlockNumber, B256)> {
        self.by_hash.get(block).map(|layer| (layer.block.number, layer.parent))
    }

    /// Whether the block has a layer.
    pub fn contains(&self, block: &B256) -> bool {
        self.by_hash.contains_key(block)
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Hashes of the layers of blocks below this number.
    pub fn below(&self, number: BlockNumber) -> Vec<B256> {
        let old = self.by_hash.values().filter(|layer| layer.block.number < number);
        old.map(|layer| layer.block.hash).collect()
    }

    /// The layers from this block downwards, as far as there are any.
    pub fn branch(&self, block: B256) -> Branch {
        let (mut ids, mut hashes) = (Vec::new(), Vec::new());
        let (mut bottom, mut lowest) = (block, 0);
        while let Some(layer) = self.by_hash.get(&bottom) {
            ids.push(layer.id);
            hashes.push(layer.block.hash);
            lowest = layer.block.number;
            bottom = layer.parent;
        }
        ids.reverse();
        hashes.reverse();
        Branch { block, lowest, ids, hashes, bottom }
    }

    /// An account as of the branch; `None` when no layer of it touched the account.
    pub fn account(&self, branch: &Branch, address_hash: &B256) -> Option<Option<Account>> {
        branch.newest(self.accounts.get(address_hash)?).map(|version| version.value)
    }

    /// A slot as of the branch; `None` when no layer of it touched the slot.
    pub fn slot(&self, branch: &Branch, address_hash: &B256, slot: &B256) -> Option<U256> {
        let written = self.slots.get(&(*address_hash, *slot)).and_then(|v| branch.newest(v));
        if self.wipes.is_empty() {
            return written.map(|version| version.value);
        }
        let wiped = self.wipes.get(address_hash).and_then(|v| branch.newest(v));
        match (written, wiped) {
            // A layer wipes before it writes, so at equal height the value stands.
            (Some(written), Some(wiped)) if wiped.number > written.number => Some(U256::ZERO),
            (Some(written), _) => Some(written.value),
            (None, Some(_)) => Some(U256::ZERO),
            (None, None) => None,
        }
    }

    /// Code that a block of the branch deployed.
    pub fn code(&self, branch: &Branch, code_hash: &B256) -> Option<Bytes> {
        let diffs = branch.hashes.iter().filter_map(|hash| self.by_hash.get(hash));
        diffs
            .flat_map(|layer| &layer.diff.codes)
            .find_map(|(hash, code)| (hash == code_hash).then(|| code.clone()))
    }
}

fn push<T>(versions: &mut Versions<T>, layer: LayerId, number: BlockNumber, value: T) {
    let position = versions.partition_point(|version| version.number <= number);
    versions.insert(position, Version { layer, number, value });
}

fn drop_version<K, T, S>(
    index: &mut std::collections::HashMap<K, Versions<T>, S>,
    key: &K,
    layer: LayerId,
) where
    K: std::hash::Hash + Eq,
    S: std::hash::BuildHasher,
{
    if let Some(versions) = index.get_mut(key) {
        versions.retain(|version| version.layer != layer);
        if versions.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tandem_primitives::{AccountUpdate, SlotUpdate};

    fn hash(n: u64) -> B256 {
        B256::from(U256::from(n + 1))
    }

    #[derive(Clone, Debug)]
    struct Change {
        address: u64,
        gone: bool,
        wiped: bool,
        slots: Vec<(u64, u64)>,
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let slots = prop::collection::vec((0..4u64, 0..3u64), 0..4);
        let change = (0..4u64, prop::bool::weighted(0.2), prop::bool::weighted(0.2), slots);
        prop::collection::vec(change, 0..4).prop_map(|changes| {
            let mut by_address = BTreeMap::new();
            for (address, gone, wiped, slots) in changes {
                let slots: BTreeMap<_, _> = slots.into_iter().collect();
                let slots = if gone { Vec::new() } else { slots.into_iter().collect() };
                by_address.insert(address, Change { address, gone, wiped: wiped || gone, slots });
            }
            by_address.into_values().collect()
        })
    }

    fn diff(changes: &[Change], nonce: u64) -> Arc<StateDiff> {
        let accounts = changes
            .iter()
            .map(|change| AccountUpdate {
                address_hash: hash(change.address),
                account: (!change.gone).then(|| Account { nonce, ..Account::default() }),
                wiped: change.wiped,
                slots: change
                    .slots
                    .iter()
                    .map(|&(key, value)| SlotUpdate { key: hash(key), value: U256::from(value) })
                    .collect(),
            })
            .collect();
        Arc::new(StateDiff { accounts, codes: Vec::new() })
    }

    #[derive(Clone, Default)]
    struct Model {
        accounts: BTreeMap<u64, Option<u64>>,
        slots: BTreeMap<(u64, u64), u64>,
        wiped: Vec<u64>,
    }

    impl Model {
        fn apply(&mut self, changes: &[Change], nonce: u64) {
            for change in changes {
                self.accounts.insert(change.address, (!change.gone).then_some(nonce));
                if change.wiped {
                    self.wiped.push(change.address);
                    self.slots.retain(|(address, _), _| *address != change.address);
                }
                for &(key, value) in &change.slots {
                    self.slots.insert((change.address, key), value);
                }
            }
        }
    }

    proptest! {
        /// A random tree of blocks: every block reads what a replay of its own branch gives, also
        /// after the layers at the bottom were dropped in favour of the base.
        #[test]
        fn every_block_reads_its_own_branch(
            blocks in prop::collection::vec((any::<prop::sample::Index>(), changes()), 1..24),
            dropped in 0..4usize,
        ) {
            let mut layers = Layers::default();
            let mut models = vec![Model::default()];
            let mut numbers = vec![0u64];
            let mut parents = vec![0usize];
            for (n, (parent, changes)) in blocks.iter().enumerate() {
                let (block, parent) = (n + 1, parent.index(n + 1));
                let id = BlockId::new(numbers[parent] + 1, hash(1000 + block as u64));
                layers.insert(id, hash(1000 + parent as u64), diff(changes, block as u64));
                let mut model = models[parent].clone();
                model.apply(changes, block as u64);
                models.push(model);
                numbers.push(id.number);
                parents.push(parent);
            }
            // The base takes in the lowest blocks on the way to the last one.
            let mut way = vec![blocks.len()];
            while way[way.len() - 1] != 0 {
                way.push(parents[way[way.len() - 1]]);
            }
            let in_base: Vec<usize> = way.into_iter().rev().skip(1).take(dropped).collect();
            for &block in &in_base {
                layers.remove(&hash(1000 + block as u64));
            }
            let base = in_base.last().copied().unwrap_or(0);
            for block in 0..=blocks.len() {
                let branch = layers.branch(hash(1000 + block as u64));
                if !branch.reaches(&hash(1000 + base as u64)) {
                    continue;
                }
                for address in 0..4 {
                    let got = layers.account(&branch, &hash(address));
                    let got = got.unwrap_or_else(|| models[base].accounts.get(&address)
                        .map(|n| n.map(|nonce| Account { nonce, ..Account::default() })).unwrap_or(None));
                    let want = models[block].accounts.get(&address).copied().flatten();
                    prop_assert_eq!(got.map(|account| account.nonce), want);
                    for key in 0..4 {
                        let got = layers.slot(&branch, &hash(address), &hash(key));
                        let got = got.unwrap_or_else(|| U256::from(
                            models[base].slots.get(&(address, key)).copied().unwrap_or(0)));
                        let want = models[block].slots.get(&(address, key)).copied().unwrap_or(0);
                        prop_assert_eq!(got, U256::from(want));
                    }
                }
            }
        }
    }
}
