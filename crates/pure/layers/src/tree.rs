use alloy_primitives::map::{B256Map, B256Set};
use tandem_primitives::{B256, BlockId, BlockNumber};

/// Identifies one layer for the lifetime of its tree. A block that is removed and inserted again
/// gets a new id.
type LayerId = u64;

/// Layer that a version belongs to.
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

/// Layers of all branches, one per block. `D` holds the changes of a block.
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
    /// Adds the layer of a block. Returns the stamp for its versions in the indices, or `None` when
    /// the block already has a layer.
    pub fn insert(&mut self, block: BlockId, parent: B256, diff: D) -> Option<Stamp> {
        if self.by_hash.contains_key(&block.hash) {
            return None;
        }
        let stamp = Stamp { layer: self.next, number: block.number };
        self.next += 1;
        self.by_hash.insert(block.hash, Layer { stamp, parent, diff });
        Some(stamp)
    }

    /// Removes the layer of a block. The caller must then remove its versions from the indices.
    pub fn remove(&mut self, block: &B256) -> Option<(Stamp, D)> {
        self.by_hash.remove(block).map(|layer| (layer.stamp, layer.diff))
    }

    /// Returns the changes of a block, `None` when it has no layer.
    pub fn get(&self, block: &B256) -> Option<&D> {
        self.by_hash.get(block).map(|layer| &layer.diff)
    }

    /// Returns number and parent of a block that has a layer.
    pub fn parent(&self, block: &B256) -> Option<(BlockNumber, B256)> {
        self.by_hash.get(block).map(|layer| (layer.stamp.number, layer.parent))
    }

    /// Returns whether the block has a layer.
    pub fn contains(&self, block: &B256) -> bool {
        self.by_hash.contains_key(block)
    }

    /// Returns the number of layers.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Returns whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Returns the hashes of the blocks that have a layer, in no particular order.
    pub fn hashes(&self) -> impl Iterator<Item = B256> + '_ {
        self.by_hash.keys().copied()
    }

    /// Returns the hashes, lowest first, of blocks whose branches leave the chain of `base` below
    /// it. Their layers are unreadable while the base stands there. Branches whose lowest layer
    /// lies higher are left out, because the base may have advanced to the block below them.
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

    /// Returns the layers from this block downwards, as far as they exist.
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

/// Layers between one block and the base.
#[derive(Clone, Debug)]
pub struct Branch {
    block: B256,
    /// Number of the block of the lowest layer.
    lowest: BlockNumber,
    /// Layers in ascending order of block number; `hashes` holds their blocks.
    ids: Vec<LayerId>,
    hashes: Vec<B256>,
    bottom: B256,
}

impl Branch {
    /// Returns whether these layers can stand on a base at this block. The block must be one of
    /// theirs or the one directly below them.
    pub fn reaches(&self, base: &B256) -> bool {
        self.height(base).is_some()
    }

    /// Returns whether the layers above the block `from` can stand on a base at this block.
    pub fn reaches_from(&self, from: &B256, base: &B256) -> bool {
        let (from, base) = (self.height(from), self.height(base));
        from.zip(base).is_some_and(|(from, base)| from <= base)
    }

    /// Returns the number of layers that a base at this block already contains.
    fn height(&self, base: &B256) -> Option<usize> {
        if self.bottom == *base {
            return Some(0);
        }
        self.hashes.iter().position(|hash| hash == base).map(|position| position + 1)
    }

    /// Returns the blocks of the layers, ascending.
    pub fn hashes(&self) -> &[B256] {
        &self.hashes
    }

    /// Returns the block whose state the branch describes.
    pub fn block(&self) -> B256 {
        self.block
    }

    /// Returns the parent of the lowest layer's block, or the block itself when there are no
    /// layers. The base must contain it.
    pub fn bottom(&self) -> B256 {
        self.bottom
    }

    /// Returns the block that owns this layer, `None` when it is on another branch or was removed.
    pub(crate) fn block_of(&self, stamp: &Stamp) -> Option<&B256> {
        let position = usize::try_from(stamp.number.checked_sub(self.lowest)?).ok()?;
        (self.ids.get(position)? == &stamp.layer).then(|| &self.hashes[position])
    }
}
