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
use std::sync::Arc;
use tandem_primitives::{AccountUpdate, B256, BlockId};
use tandem_store::View;
use tandem_trie::{ShardTrie, apply_block, combine};

/// Sparse tries at the end of one branch.
pub struct Replay {
    base: BlockId,
    tip: B256,
    shards: Vec<ShardTrie>,
}

impl Replay {
    /// Creates tries at the base.
    pub fn new(base: BlockId) -> Self {
        Self { base, tip: base.hash, shards: new_shards() }
    }

    /// Returns the block from which the tries were read.
    pub fn base(&self) -> BlockId {
        self.base
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
        Ok(Tries { parts: vec![Arc::new(diff)], root, root_node })
    }
}
