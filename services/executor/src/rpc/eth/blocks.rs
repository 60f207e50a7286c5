//! Blocks, and counts of their contents.

use super::super::hex::{BlockParam, Hex, NumberParam, Quantity};
use super::super::json::{BlockContext, BlockJson, ReceiptJson, ReceiptOf};
use super::{RpcError, Source, add_quick, add_reading, defect, known};
use crate::BlockTag;
use alloy_primitives::{Address, B256};
use std::sync::Arc;
use tandem_chain::{Block, recover_senders};
use tandem_http::{Answer, Methods, required, to_result};

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_quick(methods, source, "eth_blockNumber", |source| {
        to_result(&Quantity(source.chain.head().number))
    });
    add_reading(methods, source, "eth_getBlockByNumber", block_by_number);
    add_reading(methods, source, "eth_getBlockByHash", block_by_hash);
    add_reading(methods, source, "eth_getBlockReceipts", block_receipts);
    add_reading(methods, source, "eth_getBlockTransactionCountByNumber", |source, (number,)| {
        count(source, by_number(number)?, |block| block.transactions.len())
    });
    add_reading(methods, source, "eth_getBlockTransactionCountByHash", |source, (hash,)| {
        count(source, by_hash(hash)?, |block| block.transactions.len())
    });
    add_reading(methods, source, "eth_getUncleCountByBlockNumber", |source, (number,)| {
        count(source, by_number(number)?, |block| block.ommers.len())
    });
    add_reading(methods, source, "eth_getUncleCountByBlockHash", |source, (hash,)| {
        count(source, by_hash(hash)?, |block| block.ommers.len())
    });
}

pub(super) fn by_number(number: Option<NumberParam>) -> Result<BlockTag, RpcError> {
    Ok(required(number, 0)?.0)
}

pub(super) fn by_hash(hash: Option<Hex<B256>>) -> Result<BlockTag, RpcError> {
    Ok(BlockTag::Hash(required(hash, 0)?.0))
}

fn block_by_number(source: &Source, (number, full): (Option<NumberParam>, Option<bool>)) -> Answer {
    render(source, by_number(number)?, required(full, 1)?)
}

fn block_by_hash(source: &Source, (hash, full): (Option<Hex<B256>>, Option<bool>)) -> Answer {
    render(source, by_hash(hash)?, required(full, 1)?)
}

fn render(source: &Source, tag: BlockTag, full: bool) -> Answer {
    let Some(block) = known(source.chain.block(tag))? else { return to_result(&()) };
    if !full {
        return to_result(&BlockJson::new(&block, None));
    }
    to_result(&BlockJson::new(&block, Some(&senders(&block)?)))
}

/// Returns the senders of all transactions of a stored block.
pub(super) fn senders(block: &Block) -> Result<Vec<Address>, RpcError> {
    recover_senders(block).map_err(|error| defect(block.id, error))
}

fn count(source: &Source, tag: BlockTag, what: fn(&Block) -> usize) -> Answer {
    let block = known(source.chain.block(tag))?;
    to_result(&block.map(|block| Quantity(what(&block) as u64)))
}

fn block_receipts(source: &Source, (block,): (Option<BlockParam>,)) -> Answer {
    let BlockParam(tag) = required(block, 0)?;
    let Some((block, receipts)) = known(source.chain.block_and_receipts(tag))? else {
        return to_result(&());
    };
    let senders = senders(&block)?;
    let context = BlockContext::new(block.id, &block.header);
    let render = |index| {
        ReceiptJson::new(context, &receipts, receipt_of(source, &block, index, senders[index]))
    };
    let all: Vec<_> = (0..block.transactions.len()).filter_map(render).collect();
    to_result(&all)
}

/// Returns the transaction whose receipt is rendered.
pub(super) fn receipt_of<'a>(
    source: &Source,
    block: &'a Block,
    index: usize,
    from: Address,
) -> ReceiptOf<'a> {
    let header = &block.header;
    let blob_params = source.spec.blob_params_of(header);
    ReceiptOf {
        transaction: &block.transactions[index],
        hash: block.transaction_hashes[index],
        from,
        index,
        blob_gas_price: blob_params.and_then(|params| header.blob_fee(params)),
    }
}
