//! Hashes of a block's ancestors (BLOCKHASH), without a read of the database while a block executes.

use crate::error::Error;
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc};
use tandem_primitives::{B256, BlockId, BlockNumber};

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
pub struct BlockHashes(Mutex<VecDeque<Arc<[B256]>>>);

impl BlockHashes {
    /// Returns the hash of the block at a height on `parent`'s branch, zero where there is none.
    /// `parent_of` gives a block's parent, `None` for blocks that are not known.
    ///
    /// # Errors
    /// Errors of `parent_of`.
    pub fn get(
        &self,
        parent: BlockId,
        number: BlockNumber,
        parent_of: impl Fn(&B256) -> Result<Option<B256>, Error>,
    ) -> Result<B256, Error> {
        let window = self.window(parent.hash, || window(parent, parent_of))?;
        let behind = parent.number.checked_sub(number);
        let behind = behind.and_then(|behind| usize::try_from(behind).ok());
        Ok(behind.and_then(|behind| window.get(behind).copied()).unwrap_or_default())
    }

    /// Returns the window of a parent: its own hash, its parent's hash, and so on.
    fn window(
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
        let windows = BlockHashes::default();
        let made = Cell::new(0);
        let ask = |n: u8| {
            let make = || {
                made.set(made.get() + 1);
                Ok(vec![B256::with_last_byte(n), B256::ZERO])
            };
            windows.window(B256::with_last_byte(n), make).unwrap()
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
