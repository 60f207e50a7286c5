//! Blocks above the base, in memory: a tree by hash, and the canonical path through it. Pure.
//!
//! **Which blocks stay.** A branch that leaves the canonical chain above the finalized block may
//! become canonical again, however old it is. So a block is never removed below a block that stays.
//! A branch is removed as a whole, once finality excludes it. When side branches take too many
//! bytes of the database, the branch whose tip was committed first is evicted. The head's branch
//! and the branch that is being extended are never evicted.
//!
//! **What is in memory.** Records (state diffs) and trie diffs of the canonical path stay until
//! their blocks enter the base. Diffs of other branches stay while there is room. Trie diffs go
//! first, because they can be computed. Records follow, because they can be read from the database
//! again.

use crate::codec::PendingRecord;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};
use tandem_primitives::{B256, BlockId, BlockNumber, ShardSet, TrieDiff};
use tandem_proto::storage::Forkchoice;

/// Maximum number of trie diffs kept for blocks whose commit is still on its way.
const EARLY_MAX: usize = 64;

/// Process that computed a trie diff.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Origin {
    /// This one: storage-writer itself, or workers that run beside it.
    #[default]
    Here,
    /// Another one, which may have a damaged memory or another version of the code.
    Elsewhere,
}

/// Parts of one block's trie diff that were handed over or computed.
#[derive(Clone, Default, Debug)]
pub struct TrieParts {
    shards: ShardSet,
    parts: Vec<Arc<TrieDiff>>,
    origin: Origin,
}

impl TrieParts {
    /// Creates parts from a single diff of all shards, which storage-writer computed.
    pub fn whole(diff: Arc<TrieDiff>) -> Self {
        Self { shards: ShardSet::ALL, parts: vec![diff], origin: Origin::Here }
    }

    /// Returns `Here` if this process computed all parts.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Adds the diff of some shards. A diff without a new shard is ignored, because all diffs of a
    /// block's shard are equal.
    pub fn add(&mut self, shards: ShardSet, diff: Arc<TrieDiff>, origin: Origin) {
        if !self.shards.contains_all(shards) {
            self.shards = self.shards.union(shards);
            self.parts.push(diff);
            if origin == Origin::Elsewhere {
                self.origin = origin;
            }
        }
    }

    /// Returns the parts when they cover every shard.
    pub fn complete(&self) -> Option<&[Arc<TrieDiff>]> {
        (self.shards == ShardSet::ALL).then_some(&self.parts)
    }

    /// Returns the bytes that the parts take in memory.
    fn byte_len(&self) -> u64 {
        self.parts.iter().map(|part| part.byte_len() as u64).sum()
    }

    /// Merges the parts into one diff when they cover every shard.
    pub fn merge(&mut self) -> Option<Arc<TrieDiff>> {
        if self.complete()?.len() != 1 {
            let mut whole = TrieDiff::default();
            self.parts.iter().for_each(|part| whole.append(part));
            self.parts = vec![Arc::new(whole)];
        }
        self.parts.first().cloned()
    }
}

/// Pending block, as far as it is in memory.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// Bytes that all its records take in the database.
    pub disk_bytes: u64,
    /// State diff and transaction hashes, `None` when only the database has them.
    pub record: Option<Arc<PendingRecord>>,
    /// Changes to the tries, as far as known.
    pub trie: TrieParts,
    /// Whether the diff was found to lead to the root in the header, or need not be checked any
    /// more.
    pub proven: bool,
}

impl Pending {
    /// Creates a block whose tries are not known.
    pub fn new(record: Arc<PendingRecord>, disk_bytes: u64, proven: bool) -> Self {
        Self {
            id: record.id,
            parent: record.parent,
            disk_bytes,
            record: Some(record),
            trie: TrieParts::default(),
            proven,
        }
    }

    fn memory_bytes(&self) -> u64 {
        let record = self.record.as_ref();
        record.map_or(0, |record| record.memory_bytes()) + self.trie.byte_len()
    }
}

/// Limits on the pending blocks.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Minimum number of blocks from the base to the head.
    pub persist_depth: u64,
    /// Maximum number of blocks from the base to the head while they are not final.
    pub unfinalized_blocks_max: u64,
    /// Maximum bytes of records and trie diffs in memory.
    pub memory_bytes_max: u64,
    /// Maximum bytes in the database of blocks that are not canonical.
    pub side_bytes_max: u64,
}

/// Position of a block relative to the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ancestor {
    /// The block is the base, or a pending block above it: blocks lead from the base to it.
    Base,
    /// The branch leaves the pending blocks at the block with this hash, which is not pending.
    Other(B256),
}

/// Pending block, and how many blocks were added before it.
#[derive(Debug)]
struct Entry {
    block: Pending,
    order: u64,
}

/// Tree of pending blocks over the base.
#[derive(Debug)]
pub struct Chain {
    base: BlockId,
    forkchoice: Forkchoice,
    pending: HashMap<B256, Entry>,
    /// Hashes of the canonical blocks above the base, ending with the head.
    path: VecDeque<B256>,
    /// Height up to which the base moves.
    goal: BlockNumber,
    early: VecDeque<(B256, ShardSet, Arc<TrieDiff>, Origin)>,
    added: u64,
    memory_bytes: u64,
    disk_bytes: u64,
}

impl Chain {
    /// Creates a tree without pending blocks, whose base stays where it is.
    pub fn new(base: BlockId, forkchoice: Forkchoice) -> Self {
        Self {
            base,
            forkchoice,
            pending: HashMap::new(),
            path: VecDeque::new(),
            goal: base.number,
            early: VecDeque::new(),
            added: 0,
            memory_bytes: 0,
            disk_bytes: 0,
        }
    }

    /// Returns the block whose state the base holds.
    pub fn base(&self) -> BlockId {
        self.base
    }

    /// Returns the last forkchoice.
    pub fn forkchoice(&self) -> Forkchoice {
        self.forkchoice
    }

    /// Returns the number of pending blocks.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the bytes that pending blocks take in the database, and in memory.
    pub fn bytes(&self) -> (u64, u64) {
        (self.disk_bytes, self.memory_bytes)
    }

    /// Returns the pending block with this hash.
    pub fn get(&self, hash: &B256) -> Option<&Pending> {
        self.pending.get(hash).map(|entry| &entry.block)
    }

    /// Returns all pending blocks, parents before children.
    pub fn ordered(&self) -> Vec<Pending> {
        let mut blocks: Vec<_> = self.pending.values().map(|entry| entry.block.clone()).collect();
        blocks.sort_unstable_by_key(|block| (block.id.number, block.id.hash));
        blocks
    }

    /// Returns the blocks whose roots were not checked, parents before children. Includes the
    /// blocks that build on them. Canonical blocks are never included, because a block becomes
    /// canonical only when it is valid.
    pub fn unproven(&self) -> Vec<Pending> {
        let mut blocks = self.ordered();
        let mut suspects = HashSet::new();
        blocks.retain(|block| {
            let suspect = !self.is_canonical(&block.id)
                && (!block.proven || suspects.contains(&block.parent));
            if suspect {
                suspects.insert(block.id.hash);
            }
            suspect
        });
        blocks
    }

    /// Notes that a block is valid. Returns whether this was not known before.
    pub fn set_proven(&mut self, hash: &B256) -> bool {
        let entry = self.pending.get_mut(hash);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.block.proven, true))
    }

    /// Adds a block, with the trie diffs that arrived before it.
    pub fn insert(&mut self, mut block: Pending) {
        let hash = block.id.hash;
        self.early.retain(|(early, shards, diff, origin)| {
            if *early == hash {
                block.trie.add(*shards, diff.clone(), *origin);
            }
            *early != hash
        });
        if self.pending.contains_key(&hash) {
            return;
        }
        self.memory_bytes += block.memory_bytes();
        self.disk_bytes += block.disk_bytes;
        self.added += 1;
        self.pending.insert(hash, Entry { block, order: self.added });
    }

    /// Forgets a block.
    pub fn remove(&mut self, hash: &B256) -> Option<Pending> {
        let Entry { block, .. } = self.pending.remove(hash)?;
        self.memory_bytes -= block.memory_bytes();
        self.disk_bytes -= block.disk_bytes;
        Some(block)
    }

    /// Changes a pending block, and counts its bytes anew.
    fn change<T>(&mut self, hash: &B256, change: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        let Entry { block, .. } = self.pending.get_mut(hash)?;
        self.memory_bytes -= block.memory_bytes();
        let result = change(block);
        self.memory_bytes += block.memory_bytes();
        Some(result)
    }

    /// Adds a part of a block's trie diff. A part for an unknown block is kept for a while, because
    /// the commit may arrive later by another way. The oldest of these parts give way to newer
    /// ones.
    pub fn add_trie(&mut self, hash: B256, shards: ShardSet, diff: Arc<TrieDiff>, origin: Origin) {
        if self.change(&hash, |block| block.trie.add(shards, diff.clone(), origin)).is_some() {
            return;
        }
        if self.early.len() == EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back((hash, shards, diff, origin));
    }

    /// Replaces all known parts of a block's trie diff.
    pub fn set_trie(&mut self, hash: &B256, trie: TrieParts) {
        self.change(hash, |block| block.trie = trie);
    }

    /// Returns the whole trie diff of a block when all its parts are present.
    pub fn merged_trie(&mut self, hash: &B256) -> Option<Arc<TrieDiff>> {
        self.change(hash, |block| block.trie.merge())?
    }

    /// Returns whether this block is on the path from the base to the head.
    pub fn is_canonical(&self, id: &BlockId) -> bool {
        self.canonical_hash(id.number) == Some(id.hash)
    }

    /// Returns the hash of the canonical block at a height above the base, up to the head.
    pub fn canonical_hash(&self, number: BlockNumber) -> Option<B256> {
        let above = number.checked_sub(self.base.number)?.checked_sub(1)?;
        self.path.get(usize::try_from(above).ok()?).copied()
    }

    /// Returns the hashes of the canonical blocks above the base, lowest first.
    pub fn path(&self) -> impl DoubleEndedIterator<Item = &B256> {
        self.path.iter()
    }

    /// Follows a block's pending ancestors down to `base`, or to the end of the branch.
    pub fn ancestor(&self, hash: B256, base: &B256) -> (Ancestor, Vec<B256>) {
        let mut branch = Vec::new();
        let mut at = hash;
        while at != *base {
            let Some(block) = self.get(&at) else { return (Ancestor::Other(at), branch) };
            branch.push(at);
            at = block.parent;
        }
        branch.reverse();
        (Ancestor::Base, branch)
    }

    /// Returns the canonical blocks above the base that are not on another path from the base.
    pub fn left_by(&self, path: &[B256]) -> Vec<B256> {
        let shared = self.path.iter().zip(path).take_while(|(old, new)| old == new).count();
        self.path.range(shared..).copied().collect()
    }

    /// Makes a forkchoice the current one. `path` leads from the base to its head.
    pub fn set_forkchoice(&mut self, forkchoice: Forkchoice, path: Vec<B256>) {
        self.forkchoice = forkchoice;
        self.path = path.into();
    }

    /// Decides how far the base moves until the next forkchoice. It moves up to the finalized
    /// block, so that each branch that may still win stands above it. It moves further when too
    /// many blocks or bytes would stay above the base. It never comes closer to the head than
    /// `persist_depth`.
    pub fn set_goal(&mut self, limits: &Limits) {
        let head = self.forkchoice.head.number;
        let finalized = self.forkchoice.finalized.map_or(0, |block| block.number);
        let mut least = head.saturating_sub(limits.unfinalized_blocks_max);
        let mut bytes = 0;
        for block in self.path.iter().rev().filter_map(|hash| self.get(hash)) {
            let held = block.memory_bytes();
            bytes += if held == 0 { block.disk_bytes } else { held };
            if bytes > limits.memory_bytes_max {
                least = least.max(block.id.number);
                break;
            }
        }
        let most = head.saturating_sub(limits.persist_depth);
        self.goal = most.min(finalized.max(least)).max(self.base.number);
    }

    /// Keeps the base where it is until the next forkchoice.
    pub fn stay(&mut self) {
        self.goal = self.base.number;
    }

    /// Returns the height up to which the base moves.
    pub fn goal(&self) -> BlockNumber {
        self.goal
    }

    /// Returns the number of blocks that are due to enter the base.
    pub fn backlog(&self) -> u64 {
        self.goal.saturating_sub(self.base.number)
    }

    /// Returns the canonical blocks that enter the base next, lowest first; none when none is due. They
    /// are `blocks_max` at most, and take no more than `bytes_max` in memory unless a single block does.
    /// A block whose trie diff is not complete comes alone, because it is computed over the base.
    pub fn next_step(&self, blocks_max: u64, bytes_max: u64) -> Vec<Pending> {
        let due = self.path.iter().map_while(|hash| self.get(hash));
        let due = due.take_while(|block| block.id.number <= self.goal);
        let mut step: Vec<Pending> = Vec::new();
        let mut bytes = 0;
        for block in due.take(usize::try_from(blocks_max.max(1)).unwrap_or(usize::MAX)) {
            bytes += block.memory_bytes();
            let alone = block.trie.complete().is_none();
            if !step.is_empty() && (alone || bytes > bytes_max) {
                break;
            }
            step.push(block.clone());
            if alone {
                break;
            }
        }
        step
    }

    /// Notes that the first canonical block above the base has entered it.
    pub fn advance(&mut self) {
        let Some(block) = self.path.pop_front().and_then(|hash| self.remove(&hash)) else {
            return;
        };
        self.base = block.id;
    }

    /// Notes that the base stepped back from these blocks, highest first. They are pending again.
    /// Records that memory has no room for stay in the database only.
    pub fn step_back(&mut self, base: BlockId, blocks: Vec<Pending>, limits: &Limits) {
        for mut block in blocks {
            self.path.push_front(block.id.hash);
            if self.memory_bytes > limits.memory_bytes_max {
                block.record = None;
            }
            self.insert(block);
        }
        self.base = base;
        self.stay();
    }

    /// Returns side blocks that cannot become canonical any more, with all their descendants. The
    /// finalized block excludes some of them. Others leave the base's chain below `oldest`, the
    /// lowest height to which the base can step back.
    pub fn excluded(&self, oldest: BlockNumber) -> Vec<B256> {
        let finalized = self.forkchoice.finalized.map_or(0, |block| block.number);
        let starts = |block: &Pending| {
            block.id.number <= finalized
                || (block.id.number <= oldest && !self.pending.contains_key(&block.parent))
        };
        let side = |block: &Pending| !self.is_canonical(&block.id);
        if !self.pending.values().any(|entry| starts(&entry.block) && side(&entry.block)) {
            return Vec::new();
        }
        let mut excluded = HashSet::new();
        for block in self.ordered().iter().filter(|block| side(block)) {
            if starts(block) || excluded.contains(&block.parent) {
                excluded.insert(block.id.hash);
            }
        }
        excluded.into_iter().collect()
    }

    /// Returns the branch to evict for a child of `parent` when side branches take too many bytes.
    /// This is the branch whose tip was added first, from its tip down to the fork with another
    /// block. Returns `None` when there is room, or no branch can go.
    pub fn crowded_out(&self, parent: &B256, limits: &Limits) -> Option<Vec<B256>> {
        let canonical =
            |hash: &B256| self.get(hash).is_none_or(|block| self.is_canonical(&block.id));
        let path_bytes: u64 =
            self.path.iter().filter_map(|hash| self.get(hash)).map(|block| block.disk_bytes).sum();
        if self.disk_bytes.saturating_sub(path_bytes) <= limits.side_bytes_max {
            return None;
        }
        let mut children: HashMap<B256, usize> = HashMap::new();
        for entry in self.pending.values() {
            *children.entry(entry.block.parent).or_default() += 1;
        }
        let mut extended = HashSet::new();
        let mut at = *parent;
        while let Some(block) = self.get(&at).filter(|block| !self.is_canonical(&block.id)) {
            extended.insert(at);
            at = block.parent;
        }
        let tips = self.pending.iter().filter(|(hash, _)| {
            !children.contains_key(*hash) && !extended.contains(*hash) && !canonical(hash)
        });
        let (tip, _) = tips.min_by_key(|(_, entry)| entry.order)?;
        let mut branch = vec![*tip];
        let mut at = self.get(tip)?.parent;
        while !canonical(&at) && !extended.contains(&at) && children.get(&at) == Some(&1) {
            branch.push(at);
            at = self.get(&at)?.parent;
        }
        Some(branch)
    }

    /// Drops the diffs of side blocks from memory until the rest fits: trie diffs of the oldest
    /// blocks first, then records.
    pub fn shrink(&mut self, limits: &Limits) {
        if self.memory_bytes <= limits.memory_bytes_max {
            return;
        }
        let side = self.pending.values().filter(|entry| !self.is_canonical(&entry.block.id));
        let mut side: Vec<_> = side.map(|entry| (entry.order, entry.block.id.hash)).collect();
        side.sort_unstable();
        let drop_trie: fn(&mut Pending) = |block| block.trie = TrieParts::default();
        let drop_record: fn(&mut Pending) = |block| block.record = None;
        for drop in [drop_trie, drop_record] {
            for (_, hash) in &side {
                if self.memory_bytes <= limits.memory_bytes_max {
                    return;
                }
                self.change(hash, drop);
            }
        }
    }
}

#[cfg(test)]
mod tests;
