//! Moves of the base back. Reverse diffs of many blocks become one change of the flat state and the
//! tries, so a key that several blocks changed is written once.

use crate::{
    Error,
    apply::{self, Tries},
    body,
    chain::Pending,
    codec::{PendingRecord, ReverseDiff},
    heal, meta, metrics,
    overlay::Overlay,
    persist::Persister,
};
use std::{sync::Arc, time::Instant};
use tandem_primitives::{
    AccountUpdate, B256, BlockId, BlockNumber, Bytes, EMPTY_CODE_HASH, StateDiff,
};
use tandem_proto::storage;
use tandem_store::{
    Batch, View,
    tables::{
        AccessLists, Bodies, Canonical, Code, Headers, Pending as PendingTable, Proven, Receipts,
        ReverseDiffs, StateDiffs, Transactions,
    },
};
use tracing::info;

/// Bytes of reverse diffs after which one step ends, which bounds its memory.
const STEP_BYTES_MAX: usize = 32 << 20;

impl Persister {
    /// Steps the base back to a canonical height. Does nothing when the base is at or below it.
    pub fn rewind(&mut self, to: BlockNumber) -> storage::Result<()> {
        let from = {
            let mut state = self.shared.state.lock();
            state.advancing = false;
            state.chain.stay();
            state.chain.base()
        };
        if to >= from.number {
            return Ok(());
        }
        if to + 1 < self.oldest_reverse {
            let oldest = self.oldest_reverse.saturating_sub(1).min(from.number);
            return Err(storage::Error::RewindTooDeep { to, oldest });
        }
        let mut base = from;
        while base.number > to {
            let started = Instant::now();
            // When this fails because the tries are damaged, they are rebuilt and the step is
            // retried.
            base = {
                let mut mended = self.shared.mended.lock();
                heal::with_healing(&self.shared, &mut mended, || self.step_back(to))?
            };
            ::metrics::histogram!(metrics::REWIND_SECONDS).record(started.elapsed());
            self.shared.progress.notify_all();
            self.moved(base);
        }
        self.rewound_to(base.number);
        info!(from = from.number, to, "base rewound");
        Ok(())
    }

    /// Steps the base back towards a height, as far as one batch goes. Returns its new block.
    fn step_back(&self, to: BlockNumber) -> Result<BlockId, Error> {
        let store = &self.shared.store;
        let view = store.view();
        let mut base = meta::base(&view)?;
        let from = base;
        let mut batch = store.batch();
        let mut overlay = Overlay::new(&view);
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while base.number > to && bytes <= STEP_BYTES_MAX {
            let encoded = view.get::<ReverseDiffs>(base.number)?;
            let encoded =
                encoded.ok_or_else(|| Error::absent(format!("reverse diff of block {base}")))?;
            bytes += encoded.len();
            let reverse = ReverseDiff::decode(&encoded)?;
            if reverse.block != base.hash {
                return Err(Error::Damaged(format!("reverse diff of {base} is another block's")));
            }
            let (block, parent) = undone(&view, &overlay, base, &reverse.updates, &mut batch)?;
            if let Some(record) = &block.record {
                let (before, after) = (&reverse.updates, &record.diff.accounts);
                self.shared.history.take_back(&mut batch, block.id.number, before, after);
            }
            overlay.apply(&reverse.updates);
            blocks.push(block);
            base = parent;
        }
        let updates = overlay.into_updates();
        let tries = Tries::compute(&view, &updates)?;
        let tries = tries.check(base, body::header(&view, base.hash)?.state_root)?;
        apply::write_state(&mut batch, &view, &updates)?;
        tries.write(&mut batch, &view)?;
        meta::put_base(&mut batch, &base);
        self.shared.history.step_back(&mut batch, &view, base.number)?;
        // Under the lock, so that the blocks are always found in the base or pending.
        let mut state = self.shared.state.lock();
        self.write(batch, from)?;
        state.chain.step_back(base, blocks, &self.shared.config.limits());
        self.shared.gauge(&state);
        Ok(base)
    }
}

/// Makes a block of the base pending again, in the batch. `overlay` shows the state after the
/// block. Returns the block and its parent.
fn undone(
    view: &View<'_>,
    overlay: &Overlay<'_>,
    id: BlockId,
    reverse: &[AccountUpdate],
    batch: &mut Batch<'_>,
) -> Result<(Pending, BlockId), Error> {
    let parent = BlockId::new(id.number - 1, body::header(view, id.hash)?.parent_hash);
    let body = view.get::<Bodies>(id.hash)?;
    let body = body.ok_or_else(|| Error::absent(format!("body of block {id}")))?;
    let transaction_hashes = body::transaction_hashes(&body)?;
    let diff = Arc::new(forward_diff(view, overlay, reverse)?);
    batch.delete::<Canonical>(id.number);
    for hash in transaction_hashes.iter() {
        batch.delete::<Transactions>(*hash);
    }
    batch.delete::<ReverseDiffs>(id.number);
    batch.delete::<StateDiffs>(id.number);
    let record = PendingRecord { id, parent: parent.hash, transaction_hashes, diff };
    let encoded = record.encode();
    batch.put::<PendingTable>(id.hash, &encoded);
    batch.put::<Proven>(id.hash, &[]);
    let disk_bytes = encoded.len() as u64 + block_bytes(view, id.hash)?;
    Ok((Pending::new(Arc::new(record), disk_bytes, true), parent))
}

/// Returns the bytes of a block's header, body, receipts and access list in the database.
///
/// # Errors
/// When the database fails.
pub fn block_bytes(view: &View<'_>, hash: B256) -> Result<u64, Error> {
    let header = view.get::<Headers>(hash)?;
    let number = header.as_ref().map_or(0, |(number, _)| *number);
    let list = view.get::<AccessLists>(BlockId::new(number, hash))?.map_or(0, |list| list.len());
    let header = header.map_or(0, |(_, rlp)| rlp.len());
    let body = view.get::<Bodies>(hash)?.map_or(0, |body| body.len());
    let receipts = view.get::<Receipts>(hash)?.map_or(0, |receipts| receipts.len());
    Ok((header + body + receipts + list) as u64)
}

/// Rebuilds a block's diff: the values after the block of everything that its reverse diff touches.
fn forward_diff(
    view: &View<'_>,
    overlay: &Overlay<'_>,
    reverse: &[AccountUpdate],
) -> Result<StateDiff, Error> {
    let accounts = overlay.undo(reverse)?;
    let code_of = |update: &AccountUpdate| update.account.map(|account| account.code_hash);
    let changed = accounts.iter().zip(reverse).filter(|(new, old)| code_of(new) != code_of(old));
    let hashes: Vec<B256> = changed
        .filter_map(|(new, _)| code_of(new))
        .filter(|hash| *hash != EMPTY_CODE_HASH)
        .collect();
    let found = view.multi_get::<Code>(hashes.iter().copied())?;
    let codes: Vec<(B256, Bytes)> =
        hashes.into_iter().zip(found).filter_map(|(hash, code)| Some((hash, code?))).collect();
    Ok(StateDiff { accounts, codes })
}
