//! Trie diffs of pending blocks, computed from their state diffs. The blocks of a branch run one
//! after the other through sparse tries that start from the base.
//!
//! The tries keep every node that a block changed. So every node that they still have to read is
//! unchanged in the base.

use crate::{
    Error,
    apply::{Tries, new_shards},
    walk::BaseNodes,
};
use std::{collections::VecDeque, sync::Arc};
use tandem_primitives::{AccountUpdate, B256, BlockId};
use tandem_store::View;
use tandem_trie::{ShardTrie, apply_block, combine};

/// Bytes of tries above which a replay is not continued after the base has moved.
const BYTES_MAX: usize = 256 << 20;

/// Sparse tries at the end of one branch.
pub struct Replay {
    base: BlockId,
    tip: B256,
    shards: Vec<ShardTrie>,
    /// Blocks that ran, from the child of the base to the tip.
    ran: VecDeque<B256>,
    /// Whether the tries stay when the base moves to a block that ran.
    lasts: bool,
}

impl Replay {
    /// Creates tries at the base.
    pub fn new(base: BlockId) -> Self {
        Self { base, tip: base.hash, shards: new_shards(), ran: VecDeque::new(), lasts: false }
    }

    /// Lets the tries stay when the base moves to a block that ran, for a caller that runs every block.
    pub fn outlive_the_base(&mut self) {
        self.lasts = true;
    }

    /// Follows the base to this block. Returns false if the tries are of no use above it.
    ///
    /// The tries hold every node that a block changed. A node that they lack is the same at the old
    /// base, at the new one and at the tip, so it may be read from either base.
    pub fn follow(&mut self, base: BlockId) -> bool {
        if self.base == base {
            return true;
        }
        let Some(at) = self.ran.iter().position(|hash| *hash == base.hash) else { return false };
        let bytes = || self.shards.iter().map(ShardTrie::byte_len).sum::<usize>();
        if !self.lasts || bytes() > BYTES_MAX {
            return false;
        }
        self.ran.drain(..=at);
        self.base = base;
        true
    }

    /// Returns the block whose state the tries have.
    pub fn tip(&self) -> B256 {
        self.tip
    }

    /// Runs a child of the tip. `view` shows the base from which the replay started.
    ///
    /// # Errors
    /// When the database fails, or its tries are damaged. The replay is unusable then.
    pub fn run(
        &mut self,
        view: &View<'_>,
        block: B256,
        updates: &[AccountUpdate],
    ) -> Result<Tries, Error> {
        let (root, roots, diff) = apply_block(&mut self.shards, updates, &mut BaseNodes(view))?;
        let (_, root_node) = combine(&roots)?;
        self.tip = block;
        self.ran.push_back(block);
        Ok(Tries { parts: vec![Arc::new(diff)], root, root_node, tops: roots })
    }
}
