//! Transactions and their receipts.

use super::super::hex::{Hex, NumberParam, Quantity};
use super::super::json::{BlockContext, ReceiptJson, TransactionJson};
use super::blocks::{by_hash, by_number, receipt_of};
use super::{RpcError, Source, add_reading, defect, known, read_error};
use crate::BlockTag;
use alloy_consensus::transaction::SignerRecoverable;
use alloy_primitives::{Address, B256};
use std::sync::Arc;
use tandem_chain::{Block, decode_transaction};
use tandem_http::usage::Running;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_proto::tx_pool::PooledTransaction;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    let its = source.clone();
    methods.add("eth_getTransactionByHash", move |params| transaction_by_hash(its.clone(), params));
    add_reading(methods, source, "eth_getTransactionByBlockHashAndIndex", by_hash_and_index);
    add_reading(methods, source, "eth_getTransactionByBlockNumberAndIndex", by_number_and_index);
    add_reading(methods, source, "eth_getTransactionReceipt", transaction_receipt);
}

/// Returns a transaction's block and its position there.
pub(super) fn find(source: &Source, hash: B256) -> Result<Option<(Block, usize)>, RpcError> {
    let Some(place) = source.chain.transaction(hash).map_err(read_error)? else {
        return Ok(None);
    };
    let block = source.chain.block(BlockTag::Hash(place.block.hash)).map_err(read_error)?;
    let index = place.index as usize;
    Ok(block.filter(|block| index < block.transactions.len()).map(|block| (block, index)))
}

/// Returns the sender of one transaction of a stored block.
pub(super) fn sender(block: &Block, index: usize) -> Result<Address, RpcError> {
    // The block's validation already decided whether a high `s` was allowed (EIP-2).
    block.transactions[index].recover_signer_unchecked().map_err(|error| defect(block.id, error))
}

/// Returns a transaction of the canonical chain, or of the pool.
async fn transaction_by_hash(source: Arc<Source>, params: Params) -> Answer {
    let (read, usage) = (source.clone(), params.usage());
    let (hash,) = params.decode::<(Option<Hex<B256>>,)>()?;
    let Hex(hash) = required(hash, 0)?;
    let work = move |_: &Running<'_>| {
        let found = find(&read, hash)?;
        found.map(|(block, index)| render(&block, index)).transpose()
    };
    if let Some(answer) = source.pools.reads.run(source.lane, usage, work).await? {
        return Ok(answer);
    }
    let Some(pool) = source.pool.get() else { return to_result(&()) };
    match pool.get(hash).await.map_err(RpcError::server)? {
        Some(PooledTransaction { hash, sender, raw }) => {
            let transaction = decode_transaction(&raw).map_err(RpcError::server)?;
            to_result(&TransactionJson::pooled(&transaction, hash, sender))
        }
        None => to_result(&()),
    }
}

/// Position in a block.
type Index = Option<Quantity<u64>>;

fn by_hash_and_index(source: &Source, (hash, index): (Option<Hex<B256>>, Index)) -> Answer {
    render_at(source, by_hash(hash)?, required(index, 1)?.0)
}

fn by_number_and_index(source: &Source, (number, index): (Option<NumberParam>, Index)) -> Answer {
    render_at(source, by_number(number)?, required(index, 1)?.0)
}

fn render_at(source: &Source, tag: BlockTag, index: u64) -> Answer {
    let Some(block) = known(source.chain.block(tag))? else { return to_result(&()) };
    match usize::try_from(index) {
        Ok(index) if index < block.transactions.len() => render(&block, index),
        _ => to_result(&()),
    }
}

fn render(block: &Block, index: usize) -> Answer {
    let context = BlockContext::new(block.id, &block.header);
    let (transaction, hash) = (&block.transactions[index], block.transaction_hashes[index]);
    let from = sender(block, index)?;
    to_result(&TransactionJson::new(context, index as u64, transaction, hash, from))
}

fn transaction_receipt(source: &Source, (hash,): (Option<Hex<B256>>,)) -> Answer {
    let Some((block, index)) = find(source, required(hash, 0)?.0)? else {
        return to_result(&());
    };
    let Some(receipts) = source.chain.receipts(block.id.hash).map_err(read_error)? else {
        return to_result(&());
    };
    let of = receipt_of(source, &block, index, sender(&block, index)?);
    to_result(&ReceiptJson::new(BlockContext::new(block.id, &block.header), &receipts, of))
}
