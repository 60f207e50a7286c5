//! End of a block at an owner, and the state from which the next one starts.

use crate::{block::Places, board::Held, layers::Branch, message::OwnerRoots, owner::Owner};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tandem_primitives::{B256, BlockId, Shard, ShardSet, TrieDiff};
use tandem_proto::multiproof::{Begin, Error};
use tandem_trie::ShardTrie;
use tracing::warn;

/// Maximum number of moves of the base while a branch is put together: as many as blocks may wait
/// for it.
const RESOLVE_MAX: usize = 64;

impl Owner {
    /// Closes the shards that wait for nothing, once all updates are in. Answers when all are
    /// closed. Returns false when there was nothing to try.
    pub(crate) fn try_close(&mut self) -> bool {
        let Some(open) = &mut self.open else { return false };
        if open.finishing.is_none() || !open.retry {
            return false;
        }
        open.retry = false;
        if open.failed.is_none() {
            let closed = self.close_shards();
            let Some(open) = &mut self.open else { return true };
            match closed {
                Ok(false) if open.failed.is_none() => return true,
                Ok(_) => {}
                Err(error) => {
                    open.failed.get_or_insert(error);
                }
            }
        }
        self.answer();
        true
    }

    /// Closes the shards that can be closed. Returns whether all are closed now.
    fn close_shards(&mut self) -> Result<bool, Error> {
        let mut all = true;
        let mut more = Vec::new();
        let Some(open) = &mut self.open else { return Ok(false) };
        for shard in open.shards().iter() {
            let Some(place) = open.place[shard.index()].map(usize::from) else { continue };
            if open.closed[shard.index()].is_some() {
                continue;
            }
            if self.dispatch.waits(shard) {
                all = false;
                continue;
            }
            open.start_accounts(self.index);
            let closed = self.shards[place].finish();
            open.stop_accounts();
            match closed.map_err(|error| Error::Trie(error.to_string()))? {
                Some(closed) => open.closed[shard.index()] = Some(closed),
                None => {
                    all = false;
                    self.shards[place].take_targets(&mut more);
                }
            }
        }
        self.ask(&mut more, true);
        if !all && !self.dispatch.is_under_way() {
            return Err(Error::Trie("a node is missing that no walk brings".into()));
        }
        Ok(all)
    }

    /// Answers with the roots, or with the reason why there are none.
    fn answer(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        self.dispatch.abandon();
        open.busy.stop();
        open.account = None;
        open.stats.busy = Duration::from_nanos(open.busy.total_ns());
        let counts = &mut self.instruments;
        if let Some(finishing) = open.finishing {
            counts.root_seconds.record(finishing.elapsed());
        }
        counts.queue_wait_seconds.record(open.queue_wait_max);
        counts.targets.increment(open.stats.targets);
        let duplicates: u64 = self.shards.iter().map(ShardTrie::duplicates).sum();
        counts
            .duplicates
            .increment(duplicates - std::mem::replace(&mut self.duplicates, duplicates));
        counts.flush();
        let (begin, shards) = (open.begin, open.shards());
        if let Some(error) = open.failed.take() {
            warn!(block.number = begin.block.number, %error, "no subtrie roots");
            self.clear(shards);
            let _ = open.reply.send(Err(error));
            return;
        }
        let mut diffs = Vec::with_capacity(shards.len());
        let mut roots = Vec::with_capacity(shards.len());
        for shard in shards.iter() {
            let Some((root, diff)) = open.closed[shard.index()].take() else { continue };
            let Some(place) = open.place[shard.index()] else { continue };
            counts.count(self.shards[usize::from(place)].counts());
            roots.push((shard, root));
            diffs.push(diff);
        }
        open.stats.nodes = diffs.iter().map(|diff| diff.len() as u64).sum();
        counts.nodes.increment(open.stats.nodes);
        open.record(&mut self.gaps);
        // The spans end before the answer, because the block ends with the answer.
        let (stats, place, reply) = (open.stats, open.place, open.reply.clone());
        drop(open);
        let _ = reply.send(Ok(OwnerRoots { roots, stats }));
        self.keep(&begin, shards, &place, diffs);
    }

    /// Makes a layer of the diffs of these shards, and sends them to storage-writer, after the
    /// answer.
    fn keep(&mut self, begin: &Begin, shards: ShardSet, place: &Places, diffs: Vec<TrieDiff>) {
        let (block, parent) = (begin.block, begin.parent);
        let diff = Arc::new(TrieDiff::concat(diffs.iter()));
        for (shard, diff) in shards.iter().zip(diffs) {
            if let Some(place) = place[shard.index()] {
                self.shards[usize::from(place)].recycle(diff);
            }
        }
        self.set_tips(shards, block.hash);
        self.layers.write().insert(block, parent, shards, diff.clone());
        // Drops as many layers as it adds, even when each block follows the last one at once.
        self.drop_layer();
        if let Err(error) = self.storage.put_trie_diff(block.hash, shards, diff) {
            warn!(block.number = block.number, %error, "trie diff not handed over");
        }
        self.forget_others(block.hash, parent);
        let bytes = self.post();
        self.instruments.trie_bytes.set(bytes as f64);
        self.instruments.layer_bytes.set(self.layers.read().bytes() as f64);
        if bytes > self.trie_bytes_max {
            let held = self.tips.iter().flatten().count().max(1);
            let share = self.trie_bytes_max / held;
            self.shards.iter_mut().for_each(|shard| shard.prune(share));
        }
    }

    /// Forgets the tries of shards that another worker answers for by now. Shards that this block
    /// or the last one asked for may be asked for again, so their tries stay.
    fn forget_others(&mut self, block: B256, parent: B256) {
        let stale = |tip: &B256| *tip != block && *tip != parent;
        let tips = self.owned.iter().zip(&self.tips);
        let others = tips.filter(|(_, tip)| tip.as_ref().is_some_and(stale));
        let others: ShardSet = others.map(|(shard, _)| *shard).collect();
        self.clear(others);
    }

    /// Gives up the open block, if there is one. The tries return to its parent's state, and keep
    /// the nodes of it that were revealed.
    pub(crate) fn give_up(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.failed.is_some() {
            self.clear(open.shards());
            return;
        }
        self.targets.clear();
        self.dispatch.abandon();
        for (place, closed) in open.place.iter().zip(&open.closed) {
            let Some(place) = place else { continue };
            let shard = &mut self.shards[usize::from(*place)];
            if closed.is_some() {
                shard.revert();
            } else {
                shard.cancel();
            }
        }
    }

    /// Takes back a block that turned out invalid after its roots were given.
    pub(crate) fn discard(&mut self, block: B256) {
        let parent = {
            let mut layers = self.layers.write();
            let parent = layers.parent(&block).map(|(_, parent)| parent);
            layers.remove(&block);
            parent
        };
        self.discarded = Some(block);
        if let Some(open) = self.open.as_mut().filter(|open| open.begin.parent == block) {
            // The open block builds on a block that is gone.
            open.failed.get_or_insert(Error::Unavailable);
            open.retry = true;
            return;
        }
        for (shard, tip) in self.shards.iter_mut().zip(&mut self.tips) {
            if *tip == Some(block) {
                // A shard without a way back is empty then, which is also right.
                shard.revert();
                *tip = parent;
            }
        }
        if self.tip == Some(block) {
            self.tip = parent;
        }
        self.post();
    }

    /// Forgets the tries of these shards, which must be this owner's. Drops all jobs under way, so
    /// there must be no open block of other shards.
    pub(crate) fn clear(&mut self, shards: ShardSet) {
        if shards.is_empty() {
            return;
        }
        self.targets.clear();
        self.dispatch.abandon();
        let mut held = false;
        for (at, shard) in self.owned.iter().enumerate() {
            if shards.contains(*shard) {
                held |= self.tips[at].take().is_some();
                self.shards[at].clear();
            }
        }
        if held {
            self.instruments.cleared.increment(1);
            self.post();
        }
    }

    /// Returns the block whose state the tries of one of the owner's shards hold.
    pub(crate) fn tip_of(&self, shard: Shard) -> Option<B256> {
        self.tips[usize::from(self.place[shard.index()]?)]
    }

    /// Notes that the tries of these shards of the owner hold the state of this block.
    pub(crate) fn set_tips(&mut self, shards: ShardSet, block: B256) {
        for place in shards.iter().filter_map(|shard| self.place[shard.index()]) {
            self.tips[usize::from(place)] = Some(block);
        }
        self.tip = Some(block);
    }

    /// Publishes the state that the tries hold. Returns the bytes that they take.
    pub(crate) fn post(&self) -> usize {
        let bytes = self.shards.iter().map(ShardTrie::byte_len).sum();
        let tips = self.owned.iter().zip(&self.tips);
        let newest = tips.filter(|(_, tip)| tip.is_some() && **tip == self.tip);
        let shards: ShardSet = newest.map(|(shard, _)| *shard).collect();
        let tip = self.tip.filter(|_| !shards.is_empty());
        self.boards[self.index].set(bytes, Held { tip, shards });
        bytes
    }

    /// Returns the layers from the parent down to the base, each complete for all these shards.
    /// After a restart, or after the base stepped back, some layers are missing here that
    /// storage-writer still has. All are missing for a shard that another worker answered for
    /// before.
    pub(crate) fn resolve_branch(
        &mut self,
        parent: B256,
        shards: ShardSet,
    ) -> Result<Branch, Error> {
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
