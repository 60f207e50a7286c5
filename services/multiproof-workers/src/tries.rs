//! Tries of one owner's shards, and the blocks whose state they hold.

use crate::{config::Config, dispatch::shard_of, pool::Proof, status::HeldTries, walk::unpack};
use tandem_primitives::{B256, Shard, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::multiproof::{Foresight, Prefetch};
use tandem_trie::{Counts, ShardTrie};

/// Tries of the shards of one owner, kept from block to block.
pub struct OwnedTries {
    owned: ShardSet,
    /// Tries of the shards, in ascending order of the shards.
    tries: Vec<ShardTrie>,
    /// Position in `tries` by [`Shard::index`].
    places: [Option<u8>; Shard::COUNT],
    /// Block whose state each of the tries holds, by the same position. For a shard that an open
    /// block asks for, it is that block's parent. `None` when the tries are empty.
    tips: Vec<Option<B256>>,
    /// Block that the newest of the tries hold.
    newest: Option<B256>,
    bytes_max: usize,
    /// Position of the shard that was last checked for work ahead.
    last_ahead: usize,
    /// Duplicates that the tries had counted when the last block was over.
    duplicates: u64,
}

impl OwnedTries {
    /// Creates empty tries of these shards.
    pub fn new(owned: ShardSet, config: &Config) -> Self {
        let mut places = [None; Shard::COUNT];
        let mut tries = Vec::with_capacity(owned.len());
        for shard in owned.iter() {
            places[shard.index()] = Some(tries.len() as u8);
            let mut trie = ShardTrie::new(shard);
            trie.verify_nodes = config.verify_nodes;
            tries.push(trie);
        }
        Self {
            owned,
            tips: vec![None; tries.len()],
            tries,
            places,
            newest: None,
            bytes_max: config.trie_bytes_max * owned.len() / Shard::COUNT,
            last_ahead: 0,
            duplicates: 0,
        }
    }

    /// Returns the shards whose tries these are.
    pub fn owned(&self) -> ShardSet {
        self.owned
    }

    /// Returns the tries of a shard, `None` when they are another owner's.
    #[inline]
    pub fn get_mut(&mut self, shard: Shard) -> Option<&mut ShardTrie> {
        self.tries.get_mut(usize::from(self.places[shard.index()]?))
    }

    /// Returns the tries of a shard that is in `shards`, `None` otherwise.
    #[inline]
    pub fn asked(&mut self, shard: Shard, shards: ShardSet) -> Option<&mut ShardTrie> {
        if shards.contains(shard) { self.get_mut(shard) } else { None }
    }

    fn target_tries(&mut self, target: &WalkTarget) -> Option<&mut ShardTrie> {
        let tries = self.get_mut(shard_of(target));
        debug_assert!(tries.is_some(), "targets come from our own shards");
        tries
    }

    /// Returns the shards among these whose tries do not hold the state of this block.
    pub fn not_at(&self, shards: ShardSet, block: B256) -> ShardSet {
        let others = self.owned.iter().zip(&self.tips).filter(|(_, tip)| **tip != Some(block));
        others.map(|(shard, _)| shard).collect::<ShardSet>().intersection(shards)
    }

    /// Notes that the tries of these shards hold the state of this block, which is the newest.
    pub fn set_tips(&mut self, shards: ShardSet, block: B256) {
        for (shard, tip) in self.owned.iter().zip(&mut self.tips) {
            if shards.contains(shard) {
                *tip = Some(block);
            }
        }
        self.newest = Some(block);
    }

    /// Notes that this block is open and asks for none of these tries, so they fall behind. Returns
    /// false when they hold that block, or had fallen behind before.
    pub fn fall_behind(&mut self, block: B256) -> bool {
        self.newest.take_if(|newest| *newest != block).is_some()
    }

    /// Returns the shards whose tries hold neither of these blocks. Another owner answers for such
    /// a shard by now.
    pub fn stale(&self, block: B256, parent: B256) -> ShardSet {
        let stale = |tip: &B256| *tip != block && *tip != parent;
        let tips = self.owned.iter().zip(&self.tips);
        tips.filter(|(_, tip)| tip.as_ref().is_some_and(stale)).map(|(shard, _)| shard).collect()
    }

    /// Empties the tries of these shards. Returns whether one of them held a state.
    pub fn clear(&mut self, shards: ShardSet) -> bool {
        let mut held = false;
        for (at, shard) in self.owned.iter().enumerate() {
            if shards.contains(shard) {
                held |= self.tips[at].take().is_some();
                self.tries[at].clear();
            }
        }
        held
    }

    /// Takes back a block that was closed. The tries step back to its parent's state.
    pub fn discard(&mut self, block: B256, parent: Option<B256>) {
        for (trie, tip) in self.tries.iter_mut().zip(&mut self.tips) {
            if *tip == Some(block) {
                // A shard without a way back is empty then, which is also right.
                trie.revert();
                *tip = parent;
            }
        }
        if self.newest == Some(block) {
            self.newest = parent;
        }
    }

    /// Hashes nodes of one shard that will probably not change any more. Stops after one shard,
    /// because more urgent work may arrive meanwhile. Returns false when there is nothing worth
    /// hashing.
    pub fn work_ahead(&mut self) -> bool {
        for _ in 0..self.tries.len() {
            self.last_ahead = (self.last_ahead + 1) % self.tries.len();
            if self.tries[self.last_ahead].work_ahead() > 0 {
                return true;
            }
        }
        false
    }

    /// Looks for keys that a block will probably touch. Appends the keys whose paths are missing.
    pub fn prefetch(&mut self, keys: &Prefetch, shards: ShardSet, missing: &mut Vec<WalkTarget>) {
        for (address_hash, slots) in &keys.accounts {
            if let Some(trie) = self.asked(Shard::of(address_hash), shards) {
                trie.prefetch(address_hash, slots);
                trie.take_targets(missing);
            }
        }
    }

    /// Writes values that a block will probably write. Appends the keys whose paths are missing.
    pub fn foresee(
        &mut self,
        foresight: &Foresight,
        shards: ShardSet,
        missing: &mut Vec<WalkTarget>,
    ) {
        for (before, after) in foresight.before.iter().zip(&foresight.after) {
            if let Some(trie) = self.asked(before.shard(), shards) {
                trie.foresee(before, after);
                trie.take_targets(missing);
            }
        }
    }

    /// Hashes foreseen values to the tops of the tries.
    pub fn hash_foreseen(&mut self) {
        for tries in &mut self.tries {
            tries.hash_foreseen();
        }
    }

    /// Reveals the nodes of an answer, and writes the leaves that waited for them. Appends the keys
    /// that this leads to.
    ///
    /// # Errors
    /// When a node does not fit the tries.
    pub fn reveal(
        &mut self,
        proof: &Proof,
        more: &mut Vec<WalkTarget>,
    ) -> Result<(), tandem_trie::Error> {
        let mut path = (usize::MAX, [0; 64]);
        for node in proof.nodes.iter() {
            let Some(target) = proof.targets.get(node.target) else { continue };
            if path.0 != node.target {
                path = (node.target, unpack(&target.key));
            }
            let (owner, path) = (target.owner.as_ref(), &path.1[..node.depth]);
            let Some(tries) = self.target_tries(target) else { continue };
            match node.hash {
                Some(hash) => tries.reveal_hashed(owner, path, node.rlp, hash)?,
                None => tries.reveal(owner, path, node.rlp)?,
            }
        }
        for target in &proof.targets {
            if let Some(tries) = self.target_tries(target) {
                tries.answered(target);
                tries.take_targets(more);
            }
        }
        Ok(())
    }

    /// Takes the buffers of these shards' diffs back for later blocks.
    pub fn recycle(&mut self, shards: ShardSet, diffs: Vec<TrieDiff>) {
        for (shard, diff) in shards.iter().zip(diffs) {
            if let Some(tries) = self.get_mut(shard) {
                tries.recycle(diff);
            }
        }
    }

    /// Removes old nodes if the tries take more bytes than they may. They take `bytes` now.
    pub fn prune(&mut self, bytes: usize) {
        if bytes > self.bytes_max {
            let held = self.tips.iter().flatten().count().max(1);
            let share = self.bytes_max / held;
            self.tries.iter_mut().for_each(|tries| tries.prune(share));
        }
    }

    /// Returns the bytes that the tries take.
    pub fn byte_len(&self) -> usize {
        self.tries.iter().map(ShardTrie::byte_len).sum()
    }

    /// Returns the newest block that the tries hold, and the shards whose tries hold it.
    pub fn held(&self) -> HeldTries {
        let tips = self.owned.iter().zip(&self.tips);
        let newest = tips.filter(|(_, tip)| tip.is_some() && **tip == self.newest);
        let shards: ShardSet = newest.map(|(shard, _)| shard).collect();
        HeldTries { tip: self.newest.filter(|_| !shards.is_empty()), shards }
    }

    /// Returns the counts of these shards' work in the last block.
    pub fn counts(&self, shards: ShardSet) -> impl Iterator<Item = Counts> {
        let tries = self.owned.iter().zip(&self.tries);
        tries.filter(move |(shard, _)| shards.contains(*shard)).map(|(_, trie)| trie.counts())
    }

    /// Returns the duplicates that the tries have counted since the last call.
    pub fn take_duplicates(&mut self) -> u64 {
        let duplicates = self.tries.iter().map(ShardTrie::duplicates).sum();
        duplicates - std::mem::replace(&mut self.duplicates, duplicates)
    }
}
