//! Keeping up with the base: it moves forward behind the head, and steps back when the head moves to
//! a branch that forks off below it.

use super::Engine;
use crate::{error::Error, state::layers::Layers};
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::sync::Arc;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{event::ChainEvent, storage::Forkchoice};

/// Blocks whose layers are loaded at once: those between a block and the base.
const LOAD_BLOCKS_MAX: usize = 512;

/// State diffs asked for in one call.
const DIFFS_PER_CALL: usize = 64;

/// Bytes of layers from which on those of other branches than the head's are dropped. They are loaded
/// again when they are needed.
const LAYER_BYTES_MAX: usize = 1 << 30;

/// Whether blocks can be executed on a block now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Its layers reach the base.
    Reached,
    /// Its branch leaves the canonical chain at this block, below the base.
    Below(BlockId),
    /// The base is so far below it that the layers between them are not loaded.
    Far,
    /// No known chain leads from the base's chain to it.
    Unconnected,
}

impl Engine {
    /// Makes a forkchoice known here, after storage-writer has taken it. `goal` is the height up to
    /// which the base moves.
    pub(super) fn set_forkchoice(&mut self, forkchoice: Forkchoice, goal: u64) {
        // A head lower than the one before does not call the base back.
        self.base_limit = self.base_limit.max(goal);
        self.chain.tree.write().set_forkchoice(forkchoice);
    }

    /// Takes in where the base stands, and which blocks storage-writer has above it. Layers begin
    /// anew and are loaded when they are needed.
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
        if self.chain.recent.advance(base) {
            self.chain.tree.write().prune(base);
        }
    }

    /// The block at which a block's branch leaves the canonical chain; `None` where no known chain
    /// leads to it.
    pub(super) fn fork_of(&self, block: B256) -> Result<Option<BlockId>, Error> {
        let lowest = match self.chain.tree.read().fork_point(block) {
            Some(Ok(fork)) => return Ok(Some(fork)),
            Some(Err(below)) => below,
            // Older than the tree.
            None => match self.chain.header_by_hash(block)? {
                Some((id, _)) => id,
                None => return Ok(None),
            },
        };
        Ok(self.chain.stored_canonical(lowest)?.then_some(lowest))
    }

    /// Says whether blocks can be executed on this one, and loads the layers that are missing.
    pub(super) fn stand_on(&mut self, block: B256) -> Result<Standing, Error> {
        // What the base took in meanwhile is not pending any more: once more, from its new place.
        for attempt in 0..3 {
            let missing = match self.missing_layers(block)? {
                Ok(missing) => missing,
                Err(standing) => return Ok(standing),
            };
            if missing.is_empty() {
                return Ok(Standing::Reached);
            }
            if missing.len() > LOAD_BLOCKS_MAX {
                // Where the layers of the blocks that the base took in are not loaded, its moves are
                // not heard of.
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

    /// The blocks from `block` down to the base or to a layer that reaches it, with their parents,
    /// highest first, whose layers are missing.
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

    /// Loads the layers of these blocks, highest first. False when one of them is not pending.
    fn load_layers(&mut self, missing: &[(BlockId, B256)]) -> Result<bool, Error> {
        if self.chain.recent.read(Layers::bytes) > LAYER_BYTES_MAX {
            let head = self.chain.head().hash;
            let parent = missing.last().map_or(head, |(_, parent)| *parent);
            self.chain.recent.keep_only(&[head, parent]);
        }
        // From the base upwards, so that what is loaded is of use even where the rest fails.
        for blocks in missing.rchunks(DIFFS_PER_CALL) {
            let hashes: Vec<B256> = blocks.iter().map(|(id, _)| id.hash).collect();
            let diffs = self.storage.state_diffs(&hashes)?;
            for ((id, parent), diff) in blocks.iter().zip(diffs).rev() {
                let diff = match diff {
                    Some(diff) => diff,
                    None => match self.committed.diff(&id.hash) {
                        // storage-writer lost it: it is committed again before a child is.
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

    /// Steps the base back to the fork of a block's branch where it is above that or on its way
    /// there, and makes it stay until the next forkchoice.
    pub(super) fn ensure_base_below(&mut self, block: B256) -> Result<(), Error> {
        let fork = self.fork_of(block)?.ok_or(Error::UnknownBlock)?;
        if fork.number >= self.base_limit {
            return Ok(());
        }
        self.storage.rewind(self.epoch, fork.number)?;
        self.base_limit = fork.number;
        // What was published before the step back is no longer so.
        while self.persisted.try_next().is_some() {}
        let (base, known) = (self.storage.checkpoint()?.base, self.chain.base());
        if base.number < known.number || base.number == known.number && base != known {
            return self.load_pending();
        }
        self.advance(base);
        Ok(())
    }
}
