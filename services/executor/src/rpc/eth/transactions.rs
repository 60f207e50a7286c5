//! Transactions and their receipts.

use super::super::hex::{Hex, NumberParam, Quantity};
use super::super::json::{BlockContext, ReceiptJson, TransactionJson};
use super::blocks::{by_hash, by_number, receipt_of};
use super::{RpcError, Source, add_reading, defect, known, read_error};
use crate::BlockTag;
use alloy_consensus::transaction::SignerRecoverable;
use alloy_primitives::{Address, B256};
use std::sync::Arc;
use tandem_chain::Block;
use tandem_http::{Answer, Methods, required, to_result};

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_reading(methods, source, "eth_getTransactionByHash", transaction_by_hash);
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

fn transaction_by_hash(source: &Source, (hash,): (Option<Hex<B256>>,)) -> Answer {
    let Some((block, index)) = find(source, required(hash, 0)?.0)? else {
        return to_result(&());
    };
    render(&block, index)
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
