//! The state as far as it is in memory: the layers of the blocks after the base, and the cache of
//! the base's values under them.
//!
//! **The invariant.** A reader takes a key's value from its layers, else from the cache or the
//! database. So at no time may a reader find a change in neither: a layer goes only after
//! `chain.persisted` said that the database contains its block, and the cache takes the layer's
//! values before anyone can read without the layer. There are two kinds of readers:
//!
//! * A block's execution, on any number of threads, reads layers that it holds for itself
//!   ([`Recent::pin`]): nothing that the engine does meanwhile changes them, and no lock is taken
//!   and no shared counter moved to read them. The cache may get ahead of them; they know by
//!   its epoch that it did, and then go to the database. That is right as long as their branch
//!   reaches the block that the database answers from.
//! * Calls of the RPC may take long, and must not hold layers (see [`Recent::change`]). They look
//!   up layers and cache under the read lock, one key at a time ([`Recent::read`]); layers and
//!   cache change together, under the write lock. Between two of their reads the base may move:
//!   their branch must reach the base of each moment. When it steps
//!   back, they end: layers of theirs that are gone by then are needed again.
//!
//! Who asks the database after a look at layers above some base gets an answer from that base, or
//! from a later one: any block that the branch reaches from there upwards will do, and no lower one,
//! as the layers between may have been gone already.
//!
//! Only the engine's thread changes anything here.

use crate::{
    metrics as names,
    state::{cache::BaseCache, layers::Layers},
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
}

impl Recent {
    /// No layer, and a cache of a base that is not known yet.
    pub fn new(cache: BaseCache) -> Self {
        Self { layers: RwLock::default(), cache }
    }

    /// The cache of base values.
    pub fn cache(&self) -> &BaseCache {
        &self.cache
    }

    /// The layers as they are now, for one block's execution: to be let go soon after it.
    pub fn pin(&self) -> Arc<Layers> {
        self.layers.read().clone()
    }

    /// A look at layers and cache as they belong together.
    pub fn read<T>(&self, look: impl FnOnce(&Layers) -> T) -> T {
        look(&self.layers.read())
    }

    /// Adds a block's changes on top of its parent's.
    pub fn insert(&self, block: BlockId, parent: B256, diff: Arc<StateDiff>) {
        self.change(|layers| layers.insert(block, parent, diff));
    }

    /// The base stands at this block, wherever it stood before: the cache begins anew. Layers stay
    /// that a branch from it leads to.
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

    /// The base has moved up to this block: what it contains leaves the layers for the cache, and
    /// what no branch from it leads to is forgotten. False when nothing is new in that.
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

    /// Changes the layers where they are. While some thread still holds those of a block that has
    /// ended, they are copied instead: a millisecond or so, counted, and rare.
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

/// Drops the layers that no chain leads to from the base: nothing can be read through them.
fn drop_unreachable(layers: &mut Layers) {
    for hash in layers.unreachable() {
        layers.remove(&hash);
    }
}

#[cfg(test)]
mod tests;
