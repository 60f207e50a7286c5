//! Progress of a first copy, which survives a restart.

use serde::{Deserialize, Serialize};
use tandem_primitives::{B256, BlockId};

/// Place of a first copy: what is there, and of which blocks it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// First block whose state was copied: the changes of later blocks make everything that is there
    /// the state of one block.
    oldest: (u64, B256),
    /// Block whose state is copied now.
    pivot: (u64, B256),
    /// State root of that block.
    pub root: B256,
    /// First key of the next accounts, `None` once all are there.
    pub accounts: Option<B256>,
    /// Account from `accounts` on whose storage is copied, and the first key of its next slots. The
    /// storage of the accounts between is there.
    pub slots: Option<(B256, B256)>,
    /// Newest stored block, with all its ancestors.
    block: (u64, B256),
}

impl Progress {
    /// Returns the progress at the begin of a copy of the state of `pivot`.
    pub fn begin(genesis: BlockId, pivot: BlockId, root: B256) -> Self {
        Self {
            oldest: (pivot.number, pivot.hash),
            pivot: (pivot.number, pivot.hash),
            root,
            accounts: Some(B256::ZERO),
            slots: None,
            block: (genesis.number, genesis.hash),
        }
    }

    /// Reads what a copy noted before a restart, `None` if that is of no use.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Returns the record of this progress.
    pub fn record(&self) -> Vec<u8> {
        // A record of hashes and numbers can always be written as JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Goes on with the state of another block.
    pub fn move_to(&mut self, pivot: BlockId, root: B256) {
        self.pivot = (pivot.number, pivot.hash);
        self.root = root;
    }

    /// Notes that a block and its ancestors are stored.
    pub fn store(&mut self, block: BlockId) {
        self.block = (block.number, block.hash);
    }

    /// Returns the first block whose state was copied.
    pub fn oldest(&self) -> BlockId {
        BlockId::new(self.oldest.0, self.oldest.1)
    }

    /// Returns the block whose state is copied now.
    pub fn pivot(&self) -> BlockId {
        BlockId::new(self.pivot.0, self.pivot.1)
    }

    /// Returns the newest stored block.
    pub fn block(&self) -> BlockId {
        BlockId::new(self.block.0, self.block.1)
    }

    /// Returns the copied share of the accounts' keys, in thousandths.
    pub fn permille(&self) -> u32 {
        let next = self.slots.map(|(owner, _)| owner).or(self.accounts);
        next.map_or(1000, |key| (u32::from(u16::from_be_bytes([key[0], key[1]])) * 1000) >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_another_one_is_of_no_use() {
        let block = |number: u64| BlockId::new(number, B256::with_last_byte(number as u8));
        let mut progress = Progress::begin(block(0), block(7), B256::repeat_byte(3));
        assert_eq!(progress.permille(), 0);
        progress.accounts = Some(B256::repeat_byte(0x40));
        progress.slots = Some((B256::repeat_byte(0x80), B256::repeat_byte(1)));
        progress.move_to(block(9), B256::repeat_byte(4));
        progress.store(block(5));
        let read = Progress::read(&progress.record()).unwrap();
        assert_eq!(read, progress);
        assert_eq!((read.oldest(), read.pivot(), read.block()), (block(7), block(9), block(5)));
        assert_eq!(read.permille(), 501);
        progress.slots = None;
        progress.accounts = None;
        assert_eq!(progress.permille(), 1000);
        assert_eq!(Progress::read(b""), None);
        let other = br#"{"number":1,"hash":"0x00","root":"0x00","next":[]}"#;
        assert_eq!(Progress::read(other), None, "the record of a download from peers");
    }
}
