//! Rendering compared with answers of geth, byte for byte; `testdata/README.md` names their
//! sources.

use super::*;
use serde_json::Value;
use tandem_chain::{Receipt, recover_senders};

fn block(rlp: &str) -> Block {
    Block::from_rlp(&const_hex::decode(rlp.trim()).unwrap()).unwrap()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn transaction(block: &Block, index: usize) -> String {
    let from = recover_senders(block).unwrap()[index];
    let context = BlockContext::new(block.id, &block.header);
    let hash = block.transaction_hashes[index];
    json(&TransactionJson::new(context, index as u64, &block.transactions[index], hash, from))
}

fn number(value: &Value) -> u64 {
    u64::from_str_radix(&value.as_str().unwrap()[2..], 16).unwrap()
}

/// Returns the database's form of a rendered receipt.
fn stored(receipt: &Value, transaction: &Transaction) -> Receipt {
    let parse_log = |log: &Value| {
        let topics = serde_json::from_value(log["topics"].clone()).unwrap();
        let data = serde_json::from_value(log["data"].clone()).unwrap();
        let address = serde_json::from_value(log["address"].clone()).unwrap();
        Log::new(address, topics, data).unwrap()
    };
    Receipt {
        tx_type: transaction.tx_type(),
        success: receipt["status"] == "0x1",
        cumulative_gas_used: number(&receipt["cumulativeGasUsed"]),
        logs: receipt["logs"].as_array().unwrap().iter().map(parse_log).collect(),
        post_state: None,
    }
}

fn receipt(block: &Block, receipts: &[Receipt], index: usize, price: Option<u128>) -> String {
    let of = ReceiptOf {
        transaction: &block.transactions[index],
        hash: block.transaction_hashes[index],
        from: recover_senders(block).unwrap()[index],
        index,
        blob_gas_price: price,
    };
    json(&ReceiptJson::new(BlockContext::new(block.id, &block.header), receipts, of))
}

#[test]
fn a_block_with_hashes_is_rendered_as_geth_does() {
    for (rlp, want) in [
        (
            include_str!("../testdata/block-39.rlp.hex"),
            include_str!("../testdata/block-39-hashes.json"),
        ),
        (
            include_str!("../testdata/block-45.rlp.hex"),
            include_str!("../testdata/block-45-hashes.json"),
        ),
    ] {
        assert_eq!(json(&BlockJson::new(&block(rlp), None)), want.trim());
    }
}

#[test]
fn a_block_in_full_is_rendered_as_geth_does() {
    let block = block(include_str!("../testdata/block-54.rlp.hex"));
    let senders = recover_senders(&block).unwrap();
    let want = include_str!("../testdata/block-54-full.json");
    assert_eq!(json(&BlockJson::new(&block, Some(&senders))), want.trim());
}

#[test]
fn blob_and_set_code_transactions_are_rendered_as_geth_does() {
    let blob = block(include_str!("../testdata/block-42.rlp.hex"));
    assert_eq!(transaction(&blob, 0), include_str!("../testdata/transaction-42-0.json").trim());
    let set_code = block(include_str!("../testdata/block-45.rlp.hex"));
    assert_eq!(transaction(&set_code, 1), include_str!("../testdata/transaction-45-1.json").trim());
}

#[test]
fn receipts_are_rendered_as_geth_does() {
    let block_54 = block(include_str!("../testdata/block-54.rlp.hex"));
    let want = include_str!("../testdata/receipts-54.json").trim();
    let values: Vec<Value> = serde_json::from_str(want).unwrap();
    let receipts: Vec<_> =
        values.iter().zip(&block_54.transactions).map(|(json, tx)| stored(json, tx)).collect();
    let rendered: Vec<_> =
        (0..receipts.len()).map(|index| receipt(&block_54, &receipts, index, Some(1))).collect();
    assert_eq!(format!("[{}]", rendered.join(",")), want);

    let block_42 = block(include_str!("../testdata/block-42.rlp.hex"));
    let want = include_str!("../testdata/receipt-42-0.json").trim();
    let value: Value = serde_json::from_str(want).unwrap();
    let receipts = [stored(&value, &block_42.transactions[0])];
    assert_eq!(receipt(&block_42, &receipts, 0, Some(1)), want);
}

#[test]
fn a_missing_receipt_is_null() {
    let block = block(include_str!("../testdata/block-42.rlp.hex"));
    assert_eq!(receipt(&block, &[], 0, None), "null");
}
