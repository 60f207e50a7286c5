//! Recent blocks: every executed block near the head, on all branches, and which are canonical.

use alloy_consensus::Header;
use alloy_primitives::map::{B256Map, B256Set};
use std::{collections::BTreeMap, sync::Arc};
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::storage::Forkchoice;
use tokio::sync::watch;

/// Number of blocks kept below the base. They serve as parents for validation and for BLOCKHASH.
pub(crate) const BELOW_BASE: BlockNumber = 256;

/// Place of one executed, valid block in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
}

/// Tree of the recent blocks.
///
/// Branches stay until finality excludes them, so the tree is large while the chain is not
/// finalized. Headers of branches far below the base are not kept: storage-writer has them.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: B256Map<Node>,
    headers: BTreeMap<(BlockNumber, B256), Arc<Header>>,
    canonical: BTreeMap<BlockNumber, B256>,
    forkchoice: Forkchoice,
    /// The head, for those who follow it.
    head: watch::Sender<BlockId>,
    /// Height of the finalized block whose excluded branches are gone.
    excluded: BlockNumber,
}

impl Tree {
    /// Adds a valid block.
    pub fn insert(&mut self, id: BlockId, header: Arc<Header>) {
        self.nodes.insert(id.hash, Node { id, parent: header.parent_hash });
        self.headers.insert((id.number, id.hash), header);
    }

    /// Adds a block of the base's chain.
    pub fn insert_canonical(&mut self, id: BlockId, header: Arc<Header>) {
        self.canonical.insert(id.number, id.hash);
        self.insert(id, header);
    }

    /// Returns the place of a recent block.
    pub fn get(&self, hash: &B256) -> Option<Node> {
        self.nodes.get(hash).copied()
    }

    /// Returns a recent block's header, as long as the tree keeps it.
    pub fn header(&self, hash: &B256) -> Option<(BlockId, Arc<Header>)> {
        let id = self.nodes.get(hash)?.id;
        Some((id, self.headers.get(&(id.number, id.hash))?.clone()))
    }

    /// Returns the canonical block at a height, if it is recent.
    pub fn canonical(&self, number: BlockNumber) -> Option<B256> {
        self.canonical.get(&number).copied()
    }

    /// Returns whether the block is recent and canonical.
    pub fn is_canonical(&self, id: BlockId) -> bool {
        self.canonical(id.number) == Some(id.hash)
    }

    /// Returns head, safe and finalized block.
    pub fn forkchoice(&self) -> Forkchoice {
        self.forkchoice
    }

    /// Returns the head, and each later one.
    pub fn heads(&self) -> watch::Receiver<BlockId> {
        self.head.subscribe()
    }

    /// Makes the new head's chain canonical, as far down as this tree reaches.
    pub fn set_forkchoice(&mut self, forkchoice: Forkchoice) {
        let head = forkchoice.head;
        self.forkchoice = forkchoice;
        self.head.send_if_modified(|known| std::mem::replace(known, head) != head);
        self.canonical.split_off(&(head.number + 1));
        let mut id = head;
        while !self.is_canonical(id) {
            self.canonical.insert(id.number, id.hash);
            let parent = self.nodes.get(&id.hash).map(|node| node.parent);
            match (parent, id.number.checked_sub(1)) {
                (Some(hash), Some(number)) => id = BlockId::new(number, hash),
                _ => return,
            }
        }
    }

    /// Returns the newest canonical block on the way down from `hash`. `Err` holds the block right
    /// below the tree if none on the way is canonical. The tree does not know whether that block is
    /// canonical.
    pub fn fork_point(&self, hash: B256) -> Option<Result<BlockId, BlockId>> {
        let mut node = self.nodes.get(&hash)?;
        loop {
            if self.is_canonical(node.id) {
                return Some(Ok(node.id));
            }
            match self.nodes.get(&node.parent) {
                Some(parent) => node = parent,
                None => {
                    return Some(Err(BlockId::new(node.id.number.checked_sub(1)?, node.parent)));
                }
            }
        }
    }

    /// Returns the ancestor of `from` at a height. `Err` holds the lowest block reached if the tree
    /// ends above that height.
    pub fn ancestor(&self, from: BlockId, number: BlockNumber) -> Result<B256, BlockId> {
        let mut id = from;
        while id.number > number {
            let Some(node) = self.nodes.get(&id.hash) else { return Err(id) };
            id = BlockId::new(id.number - 1, node.parent);
        }
        if id.number == number { Ok(id.hash) } else { Err(id) }
    }

    /// Forgets blocks far below the base: canonical blocks, and branches that finality excludes. A
    /// branch goes as a whole, so no remaining block loses its ancestors. Headers go by their
    /// height alone, because storage-writer has them.
    pub fn prune(&mut self, base: BlockId) {
        let oldest = base.number.saturating_sub(BELOW_BASE);
        let canonical = self.canonical.split_off(&oldest);
        for hash in std::mem::replace(&mut self.canonical, canonical).values() {
            self.nodes.remove(hash);
        }
        self.headers = self.headers.split_off(&(oldest, B256::ZERO));
        let finalized = self.forkchoice.finalized.map_or(0, |block| block.number);
        if finalized != self.excluded {
            self.exclude(finalized);
        }
    }

    /// Forgets the branches that leave the canonical chain below a height.
    fn exclude(&mut self, finalized: BlockNumber) {
        let sides = self.nodes.values().filter(|node| !self.is_canonical(node.id));
        let mut sides: Vec<_> = sides.copied().collect();
        sides.sort_unstable_by_key(|node| (node.id.number, node.id.hash));
        let mut excluded = B256Set::default();
        for Node { id, parent } in sides {
            if id.number <= finalized || excluded.contains(&parent) {
                excluded.insert(id.hash);
            }
        }
        excluded.iter().for_each(|hash| self.remove(hash));
        self.excluded = finalized;
    }

    /// Forgets a block that turned out not to be stored.
    pub fn remove(&mut self, hash: &B256) {
        if let Some(Node { id, .. }) = self.nodes.remove(hash) {
            self.headers.remove(&(id.number, id.hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64, branch: u8) -> BlockId {
        let mut hash = B256::with_last_byte(number as u8);
        hash[0] = branch;
        BlockId::new(number, hash)
    }

    /// Returns blocks 0 to 5 on branch 0. Branch 1 forks off after block 2.
    fn tree() -> Tree {
        let mut tree = Tree::default();
        let mut add = |id: BlockId, parent: BlockId| {
            let header =
                Header { number: id.number, parent_hash: parent.hash, ..Header::default() };
            tree.insert(id, Arc::new(header));
        };
        add(id(0, 0), BlockId::default());
        (1..=5).for_each(|n| add(id(n, 0), id(n - 1, 0)));
        add(id(3, 1), id(2, 0));
        (4..=6).for_each(|n| add(id(n, 1), id(n - 1, 1)));
        tree
    }

    fn choose(tree: &mut Tree, head: BlockId) {
        tree.set_forkchoice(Forkchoice { head, ..Forkchoice::default() });
    }

    #[test]
    fn a_reorg_replaces_the_canonical_chain_from_the_fork_on() {
        let mut tree = tree();
        choose(&mut tree, id(5, 0));
        assert_eq!(tree.canonical(5), Some(id(5, 0).hash));
        assert_eq!(tree.fork_point(id(6, 1).hash), Some(Ok(id(2, 0))));
        choose(&mut tree, id(4, 1));
        assert_eq!(tree.canonical(2), Some(id(2, 0).hash));
        assert_eq!(tree.canonical(3), Some(id(3, 1).hash));
        assert_eq!(tree.canonical(4), Some(id(4, 1).hash));
        assert_eq!(tree.canonical(5), None);
        assert_eq!(tree.fork_point(id(5, 0).hash), Some(Ok(id(2, 0))));
    }

    #[test]
    fn a_branch_without_a_canonical_block_in_the_tree_is_not_guessed_to_have_one() {
        let mut tree = tree();
        choose(&mut tree, id(5, 0));
        tree.remove(&id(4, 1).hash);
        assert_eq!(tree.fork_point(id(6, 1).hash), Some(Err(id(4, 1))));
        assert_eq!(tree.fork_point(id(4, 1).hash), None);
    }

    #[test]
    fn a_branch_stays_as_a_whole_until_finality_excludes_it() {
        let mut tree = Tree::default();
        let mut add = |id: BlockId, parent: BlockId| {
            let header =
                Header { number: id.number, parent_hash: parent.hash, ..Header::default() };
            tree.insert(id, Arc::new(header));
        };
        let long = |number: u64, branch: u8| {
            let mut hash = B256::from(alloy_primitives::U256::from(number));
            hash[0] = branch;
            BlockId::new(number, hash)
        };
        add(long(0, 0), BlockId::default());
        for number in 1..=600 {
            add(long(number, 0), long(number - 1, 0));
            let fork = if number == 1 { long(0, 0) } else { long(number - 1, 1) };
            add(long(number, 1), fork);
        }
        choose(&mut tree, long(600, 0));
        tree.prune(long(584, 0));
        assert!(tree.get(&long(327, 0).hash).is_none(), "canonical blocks are in the database");
        assert!((1..=600).all(|number| tree.get(&long(number, 1).hash).is_some()));
        let has_header = |number| tree.header(&long(number, 1).hash).is_some();
        assert!((1..328).all(|number| !has_header(number)), "storage-writer has them");
        assert!((328..=600).all(has_header));
        let finalized = Some(long(1, 0));
        tree.set_forkchoice(Forkchoice { head: long(600, 0), finalized, safe: None });
        tree.prune(long(584, 0));
        assert!((1..=600).all(|number| tree.get(&long(number, 1).hash).is_none()));
        assert!(tree.get(&long(328, 0).hash).is_some());
    }

    #[test]
    fn ancestors_are_found_on_the_own_branch() {
        let tree = tree();
        assert_eq!(tree.ancestor(id(6, 1), 3), Ok(id(3, 1).hash));
        assert_eq!(tree.ancestor(id(5, 0), 3), Ok(id(3, 0).hash));
        assert_eq!(tree.ancestor(id(5, 0), 6), Err(id(5, 0)));
        assert_eq!(tree.ancestor(id(9, 9), 3), Err(id(9, 9)));
    }
}
