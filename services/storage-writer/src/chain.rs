//! The blocks beyond the base, in memory: a tree by hash, and the canonical path through it. Pure.
//!
//! **Which blocks stay.** A branch that leaves the canonical chain above the finalized block may
//! become canonical again, however old it is, so nothing is ever cut off below a block that stays.
//! A branch goes as a whole: once finality excludes it, or, where branches take more bytes of the
//! database than they may, the one whose tip was committed first. The branch of the head and the
//! branch that is being extended are never among those.
//!
//! **What is in memory.** Records (state diffs) and trie diffs of the canonical path stay until they
//! enter the base. Those of other branches stay while there is room: trie diffs go first, because
//! they can be computed, then records, which are read from the database again.

use crate::codec::PendingRecord;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};
use tandem_primitives::{B256, BlockId, BlockNumber, Shard, TrieDiff};
use tandem_proto::storage::Forkchoice;

/// Trie diffs kept for blocks whose commit is still on its way.
const EARLY_MAX: usize = 64;
const ALL_SHARDS: u16 = u16::MAX;

/// The parts of one block's trie diff that were handed over or computed.
#[derive(Clone, Default, Debug)]
pub struct TrieParts {
    shards: u16,
    parts: Vec<Arc<TrieDiff>>,
}

impl TrieParts {
    /// All shards in one.
    pub fn whole(diff: Arc<TrieDiff>) -> Self {
        Self { shards: ALL_SHARDS, parts: vec![diff] }
    }

    /// Takes in the diff of some shards. Shards that are there already are not looked at again:
    /// every diff of a block's shard is the same.
    pub fn add(&mut self, shards: u16, diff: Arc<TrieDiff>) {
        if shards & !self.shards != 0 {
            self.shards |= shards;
            self.parts.push(diff);
        }
    }

    /// The parts when they cover every shard.
    pub fn complete(&self) -> Option<&[Arc<TrieDiff>]> {
        (self.shards == ALL_SHARDS).then_some(&self.parts)
    }

    /// Bytes that the parts take in memory.
    fn byte_len(&self) -> u64 {
        self.parts.iter().map(|part| part.byte_len() as u64).sum()
    }

    /// Everything in one diff when the parts cover every shard.
    pub fn merge(&mut self) -> Option<Arc<TrieDiff>> {
        if self.complete()?.len() != 1 {
            let mut whole = TrieDiff::default();
            self.parts.iter().for_each(|part| whole.append(part));
            self.parts = vec![Arc::new(whole)];
        }
        self.parts.first().cloned()
    }
}

/// A set of shards as bits.
pub fn shard_bits(shards: &[Shard]) -> u16 {
    shards.iter().fold(0, |bits, shard| bits | 1 << shard.nibble())
}

/// A pending block as far as it is in memory.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// Bytes that it takes in the database, all its records together.
    pub disk_bytes: u64,
    /// State diff and transaction hashes, `None` when they are in the database alone.
    pub record: Option<Arc<PendingRecord>>,
    /// What it did to the tries, as far as known.
    pub trie: TrieParts,
    /// Whether it was checked that its diff leads to the root in its header, or that need not be
    /// checked any more.
    pub proven: bool,
}

impl Pending {
    /// A block whose tries are not known.
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

/// Limits of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks that the base stays behind the head at least.
    pub persist_depth: u64,
    /// Blocks that the base stays behind the head at most while they are not final.
    pub unfinalized_blocks_max: u64,
    /// Bytes of records and trie diffs in memory.
    pub memory_bytes_max: u64,
    /// Bytes in the database of blocks that are not canonical.
    pub side_bytes_max: u64,
}

/// Where a block stands relative to the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ancestor {
    /// The base, or a pending block above it: blocks lead from the base to it.
    Base,
    /// This block, which is not pending, is where its branch leaves what is pending.
    Other(B256),
}

/// A pending block, and how many blocks were added before it.
#[derive(Debug)]
struct Entry {
    block: Pending,
    order: u64,
}

/// The tree of pending blocks over the base.
#[derive(Debug)]
pub struct Chain {
    base: BlockId,
    forkchoice: Forkchoice,
    pending: HashMap<B256, Entry>,
    /// Hashes of the canonical blocks above the base, ending with the head.
    path: VecDeque<B256>,
    /// Height up to which the base moves.
    goal: BlockNumber,
    early: VecDeque<(B256, u16, Arc<TrieDiff>)>,
    added: u64,
    memory_bytes: u64,
    disk_bytes: u64,
}

impl Chain {
    /// A tree without pending blocks, whose base stays where it is.
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

    /// The block whose state the base holds.
    pub fn base(&self) -> BlockId {
        self.base
    }

    /// The last forkchoice.
    pub fn forkchoice(&self) -> Forkchoice {
        self.forkchoice
    }

    /// Number of pending blocks.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Bytes that pending blocks take in the database, and in memory.
    pub fn bytes(&self) -> (u64, u64) {
        (self.disk_bytes, self.memory_bytes)
    }

    /// The pending block with this hash.
    pub fn get(&self, hash: &B256) -> Option<&Pending> {
        self.pending.get(hash).map(|entry| &entry.block)
    }

    /// All pending blocks, parents before children.
    pub fn ordered(&self) -> Vec<Pending> {
        let mut blocks: Vec<_> = self.pending.values().map(|entry| entry.block.clone()).collect();
        blocks.sort_unstable_by_key(|block| (block.id.number, block.id.hash));
        blocks
    }

    /// The blocks, parents before children, whose roots were not checked. A block that builds on such
    /// a block is one too; a canonical block is none, because a block becomes canonical when it is
    /// valid.
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

    /// Notes that a block is valid. Returns whether that is news.
    pub fn set_proven(&mut self, hash: &B256) -> bool {
        let entry = self.pending.get_mut(hash);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.block.proven, true))
    }

    /// Adds a block, with the trie diffs that came before it.
    pub fn insert(&mut self, mut block: Pending) {
        let hash = block.id.hash;
        self.early.retain(|(early, shards, diff)| {
            if *early == hash {
                block.trie.add(*shards, diff.clone());
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

    /// Changes a block that is pending, and counts its bytes anew.
    fn change<T>(&mut self, hash: &B256, change: impl FnOnce(&mut Pending) -> T) -> Option<T> {
        let Entry { block, .. } = self.pending.get_mut(hash)?;
        self.memory_bytes -= block.memory_bytes();
        let result = change(block);
        self.memory_bytes += block.memory_bytes();
        Some(result)
    }

    /// Takes in a part of a block's trie diff. For a block that is not known it waits a while: the
    /// commit may come by another way. The oldest of those give way to newer ones.
    pub fn add_trie(&mut self, hash: B256, shards: u16, diff: Arc<TrieDiff>) {
        if self.change(&hash, |block| block.trie.add(shards, diff.clone())).is_some() {
            return;
        }
        if self.early.len() == EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back((hash, shards, diff));
    }

    /// Replaces all that is known of a block's trie diff.
    pub fn set_trie(&mut self, hash: &B256, trie: TrieParts) {
        self.change(hash, |block| block.trie = trie);
    }

    /// The whole trie diff of a block when all its parts are there.
    pub fn merged_trie(&mut self, hash: &B256) -> Option<Arc<TrieDiff>> {
        self.change(hash, |block| block.trie.merge())?
    }

    /// Whether this block is on the way from the base to the head.
    pub fn is_canonical(&self, id: &BlockId) -> bool {
        self.canonical_hash(id.number) == Some(id.hash)
    }

    /// Hash of the canonical block at a height above the base, up to the head.
    pub fn canonical_hash(&self, number: BlockNumber) -> Option<B256> {
        let above = number.checked_sub(self.base.number)?.checked_sub(1)?;
        self.path.get(usize::try_from(above).ok()?).copied()
    }

    /// Hashes of the canonical blocks above the base, lowest first.
    pub fn path(&self) -> impl DoubleEndedIterator<Item = &B256> {
        self.path.iter()
    }

    /// Goes from a block through its pending ancestors down to `base`, or to where it ends.
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

    /// The canonical blocks above the base that are none of another path from the base.
    pub fn left_by(&self, path: &[B256]) -> Vec<B256> {
        let shared = self.path.iter().zip(path).take_while(|(old, new)| old == new).count();
        self.path.range(shared..).copied().collect()
    }

    /// Makes a forkchoice the current one. `path` leads from the base to its head.
    pub fn set_forkchoice(&mut self, forkchoice: Forkchoice, path: Vec<B256>) {
        self.forkchoice = forkchoice;
        self.path = path.into();
    }

    /// Decides how far the base moves until the next forkchoice: up to the finalized block, so that
    /// each branch that may still win stands above it, and further where that would leave too many
    /// blocks or bytes above the base. It never comes closer to the head than `persist_depth`.
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

    /// Stops the base where it is until the next forkchoice.
    pub fn stay(&mut self) {
        self.goal = self.base.number;
    }

    /// The height up to which the base moves.
    pub fn goal(&self) -> BlockNumber {
        self.goal
    }

    /// Blocks that are due to enter the base.
    pub fn backlog(&self) -> u64 {
        self.goal.saturating_sub(self.base.number)
    }

    /// The canonical block that enters the base next, if one is due.
    pub fn next(&self) -> Option<&Pending> {
        let next = self.get(self.path.front()?)?;
        (next.id.number <= self.goal).then_some(next)
    }

    /// The first canonical block above the base has entered it.
    pub fn advance(&mut self) {
        let Some(block) = self.path.pop_front().and_then(|hash| self.remove(&hash)) else {
            return;
        };
        self.base = block.id;
    }

    /// The base stepped back from these blocks, highest first, which are pending again. Those that
    /// memory has no room for stay in the database alone.
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

    /// Side blocks that cannot become canonical any more, with all that builds on them: those that
    /// the finalized block excludes, and those that leave the base's chain below `oldest`, the lowest
    /// height that the base can step back to.
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

    /// The branch that gives way to a child of `parent` when side branches take more than they may:
    /// the one whose tip was added first, from its tip down to where another block builds on it.
    /// `None` when there is room, or no branch can go.
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

    /// Lets go of what side blocks have in memory until the rest fits: trie diffs of the oldest
    /// first, then records.
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
