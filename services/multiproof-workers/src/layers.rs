//! Trie changes of the blocks after the base, by block, as a tree: what a walk must see before it
//! sees the base.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};
use tandem_primitives::{B256, BlockId, BlockNumber, NodeChange, TrieDiff};

/// Side-chain layers this far below the base are dropped: nobody builds on them any more.
const SIDE_CHAIN_DEPTH: BlockNumber = 256;

/// The changed trie nodes of one block.
pub struct Layer {
    pub id: BlockId,
    pub parent: B256,
    diff: Arc<TrieDiff>,
    /// Positions in `diff` ordered by trie and path; made when first asked, because a layer whose
    /// nodes are all in memory anyway is never searched.
    order: OnceLock<Vec<u32>>,
}

/// What the layers know of one path.
pub enum Found<'a> {
    /// The node that stands there.
    Node(&'a [u8]),
    /// No node stands there any more.
    Absent,
    /// Unchanged since the base.
    InBase,
}

impl Layer {
    fn get(&self, owner: Option<&B256>, path: &[u8]) -> Found<'_> {
        let order = self.order.get_or_init(|| {
            let mut order: Vec<u32> = (0..self.diff.len() as u32).collect();
            // Stable, so that of two changes of one path the later one comes last.
            order.sort_by(|&a, &b| self.key(a).cmp(&self.key(b)));
            order
        });
        let after = order.partition_point(|&index| self.key(index) <= (owner.copied(), path));
        let found = after.checked_sub(1).and_then(|before| self.diff.get(order[before] as usize));
        match found {
            Some(NodeChange { owner: o, path: p, rlp }) if o.as_ref() == owner && p == path => {
                rlp.map_or(Found::Absent, Found::Node)
            }
            _ if owner.is_some_and(|owner| self.diff.wiped.contains(owner)) => Found::Absent,
            _ => Found::InBase,
        }
    }

    fn key(&self, index: u32) -> (Option<B256>, &[u8]) {
        self.diff.get(index as usize).map_or((None, &[][..]), |change| (change.owner, change.path))
    }
}

/// All layers of one worker.
#[derive(Default)]
pub struct Layers {
    by_hash: HashMap<B256, Arc<Layer>>,
}

impl Layers {
    pub fn insert(&mut self, id: BlockId, parent: B256, diff: Arc<TrieDiff>) {
        let layer = Layer { id, parent, diff, order: OnceLock::new() };
        self.by_hash.insert(id.hash, Arc::new(layer));
    }

    pub fn contains(&self, block: &B256) -> bool {
        self.by_hash.contains_key(block)
    }

    pub fn remove(&mut self, block: &B256) {
        self.by_hash.remove(block);
    }

    /// The base has moved up to this block: everything it contains can be read there.
    ///
    /// A layer may only go once the next read of the base is known to come from at or after it. The
    /// event is published after the base's batch is written, and every read takes a snapshot at its
    /// own time, so any read made after this call qualifies.
    pub fn persisted(&mut self, base: BlockId) {
        let mut hash = base.hash;
        while let Some(layer) = self.by_hash.remove(&hash) {
            hash = layer.parent;
        }
        self.by_hash.retain(|_, layer| layer.id.number + SIDE_CHAIN_DEPTH > base.number);
    }

    /// The layers from `block` downwards as far as there are any.
    pub fn branch(&self, block: B256) -> Branch {
        let mut layers = Vec::new();
        let mut bottom = block;
        while let Some(layer) = self.by_hash.get(&bottom) {
            bottom = layer.parent;
            layers.push(layer.clone());
        }
        Branch { layers, bottom }
    }
}

/// The layers between one block and the base, newest first.
pub struct Branch {
    layers: Vec<Arc<Layer>>,
    /// Parent of the lowest layer: a block that must be in the base.
    pub bottom: B256,
}

impl Branch {
    /// Whether a base at this block can stand below the layers: it is one of their blocks, or the
    /// one right below them.
    pub fn reaches(&self, base: &B256) -> bool {
        self.bottom == *base || self.layers.iter().any(|layer| layer.id.hash == *base)
    }

    pub fn get(&self, owner: Option<&B256>, path: &[u8]) -> Found<'_> {
        for layer in &self.layers {
            match layer.get(owner, path) {
                Found::InBase => {}
                found => return found,
            }
        }
        Found::InBase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> BlockId {
        BlockId::new(number, B256::with_last_byte(number as u8))
    }

    fn diff(changes: &[(Option<B256>, &[u8], Option<&[u8]>)], wiped: &[B256]) -> Arc<TrieDiff> {
        let mut diff = TrieDiff { wiped: wiped.to_vec(), ..TrieDiff::default() };
        for &(owner, path, rlp) in changes {
            diff.push(NodeChange { owner, path, rlp });
        }
        Arc::new(diff)
    }

    fn node<'a>(branch: &'a Branch, owner: Option<&B256>, path: &[u8]) -> Option<Option<&'a [u8]>> {
        match branch.get(owner, path) {
            Found::Node(rlp) => Some(Some(rlp)),
            Found::Absent => Some(None),
            Found::InBase => None,
        }
    }

    #[test]
    fn the_newest_layer_of_the_own_branch_wins() {
        let token = B256::repeat_byte(7);
        let mut layers = Layers::default();
        layers.insert(id(1), id(0).hash, diff(&[(None, &[1], Some(b"a")), (None, &[2], Some(b"b"))], &[]));
        layers.insert(id(2), id(1).hash, diff(&[(None, &[1], None), (Some(token), &[], Some(b"t"))], &[]));
        layers.insert(id(3), id(1).hash, diff(&[(None, &[1], Some(b"side"))], &[token]));
        let main = layers.branch(id(2).hash);
        assert_eq!(node(&main, None, &[1]), Some(None));
        assert_eq!(node(&main, None, &[2]), Some(Some(&b"b"[..])));
        assert_eq!(node(&main, None, &[3]), None);
        assert_eq!(node(&main, Some(&token), &[]), Some(Some(&b"t"[..])));
        let side = layers.branch(id(3).hash);
        assert_eq!(node(&side, None, &[1]), Some(Some(&b"side"[..])));
        assert_eq!(node(&side, Some(&token), &[4]), Some(None), "wiped");
        assert!(side.reaches(&id(0).hash) && side.reaches(&id(1).hash));
        assert!(!side.reaches(&id(2).hash));
    }

    #[test]
    fn what_the_base_contains_is_dropped() {
        let mut layers = Layers::default();
        for n in 1..=5 {
            layers.insert(id(n), id(n - 1).hash, diff(&[], &[]));
        }
        layers.persisted(id(3));
        assert!(!layers.contains(&id(1).hash) && !layers.contains(&id(3).hash));
        assert_eq!(layers.branch(id(5).hash).bottom, id(3).hash);
    }
}
