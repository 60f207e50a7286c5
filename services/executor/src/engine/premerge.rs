//! Blocks from before the merge: their ommers, and the end of proof of work.

use super::Engine;
use crate::{block::execute::Failure, chain::BlockTag, error::Error};
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_primitives::map::B256Map;
use std::{collections::VecDeque, sync::Arc};
use tandem_chain::{
    Ancestor, Block, BlockError, OMMER_GENERATIONS, check_terminal, validate_ommers,
};
use tandem_primitives::{B256, BlockId, U256};

/// Maximum number of remembered total difficulties. While blocks come in order, only the parent's
/// is needed.
const KNOWN_MAX: usize = 64;

/// Total difficulties of proof-of-work blocks. The oldest are evicted first.
#[derive(Default)]
pub struct TotalDifficulties {
    known: B256Map<U256>,
    order: VecDeque<B256>,
}

impl TotalDifficulties {
    fn insert(&mut self, block: B256, total: U256) {
        if self.known.insert(block, total).is_none() {
            self.order.push_back(block);
        }
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

impl Engine {
    /// Checks whether a block may build on this proof-of-work parent (EIP-3675).
    ///
    /// # Errors
    /// Returns an error if a header cannot be read. The verdict is inside.
    pub(super) fn check_terminal(
        &mut self,
        header: &Header,
        parent: BlockId,
        parent_header: &Arc<Header>,
    ) -> Result<Result<(), BlockError>, Error> {
        let total = self.total_difficulty(parent, parent_header)?;
        Ok(check_terminal(&self.chain.spec, header, parent_header, total))
    }

    /// Returns the sum of all difficulties from genesis up to this block. Walks down the headers,
    /// because the sum is not stored: it is unused after the merge.
    fn total_difficulty(&mut self, block: BlockId, header: &Arc<Header>) -> Result<U256, Error> {
        let genesis = self.chain.resolve(BlockTag::Earliest)?;
        let (mut id, mut header) = (block, header.clone());
        let mut total = U256::ZERO;
        loop {
            if let Some(below) = self.total_difficulties.known.get(&id.hash) {
                total = total.saturating_add(*below);
                break;
            }
            total = total.saturating_add(header.difficulty);
            if Some(id) == genesis {
                break;
            }
            let parent = self.chain.header_by_hash(header.parent_hash)?;
            (id, header) = parent.ok_or(Error::UnknownBlock)?;
        }
        self.total_difficulties.insert(block.hash, total);
        Ok(total)
    }

    /// Checks the ommers of a block, if it has any.
    pub(super) fn check_ommers(&self, block: &Block) -> Result<(), Failure> {
        if block.ommers.is_empty() {
            return Ok(());
        }
        let ancestors = self.ancestors(block).map_err(Failure::Internal)?;
        validate_ommers(&self.chain.spec, block, &ancestors).map_err(Failure::Invalid)
    }

    fn ancestors(&self, block: &Block) -> Result<Vec<Ancestor>, Error> {
        let mut ancestors = Vec::with_capacity(OMMER_GENERATIONS);
        let mut hash = block.header.parent_hash;
        while ancestors.len() < OMMER_GENERATIONS
            && let Some((_, header)) = self.chain.header_by_hash(hash)?
        {
            let ommers = match header.ommers_hash {
                EMPTY_OMMER_ROOT_HASH => Vec::new(),
                _ => {
                    let block = self.chain.block(BlockTag::Hash(hash))?;
                    let block = block.ok_or(Error::UnknownBlock)?;
                    block.ommers.iter().map(Header::hash_slow).collect()
                }
            };
            let parent = header.parent_hash;
            ancestors.push(Ancestor { hash, header: Header::clone(&header), ommers });
            hash = parent;
        }
        Ok(ancestors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_total_difficulty_is_forgotten_first() {
        let mut totals = TotalDifficulties::default();
        for n in 0..=KNOWN_MAX {
            totals.insert(B256::with_last_byte(n as u8), U256::from(n));
            totals.insert(B256::with_last_byte(n as u8), U256::from(n));
        }
        assert_eq!(totals.known.len(), KNOWN_MAX);
        assert!(!totals.known.contains_key(&B256::ZERO));
        assert!(totals.known.contains_key(&B256::with_last_byte(KNOWN_MAX as u8)));
    }
}
