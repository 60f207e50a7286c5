//! Keeping up with the base: it moves forward behind the head, and steps back when a branch forks
//! off below it.

use super::Engine;
use crate::error::Error;
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::sync::Arc;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{event::ChainEvent, storage::Forkchoice};

impl Engine {
    /// Makes a forkchoice known here, after storage-writer has taken it.
    pub(super) fn set_forkchoice(&mut self, forkchoice: Forkchoice) {
        let goal = forkchoice.head.number.saturating_sub(self.config.persist_depth);
        // A head lower than the one before does not call the base back.
        self.base_limit = self.base_limit.max(goal);
        self.chain.tree.write().set_forkchoice(forkchoice);
    }

    /// Takes in the blocks that are pending in storage-writer and not known here.
    pub(super) fn load_pending(&mut self) -> Result<(), Error> {
        let mut base = self.storage.checkpoint()?.base;
        // The base may move between the two questions; then what it took in would be in neither.
        let pending = loop {
            let pending = self.storage.pending()?;
            let after = self.storage.checkpoint()?.base;
            if base == after {
                break pending;
            }
            base = after;
        };
        self.base_limit = self.base_limit.max(base.number);
        let mut headers = Vec::with_capacity(pending.len());
        for block in &pending {
            let header = Header::decode(&mut block.header.as_ref()).map_err(|error| {
                let error = error.to_string();
                Error::Record { what: "header", block: block.id.hash, error }
            })?;
            headers.push((block.id, Arc::new(header)));
        }
        self.chain.recent.rebase(base, pending);
        self.chain.load_below(base)?;
        let mut tree = self.chain.tree.write();
        headers.into_iter().for_each(|(id, header)| tree.insert(id, header));
        Ok(())
    }

    /// The base has moved forward: what it contains leaves the layers.
    pub(super) fn hear_persisted(&mut self) {
        let mut newest = None;
        while let Some(payload) = self.persisted.try_next() {
            newest = ChainEvent::decode(&payload).or(newest);
        }
        if let Some(event) = newest {
            self.advance(event.block);
        }
    }

    fn advance(&self, base: BlockId) {
        if self.chain.recent.advance(base, self.config.side_chain_blocks) {
            self.chain.tree.write().prune(base);
        }
    }

    /// Makes sure that the base stands on the branch of `block`, and stays there until the next
    /// forkchoice: steps it back to the fork when that lies below where the base is or is going.
    pub(super) fn ensure_base_below(&mut self, block: B256) -> Result<(), Error> {
        let fork = self.chain.tree.read().fork_point(block);
        let fork = match fork {
            Some(fork) => fork,
            // Older than the tree: known to storage-writer alone, so canonical.
            None => self.chain.header_by_hash(block)?.ok_or(Error::UnknownBlock)?.0,
        };
        if fork.number >= self.base_limit {
            return Ok(());
        }
        self.storage.rewind(self.epoch, fork.number)?;
        self.base_limit = fork.number;
        // What was published before the step back is no longer so.
        while self.persisted.try_next().is_some() {}
        self.load_pending()
    }
}
