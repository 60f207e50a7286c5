//! The state as far as it is in memory: layers of the blocks after the base, and below them the
//! cache of the base's values.
//!
//! **The invariant.** A reader takes a key's value from its layers, else from the cache or the
//! database. A change must therefore never be missing from both. A layer goes only after
//! `chain.persisted` reported its block as stored. The cache takes the layer's values before any
//! reader can read without the layer. There are two kinds of readers:
//!
//! * A block's execution, on any number of threads, reads layers that it holds for itself
//!   ([`Recent::pin`]). The engine never changes these layers. Reading them takes no lock and moves
//!   no shared counter. The cache may get ahead of them. The readers notice this by its epoch and
//!   then ask the database. That is correct as long as their branch reaches the block that the
//!   database answers from.
//! * Calls of the RPC may take long and must not hold layers (see [`Recent::change`]). They look up
//!   layers and cache under the read lock, one key at a time ([`Recent::read`]). Layers and cache
//!   change together, under the write lock. The base may move between two reads. The calls' branch
//!   must reach the base at each read. If the base steps back, the calls end, because they need
//!   layers that may be gone.
//!
//! A reader may ask the database after it looked at layers above some base. The answer comes from
//! that base or a later one. Any block that the branch reaches from that base upwards is valid. A
//! lower block is not, because the layers in between may have been gone already.
//!
//! Only the engine's thread makes changes here.

use crate::{
    metrics as names,
    state::{cache::BaseCache, layers::Layers, read_times::ReadTimes},
};
use alloy_primitives::map::B256Set;
use metrics::{counter, gauge};
use parking_lot::RwLock;
use std::sync::Arc;
use tandem_primitives::{B256, BlockId, StateDiff};

/// Layers and cache.
pub struct Recent {
    layers: RwLock<Arc<Layers>>,
    cache: BaseCache,
    read_times: ReadTimes,
}

impl Recent {
    /// Creates an instance without layers, with a cache of an unknown base.
    pub fn new(cache: BaseCache) -> Self {
        Self { layers: RwLock::default(), cache, read_times: ReadTimes::default() }
    }

    /// Returns the cache of base values.
    pub fn cache(&self) -> &BaseCache {
        &self.cache
    }

    /// Returns the times of the calls for what is not in memory.
    pub fn read_times(&self) -> &ReadTimes {
        &self.read_times
    }

    /// Returns the current layers for one block's execution. The caller must drop them soon after
    /// it.
    pub fn pin(&self) -> Arc<Layers> {
        self.layers.read().clone()
    }

    /// Reads layers and cache in a consistent state.
    pub fn read<T>(&self, look: impl FnOnce(&Layers) -> T) -> T {
        look(&self.layers.read())
    }

    /// Adds a block's changes on top of its parent's.
    pub fn insert(&self, block: BlockId, parent: B256, diff: Arc<StateDiff>) {
        self.change(|layers| layers.insert(block, parent, diff));
    }

    /// Removes a block's changes, on top of which there must be no others.
    pub fn remove(&self, block: &B256) {
        self.change(|layers| drop(layers.remove(block)));
    }

    /// Sets the base to this block, wherever it was before, and clears the cache. Layers that a
    /// branch from the base leads to stay.
    pub fn rebase(&self, base: BlockId) {
        self.change(|layers| {
            layers.reset_base(base, self.cache.begin_epoch());
            self.cache.clear();
            drop_unreachable(layers);
        });
    }

    /// Drops the layers that are on none of these blocks' branches.
    pub fn keep_only(&self, blocks: &[B256]) {
        self.change(|layers| {
            let kept: B256Set =
                blocks.iter().flat_map(|block| layers.branch(*block).hashes().to_vec()).collect();
            let others = layers.hashes().filter(|hash| !kept.contains(hash)).collect::<Vec<_>>();
            others.iter().for_each(|hash| drop(layers.remove(hash)));
        });
    }

    /// Moves the base up to this block. Moves the layers that it contains to the cache, and drops
    /// layers that no branch from it leads to. Returns false if the block has no layer.
    pub fn advance(&self, base: BlockId) -> bool {
        if !self.read(|layers| layers.contains(&base.hash)) {
            return false;
        }
        self.change(|layers| {
            let mut taken_in = Vec::new();
            let mut hash = base.hash;
            while let Some((_, parent)) = layers.parent(&hash) {
                taken_in.push(hash);
                hash = parent;
            }
            layers.raise_base(base, self.cache.begin_epoch());
            for block in taken_in.iter().rev() {
                if let Some(diff) = layers.remove(block) {
                    self.cache.advance(&diff);
                }
            }
            drop_unreachable(layers);
        });
        for (kind, entries, bytes) in self.cache.sizes() {
            gauge!(names::CACHE_ENTRIES, "kind" => kind).set(entries as f64);
            gauge!(names::CACHE_BYTES, "kind" => kind).set(bytes as f64);
        }
        true
    }

    /// Changes the layers in place. If a thread still holds the layers of a finished block, they
    /// are copied instead. A copy takes about a millisecond, is counted, and is rare.
    fn change<T>(&self, change: impl FnOnce(&mut Layers) -> T) -> T {
        let mut layers = self.layers.write();
        if Arc::get_mut(&mut layers).is_none() {
            counter!(names::LAYER_COPIES).increment(1);
        }
        let layers = Arc::make_mut(&mut layers);
        let result = change(layers);
        gauge!(names::LAYERS).set(layers.len() as f64);
        gauge!(names::LAYER_BYTES).set(layers.bytes() as f64);
        result
    }
}

/// Drops the layers that no chain from the base leads to, because they are unreadable.
fn drop_unreachable(layers: &mut Layers) {
    for hash in layers.unreachable() {
        layers.remove(&hash);
    }
}

#[cfg(test)]
mod tests;
