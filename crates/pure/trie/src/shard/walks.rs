//! Record of the walks that were requested during a block, and of those that were answered.

use crate::{Blinded, Error};
use alloy_primitives::map::B256Map;
use tandem_primitives::{B256, WalkTarget};

#[derive(Clone, Copy, Debug)]
struct Ask {
    from_depth: u8,
    answered: bool,
}

/// Walks of one trie.
#[derive(Debug, Default)]
pub struct Walks {
    asked: B256Map<Ask>,
    duplicates: u64,
}

impl Walks {
    /// Requests the blinded node, unless it was already requested.
    ///
    /// # Errors
    /// Returns [`Error::Missing`] when the walk was answered in full and the node is still blinded.
    pub fn need(
        &mut self,
        owner: Option<B256>,
        blinded: Blinded,
        targets: &mut Vec<WalkTarget>,
    ) -> Result<(), Error> {
        let Blinded { key, depth } = blinded;
        if let Some(ask) = self.asked.get(&key).filter(|ask| ask.from_depth <= depth) {
            return if ask.answered {
                Err(Error::Missing { owner, key, depth: usize::from(depth) })
            } else {
                self.duplicates += 1;
                Ok(())
            };
        }
        self.asked.insert(key, Ask { from_depth: depth, answered: false });
        targets.push(WalkTarget { owner, key, from_depth: depth });
        Ok(())
    }

    /// Records that the walk was answered in full.
    pub fn answered(&mut self, target: &WalkTarget) {
        if let Some(ask) = self.asked.get_mut(&target.key) {
            ask.answered |= target.from_depth <= ask.from_depth;
        }
    }

    /// Returns how often a walk in progress was needed again.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Drops all walks at the end of the block.
    pub fn clear(&mut self) {
        self.asked.clear();
        self.duplicates = 0;
    }
}
