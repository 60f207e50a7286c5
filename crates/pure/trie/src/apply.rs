//! Application of a whole block at once, for callers that have all its updates: recovery, rewind,
//! and the executor when no worker is left.

use crate::{Error, ShardTrie, combine};
use rayon::prelude::*;
use tandem_primitives::{AccountUpdate, B256, Shard, SubtrieRoot, TrieDiff, WalkTarget};

/// Callback that takes a node: owner, path (one nibble per byte) and RLP.
pub type NodeSink<'a> = dyn FnMut(Option<B256>, &[u8], &[u8]) + 'a;

/// Source of trie nodes.
pub trait NodeSource {
    /// Reason why nodes cannot be read.
    type Error;

    /// Passes every node on the way to each target, from the target's depth on, to `node`. Parents
    /// come before their children. A node may come more than once.
    ///
    /// # Errors
    /// Returns an error when nodes cannot be read.
    fn walk(&mut self, targets: &[WalkTarget], node: &mut NodeSink<'_>) -> Result<(), Self::Error>;
}

/// Reason why a block could not be applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError<E> {
    /// Wrong or missing node.
    #[error(transparent)]
    Trie(#[from] Error),
    /// Failure of the source.
    #[error("read trie nodes: {0}")]
    Source(E),
}

/// State root, top node of each subtrie, and changed nodes. The diff lacks the root node at the
/// empty path, which [`combine`] returns.
pub type Applied = (B256, [SubtrieRoot; Shard::COUNT], TrieDiff);

/// Number of updates from which several threads apply them.
const PARALLEL_MIN: usize = 64;

/// Applies a block's updates to the sixteen shards, given in ascending order. The shards hold any
/// part of the parent's state, or nothing. Afterwards they stand at the block's state.
///
/// # Errors
/// Returns [`Error::Shards`] when these are not the sixteen shards, and otherwise the errors of
/// [`ShardTrie::finish`] and [`NodeSource::walk`]. The shards are cleared on any of the latter.
pub fn apply_block<S: NodeSource>(
    shards: &mut [ShardTrie],
    updates: &[AccountUpdate],
    source: &mut S,
) -> Result<Applied, ApplyError<S::Error>> {
    if !Shard::all().eq(shards.iter().map(ShardTrie::shard)) {
        return Err(Error::Shards.into());
    }
    let applied = run(shards, updates, source);
    if applied.is_err() {
        shards.iter_mut().for_each(ShardTrie::clear);
    }
    applied
}

fn run<S: NodeSource>(
    shards: &mut [ShardTrie],
    updates: &[AccountUpdate],
    source: &mut S,
) -> Result<Applied, ApplyError<S::Error>> {
    take_in(shards, updates);
    let done = finish(shards, [true; Shard::COUNT], source)?;
    let mut diff = TrieDiff::default();
    let mut roots: [SubtrieRoot; Shard::COUNT] = Default::default();
    for (root, (top, shard_diff)) in roots.iter_mut().zip(done.into_iter().flatten()) {
        *root = top;
        diff.append(&shard_diff);
    }
    let (root, _) = combine(&roots)?;
    Ok((root, roots, diff))
}

/// Applies updates to the sixteen shards as [`apply_block`] does, except shards that have no
/// update. Such a shard requests no node, not even its top node, and its result is `None`.
///
/// # Errors
/// Returns the errors of [`ShardTrie::finish`] and [`NodeSource::walk`].
pub fn apply_touched<S: NodeSource>(
    shards: &mut [ShardTrie],
    updates: &[AccountUpdate],
    source: &mut S,
) -> Result<[Option<SubtrieRoot>; Shard::COUNT], ApplyError<S::Error>> {
    let mut touched = [false; Shard::COUNT];
    updates.iter().for_each(|update| touched[update.shard().index()] = true);
    take_in(shards, updates);
    let done = finish(shards, touched, source)?;
    Ok(done.map(|done| done.map(|(top, _)| top)))
}

fn take_in(shards: &mut [ShardTrie], updates: &[AccountUpdate]) {
    if updates.len() < PARALLEL_MIN {
        updates.iter().for_each(|update| shards[update.shard().index()].update(update));
    } else {
        shards.par_iter_mut().for_each(|shard| {
            let own = shard.shard();
            updates.iter().filter(|update| update.shard() == own).for_each(|u| shard.update(u));
        });
    }
}

/// Result of [`ShardTrie::finish`] for each of the wanted shards.
type Finished = [Option<(SubtrieRoot, TrieDiff)>; Shard::COUNT];

fn finish<S: NodeSource>(
    shards: &mut [ShardTrie],
    wanted: [bool; Shard::COUNT],
    source: &mut S,
) -> Result<Finished, ApplyError<S::Error>> {
    let mut finished = Finished::default();
    loop {
        reveal_all(shards, source)?;
        let open = shards.par_iter_mut().zip(&mut finished).zip(wanted);
        open.filter(|((_, finished), wanted)| *wanted && finished.is_none()).try_for_each(
            |((shard, finished), _)| -> Result<(), Error> {
                *finished = shard.finish()?;
                Ok(())
            },
        )?;
        if finished.iter().zip(wanted).all(|(finished, wanted)| !wanted || finished.is_some()) {
            return Ok(finished);
        }
    }
}

/// Answers all walks, and the walks that the answers lead to.
fn reveal_all<S: NodeSource>(
    shards: &mut [ShardTrie],
    source: &mut S,
) -> Result<(), ApplyError<S::Error>> {
    let mut targets = Vec::new();
    loop {
        targets.clear();
        shards.iter_mut().for_each(|shard| shard.take_targets(&mut targets));
        if targets.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        source
            .walk(&targets, &mut |owner, path, rlp| {
                if failed.is_some() {
                    return;
                }
                let first = owner.map_or(path.first().copied(), |owner| Some(owner[0] >> 4));
                failed = match first.and_then(|nibble| shards.get_mut(usize::from(nibble))) {
                    Some(shard) => shard.reveal(owner.as_ref(), path, rlp).err(),
                    None => Some(Error::Path),
                };
            })
            .map_err(ApplyError::Source)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        for target in &targets {
            let shard = Shard::of(target.owner.as_ref().unwrap_or(&target.key));
            shards[shard.index()].answered(target);
        }
    }
}
