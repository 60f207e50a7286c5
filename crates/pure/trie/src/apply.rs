//! A whole block at once, for those who have all its updates: recovery, rewind, and the executor
//! when no worker is left.

use crate::{Error, ShardTrie, combine};
use rayon::prelude::*;
use tandem_primitives::{AccountUpdate, B256, Shard, SubtrieRoot, TrieDiff, WalkTarget};

/// Takes a node: owner, path (one nibble a byte) and RLP.
pub type NodeSink<'a> = dyn FnMut(Option<B256>, &[u8], &[u8]) + 'a;

/// Where trie nodes come from.
pub trait NodeSource {
    /// Why nodes cannot be read.
    type Error;

    /// Gives every node on the way to each target, from the target's depth on, to `node`.
    /// Parents come before their children; a node may come more
    /// than once.
    ///
    /// # Errors
    /// When nodes cannot be read.
    fn walk(&mut self, targets: &[WalkTarget], node: &mut NodeSink<'_>) -> Result<(), Self::Error>;
}

/// Why a block could not be applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError<E> {
    /// A node is wrong or missing.
    #[error(transparent)]
    Trie(#[from] Error),
    /// The source failed.
    #[error("read trie nodes: {0}")]
    Source(E),
}

/// The state root, the top node of each subtrie, and the nodes that changed (without the root node
/// at the empty path, which [`combine`] gives).
pub type Applied = (B256, [SubtrieRoot; Shard::COUNT], TrieDiff);

/// Fewer updates than this are taken in by one thread.
const PARALLEL_MIN: usize = 64;

/// Runs a block's updates over the sixteen shards, in ascending order, which hold what they know
/// of the parent's state or nothing. They stand at the block's state afterwards.
///
/// # Errors
/// [`Error::Shards`] when these are not the sixteen shards, else as [`ShardTrie::finish`] and
/// [`NodeSource::walk`]. The shards are cleared then.
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

/// Runs updates over the sixteen shards as [`apply_block`] does, but leaves shards alone that no
/// update is for: of those not even the top node is asked for, and the answer is `None`.
///
/// # Errors
/// As [`apply_block`].
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

/// What [`ShardTrie::finish`] gives, for each of the shards wanted.
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

/// Answers all walks, and those that the answers lead to.
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
