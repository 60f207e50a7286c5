//! Following the base. It moves forward behind the head, and steps back when the head moves to a
//! branch that forks off below it.

use super::Engine;
use crate::{error::Error, state::layers::Layers};
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::sync::Arc;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{event::ChainEvent, storage::Forkchoice};

/// Maximum number of blocks between a block and the base whose layers are loaded at once.
const LOAD_BLOCKS_MAX: usize = 512;

/// Number of state diffs requested in one call.
const DIFFS_PER_CALL: usize = 64;

/// Bytes of layers above which layers of branches other than the head's are dropped. They are
/// reloaded when needed.
const LAYER_BYTES_MAX: usize = 1 << 30;

/// Whether blocks can be executed on a block now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// The block's layers reach the base.
    Reached,
    /// The block's branch leaves the canonical chain at this block, below the base.
    Below(BlockId),
    /// The base is so far below the block that the layers between them are not loaded.
    Far,
    /// No known chain leads from the base's chain to the block.
    Unconnected,
}

impl Engine {
    /// Publishes a forkchoice locally, after storage-writer has accepted it. `goal` is the height
    /// up to which the base moves.
    pub(super) fn set_forkchoice(&mut self, forkchoice: Forkchoice, goal: u64) {
        // A head lower than the previous one does not move the base back.
        self.base_limit = self.base_limit.max(goal);
        self.chain.tree.write().set_forkchoice(forkchoice);
    }

    /// Takes over the position of storage-writer: its base, its blocks above it and its forkchoice.
    /// Returns the head.
    pub(super) fn adopt(&mut self) -> Result<BlockId, Error> {
        self.load_pending()?;
        let forkchoice = self.storage.checkpoint()?.forkchoice;
        self.set_forkchoice(forkchoice, 0);
        self.stand_on(forkchoice.head.hash)?;
        Ok(forkchoice.head)
    }

    /// Loads the position of the base and storage-writer's blocks above it. Layers are cleared, and
    /// loaded when needed.
    pub(super) fn load_pending(&mut self) -> Result<(), Error> {
        let mut base = self.storage.checkpoint()?.base;
        // The base may move between the two requests. Blocks that it absorbs then would be missing
        // from both answers.
        let pending = loop {
            let pending = self.storage.pending()?;
            let after = self.storage.checkpoint()?.base;
            if base == after {
                break pending;
            }
            base = after;
        };
        self.base_limit = self.base_limit.max(base.number);
        self.chain.recent.rebase(base);
        self.chain.load_below(base)?;
        let mut tree = self.chain.tree.write();
        for block in pending {
            if block.kept {
                self.kept.insert(block.id, block.parent);
                continue;
            }
            let header = Header::decode(&mut block.header.as_ref()).map_err(|error| {
                let error = error.to_string();
                Error::Record { what: "header", block: block.id.hash, error }
            })?;
            tree.insert(block.id, Arc::new(header));
        }
        Ok(())
    }

    /// Handles moves of the base: blocks it contains leave the layers.
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
        if self.chain.recent.advance(base) {
            self.chain.tree.write().prune(base);
        }
    }

    /// Returns the block at which a block's branch leaves the canonical chain, or `None` if no
    /// known chain leads to it.
    pub(super) fn fork_of(&self, block: B256) -> Result<Option<BlockId>, Error> {
        let lowest = match self.chain.tree.read().fork_point(block) {
            Some(Ok(fork)) => return Ok(Some(fork)),
            Some(Err(below)) => below,
            // The block is older than the tree.
            None => match self.chain.header_by_hash(block)? {
                Some((id, _)) => id,
                None => return Ok(None),
            },
        };
        Ok(self.chain.stored_canonical(lowest)?.then_some(lowest))
    }

    /// Returns whether blocks can be executed on this one, and loads the missing layers.
    pub(super) fn stand_on(&mut self, block: B256) -> Result<Standing, Error> {
        // Blocks absorbed by the base meanwhile are no longer pending, so retry from the new base.
        for attempt in 0..3 {
            let missing = match self.missing_layers(block)? {
                Ok(missing) => missing,
                Err(standing) => return Ok(standing),
            };
            if missing.is_empty() {
                return Ok(Standing::Reached);
            }
            if missing.len() > LOAD_BLOCKS_MAX {
                // Moves of the base have no effect here while the layers of the absorbed blocks are
                // not loaded.
                if attempt > 0 || self.storage.checkpoint()?.base == self.chain.base() {
                    return Ok(Standing::Far);
                }
            } else if self.load_layers(&missing)? {
                return Ok(Standing::Reached);
            }
            self.load_pending()?;
        }
        Ok(Standing::Unconnected)
    }

    /// Returns the blocks with missing layers, with their parents, highest first. They range from
    /// `block` down to the base or to a layer that reaches it.
    fn missing_layers(&self, block: B256) -> Result<Result<Vec<(BlockId, B256)>, Standing>, Error> {
        let base = self.chain.base();
        let reaches = |hash: B256| {
            self.chain.recent.read(|layers| {
                let branch = layers.branch(hash);
                (branch.bottom(), branch.reaches(&base.hash))
            })
        };
        let mut missing = Vec::new();
        let (mut at, mut reached) = reaches(block);
        while !reached {
            let node = self.chain.tree.read().get(&at);
            let Some(node) = node.filter(|node| node.id.number > base.number) else {
                let fork = self.fork_of(block)?;
                return Ok(Err(fork.map_or(Standing::Unconnected, Standing::Below)));
            };
            missing.push((node.id, node.parent));
            (at, reached) = reaches(node.parent);
        }
        Ok(Ok(missing))
    }

    /// Loads the layers of these blocks, highest first. Returns false if one of them is not
    /// pending.
    fn load_layers(&mut self, missing: &[(BlockId, B256)]) -> Result<bool, Error> {
        if self.chain.recent.read(Layers::bytes) > LAYER_BYTES_MAX {
            let head = self.chain.head().hash;
            let parent = missing.last().map_or(head, |(_, parent)| *parent);
            self.chain.recent.keep_only(&[head, parent]);
        }
        // From the base upwards, so that loaded layers are useful even if later ones fail.
        for blocks in missing.rchunks(DIFFS_PER_CALL) {
            let hashes: Vec<B256> = blocks.iter().map(|(id, _)| id.hash).collect();
            let diffs = self.storage.state_diffs(&hashes)?;
            for ((id, parent), diff) in blocks.iter().zip(diffs).rev() {
                let diff = match diff {
                    Some(diff) => diff,
                    None => match self.committed.diff(&id.hash) {
                        // storage-writer lost the block. It is committed again before a child is.
                        Some(diff) => diff,
                        None => {
                            self.chain.tree.write().remove(&id.hash);
                            return Ok(false);
                        }
                    },
                };
                self.chain.recent.insert(*id, *parent, diff);
            }
        }
        Ok(true)
    }

    /// Steps the base back to the fork of a block's branch, if it is above the fork or on its way
    /// there. The base then stays until the next forkchoice.
    pub(super) fn ensure_base_below(&mut self, block: B256) -> Result<(), Error> {
        let fork = self.fork_of(block)?.ok_or(Error::UnknownBlock)?;
        if fork.number >= self.base_limit {
            return Ok(());
        }
        self.storage.rewind(self.epoch, fork.number)?;
        self.base_limit = fork.number;
        // Events published before the step back are obsolete.
        while self.persisted.try_next().is_some() {}
        let (base, known) = (self.storage.checkpoint()?.base, self.chain.base());
        if base.number < known.number || base.number == known.number && base != known {
            return self.load_pending();
        }
        self.advance(base);
        Ok(())
    }
}
