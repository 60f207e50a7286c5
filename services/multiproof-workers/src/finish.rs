//! How a block ends for an owner, and from where the next one starts.

use crate::{layers::Branch, message::OwnerRoots, owner::Owner};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tandem_primitives::{B256, BlockId, TrieDiff};
use tandem_proto::multiproof::Error;
use tandem_trie::ShardTrie;
use tracing::warn;

impl Owner {
    /// Closes the shards that wait for nothing, once all updates are in, and answers when all are
    /// closed. False when there was nothing to try.
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

    /// Whether all shards are closed now.
    fn close_shards(&mut self) -> Result<bool, Error> {
        let mut all = true;
        let mut more = Vec::new();
        for place in 0..self.shards.len() {
            let Some(open) = &mut self.open else { return Ok(false) };
            if open.closed[place].is_some() {
                continue;
            }
            if self.dispatch.waits(self.owned[place]) {
                all = false;
                continue;
            }
            open.start_accounts(self.index);
            let closed = self.shards[place].finish();
            open.stop_accounts();
            match closed.map_err(|error| Error::Trie(error.to_string()))? {
                Some(closed) => open.closed[place] = Some(closed),
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

    /// Answers with the roots, or with why there are none.
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
        let (block, parent) = (open.begin.block, open.begin.parent);
        if let Some(error) = open.failed.take() {
            warn!(block.number = block.number, %error, "no subtrie roots");
            self.clear();
            let _ = open.reply.send(Err(error));
            return;
        }
        let mut diffs = Vec::with_capacity(self.owned.len());
        let mut roots = Vec::with_capacity(self.owned.len());
        for (&shard, (root, diff)) in self.owned.iter().zip(open.closed.drain(..).flatten()) {
            roots.push((shard, root));
            diffs.push(diff);
        }
        open.stats.nodes = diffs.iter().map(|diff| diff.len() as u64).sum();
        counts.nodes.increment(open.stats.nodes);
        self.shards.iter().for_each(|shard| counts.count(shard.counts()));
        open.record(&mut self.gaps);
        // The spans end before the answer is given: the block ends with the answer.
        let (stats, reply) = (open.stats, open.reply.clone());
        drop(open);
        let _ = reply.send(Ok(OwnerRoots { roots, stats }));
        self.keep(block, parent, diffs);
    }

    /// After the answer: the diffs become a layer and goes to storage-writer.
    fn keep(&mut self, block: BlockId, parent: B256, diffs: Vec<TrieDiff>) {
        let diff = Arc::new(TrieDiff::concat(diffs.iter()));
        self.shards.iter_mut().zip(diffs).for_each(|(shard, diff)| shard.recycle(diff));
        (self.tip, self.last_parent) = (Some(block.hash), parent);
        self.layers.write().insert(block, parent, diff.clone());
        // As many go as come, even where a block always follows the last one at once.
        self.drop_layer();
        if let Err(error) = self.storage.put_trie_diff(block.hash, &self.owned, diff) {
            warn!(block.number = block.number, %error, "trie diff not handed over");
        }
        let bytes: usize = self.shards.iter().map(ShardTrie::byte_len).sum();
        self.instruments.trie_bytes.set(bytes as f64);
        self.instruments.layer_bytes.set(self.layers.read().bytes() as f64);
        self.boards[self.index].set(bytes, self.tip);
        if bytes > self.trie_bytes_max {
            let share = self.trie_bytes_max / self.shards.len();
            self.shards.iter_mut().for_each(|shard| shard.prune(share));
        }
    }

    /// Gives up the open block, if there is one. The tries stand at its parent's state again, with
    /// what was revealed of it.
    pub(crate) fn give_up(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.failed.is_some() {
            self.clear();
            return;
        }
        self.targets.clear();
        self.dispatch.abandon();
        for (shard, closed) in self.shards.iter_mut().zip(&open.closed) {
            if closed.is_some() {
                shard.revert();
            } else {
                shard.cancel();
            }
        }
    }

    /// A block whose roots were given turned out invalid: takes it back.
    pub(crate) fn discard(&mut self, block: B256) {
        self.layers.write().remove(&block);
        self.discarded = Some(block);
        if self.tip != Some(block) {
            return;
        }
        if let Some(open) = &mut self.open {
            // It stands on what is not there any more.
            open.failed.get_or_insert(Error::Unavailable);
            open.retry = true;
            return;
        }
        self.shards.iter_mut().for_each(|shard| {
            // A shard without a way back is empty then, which is as right.
            shard.revert();
        });
        self.tip = Some(self.last_parent);
        let bytes = self.shards.iter().map(ShardTrie::byte_len).sum();
        self.boards[self.index].set(bytes, self.tip);
    }

    /// Forgets the tries, and what is under way for them.
    pub(crate) fn clear(&mut self) {
        if self.tip.take().is_some() {
            self.instruments.cleared.increment(1);
            self.boards[self.index].set(0, None);
        }
        self.targets.clear();
        self.dispatch.abandon();
        self.shards.iter_mut().for_each(ShardTrie::clear);
    }

    /// The layers from the parent down to the base. After a restart, or after the base stepped
    /// back, some are missing here that storage-writer can still tell.
    pub(crate) fn resolve_branch(&mut self, parent: B256) -> Result<Branch, Error> {
        let branch = self.layers.read().branch(parent);
        let base = self.storage.checkpoint()?.base;
        if branch.reaches(&base.hash) {
            return Ok(branch);
        }
        let pending: HashMap<B256, (BlockId, B256)> = self
            .storage
            .pending()?
            .into_iter()
            .map(|block| (block.id.hash, (block.id, block.parent)))
            .collect();
        let mut block = branch.bottom();
        while let Some(&(id, parent)) = pending.get(&block) {
            let diff = self.storage.trie_diff(block)?;
            let mut layers = self.layers.write();
            if let Some(diff) = diff {
                layers.insert(id, parent, diff);
            }
            block = parent;
            if layers.contains(&block) {
                block = layers.branch(block).bottom();
            }
        }
        let branch = self.layers.read().branch(parent);
        let base = self.storage.checkpoint()?.base;
        if branch.reaches(&base.hash) {
            Ok(branch)
        } else {
            Err(Error::ParentUnreachable { parent, base })
        }
    }
}
