//! Blocks that cannot be executed yet, and their later execution.
//!
//! Two kinds of payloads are kept in storage-writer. A payload whose parent is missing is executed
//! as soon as its parent is there. A payload on a branch that leaves the canonical chain below the
//! base waits for a forkchoice that chooses the branch. Only then does the base step back. Long
//! work happens between messages, one block at a time, so that other payloads are answered.

use super::{Engine, Verdict};
use crate::{
    ahead::senders::Senders,
    engine::base::Standing,
    error::Error,
    status::{PayloadStatus, Status},
};
use alloy_primitives::map::B256Map;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::{Block, validate_body};
use tandem_primitives::{B256, BlockId};
use tandem_proto::storage::{Forkchoice, KeptBlock};
use tracing::{debug, info, info_span, warn};

/// Time a forkchoice executes kept blocks before it answers SYNCING.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Number of executed blocks of a branch after which the newest becomes the head, so that the base
/// follows.
const HEAD_EVERY: u32 = 32;

/// Time between two checks whether the base is close enough.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Index of the kept blocks.
#[derive(Default)]
pub(super) struct Kept {
    parents: B256Map<(BlockId, B256)>,
    children: B256Map<Vec<B256>>,
}

impl Kept {
    pub fn insert(&mut self, block: BlockId, parent: B256) {
        if self.parents.insert(block.hash, (block, parent)).is_none() {
            self.children.entry(parent).or_default().push(block.hash);
        }
    }

    pub fn remove(&mut self, hash: &B256) {
        let Some((_, parent)) = self.parents.remove(hash) else { return };
        if let Some(children) = self.children.get_mut(&parent) {
            children.retain(|child| child != hash);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }

    pub fn get(&self, hash: &B256) -> Option<BlockId> {
        self.parents.get(hash).map(|(block, _)| *block)
    }

    pub fn children(&self, hash: &B256) -> &[B256] {
        self.children.get(hash).map_or(&[], Vec::as_slice)
    }

    /// Returns the kept blocks from this one down to the lowest, and the lowest one's parent.
    fn way_down(&self, hash: B256) -> (Vec<B256>, B256) {
        let (mut way, mut at) = (Vec::new(), hash);
        while let Some((_, parent)) = self.parents.get(&at) {
            way.push(at);
            at = *parent;
        }
        (way, at)
    }

    /// Returns all kept blocks that build on this one.
    fn descendants(&self, hash: &B256) -> Vec<B256> {
        let mut found = self.children(hash).to_vec();
        let mut next = 0;
        while next < found.len() {
            let more = self.children(&found[next]).to_vec();
            found.extend(more);
            next += 1;
        }
        found
    }
}

/// Head that was chosen before all blocks up to it were executed.
pub(super) struct CatchUp {
    head: B256,
    /// Number of blocks executed since the last block became the head.
    executed: u32,
    not_before: Instant,
}

/// Result of one step of the work between messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Some work was done.
    Done,
    /// The base has to come closer first.
    Wait,
    /// Nothing is left, or no more can be done.
    End,
}

impl Engine {
    /// Keeps a block that cannot be executed now, and answers `status`. First checks the rules that
    /// do not need its parent.
    pub(super) fn keep(
        &mut self,
        block: &Block,
        status: PayloadStatus,
    ) -> Result<PayloadStatus, Error> {
        if let Err(error) = validate_body(&self.chain.spec, block) {
            return Ok(PayloadStatus::invalid(None, error.describe()));
        }
        let (id, parent) = (block.id, block.header.parent_hash);
        let finalized = self.chain.tree.read().forkchoice().finalized;
        if finalized.is_some_and(|finalized| id.number <= finalized.number) {
            // The block can no longer become canonical.
            return Ok(status);
        }
        let (header, body) = (block.header_rlp.clone(), block.body_rlp.clone());
        self.storage.keep(self.epoch, KeptBlock { id, parent, header, body })?;
        self.kept.insert(id, parent);
        debug!(number = id.number, hash = %id.hash, status = status.status.as_str(), "block kept");
        if status.status == Status::Syncing {
            self.chain.set_sync_target(Some(id.number));
        }
        Ok(status)
    }

    /// Returns the answer to a payload on an unexecuted parent. ACCEPTED if kept blocks lead to a
    /// branch that leaves the chain below the base, otherwise SYNCING.
    pub(super) fn kept_status(&self, parent: B256) -> Result<PayloadStatus, Error> {
        let (way, below) = self.kept.way_down(parent);
        let fork = if way.is_empty() { None } else { self.fork_of(below)? };
        let is_side = fork.is_some_and(|fork| fork.number < self.chain.base().number);
        Ok(if is_side { PayloadStatus::accepted() } else { PayloadStatus::syncing() })
    }

    /// Returns whether work between messages is due.
    pub(super) fn has_work(&self) -> bool {
        let now = Instant::now();
        !self.ready.is_empty()
            || self.catch_up.as_ref().is_some_and(|catch_up| catch_up.not_before <= now)
    }

    /// Does one step of the pending work.
    pub(super) fn work(&mut self) {
        if let Some(hash) = self.ready.pop_front() {
            let reached = matches!(self.kept_parent(&hash), Some(Ok(Standing::Reached)));
            if reached && let Err(error) = self.execute_kept(hash) {
                debug!(block = %hash, %error, "kept block not executed");
            }
            return;
        }
        match self.catch_up_step() {
            Ok(Step::Done) => {}
            Ok(Step::Wait) => {
                if let Some(catch_up) = &mut self.catch_up {
                    catch_up.not_before = Instant::now() + LOOK_AGAIN;
                }
            }
            Ok(Step::End) => self.catch_up = None,
            Err(error) => {
                warn!(%error, "cannot follow the head that was chosen");
                self.catch_up = None;
            }
        }
    }

    fn kept_parent(&mut self, hash: &B256) -> Option<Result<Standing, Error>> {
        let (_, parent) = *self.kept.parents.get(hash)?;
        Some(self.stand_on(parent))
    }

    /// Follows a kept head: immediately if that is quick, otherwise between messages. Returns
    /// whether the head is known now.
    pub(super) fn follow(&mut self, head: B256) -> Result<bool, Error> {
        let now = Instant::now();
        if self.catch_up.as_ref().is_none_or(|catch_up| catch_up.head != head) {
            info!(%head, "the head was chosen before it was executed");
            self.catch_up = Some(CatchUp { head, executed: 0, not_before: now });
        }
        while now.elapsed() < AT_ONCE {
            match self.catch_up_step()? {
                Step::Done => {}
                Step::Wait => std::thread::sleep(Duration::from_millis(1)),
                Step::End => {
                    self.catch_up = None;
                    break;
                }
            }
        }
        Ok(self.chain.header_by_hash(head)?.is_some())
    }

    fn catch_up_step(&mut self) -> Result<Step, Error> {
        let Some(catch_up) = &self.catch_up else { return Ok(Step::End) };
        let executed = catch_up.executed;
        let (way, parent) = self.kept.way_down(catch_up.head);
        let Some(next) = way.last().copied() else { return Ok(Step::End) };
        let Some((parent, _)) = self.chain.header_by_hash(parent)? else { return Ok(Step::End) };
        match self.stand_on(parent.hash)? {
            Standing::Reached if executed >= HEAD_EVERY => self.lead(parent),
            Standing::Reached => {
                let status = self.execute_kept(next)?;
                if let Some(catch_up) = &mut self.catch_up {
                    catch_up.executed += 1;
                }
                Ok(if status.status == Status::Valid { Step::Done } else { Step::End })
            }
            Standing::Below(_) => self.lead(parent),
            Standing::Far if self.chain.head() == parent => {
                self.hear_persisted();
                Ok(Step::Wait)
            }
            Standing::Far => self.lead(parent),
            Standing::Unconnected => Ok(Step::End),
        }
    }

    /// Makes an intermediate block on the way to the chosen head the head, so that the base
    /// follows.
    fn lead(&mut self, head: BlockId) -> Result<Step, Error> {
        let Forkchoice { safe, finalized, .. } = self.chain.tree.read().forkchoice();
        let on_way = |block: Option<BlockId>| {
            match block {
            Some(block) => Ok(Some(block).filter(|_| {
                block.number <= head.number
                    && matches!(self.chain.ancestor(head, block.number), Ok(Some(hash)) if hash == block.hash)
            })),
            None => Ok::<_, Error>(None),
        }
        };
        let (safe, kept) = (on_way(safe)?, on_way(finalized)?);
        if kept != finalized {
            return Err(Error::InvalidForkchoice("the head would leave what is finalized"));
        }
        self.choose(Forkchoice { head, safe, finalized })?;
        if let Some(catch_up) = &mut self.catch_up {
            catch_up.executed = 0;
        }
        Ok(Step::Done)
    }

    /// Executes a kept block whose parent's layers reach the base.
    fn execute_kept(&mut self, hash: B256) -> Result<PayloadStatus, Error> {
        let Some(kept) = self.storage.kept(hash)? else {
            // storage-writer dropped the block to limit its bytes.
            self.kept.remove(&hash);
            return Ok(PayloadStatus::syncing());
        };
        let block = Block::decode(kept.header.clone(), kept.body.clone()).map_err(|error| {
            let error = error.to_string();
            Error::Record { what: "kept block", block: hash, error }
        })?;
        let block = Arc::new(block);
        let _span = info_span!("execute_kept", block.number = block.id.number).entered();
        let result = self.new_payload(&block, &Senders::recover(block.clone()));
        match &result {
            Ok(status) if status.status == Status::Valid => self.unblock(&hash),
            Ok(status) if status.status == Status::Invalid => self.drop_kept(hash),
            // A block that failed through no fault of its own was discarded, so keep it again.
            _ => self.storage.keep(self.epoch, kept)?,
        }
        result
    }

    /// Drops an invalid kept block and all blocks that build on it.
    pub(super) fn drop_kept(&mut self, hash: B256) {
        let verdict = self.invalid.get(&hash).cloned();
        let descendants = self.kept.descendants(&hash);
        for hash in std::iter::once(hash).chain(descendants) {
            if let Some(Verdict { latest_valid, error }) = verdict.clone() {
                self.invalid.insert(hash, Verdict { latest_valid, error });
            }
            self.kept.remove(&hash);
            if let Err(error) = self.storage.discard(self.epoch, hash) {
                warn!(block = %hash, %error, "invalid block stays kept");
            }
        }
    }

    /// Marks the kept children of a valid block as ready.
    pub(super) fn unblock(&mut self, hash: &B256) {
        self.kept.remove(hash);
        self.ready.extend(self.kept.children(hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> BlockId {
        BlockId::new(number.into(), B256::with_last_byte(number))
    }

    #[test]
    fn kept_blocks_lead_down_to_what_they_wait_for() {
        let mut kept = Kept::default();
        for number in [5, 3, 4] {
            kept.insert(id(number), id(number - 1).hash);
        }
        kept.insert(id(9), id(3).hash);
        let (way, parent) = kept.way_down(id(5).hash);
        assert_eq!(way, [5, 4, 3].map(|number| id(number).hash));
        assert_eq!(parent, id(2).hash);
        assert_eq!(kept.descendants(&id(3).hash).len(), 3);
        kept.remove(&id(3).hash);
        assert_eq!(kept.way_down(id(5).hash).1, id(3).hash);
        assert_eq!(kept.children(&id(2).hash), [B256::ZERO; 0]);
        assert_eq!(kept.get(&id(4).hash), Some(id(4)));
    }
}
