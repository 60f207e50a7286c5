//! Checks of the base's chain and the pending blocks.

use super::{Difference, Report};
use crate::{Error, body, chain::Chain, codec::ReverseDiff, meta, replay::Replay, shared::record};
use tandem_primitives::{BlockId, keccak256};
use tandem_store::{
    Durability, Store, View,
    tables::{Bodies, Canonical, Headers, Receipts, ReverseDiffs, Transactions},
};

/// Blocks below the base that are checked.
const DEPTH: u64 = 1024;

/// Follows the base's chain down for [`DEPTH`] blocks, and checks records, links and indices.
///
/// Mends the indices of canonical blocks and of transactions in the store that is given.
pub fn check_base_chain(
    view: &View<'_>,
    mend: Option<&Store>,
    report: &mut Report,
) -> Result<(), Error> {
    let base = report.base;
    let above = (base.number + 1).to_be_bytes();
    if view.range::<Canonical>(&above, None).entry()?.is_some() {
        let what = "there are canonical blocks above the base".to_owned();
        report.differ(Difference::Block { block: base, what });
    }
    let genesis = meta::genesis(view)?.id;
    let mut block = base;
    for _ in 0..DEPTH {
        report.blocks += 1;
        let mut faults = Vec::new();
        if view.get::<Canonical>(block.number)? != Some(block.hash) {
            faults.push("it is not the canonical block of its height".to_owned());
        }
        faults.extend(record_faults(view, &block)?);
        faults.extend(index_faults(view, &block)?);
        if let (false, Some(store)) = (faults.is_empty(), mend) {
            mend_indices(store, &block)?;
        }
        for what in faults {
            report.differ(Difference::Block { block, what });
        }
        if block == genesis {
            break;
        }
        let Some((_, rlp)) = view.get::<Headers>(block.hash)? else { break };
        let header = body::decode_header(&rlp)?;
        block = BlockId::new(block.number.saturating_sub(1), header.parent_hash);
    }
    Ok(())
}

/// Returns the faults of header, body and receipts of a block.
fn record_faults(view: &View<'_>, block: &BlockId) -> Result<Vec<String>, Error> {
    let mut faults = Vec::new();
    match view.get::<Headers>(block.hash)? {
        None => faults.push("its header is missing".to_owned()),
        Some((number, rlp)) => {
            if keccak256(&rlp) != block.hash || number != block.number {
                faults.push("its header is another block's".to_owned());
            }
        }
    }
    if block.number < meta::oldest_block(view)? {
        return Ok(faults);
    }
    if view.get::<Bodies>(block.hash)?.is_none() {
        faults.push("its body is missing".to_owned());
    }
    if view.get::<Receipts>(block.hash)?.is_none() {
        faults.push("its receipts are missing".to_owned());
    }
    Ok(faults)
}

fn index_faults(view: &View<'_>, block: &BlockId) -> Result<Option<String>, Error> {
    let Some(body) = view.get::<Bodies>(block.hash)? else { return Ok(None) };
    let hashes = body::transaction_hashes(&body)?;
    let places = view.multi_get::<Transactions>(hashes.iter().copied())?;
    let wrong = (0u32..).zip(&places).find(|(index, place)| **place != Some((*block, *index)));
    Ok(wrong.map(|(index, _)| format!("transaction {index} is not in the index")))
}

/// Writes the indices that lead to a block of the base's chain, from its body.
fn mend_indices(store: &Store, block: &BlockId) -> Result<(), Error> {
    let mut batch = store.batch();
    batch.put::<Canonical>(block.number, block.hash);
    if let Some(body) = store.view().get::<Bodies>(block.hash)? {
        for (index, hash) in (0u32..).zip(body::transaction_hashes(&body)?.iter()) {
            batch.put::<Transactions>(*hash, (*block, index));
        }
    }
    Ok(store.write(batch, Durability::Process)?)
}

/// Checks that the reverse diffs belong to a contiguous range of blocks that ends with the base.
pub fn check_reverse_diffs(view: &View<'_>, report: &mut Report) -> Result<(), Error> {
    let mut cursor = view.cursor::<ReverseDiffs>(&[]);
    let mut expected = None;
    while let Some(bytes) = cursor.value()? {
        let key = cursor.entry()?.and_then(|(key, _)| key.try_into().ok());
        let number = key.map(u64::from_be_bytes).unwrap_or_default();
        let reverse = ReverseDiff::decode(&bytes)?;
        let block = BlockId::new(number, reverse.block);
        if expected.is_some_and(|expected| expected != number) {
            let what = "a reverse diff before this one is missing".to_owned();
            report.differ(Difference::Block { block, what });
        }
        if view.get::<Canonical>(number)? != Some(reverse.block) {
            let what = "its reverse diff is another block's".to_owned();
            report.differ(Difference::Block { block, what });
        }
        expected = Some(number + 1);
        cursor.advance();
    }
    if expected.is_some_and(|expected| expected != report.base.number + 1) {
        let what = "the reverse diffs do not end with it".to_owned();
        report.differ(Difference::Block { block: report.base, what });
    }
    Ok(())
}

/// Checks that pending blocks have their records, and that those up to the head lead to the roots
/// in their headers.
pub fn check_pending(view: &View<'_>, chain: &Chain, report: &mut Report) -> Result<(), Error> {
    for block in chain.ordered() {
        for what in record_faults(view, &block.id)? {
            report.differ(Difference::Block { block: block.id, what });
        }
    }
    let mut replay = Replay::new(chain.base());
    for block in chain.path().filter_map(|hash| chain.get(hash)) {
        let record = record(view, block)?;
        let tries = replay.run(view, block.id.hash, &record.diff.accounts)?;
        let (block, computed) = (block.id, tries.root);
        let header = body::header(view, block.hash)?.state_root;
        report.pending += 1;
        if computed != header {
            report.differ(Difference::StateRoot { block, header, computed });
            break;
        }
    }
    Ok(())
}
