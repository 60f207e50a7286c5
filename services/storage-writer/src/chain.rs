//! The blocks beyond the base, in memory: a tree by hash, and the canonical path through it. Pure.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};
use tandem_primitives::{B256, BlockId, BlockNumber, Shard, StateDiff, TrieDiff};
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

/// A pending block without header, body and receipts.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// Hashes of the transactions in block order.
    pub transaction_hashes: Arc<[B256]>,
    /// What the block did to the state.
    pub diff: Arc<StateDiff>,
    /// What it did to the tries, as far as known.
    pub trie: TrieParts,
    /// Whether it was checked that its diff leads to the root in its header, or nobody has to any more.
    pub proven: bool,
}

/// Where a block stands relative to the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ancestor {
    /// The base, or a pending block above it: blocks lead from the base to it.
    Base,
    /// This block, which is not pending, is where its branch leaves what is pending.
    Other(B256),
}

/// The tree of pending blocks over the base.
#[derive(Debug)]
pub struct Chain {
    base: BlockId,
    forkchoice: Forkchoice,
    pending: HashMap<B256, Pending>,
    /// Hashes of the canonical blocks above the base, ending with the head.
    path: VecDeque<B256>,
    early: VecDeque<(B256, u16, Arc<TrieDiff>)>,
}

impl Chain {
    /// A tree without pending blocks.
    pub fn new(base: BlockId, forkchoice: Forkchoice) -> Self {
        Self {
            base,
            forkchoice,
            pending: HashMap::new(),
            path: VecDeque::new(),
            early: VecDeque::new(),
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

    /// The pending block with this hash.
    pub fn get(&self, hash: &B256) -> Option<&Pending> {
        self.pending.get(hash)
    }

    /// All pending blocks, parents before children.
    pub fn ordered(&self) -> Vec<Pending> {
        let mut blocks: Vec<_> = self.pending.values().cloned().collect();
        blocks.sort_unstable_by_key(|block| (block.id.number, block.id.hash));
        blocks
    }

    /// Those, in the same order, of which nobody knows whether they are valid. One that builds on such a
    /// block is such a block; whoever made a block the head knew that it is valid.
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

    /// A block is known to be valid.
    pub fn set_proven(&mut self, hash: &B256) {
        if let Some(block) = self.pending.get_mut(hash) {
            block.proven = true;
        }
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
        self.pending.entry(hash).or_insert(block);
    }

    /// Forgets a block.
    pub fn remove(&mut self, hash: &B256) -> Option<Pending> {
        self.pending.remove(hash)
    }

    /// Takes in a part of a block's trie diff. For a block that is not known it waits a while: the
    /// commit may come by another way. The oldest of those give way to newer ones.
    pub fn add_trie(&mut self, hash: B256, shards: u16, diff: Arc<TrieDiff>) {
        if let Some(block) = self.pending.get_mut(&hash) {
            block.trie.add(shards, diff);
            return;
        }
        if self.early.len() == EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back((hash, shards, diff));
    }

    /// Replaces all that is known of a block's trie diff.
    pub fn set_trie(&mut self, hash: &B256, trie: TrieParts) {
        if let Some(block) = self.pending.get_mut(hash) {
            block.trie = trie;
        }
    }

    /// The whole trie diff of a block when all its parts are there.
    pub fn merged_trie(&mut self, hash: &B256) -> Option<Arc<TrieDiff>> {
        self.pending.get_mut(hash)?.trie.merge()
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
    pub fn path(&self) -> impl Iterator<Item = &B256> {
        self.path.iter()
    }

    /// Goes from a block through its pending ancestors down to `base`, or to where it ends.
    pub fn ancestor(&self, hash: B256, base: &B256) -> (Ancestor, Vec<B256>) {
        let mut branch = Vec::new();
        let mut at = hash;
        while at != *base {
            let Some(block) = self.pending.get(&at) else { return (Ancestor::Other(at), branch) };
            branch.push(at);
            at = block.parent;
        }
        branch.reverse();
        (Ancestor::Base, branch)
    }

    /// Makes a forkchoice the current one. `path` leads from the base to its head.
    pub fn set_forkchoice(&mut self, forkchoice: Forkchoice, path: Vec<B256>) {
        self.forkchoice = forkchoice;
        self.path = path.into();
    }

    /// Canonical blocks that are deeper below the head than `depth`, so due to enter the base.
    pub fn backlog(&self, depth: u64) -> u64 {
        (self.path.len() as u64).saturating_sub(depth)
    }

    /// The canonical block that enters the base next.
    pub fn next(&self) -> Option<&Pending> {
        self.pending.get(self.path.front()?)
    }

    /// The first canonical block above the base has entered it.
    pub fn advance(&mut self) {
        let Some(block) = self.path.pop_front().and_then(|hash| self.pending.remove(&hash)) else {
            return;
        };
        self.base = block.id;
    }

    /// The base stepped back from `block`, which is pending again.
    pub fn step_back(&mut self, parent: BlockId, block: Pending) {
        self.path.push_front(block.id.hash);
        self.base = parent;
        self.insert(block);
    }

    /// Pending blocks below a height that are on side chains.
    pub fn side_chains_below(&self, number: BlockNumber) -> Vec<B256> {
        let old = self.pending.values().filter(|block| block.id.number < number);
        old.filter(|block| !self.is_canonical(&block.id)).map(|block| block.id.hash).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_primitives::NodeChange;

    fn id(number: u64, branch: u8) -> BlockId {
        BlockId::new(number, B256::left_padding_from(&[branch, number as u8]))
    }

    fn block(id: BlockId, parent: BlockId) -> Pending {
        Pending {
            id,
            parent: parent.hash,
            transaction_hashes: Arc::new([]),
            diff: Arc::default(),
            trie: TrieParts::default(),
            proven: false,
        }
    }

    /// Base 10, canonical 11..=14, and a side chain 12..=13 from 11.
    fn chain() -> Chain {
        let mut chain = Chain::new(id(10, 0), Forkchoice::default());
        for number in 11..=14 {
            chain.insert(block(id(number, 0), id(number - 1, 0)));
        }
        chain.insert(block(id(12, 1), id(11, 0)));
        chain.insert(block(id(13, 1), id(12, 1)));
        let (_, path) = chain.ancestor(id(14, 0).hash, &id(10, 0).hash);
        chain.set_forkchoice(Forkchoice { head: id(14, 0), ..Forkchoice::default() }, path);
        chain
    }

    #[test]
    fn the_canonical_path_answers_by_number() {
        let mut chain = chain();
        assert_eq!(chain.canonical_hash(10), None);
        assert_eq!(chain.canonical_hash(11), Some(id(11, 0).hash));
        assert_eq!(chain.canonical_hash(14), Some(id(14, 0).hash));
        assert_eq!(chain.canonical_hash(15), None);
        assert_eq!(chain.backlog(2), 2);
        chain.advance();
        assert_eq!(chain.base(), id(11, 0));
        assert_eq!(chain.canonical_hash(11), None);
        assert_eq!(chain.canonical_hash(12), Some(id(12, 0).hash));
        chain.step_back(id(10, 0), block(id(11, 0), id(10, 0)));
        assert_eq!(chain.canonical_hash(11), Some(id(11, 0).hash));
        assert_eq!(chain.backlog(2), 2);
    }

    #[test]
    fn what_builds_on_a_block_that_nobody_proved_is_not_proven_either() {
        let mut chain = chain();
        let unproven =
            |chain: &Chain| chain.unproven().iter().map(|block| block.id).collect::<Vec<_>>();
        assert_eq!(unproven(&chain), [id(12, 1), id(13, 1)], "those that never were canonical");
        chain.set_proven(&id(13, 1).hash);
        assert_eq!(unproven(&chain), [id(12, 1), id(13, 1)]);
        chain.set_proven(&id(12, 1).hash);
        assert_eq!(unproven(&chain), []);
        chain.insert(block(id(14, 1), id(13, 1)));
        assert_eq!(unproven(&chain), [id(14, 1)], "not those before it again");
    }

    #[test]
    fn a_branch_that_leaves_below_the_base_says_where() {
        let mut chain = chain();
        let base = id(10, 0).hash;
        assert_eq!(chain.ancestor(base, &base), (Ancestor::Base, vec![]));
        let side = [id(11, 0), id(12, 1), id(13, 1)].map(|id| id.hash).to_vec();
        assert_eq!(chain.ancestor(id(13, 1).hash, &base), (Ancestor::Base, side));
        chain.insert(block(id(9, 2), id(8, 0)));
        let (ancestor, _) = chain.ancestor(id(9, 2).hash, &base);
        assert_eq!(ancestor, Ancestor::Other(id(8, 0).hash));
        assert_eq!(chain.side_chains_below(13).len(), 2);
    }

    #[test]
    fn parts_of_a_trie_diff_make_a_whole_in_any_order_also_before_their_block() {
        let part = |nibble: u8| {
            let mut diff = TrieDiff::default();
            diff.push(NodeChange { owner: None, path: &[nibble], rlp: Some(&[nibble]) });
            Arc::new(diff)
        };
        let mut chain = chain();
        let late = block(id(15, 0), id(14, 0));
        let hash = late.id.hash;
        chain.add_trie(hash, 0xff00, part(8));
        assert_eq!(chain.merged_trie(&hash), None);
        chain.insert(late);
        chain.add_trie(hash, 0xff00, part(8));
        assert_eq!(chain.merged_trie(&hash), None);
        chain.add_trie(hash, 0x00ff, part(0));
        assert_eq!(chain.merged_trie(&hash).unwrap().len(), 2);
    }
}
