//! Copy of the blocks from genesis on, and of the changes since the first copied state.

use super::{lost, progress::Progress};
use crate::{Error, check::check, service::Shared};
use std::time::Duration;
use tandem_primitives::BlockId;
use tandem_proto::{
    feed::{FeedBlock, FeedMessage, FollowRequest, LeaderApi},
    snap::DownloadedBlock,
};

/// Size in bytes at which blocks without changes are stored.
const BLOCKS_BYTES: usize = 4 << 20;

/// Longest wait for the next block.
const WAIT: Duration = Duration::from_secs(30);

/// Copies the blocks after the newest stored one, up to `target`.
///
/// # Errors
/// [`Error::Lost`] when the leader goes, or left a block whose changes are written: then the next
/// attempt begins again. [`Error::TooFarBehind`] when it no longer has the changes.
pub fn copy(
    shared: &Shared,
    leader: &dyn LeaderApi,
    progress: &mut Progress,
    target: BlockId,
) -> Result<(), Error> {
    let without_changes_to = progress.oldest().number;
    let mut at = progress.block();
    let genesis = shared.storage.checkpoint().map_err(Error::Own)?.genesis;
    let mut known = vec![at, genesis];
    known.dedup();
    let request = FollowRequest { known, without_changes_to };
    let mut feed = leader.follow(request).map_err(Error::of_leader)?;
    let (mut waiting, mut bytes) = (Vec::new(), 0);
    while at.number < target.number {
        if shared.stopping.is_cancelled() {
            return Err(Error::Stopping);
        }
        let message = feed.next(WAIT).map_err(Error::of_leader)?;
        let block = match message.ok_or_else(|| lost("it sends no blocks".to_owned()))? {
            FeedMessage::Status(_) => continue,
            FeedMessage::Resume(block) if block == at => continue,
            FeedMessage::Resume(block) => {
                super::forget(shared)?;
                return Err(lost(format!("it left the branch of block {at} at block {block}")));
            }
            FeedMessage::Block(block) => block,
        };
        check(&block, at)?;
        at = block.id;
        progress.store(at);
        if at.number > without_changes_to {
            shared.storage.put_changed(*block, &progress.record()).map_err(Error::of_own_write)?;
            continue;
        }
        bytes += block.bytes();
        let FeedBlock { id, header, body, receipts, .. } = *block;
        waiting.push(DownloadedBlock { id, header, body, receipts });
        if bytes > BLOCKS_BYTES || at.number == without_changes_to.min(target.number) {
            shared.storage.put_blocks(&waiting).map_err(Error::Own)?;
            shared.storage.put_state(&[], &progress.record()).map_err(Error::Own)?;
            waiting.clear();
            bytes = 0;
        }
    }
    match at == target {
        true => Ok(()),
        false => {
            super::forget(shared)?;
            Err(lost(format!("block {target} is not in its chain any more")))
        }
    }
}
