//! Which walks were asked for during a block, and which were answered.

use crate::{Blinded, Error};
use alloy_primitives::map::B256Map;
use tandem_primitives::{B256, WalkTarget};

#[derive(Clone, Copy, Debug)]
struct Ask {
    from_depth: u8,
    answered: bool,
}

/// The walks of one trie.
#[derive(Debug, Default)]
pub struct Walks {
    asked: B256Map<Ask>,
    duplicates: u64,
}

impl Walks {
    /// Asks for the blinded node, unless that was done.
    ///
    /// # Errors
    /// [`Error::Missing`] when the walk was answered in full and the node is still blinded.
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

    /// The walk was answered in full.
    pub fn answered(&mut self, target: &WalkTarget) {
        if let Some(ask) = self.asked.get_mut(&target.key) {
            ask.answered |= target.from_depth <= ask.from_depth;
        }
    }

    /// How often a walk that was under way was needed again.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Forgets all: the block is over.
    pub fn clear(&mut self) {
        self.asked.clear();
        self.duplicates = 0;
    }
}
