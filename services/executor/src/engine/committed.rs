//! Blocks committed last, in case storage-writer loses them. A power cut may lose the unwritten end
//! of its log while the executor survives on another machine.

use super::Engine;
use crate::{error::Error, metrics as names};
use metrics::counter;
use std::{collections::VecDeque, sync::Arc};
use tandem_primitives::{B256, StateDiff};
use tandem_proto::storage::{Block, BlockRef};
use tracing::warn;

/// Blocks committed last, to be committed again if storage-writer loses them.
#[derive(Default)]
pub(super) struct Committed {
    blocks: VecDeque<Block>,
    bytes: usize,
}

impl Committed {
    const BLOCKS_MAX: usize = 64;
    const BYTES_MAX: usize = 64 << 20;

    fn bytes_of(block: &Block) -> usize {
        block.body.len() + block.receipts.len() + block.diff.bytes()
    }

    pub fn push(&mut self, block: Block) {
        self.bytes += Self::bytes_of(&block);
        self.blocks.push_back(block);
        while self.blocks.len() > Self::BLOCKS_MAX || self.bytes > Self::BYTES_MAX {
            let Some(oldest) = self.blocks.pop_front() else { return };
            self.bytes -= Self::bytes_of(&oldest);
        }
    }

    pub fn get(&self, hash: &B256) -> Option<&Block> {
        self.blocks.iter().rev().find(|block| block.id.hash == *hash)
    }

    pub fn diff(&self, hash: &B256) -> Option<Arc<StateDiff>> {
        self.get(hash).map(|block| block.diff.clone())
    }
}

impl Engine {
    /// Recommits a block that storage-writer lost, together with its lost ancestors. Returns false
    /// if one of them is no longer available here.
    pub(super) fn commit_again(&mut self, hash: B256) -> Result<bool, Error> {
        let mut lost = Vec::new();
        let mut at = hash;
        loop {
            let Some(block) = self.committed.get(&at) else { return Ok(false) };
            lost.push(block.clone());
            at = block.parent;
            if self.chain.stored_header(BlockRef::Hash(at))?.is_some() {
                break;
            }
        }
        warn!(blocks = lost.len(), newest = %hash, "blocks that storage-writer lost are committed again");
        counter!(names::RECOMMITTED).increment(lost.len() as u64);
        for block in lost.into_iter().rev() {
            self.storage.commit(self.epoch, block)?;
        }
        Ok(true)
    }
}
