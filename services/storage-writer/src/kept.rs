//! Blocks that wait for their execution: by hash in memory, whole in the database.

use crate::{Error, codec};
use std::collections::{BTreeMap, HashMap};
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_store::{Store, tables::Kept as KeptTable};

/// Kept block without header and body.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Number and hash.
    pub id: BlockId,
    bytes: u64,
    order: u64,
}

/// Kept blocks, oldest first.
#[derive(Debug, Default)]
pub struct Kept {
    blocks: HashMap<B256, Entry>,
    by_order: BTreeMap<u64, B256>,
    added: u64,
    bytes: u64,
}

impl Kept {
    /// Loads the list of kept blocks from the database.
    ///
    /// # Errors
    /// When the database fails, or holds a malformed block.
    pub fn load(store: &Store) -> Result<Self, Error> {
        let view = store.view();
        let mut blocks = Vec::new();
        let mut cursor = view.cursor::<KeptTable>(&[]);
        while let Some(bytes) = cursor.value()? {
            let block = codec::decode_kept(&bytes)?;
            blocks.push((block.id, bytes.len() as u64));
            cursor.advance();
        }
        // The order of arrival is not stored; lower blocks mostly came first.
        blocks.sort_unstable_by_key(|(id, ..)| (id.number, id.hash));
        let mut kept = Self::default();
        for (id, bytes) in blocks {
            kept.insert(id, bytes);
        }
        Ok(kept)
    }

    /// Adds a block.
    pub fn insert(&mut self, id: BlockId, bytes: u64) {
        self.remove(&id.hash);
        self.added += 1;
        self.bytes += bytes;
        self.by_order.insert(self.added, id.hash);
        self.blocks.insert(id.hash, Entry { id, bytes, order: self.added });
    }

    /// Forgets a block. Returns whether it was there.
    pub fn remove(&mut self, hash: &B256) -> bool {
        let Some(entry) = self.blocks.remove(hash) else { return false };
        self.by_order.remove(&entry.order);
        self.bytes -= entry.bytes;
        true
    }

    /// Returns whether this block is kept.
    pub fn contains(&self, hash: &B256) -> bool {
        self.blocks.contains_key(hash)
    }

    /// Returns the oldest blocks, which must be evicted so that `more` bytes fit.
    pub fn crowded_out(&self, more: u64, bytes_max: u64) -> Vec<B256> {
        let mut bytes = self.bytes + more;
        let mut out = Vec::new();
        for hash in self.by_order.values() {
            let Some(entry) = self.blocks.get(hash).filter(|_| bytes > bytes_max) else { break };
            bytes -= entry.bytes;
            out.push(*hash);
        }
        out
    }

    /// Returns the blocks up to the finalized height, which cannot become canonical any more.
    pub fn excluded(&self, finalized: BlockNumber) -> Vec<B256> {
        let old = self.blocks.values().filter(|entry| entry.id.number <= finalized);
        old.map(|entry| entry.id.hash).collect()
    }

    /// Returns all blocks, lowest first.
    pub fn ordered(&self) -> Vec<Entry> {
        let mut blocks: Vec<_> = self.blocks.values().copied().collect();
        blocks.sort_unstable_by_key(|entry| (entry.id.number, entry.id.hash));
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> BlockId {
        BlockId::new(number.into(), B256::with_last_byte(number))
    }

    #[test]
    fn the_oldest_blocks_give_way_and_finality_drops_the_rest() {
        let mut kept = Kept::default();
        for number in [5, 3, 4] {
            kept.insert(id(number), 10);
        }
        assert!(kept.crowded_out(10, 40).is_empty());
        assert_eq!(kept.crowded_out(10, 30), [id(5).hash]);
        assert_eq!(kept.crowded_out(15, 20), [id(5).hash, id(3).hash, id(4).hash]);
        kept.insert(id(5), 10);
        assert_eq!(kept.crowded_out(10, 30), [id(3).hash], "inserted again, it is the newest");
        assert_eq!(kept.excluded(3), [id(3).hash]);
        assert!(kept.remove(&id(3).hash) && !kept.remove(&id(3).hash));
        assert_eq!(kept.ordered().iter().map(|entry| entry.id).collect::<Vec<_>>(), [id(4), id(5)]);
    }
}
