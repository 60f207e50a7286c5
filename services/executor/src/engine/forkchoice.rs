//! engine_forkchoiceUpdated: a new head.

use super::Engine;
use crate::{
    error::Error,
    metrics as names,
    status::{ForkchoiceState, PayloadStatus},
};
use alloy_consensus::Header;
use metrics::gauge;
use tandem_chain::is_merged;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    event::CHAIN_HEAD,
    storage::{self, Forkchoice},
};
use tracing::{info, info_span};

impl Engine {
    /// Sets head, safe and finalized block (Engine API, paris.md, `engine_forkchoiceUpdatedV1`).
    pub(super) fn forkchoice(&mut self, state: ForkchoiceState) -> Result<PayloadStatus, Error> {
        let _span = info_span!("forkchoice_updated", head = %state.head).entered();
        if state.head.is_zero() {
            return Ok(PayloadStatus::invalid(None, "head is the zero hash".into()));
        }
        if let Some(verdict) = self.invalid.get(&state.head) {
            return Ok(verdict.status());
        }
        if self.kept.get(&state.head).is_some() {
            self.follow(state.head)?;
            if let Some(verdict) = self.invalid.get(&state.head) {
                return Ok(verdict.status());
            }
        } else {
            self.catch_up = None;
        }
        let Some((head, header)) = self.chain.header_by_hash(state.head)? else {
            let target = self.kept.get(&state.head).map_or(0, |block| block.number);
            self.chain.set_sync_target(Some(target));
            return Ok(PayloadStatus::syncing());
        };
        let old = self.chain.tree.read().forkchoice();
        if self.chain.precedes_finalized(head)? {
            // Final blocks stay final. Only such an update may be skipped (point 2).
            return Ok(PayloadStatus::valid(head.hash));
        }
        if head != old.head && !is_merged(&header) {
            // Only the terminal block of proof of work may become a head. A default header stands
            // for the block after it.
            let next = Header::default();
            if let Err(error) = self.check_terminal(&next, head, &header)? {
                return Ok(PayloadStatus::invalid(Some(B256::ZERO), error.describe()));
            }
        }
        let forkchoice = Forkchoice {
            head,
            safe: self.on_branch(head, state.safe, "safe block is not on the head's chain")?,
            finalized: self.on_branch(
                head,
                state.finalized,
                "finalized block is not on the head's chain",
            )?,
        };
        match self.choose(forkchoice) {
            Ok(()) => {}
            // The head was dropped with its branch to limit the bytes of side branches.
            Err(Error::Storage(storage::Error::UnknownBlock(lost))) => {
                self.chain.tree.write().remove(&lost);
                self.chain.set_sync_target(Some(head.number));
                return Ok(PayloadStatus::syncing());
            }
            Err(error) => return Err(error),
        }
        self.chain.set_sync_target(None);
        Ok(PayloadStatus::valid(head.hash))
    }

    /// Makes an imported block the head. Accepts any known block on the branch of the safe and
    /// finalized blocks, which stay. Kept blocks up to it are executed first; that may take
    /// several calls.
    pub(super) fn make_head(&mut self, hash: B256) -> Result<PayloadStatus, Error> {
        let _span = info_span!("make_head", head = %hash).entered();
        if self.kept.get(&hash).is_some() {
            self.follow(hash)?;
            if let Some(verdict) = self.invalid.get(&hash) {
                return Ok(verdict.status());
            }
        }
        let Some((head, _)) = self.chain.header_by_hash(hash)? else {
            return Ok(PayloadStatus::syncing());
        };
        let Forkchoice { safe, finalized, .. } = self.chain.tree.read().forkchoice();
        for kept in [safe, finalized].into_iter().flatten() {
            self.on_branch(head, kept.hash, "the head would leave what is safe or finalized")?;
        }
        self.choose(Forkchoice { head, safe, finalized })?;
        Ok(PayloadStatus::valid(head.hash))
    }

    pub(super) fn choose(&mut self, forkchoice: Forkchoice) -> Result<(), Error> {
        let head = forkchoice.head;
        let old = self.chain.head();
        self.ensure_base_below(head.hash).map_err(|error| match error {
            Error::Storage(storage::Error::RewindTooDeep { to, oldest }) => {
                Error::ReorgTooDeep { to, oldest }
            }
            error => error,
        })?;
        let mut goal = self.storage.canonicalize(self.epoch, forkchoice);
        if let Err(storage::Error::UnknownBlock(lost)) = goal
            && self.commit_again(lost)?
        {
            goal = self.storage.canonicalize(self.epoch, forkchoice);
        }
        self.set_forkchoice(forkchoice, goal?);
        // Loads the layers of the new head, for readers of its state before a block is executed on
        // it.
        self.hear_persisted();
        self.stand_on(head.hash)?;
        gauge!(names::HEAD).set(head.number as f64);
        if head != old {
            self.publish(CHAIN_HEAD, head);
            info!(number = head.number, hash = %head.hash, "new head");
        }
        Ok(())
    }

    /// Returns the block with this hash, or `None` for the zero hash.
    ///
    /// # Errors
    /// [`Error::InvalidForkchoice`] if the block is unknown or not an ancestor of `head`.
    fn on_branch(
        &self,
        head: BlockId,
        hash: B256,
        message: &'static str,
    ) -> Result<Option<BlockId>, Error> {
        if hash.is_zero() {
            return Ok(None);
        }
        let known = self.chain.header_by_hash(hash)?.ok_or(Error::InvalidForkchoice(message))?.0;
        if known.number <= head.number && self.chain.ancestor(head, known.number)? == Some(hash) {
            Ok(Some(known))
        } else {
            Err(Error::InvalidForkchoice(message))
        }
    }
}
