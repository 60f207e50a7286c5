use alloy_primitives::map::{B256Map, B256Set};
use tandem_primitives::{B256, BlockId, BlockNumber};

/// Names one layer for as long as its tree lives: a block that is removed and inserted again gets
/// another.
type LayerId = u64;

/// The layer that a version belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub(crate) layer: LayerId,
    pub(crate) number: BlockNumber,
}

#[derive(Clone, Debug)]
struct Layer<D> {
    stamp: Stamp,
    parent: B256,
    diff: D,
}

/// One layer per block, of all branches. `D` is what a block changed.
#[derive(Clone, Debug)]
pub struct Tree<D> {
    next: LayerId,
    by_hash: B256Map<Layer<D>>,
}

impl<D> Default for Tree<D> {
    fn default() -> Self {
        Self { next: 0, by_hash: B256Map::default() }
    }
}

impl<D> Tree<D> {
    /// Adds a block's layer. Returns the stamp for its versions in the indices, `None` when the
    /// block has a layer already.
    pub fn insert(&mut self, block: BlockId, parent: B256, diff: D) -> Option<Stamp> {
        if self.by_hash.contains_key(&block.hash) {
            return None;
        }
        let stamp = Stamp { layer: self.next, number: block.number };
        self.next += 1;
        self.by_hash.insert(block.hash, Layer { stamp, parent, diff });
        Some(stamp)
    }

    /// Takes a block's layer out; its versions have to be taken out of the indices then.
    pub fn remove(&mut self, block: &B256) -> Option<(Stamp, D)> {
        self.by_hash.remove(block).map(|layer| (layer.stamp, layer.diff))
    }

    /// What a block changed, `None` when it has no layer.
    pub fn get(&self, block: &B256) -> Option<&D> {
        self.by_hash.get(block).map(|layer| &layer.diff)
    }

    /// Number and parent of a block that has a layer.
    pub fn parent(&self, block: &B256) -> Option<(BlockNumber, B256)> {
        self.by_hash.get(block).map(|layer| (layer.stamp.number, layer.parent))
    }

    /// Whether the block has a layer.
    pub fn contains(&self, block: &B256) -> bool {
        self.by_hash.contains_key(block)
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether there is no layer.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Hashes of the blocks that have a layer, in no order.
    pub fn hashes(&self) -> impl Iterator<Item = B256> + '_ {
        self.by_hash.keys().copied()
    }

    /// Hashes of the blocks, lowest first, whose branches leave the chain of this block below it, so
    /// that nothing can be read through their layers while the base stands there. Branches whose
    /// lowest layer lies higher are not judged: the base may have moved on to what they stand on.
    pub fn unreachable(&self, base: &BlockId) -> Vec<B256> {
        let mut layers: Vec<_> = self.by_hash.iter().collect();
        layers.sort_unstable_by_key(|(_, layer)| layer.stamp.number);
        let mut reached = B256Set::default();
        let mut unreachable = Vec::new();
        for (hash, layer) in layers {
            let higher =
                layer.stamp.number > base.number + 1 && !self.by_hash.contains_key(&layer.parent);
            if higher || layer.parent == base.hash || reached.contains(&layer.parent) {
                reached.insert(*hash);
            } else {
                unreachable.push(*hash);
            }
        }
        unreachable
    }

    /// The layers from this block downwards, as far as there are any.
    pub fn branch(&self, block: B256) -> Branch {
        let (mut ids, mut hashes) = (Vec::new(), Vec::new());
        let (mut bottom, mut lowest) = (block, 0);
        while let Some(layer) = self.by_hash.get(&bottom) {
            ids.push(layer.stamp.layer);
            hashes.push(bottom);
            lowest = layer.stamp.number;
            bottom = layer.parent;
        }
        ids.reverse();
        hashes.reverse();
        Branch { block, lowest, ids, hashes, bottom }
    }
}

/// The layers between one block and the base.
#[derive(Clone, Debug)]
pub struct Branch {
    block: B256,
    /// Number of the block of the lowest layer.
    lowest: BlockNumber,
    /// Layers in ascending order of block number, and their blocks.
    ids: Vec<LayerId>,
    hashes: Vec<B256>,
    bottom: B256,
}

impl Branch {
    /// Whether a base at this block can stand below these layers: it is one of their blocks, or the
    /// one right below them.
    pub fn reaches(&self, base: &B256) -> bool {
        self.height(base).is_some()
    }

    /// Whether a base at this block can stand below these layers, those up to the block `from`
    /// left out.
    pub fn reaches_from(&self, from: &B256, base: &B256) -> bool {
        let (from, base) = (self.height(from), self.height(base));
        from.zip(base).is_some_and(|(from, base)| from <= base)
    }

    /// How many of the layers a base at this block contains.
    fn height(&self, base: &B256) -> Option<usize> {
        if self.bottom == *base {
            return Some(0);
        }
        self.hashes.iter().position(|hash| hash == base).map(|position| position + 1)
    }

    /// The blocks of the layers, ascending.
    pub fn hashes(&self) -> &[B256] {
        &self.hashes
    }

    /// The block whose state this is.
    pub fn block(&self) -> B256 {
        self.block
    }

    /// Parent of the lowest layer's block (or the block itself, without any layer): it must be in
    /// the base.
    pub fn bottom(&self) -> B256 {
        self.bottom
    }

    /// The block whose layer this is, `None` when it is on another branch or gone.
    pub(crate) fn block_of(&self, stamp: &Stamp) -> Option<&B256> {
        let position = usize::try_from(stamp.number.checked_sub(self.lowest)?).ok()?;
        (self.ids.get(position)? == &stamp.layer).then(|| &self.hashes[position])
    }
}
