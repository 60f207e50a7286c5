//! Trials of workers.

use super::{collect::WorkerShare, core::FinishedBlock};
use crossbeam_channel::TryRecvError;
use std::time::Instant;
use tandem_primitives::{BlockId, Shard, ShardSet, SubtrieRoot};

/// Block at a worker on trial. The worker may still be at work on it when the next block begins.
pub struct TrialBlock {
    pub part: WorkerShare,
    pub block: BlockId,
    /// Roots of the others; `None` when the block was refused, because the right roots are then
    /// unknown.
    roots: Option<[SubtrieRoot; Shard::COUNT]>,
    /// Deadline of the worker.
    until: Instant,
}

/// Outcome of a trial.
pub enum TrialOutcome {
    InTime,
    /// The worker was late, or has no roots.
    Late,
    /// Roots of these shards differ from those of the others.
    Wrong(ShardSet),
}

impl TrialBlock {
    /// Returns the block's trials, once its roots are in and it is known whether it was refused.
    pub fn of_block(done: &mut FinishedBlock, refused: bool) -> Vec<Self> {
        let (block, until) = (done.block, done.trials_end);
        let roots = (!refused).then_some(&done.roots);
        let parts = std::mem::take(&mut done.trials).into_iter();
        parts.map(|part| Self { part, block, roots: roots.cloned(), until }).collect()
    }

    /// Returns the outcome, `None` while the worker has time left.
    pub fn outcome(&mut self, now: Instant) -> Option<TrialOutcome> {
        let session = &mut self.part.session;
        let answer = match session.answer().try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) if now < self.until && !session.has_failed() => return None,
            Err(_) => return Some(TrialOutcome::Late),
        };
        let in_time = answer.at <= self.until;
        let Ok(answer) = session.take(answer) else { return Some(TrialOutcome::Late) };
        let right = self.roots.as_ref().unwrap_or(&answer.roots);
        let differs = |shard: &Shard| answer.roots[shard.index()] != right[shard.index()];
        let wrong: ShardSet = session.shards().iter().filter(differs).collect();
        Some(match in_time {
            _ if !wrong.is_empty() => TrialOutcome::Wrong(wrong),
            true => TrialOutcome::InTime,
            false => TrialOutcome::Late,
        })
    }
}
