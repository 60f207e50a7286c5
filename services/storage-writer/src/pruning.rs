//! Pruning of old bodies and receipts (EIP-4444). Headers stay, so that the chain and BLOCKHASH have
//! no gap. The bodies that a move of the base back, or a follower of the feed, may need stay as well.

use crate::{Error, body, config::History, meta, metrics, persist::Persister};
use std::sync::atomic::Ordering::Relaxed;
use tandem_primitives::{B256, BlockNumber, Bytes};
use tandem_store::{
    View,
    tables::{Bodies, Canonical, Headers, Receipts, Transactions},
};
use tracing::warn;

/// Maximum number of blocks that lose their bodies after each block of the base. It adds one, so that
/// a lowered limit is reached.
const PRUNED_WITH_BLOCK: u64 = 4;

/// Maximum number of blocks that lose their bodies in one go while the base stays where it is.
const PRUNED_AT_REST: u64 = 256;

/// Bytes of bodies after which one go ends, which bounds its time.
const PRUNED_BYTES_MAX: usize = 8 << 20;

impl Persister {
    /// Removes some bodies and receipts that are not to be kept, oldest first, in a batch of their own.
    pub fn prune_bodies(&self, at_rest: bool) {
        let count_max = if at_rest { PRUNED_AT_REST } else { PRUNED_WITH_BLOCK };
        if let Err(error) = self.remove_bodies(count_max) {
            warn!(%error, "old bodies are not pruned");
        }
    }

    fn remove_bodies(&self, count_max: u64) -> Result<(), Error> {
        let shared = &self.shared;
        if shared.config.history == History::All || shared.is_downloading.load(Relaxed) {
            return Ok(());
        }
        let view = shared.store.view();
        // Genesis stays: it says which chain this is.
        let first = shared.oldest_block.load(Relaxed).max(meta::genesis(&view)?.id.number + 1);
        let base = meta::base(&view)?.number;
        let limit = match shared.config.history {
            History::All => first,
            History::Merge => base,
            History::Blocks(count) => (base + 1).saturating_sub(count),
        };
        let end = limit.min(self.oldest_reverse).min(self.oldest_diff).min(first + count_max);
        let mut batch = shared.store.batch();
        let (mut next, mut bytes) = (first, 0);
        while next < end && bytes < PRUNED_BYTES_MAX {
            let (hash, header) = canonical(&view, next)?;
            if shared.config.history == History::Merge
                && body::decode_header(&header)?.difficulty.is_zero()
            {
                break;
            }
            if let Some(body) = view.get::<Bodies>(hash)? {
                bytes += body.len();
                for transaction in body::transaction_hashes(&body)?.iter() {
                    batch.delete::<Transactions>(*transaction);
                }
            }
            batch.delete::<Bodies>(hash);
            batch.delete::<Receipts>(hash);
            next += 1;
        }
        if next == first {
            return Ok(());
        }
        meta::put_oldest_block(&mut batch, next);
        // Before the bodies go, so that nobody takes their absence for damage.
        shared.oldest_block.store(next, Relaxed);
        ::metrics::gauge!(metrics::OLDEST_BLOCK).set(next as f64);
        shared.store.write(batch, tandem_store::Durability::Process)?;
        Ok(())
    }
}

fn canonical(view: &View<'_>, number: BlockNumber) -> Result<(B256, Bytes), Error> {
    let absent = || Error::absent(format!("canonical block {number}"));
    let hash = view.get::<Canonical>(number)?.ok_or_else(absent)?;
    let (_, header) = view.get::<Headers>(hash)?.ok_or_else(absent)?;
    Ok((hash, header))
}
