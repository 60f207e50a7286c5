//! Layers of one owner, kept in step with storage-writer.

use crate::layers::{Branch, Layers};
use parking_lot::RwLock;
use std::{collections::HashMap, sync::Arc};
use tandem_bus::Subscription;
use tandem_primitives::{B256, BlockId, ShardSet, TrieDiff};
use tandem_proto::{event::ChainEvent, multiproof::Error, storage::TrieStorage};
use tracing::warn;

/// Maximum number of moves of the base while a branch is put together: as many as blocks may wait
/// for it.
const RESOLVE_MAX: usize = 64;

/// Layers of one owner. They are completed from storage-writer when some are missing, and dropped
/// once the base contains them.
pub struct TrackedLayers {
    /// Written between blocks only, because the proof threads read them meanwhile.
    layers: Arc<RwLock<Layers>>,
    storage: Arc<dyn TrieStorage>,
    persisted: Subscription,
    /// Block that is known to be in the base, until all layers below it are dropped.
    base: Option<BlockId>,
}

impl TrackedLayers {
    /// Creates layers without blocks. `persisted` brings the moves of the base.
    pub fn new(storage: Arc<dyn TrieStorage>, persisted: Subscription) -> Self {
        Self { layers: Arc::default(), storage, persisted, base: None }
    }

    /// Returns the layers, for the proof threads.
    pub fn shared(&self) -> Arc<RwLock<Layers>> {
        self.layers.clone()
    }

    /// Returns the bytes of the layers' diffs.
    pub fn byte_len(&self) -> usize {
        self.layers.read().bytes()
    }

    /// Notes the block that is in the base by now. Layers below it are of no use any more and do no
    /// harm, so they are dropped when there is time.
    pub fn read_events(&mut self) {
        while let Some(payload) = self.persisted.try_next() {
            if let Some(event) = ChainEvent::decode(&payload) {
                self.base = Some(event.block);
            }
        }
    }

    /// Drops one layer that the base contains or excludes. Returns false when there is none. No
    /// block may be open.
    pub fn drop_one(&mut self) -> bool {
        let Some(base) = self.base else { return false };
        let dropped = self.layers.write().drop_one(base);
        if !dropped {
            self.base = None;
        }
        dropped
    }

    /// Adds the changes of a block in these shards, and hands them over to storage-writer.
    pub fn add(&mut self, block: BlockId, parent: B256, shards: ShardSet, diff: Arc<TrieDiff>) {
        self.layers.write().insert(block, parent, shards, diff.clone());
        // Drops as many layers as it adds, even when each block follows the last one at once.
        self.drop_one();
        if let Err(error) = self.storage.put_trie_diff(block.hash, shards, diff) {
            warn!(block.number = block.number, %error, "trie diff not handed over");
        }
    }

    /// Removes the layer of a block. Returns the block's parent.
    pub fn remove(&mut self, block: &B256) -> Option<B256> {
        let mut layers = self.layers.write();
        let parent = layers.parent(block).map(|(_, parent)| parent);
        layers.remove(block);
        parent
    }

    /// Returns the layers from the parent downwards, each complete for all these shards. If some of
    /// the tries are `cold`, they are read from the base, so the layers must reach down to it. An
    /// error comes with the layers that there are.
    pub fn branch(
        &mut self,
        parent: B256,
        shards: ShardSet,
        cold: ShardSet,
    ) -> (Branch, Option<Error>) {
        let (branch, complete) = {
            let layers = self.layers.read();
            let branch = layers.branch(parent);
            let complete = layers.lacking(&branch, shards).is_empty();
            (branch, complete)
        };
        // Tries of the parent's state are enough. A reader of the layers sees whether they reach
        // down to the base.
        if cold.is_empty() && complete {
            return (branch, None);
        }
        match self.resolve(parent, shards) {
            Ok(resolved) => (resolved, None),
            Err(error) => (branch, Some(error)),
        }
    }

    /// Returns the layers from the parent down to the base, each complete for all these shards.
    /// After a restart, or after the base stepped back, some layers are missing here that
    /// storage-writer still has. All are missing for a shard that another worker answered for
    /// before.
    fn resolve(&mut self, parent: B256, shards: ShardSet) -> Result<Branch, Error> {
        self.load_missing(parent)?;
        let mut base = BlockId::default();
        for _ in 0..RESOLVE_MAX {
            base = self.storage.checkpoint()?.base;
            self.drop_contained(parent, &base);
            let branch = self.layers.read().branch(parent);
            if !branch.reaches(&base.hash) {
                break;
            }
            if self.complete(&branch, shards)? {
                return Ok(self.layers.read().branch(parent));
            }
        }
        Err(Error::ParentUnreachable { parent, base })
    }

    /// Drops the layers of the branch that the base contains. If one of them lacks a shard, the
    /// layers below it are older than the base.
    fn drop_contained(&mut self, parent: B256, base: &BlockId) {
        let mut layers = self.layers.write();
        let branch = layers.branch(parent);
        let contained = branch.hashes().iter().position(|block| *block == base.hash);
        for block in &branch.hashes()[..contained.map_or(0, |at| at + 1)] {
            layers.remove(block);
        }
    }

    /// Completes all layers of the branch for these shards. Returns false when one of the blocks is
    /// not pending any more, because the base has moved up to it.
    fn complete(&mut self, branch: &Branch, shards: ShardSet) -> Result<bool, Error> {
        let lacking = self.layers.read().lacking(branch, shards);
        for block in lacking {
            let Some((number, parent)) = self.layers.read().parent(&block) else { continue };
            let Some(diff) = self.storage.trie_diff(block)? else { return Ok(false) };
            let block = BlockId::new(number, block);
            self.layers.write().insert(block, parent, ShardSet::ALL, diff);
        }
        Ok(true)
    }

    /// Loads the layers of the branch that are missing entirely.
    fn load_missing(&mut self, parent: B256) -> Result<(), Error> {
        let branch = self.layers.read().branch(parent);
        let base = self.storage.checkpoint()?.base;
        if branch.reaches(&base.hash) {
            return Ok(());
        }
        let pending: HashMap<B256, (BlockId, B256)> = self
            .storage
            .pending()?
            .into_iter()
            .filter(|block| !block.kept)
            .map(|block| (block.id.hash, (block.id, block.parent)))
            .collect();
        let mut block = branch.bottom();
        while let Some(&(id, parent)) = pending.get(&block) {
            let diff = self.storage.trie_diff(block)?;
            let mut layers = self.layers.write();
            if let Some(diff) = diff {
                layers.insert(id, parent, ShardSet::ALL, diff);
            }
            block = parent;
            if layers.contains(&block) {
                block = layers.branch(block).bottom();
            }
        }
        Ok(())
    }
}
