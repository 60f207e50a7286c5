//! Look-ups of blocks.

use crate::{
    chain::Pending,
    codec::decode_kept,
    service::{StorageWriter, store_error},
    shared::record,
};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use tandem_primitives::{B256, BlockId, Bytes, StateDiff};
use tandem_proto::storage::{
    self, BlockReads, BlockRecord, BlockRef, KeptBlock, Result, TransactionPlace,
};
use tandem_store::tables::{
    AccessLists, Bodies, Canonical, Headers, Kept as KeptTable, Receipts, Transactions,
};

impl StorageWriter {
    /// Returns the hash of a block, `None` when its number is unknown.
    fn resolve(&self, block: BlockRef) -> Result<Option<B256>> {
        let number = match block {
            BlockRef::Hash(hash) => return Ok(Some(hash)),
            BlockRef::Number(number) => number,
        };
        // Memory is read first: a block leaves it only after it is in the database.
        if let Some(hash) = self.shared.state.lock().chain.canonical_hash(number) {
            return Ok(Some(hash));
        }
        self.shared.store.view().get::<Canonical>(number).map_err(store_error)
    }

    /// Returns the record of a block, `None` when it is unknown.
    fn record(&self, block: BlockRef, with_receipts: bool) -> Result<Option<BlockRecord>> {
        let Some(hash) = self.resolve(block)? else { return Ok(None) };
        let view = self.shared.store.view();
        let Some((number, header)) = view.get::<Headers>(hash).map_err(store_error)? else {
            return Ok(None);
        };
        let body = view.get::<Bodies>(hash).map_err(store_error)?;
        let receipts = match with_receipts {
            true => view.get::<Receipts>(hash).map_err(store_error)?,
            false => Some(Bytes::new()),
        };
        let id = BlockId::new(number, hash);
        let oldest = self.shared.oldest_block.load(Relaxed);
        // Genesis has an empty body, and is never pruned.
        if body.is_none() && number < oldest {
            return Err(storage::Error::Pruned { number, oldest });
        }
        Ok(body.zip(receipts).map(|(body, receipts)| BlockRecord { id, header, body, receipts }))
    }
}

impl BlockReads for StorageWriter {
    fn block(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        self.record(block, true)
    }

    fn block_without_receipts(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        self.record(block, false)
    }

    fn header(&self, block: BlockRef) -> Result<Option<(BlockId, Bytes)>> {
        let Some(hash) = self.resolve(block)? else { return Ok(None) };
        let found = self.shared.store.view().get::<Headers>(hash).map_err(store_error)?;
        Ok(found.map(|(number, rlp)| (BlockId::new(number, hash), rlp)))
    }

    fn access_list(&self, block: BlockRef) -> Result<Option<Bytes>> {
        let Some(hash) = self.resolve(block)? else { return Ok(None) };
        let view = self.shared.store.view();
        let header = view.get::<Headers>(hash).map_err(store_error)?;
        let Some((number, _)) = header else { return Ok(None) };
        view.get::<AccessLists>(BlockId::new(number, hash)).map_err(store_error)
    }

    fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>> {
        let path: Vec<Pending> = {
            let state = self.shared.state.lock();
            state.chain.path().filter_map(|hash| state.chain.get(hash)).cloned().collect()
        };
        let view = self.shared.store.view();
        for block in path.iter().rev() {
            // A block without a record has entered the base meanwhile.
            let Ok(record) = record(&view, block) else { continue };
            let index = record.transaction_hashes.iter().position(|found| *found == hash);
            if let Some(index) = index {
                return Ok(Some(TransactionPlace { block: block.id, index: index as u32 }));
            }
        }
        let found = self.shared.store.view().get::<Transactions>(hash).map_err(store_error)?;
        Ok(found.map(|(block, index)| TransactionPlace { block, index }))
    }

    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        Ok(self.shared.state_diffs(blocks)?)
    }

    fn kept(&self, block: B256) -> Result<Option<KeptBlock>> {
        let bytes = self.shared.store.view().get::<KeptTable>(block).map_err(store_error)?;
        Ok(bytes.map(|bytes| decode_kept(&bytes)).transpose()?)
    }
}
