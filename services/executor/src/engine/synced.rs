//! Blocks that sync found to be invalid, before the consensus client sent them.

use super::{Engine, Verdict};
use crate::status::Condemned;
use tracing::info;

impl Engine {
    /// Notes that blocks are invalid. A payload or a forkchoice that names one of them is INVALID from
    /// now on. Known blocks stay valid.
    pub(super) fn condemn(&mut self, condemned: Condemned) {
        let Condemned { blocks, latest_valid, error } = condemned;
        info!(blocks = blocks.len(), error, "blocks on an invalid block");
        for hash in blocks {
            if self.chain.tree.read().get(&hash).is_some() {
                continue;
            }
            self.invalid.insert(hash, Verdict { latest_valid, error: error.clone() });
            if self.kept.get(&hash).is_some() {
                self.drop_kept(hash);
            }
        }
    }
}
