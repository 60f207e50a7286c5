//! Loading of a database into memory, and the check of blocks that were unchecked when the process
//! ended.

use crate::{
    Error,
    chain::{Ancestor, Chain, Limits, Pending},
    codec::PendingRecord,
    meta,
    rewind::block_bytes,
    shared::{Shared, delete_pending},
};
use std::{collections::HashSet, sync::Arc};
use tandem_store::{
    Durability, Store, View,
    tables::{Pending as PendingTable, Proven},
};
use tracing::warn;

/// Reads everything that is kept in memory.
pub fn load(store: &Store, limits: &Limits) -> Result<(meta::Genesis, Chain), Error> {
    let view = store.view();
    let genesis = meta::genesis(&view)?;
    let chain = load_chain(&view, limits)?;
    Ok((genesis, chain))
}

/// Loads the tree of pending blocks from the database. Records stay in memory while there is room.
pub fn load_chain(view: &View<'_>, limits: &Limits) -> Result<Chain, Error> {
    let base = meta::base(view)?;
    let forkchoice = meta::forkchoice(view)?;
    let mut chain = Chain::new(base, forkchoice);
    let mut blocks = Vec::new();
    let (mut cursor, mut memory) = (view.cursor::<PendingTable>(&[]), 0);
    while let Some(bytes) = cursor.value()? {
        let record = Arc::new(PendingRecord::decode(&bytes)?);
        let hash = record.id.hash;
        memory += record.memory_bytes();
        let disk_bytes = bytes.len() as u64 + block_bytes(view, hash)?;
        let proven = view.get::<Proven>(hash)?.is_some();
        let mut block = Pending::new(record, disk_bytes, proven);
        if memory > limits.memory_bytes_max {
            block.record = None;
        }
        blocks.push(block);
        cursor.advance();
    }
    // The order of arrival is not stored; lower blocks mostly came first.
    blocks.sort_unstable_by_key(|block| (block.id.number, block.id.hash));
    blocks.into_iter().for_each(|block| chain.insert(block));
    match chain.ancestor(forkchoice.head.hash, &base.hash) {
        (Ancestor::Base, path) => chain.set_forkchoice(forkchoice, path),
        (Ancestor::Other(hash), _) => {
            return Err(Error::Damaged(format!(
                "head {} cannot be reached from the base: block {hash} is missing",
                forkchoice.head
            )));
        }
    }
    Ok(chain)
}

/// Drops the pending blocks whose state root does not hold, with all their descendants, and marks
/// the others as checked. `suspects` has parents before children. A block is committed while its
/// root is still being computed, so the last block before a crash of the executor may be invalid.
///
/// A branch that leaves the chain below the base cannot be checked and need not be. The base stands
/// below every block that is being executed. So it moved past the fork only after the branch's
/// blocks were answered.
pub fn drop_unproven(shared: &Shared, suspects: Vec<Pending>) -> Result<(), Error> {
    let mut dropped = HashSet::new();
    for block in suspects {
        let id = block.id;
        let proven = !dropped.contains(&block.parent)
            && match shared.prove(id.hash) {
                Ok(_) => true,
                Err(Error::StateRoot { .. }) => false,
                Err(error) => return Err(error),
            };
        let mut state = shared.state.lock();
        if proven {
            let mut batch = shared.store.batch();
            batch.put::<Proven>(id.hash, &[]);
            shared.store.write(batch, Durability::Process)?;
            state.chain.set_proven(&id.hash);
            continue;
        }
        warn!(block = %id, "pending block is not proven and dropped");
        let mut batch = shared.store.batch();
        delete_pending(&mut batch, id);
        shared.store.write(batch, shared.durability())?;
        state.chain.remove(&id.hash);
        dropped.insert(id.hash);
    }
    Ok(())
}
