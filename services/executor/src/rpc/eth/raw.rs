//! Blocks, receipts and transactions as the bytes that are hashed (execution-apis,
//! `src/debug/getters.yaml`).

use super::super::hex::{BlockParam, Hex};
use super::transactions::find;
use super::{RpcError, Source, add_reading, known};
use alloy_consensus::TxReceipt;
use alloy_primitives::{B256, Bytes};
use std::sync::Arc;
use tandem_http::{Answer, Methods, required, to_result};

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_reading(methods, source, "debug_getRawHeader", header);
    add_reading(methods, source, "debug_getRawBlock", block);
    add_reading(methods, source, "debug_getRawReceipts", receipts);
    add_reading(methods, source, "debug_getRawTransaction", transaction);
}

fn not_found(what: &str) -> RpcError {
    RpcError::server(format_args!("{what} not found"))
}

fn header(source: &Source, (block,): (Option<BlockParam>,)) -> Answer {
    let BlockParam(tag) = required(block, 0)?;
    let (_, header) = known(source.chain.header(tag))?.ok_or_else(|| not_found("header"))?;
    to_result(&Bytes::from(alloy_rlp::encode(&header)))
}

fn block(source: &Source, (block,): (Option<BlockParam>,)) -> Answer {
    let BlockParam(tag) = required(block, 0)?;
    let block = known(source.chain.block(tag))?.ok_or_else(|| not_found("block"))?;
    to_result(&block.to_rlp())
}

fn receipts(source: &Source, (block,): (Option<BlockParam>,)) -> Answer {
    let BlockParam(tag) = required(block, 0)?;
    let found = known(source.chain.block_and_receipts(tag))?;
    let (_, receipts) = found.ok_or_else(|| not_found("block"))?;
    let encoded: Vec<Bytes> =
        receipts.iter().map(|receipt| receipt.encode_with_bloom(&receipt.bloom()).into()).collect();
    to_result(&encoded)
}

fn transaction(source: &Source, (hash,): (Option<Hex<B256>>,)) -> Answer {
    let found = find(source, required(hash, 0)?.0)?;
    // Geth answers with empty bytes rather than null.
    to_result(
        &found.map_or_else(Bytes::new, |(block, index)| block.raw_transactions[index].clone()),
    )
}
