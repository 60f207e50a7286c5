//! State changes of the blocks after the base, as layers that any block can read.

use crate::state::cache::CacheEpoch;
use alloy_primitives::map::FbBuildHasher;
use std::sync::Arc;
pub use tandem_layers::Branch;
use tandem_layers::{Index, Tree};
use tandem_primitives::{Account, B256, BlockId, BlockNumber, Bytes, StateDiff, U256};

/// All layers of all branches.
#[derive(Clone, Default)]
pub struct Layers {
    base: BlockId,
    epoch: CacheEpoch,
    resets: u64,
    bytes: usize,
    tree: Tree<Arc<StateDiff>>,
    accounts: Index<B256, Option<Account>, FbBuildHasher<32>>,
    slots: Index<(B256, B256), U256>,
    /// Layers that wiped the storage of an account before they wrote to it.
    wipes: Index<B256, (), FbBuildHasher<32>>,
}

impl Layers {
    /// Adds a block's changes on top of its parent's.
    pub fn insert(&mut self, block: BlockId, parent: B256, diff: Arc<StateDiff>) {
        let Some(stamp) = self.tree.insert(block, parent, diff.clone()) else { return };
        self.bytes += diff.bytes();
        for update in &diff.accounts {
            let hash = update.address_hash;
            self.accounts.insert(stamp, hash, update.account);
            if update.wiped {
                self.wipes.insert(stamp, hash, ());
            }
            for slot in &update.slots {
                self.slots.insert(stamp, (hash, slot.key), slot.value);
            }
        }
    }

    /// Removes a block's layer and returns its changes.
    pub fn remove(&mut self, block: &B256) -> Option<Arc<StateDiff>> {
        let (stamp, diff) = self.tree.remove(block)?;
        self.bytes -= diff.bytes();
        for update in &diff.accounts {
            let hash = update.address_hash;
            self.accounts.remove(&stamp, hash);
            if update.wiped {
                self.wipes.remove(&stamp, hash);
            }
            for slot in &update.slots {
                self.slots.remove(&stamp, (hash, slot.key));
            }
        }
        Some(diff)
    }

    /// Returns the block below the layers, as far as the executor knows. The database may be
    /// further along.
    pub fn base(&self) -> BlockId {
        self.base
    }

    /// Returns the epoch of the cache that holds the values of this base.
    pub fn epoch(&self) -> CacheEpoch {
        self.epoch
    }

    /// Returns how often the base was reset instead of moving up.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// Moves the base up. The layers up to this block are gone, or will be before anything reads.
    pub fn raise_base(&mut self, base: BlockId, epoch: CacheEpoch) {
        (self.base, self.epoch) = (base, epoch);
    }

    /// Resets the base, perhaps to a lower block. Layers that the base had absorbed then come back,
    /// and branches made before this reset do not know them.
    pub fn reset_base(&mut self, base: BlockId, epoch: CacheEpoch) {
        self.raise_base(base, epoch);
        self.resets += 1;
    }

    /// Returns the bytes of the changes that the layers hold, without the indices.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns number and parent of a block that has a layer.
    pub fn parent(&self, block: &B256) -> Option<(BlockNumber, B256)> {
        self.tree.parent(block)
    }

    /// Returns whether the block has a layer.
    pub fn contains(&self, block: &B256) -> bool {
        self.tree.contains(block)
    }

    /// Returns the number of layers.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Returns whether there is no layer.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Returns the hashes of the blocks whose layers do not lead down to the base.
    pub fn unreachable(&self) -> Vec<B256> {
        self.tree.unreachable(&self.base)
    }

    /// Returns the hashes of the blocks that have a layer, in no particular order.
    pub fn hashes(&self) -> impl Iterator<Item = B256> + '_ {
        self.tree.hashes()
    }

    /// Returns the existing layers from this block downwards.
    pub fn branch(&self, block: B256) -> Branch {
        self.tree.branch(block)
    }

    /// Returns an account as of the branch, or `None` if no layer of the branch touched it.
    pub fn account(&self, branch: &Branch, address_hash: &B256) -> Option<Option<Account>> {
        self.accounts.newest(branch, address_hash).map(|version| *version.value)
    }

    /// Returns a slot as of the branch, or `None` if no layer of the branch touched it.
    pub fn slot(&self, branch: &Branch, address_hash: &B256, slot: &B256) -> Option<U256> {
        let written = self.slots.newest(branch, &(*address_hash, *slot));
        if self.wipes.is_empty() {
            return written.map(|version| *version.value);
        }
        match (written, self.wipes.newest(branch, address_hash)) {
            // A layer wipes before it writes, so at equal height the value stands.
            (Some(written), Some(wiped)) if wiped.number > written.number => Some(U256::ZERO),
            (Some(written), _) => Some(*written.value),
            (None, Some(_)) => Some(U256::ZERO),
            (None, None) => None,
        }
    }

    /// Returns whether a layer of the branch wiped the account's storage.
    pub fn is_wiped(&self, branch: &Branch, address_hash: &B256) -> bool {
        self.wipes.newest(branch, address_hash).is_some()
    }

    /// Returns code that a block of the branch deployed.
    pub fn code(&self, branch: &Branch, code_hash: &B256) -> Option<Bytes> {
        let diffs = branch.hashes().iter().filter_map(|hash| self.tree.get(hash));
        diffs
            .flat_map(|diff| &diff.codes)
            .find_map(|(hash, code)| (hash == code_hash).then(|| code.clone()))
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
        /// Builds a random tree of blocks. Every block must read the same values as a replay of its
        /// own branch, even after the base absorbed the lowest layers.
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
            // The base absorbs the lowest blocks on the way to the last block.
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
