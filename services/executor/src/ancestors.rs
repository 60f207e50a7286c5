//! Hashes of the blocks below the one that executes (BLOCKHASH), without a database read during
//! execution.
//!
//! The tree of recent blocks is the header cache. It holds every executed block of every branch,
//! down to 256 blocks below the base. After a start, and after the base steps back, missing headers
//! are read once.

use crate::{chain::Chain, error::Error, tree::BELOW_BASE};
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc};
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::storage::BlockRef;

/// Number of blocks that BLOCKHASH looks back (yellow paper, H.2).
const BLOCK_HASHES: usize = 256;

/// Number of parents whose ancestors are remembered: the executing block's, and those of a few
/// calls.
const WINDOWS_MAX: usize = 4;

/// Hashes of the blocks up to a parent, for the last few requested parents.
///
/// A contract may ask for the oldest hash in a loop, at 20 gas each. Each answer is therefore a
/// lookup, not a walk down the chain.
#[derive(Default)]
pub struct Windows(Mutex<VecDeque<Arc<[B256]>>>);

impl Windows {
    /// Returns the window of a parent: its own hash, its parent's hash, and so on.
    fn get(
        &self,
        parent: B256,
        make: impl FnOnce() -> Result<Vec<B256>, Error>,
    ) -> Result<Arc<[B256]>, Error> {
        let known = |windows: &VecDeque<Arc<[B256]>>| {
            windows.iter().find(|window| window.first() == Some(&parent)).cloned()
        };
        if let Some(window) = known(&self.0.lock()) {
            return Ok(window);
        }
        // Runs without the lock, because `make` may have to read headers.
        let window: Arc<[B256]> = make()?.into();
        let mut windows = self.0.lock();
        if known(&windows).is_none() {
            windows.push_front(window.clone());
            windows.truncate(WINDOWS_MAX);
        }
        Ok(window)
    }
}

/// Returns up to 256 hashes, from the block downwards. `parent_of` returns a block's parent, or
/// `None` for an unknown block.
fn window(
    block: BlockId,
    parent_of: impl Fn(&B256) -> Result<Option<B256>, Error>,
) -> Result<Vec<B256>, Error> {
    let mut hashes = vec![block.hash];
    let mut number = block.number;
    while number > 0 && hashes.len() < BLOCK_HASHES {
        let Some(parent) = parent_of(&hashes[hashes.len() - 1])? else { break };
        hashes.push(parent);
        number -= 1;
    }
    Ok(hashes)
}

impl Chain {
    /// Returns the hash of an ancestor (BLOCKHASH) of a child of `parent`, or zero if there is
    /// none.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Record`].
    pub(crate) fn block_hash(&self, parent: BlockId, number: BlockNumber) -> Result<B256, Error> {
        let parent_of = |hash: &B256| {
            let recent = self.tree.read().get(hash).map(|node| node.parent);
            if recent.is_some() {
                return Ok(recent);
            }
            let stored = self.stored_header(BlockRef::Hash(*hash))?;
            Ok(stored.map(|(_, header)| header.parent_hash))
        };
        let window = self.windows.get(parent.hash, || window(parent, parent_of))?;
        let behind =
            parent.number.checked_sub(number).and_then(|behind| usize::try_from(behind).ok());
        Ok(behind.and_then(|behind| window.get(behind).copied()).unwrap_or_default())
    }

    /// Returns whether a block was executed. Above the base every executed block is in the tree, so
    /// storage-writer is asked only about lower blocks.
    ///
    /// # Errors
    /// Same as [`Chain::block_hash`].
    pub(crate) fn knows(&self, block: BlockId) -> Result<bool, Error> {
        if self.tree.read().get(&block.hash).is_some() {
            return Ok(true);
        }
        Ok(block.number <= self.base().number && self.header_by_hash(block.hash)?.is_some())
    }

    /// Reads the headers of the base and the blocks below it into the tree, as far down as the tree
    /// keeps them. Skips headers that the tree already has.
    ///
    /// # Errors
    /// Same as [`Chain::block_hash`].
    pub(crate) fn load_below(&self, base: BlockId) -> Result<(), Error> {
        let oldest = base.number.saturating_sub(BELOW_BASE);
        let mut id = base;
        loop {
            let known = self.tree.read().header(&id.hash);
            let header = match known {
                Some((_, header)) => header,
                None => match self.stored_header(BlockRef::Hash(id.hash))? {
                    Some((_, header)) => Arc::new(header),
                    None => return Ok(()),
                },
            };
            let parent = header.parent_hash;
            self.tree.write().insert_canonical(id, header);
            if id.number <= oldest {
                return Ok(());
            }
            id = BlockId::new(id.number - 1, parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Returns block `number`, 400 to 420, of branch 0 or 1. Branch 1 forks off after block 410.
    fn id(number: u64, branch: u8) -> BlockId {
        let mut hash = B256::from(alloy_primitives::U256::from(number));
        hash[0] = branch;
        BlockId::new(number, hash)
    }

    fn parent(hash: &B256) -> B256 {
        let number = alloy_primitives::U256::from_be_slice(&hash[1..]).to::<u64>() - 1;
        id(number, if number == 410 { 0 } else { hash[0] }).hash
    }

    #[test]
    fn each_branch_has_its_own_hashes() {
        for (branch, fork) in [(0, 0), (1, 410)] {
            let hashes = window(id(420, branch), |hash| Ok(Some(parent(hash)))).unwrap();
            assert_eq!(hashes.len(), 256);
            for (number, got) in (0..=420).rev().zip(hashes) {
                let branch = if number > fork { branch } else { 0 };
                assert_eq!(got, id(number, branch).hash, "block {number}");
            }
        }
    }

    #[test]
    fn a_short_chain_ends_at_genesis_and_a_broken_one_where_it_breaks() {
        let hashes = window(id(2, 0), |hash| Ok(Some(parent(hash)))).unwrap();
        assert_eq!(hashes, [id(2, 0).hash, id(1, 0).hash, id(0, 0).hash]);
        let known = |hash: &B256| Ok((*hash != id(399, 0).hash).then(|| parent(hash)));
        let hashes = window(id(401, 0), known).unwrap();
        assert_eq!(hashes, [id(401, 0).hash, id(400, 0).hash, id(399, 0).hash]);
    }

    #[test]
    fn a_window_is_made_once_and_the_oldest_is_forgotten() {
        let windows = Windows::default();
        let made = Cell::new(0);
        let ask = |n: u8| {
            let make = || {
                made.set(made.get() + 1);
                Ok(vec![B256::with_last_byte(n), B256::ZERO])
            };
            windows.get(B256::with_last_byte(n), make).unwrap()
        };
        for n in [1, 1, 2, 1, 3, 4] {
            assert_eq!(ask(n)[0], B256::with_last_byte(n));
        }
        assert_eq!(made.get(), 4);
        ask(5);
        ask(1);
        assert_eq!(made.get(), 6, "the first was forgotten");
        assert_eq!(windows.0.lock().len(), WINDOWS_MAX);
    }
}
