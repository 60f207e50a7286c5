//! First state of a follower whose leader no longer has the changes since genesis: the flat state of a
//! recent block, copied from the leader, and all blocks up to it. The tries are built from the copy,
//! and their root must be the one in the block's header, so the ranges need no proof of their own.
//!
//! **Long copies.** A leader serves the state of a block for as long as the block is recent. When it is
//! not any more, the rest is copied from the state of a later block. Blocks after the first of these
//! then come with their changes, which are written over the copy in order. So each value is in the end
//! the one after the last block, whichever state it was copied from.
//!
//! **Interruptions.** What is copied is noted with it, in one write. A further attempt goes on there,
//! with any leader. It begins again if the leader's chain has left a block whose state was copied, or
//! the changes since then are gone, or something was wrong.

mod blocks;
mod progress;
mod state;

use crate::{Error, service::Shared};
use progress::Progress;
use state::StateCopy;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    feed::LeaderApi,
    storage::{self, BlockRef},
};
use tracing::info;

/// Times that the state to copy may change without a further part of it.
const MOVES_MAX: u32 = 3;

/// Downloads the state of a recent block and the blocks up to it.
///
/// # Errors
/// [`Error::Lost`] when the leader goes, or its chain does not fit what is there; the next attempt
/// goes on, or begins again. [`Error::Refused`] when the state does not have the root of its block.
pub fn download(shared: &Shared, leader: &dyn LeaderApi) -> Result<(), Error> {
    let storage = &shared.storage;
    storage.begin_download().map_err(Error::Own)?;
    let noted = storage.download_progress().map_err(Error::Own)?.unwrap_or_default();
    let progress = match Progress::read(&noted) {
        Some(progress) if is_canonical(leader, progress.oldest())? => {
            let (permille, block) = (progress.permille(), progress.block());
            info!(permille, %block, "the copy of a first state goes on");
            progress
        }
        _ => {
            let (pivot, root) = pivot(leader)?;
            info!(block = %pivot, "a first state is copied from the leader");
            let genesis = storage.checkpoint().map_err(Error::Own)?.genesis;
            Progress::begin(genesis, pivot, root)
        }
    };
    let copied = copy(shared, leader, progress);
    if let Err(Error::Refused(_)) = copied {
        forget(shared)?;
    }
    copied
}

/// Copies what is not there yet, and makes it the own state.
fn copy(shared: &Shared, leader: &dyn LeaderApi, mut progress: Progress) -> Result<(), Error> {
    let mut moves = 0;
    loop {
        let before = (progress.accounts, progress.slots);
        if StateCopy::new(shared, leader, &mut progress).run()? {
            break;
        }
        let (pivot, root) = pivot(leader)?;
        moves = if (progress.accounts, progress.slots) == before { moves + 1 } else { 0 };
        if moves > MOVES_MAX || root == progress.root {
            return Err(lost(format!("it does not serve the state {root} of block {pivot}")));
        }
        info!(block = %pivot, permille = progress.permille(), "the state of a later block is copied");
        progress.move_to(pivot, root);
    }
    // The copy reaches no further than the newest pivot.
    let newest = pivot(leader)?.0;
    let target = if newest.number > progress.pivot().number { newest } else { progress.pivot() };
    match blocks::copy(shared, leader, &mut progress, target) {
        Err(Error::TooFarBehind { oldest, .. }) => {
            forget(shared)?;
            let first = progress.oldest();
            return Err(lost(format!(
                "it has no changes before block {oldest}, and the copy has a part of block {first}"
            )));
        }
        copied => copied?,
    }
    shared.storage.finish_download(target).map_err(|error| match error {
        storage::Error::Store(text) => Error::block(target, text),
        error => Error::Own(error),
    })?;
    shared.view.adopted();
    Ok(())
}

/// Lets the next attempt begin again.
fn forget(shared: &Shared) -> Result<(), Error> {
    shared.storage.put_state(&[], &[]).map_err(Error::Own)
}

/// Returns whether a block is in the leader's chain.
fn is_canonical(leader: &dyn LeaderApi, block: BlockId) -> Result<bool, Error> {
    let found = leader.header(BlockRef::Number(block.number)).map_err(Error::of_leader)?;
    Ok(found.is_some_and(|(id, _)| id == block))
}

/// Chooses a block whose state the leader serves: half way between its base and its head, so that
/// neither a reorg nor a move of the base takes it away soon.
fn pivot(leader: &dyn LeaderApi) -> Result<(BlockId, B256), Error> {
    let at = leader.checkpoint().map_err(Error::of_leader)?;
    let (base, head) = (at.base.number, at.forkchoice.head.number);
    let number = base + head.saturating_sub(base) / 2;
    let found = leader.header(BlockRef::Number(number)).map_err(Error::of_leader)?;
    let Some((id, rlp)) = found else {
        return Err(lost(format!("it does not have block {number}")));
    };
    let header = tandem_chain::decode_header(&rlp).map_err(|error| Error::block(id, error))?;
    Ok((id, header.state_root))
}

fn lost(text: String) -> Error {
    Error::Lost(storage::Error::Unavailable(text))
}
