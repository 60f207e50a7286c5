//! `txinfo.json`: the effects of some transactions and blocks of a chain.

use crate::{CaseNode, suites::support::same};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

/// Looks up every transaction and every contract that the file names, at any depth, and the ommers
/// and withdrawals of its blocks.
pub(super) fn check(info: &Value, node: &CaseNode) -> anyhow::Result<()> {
    for (number, ommers) in info["uncles"].as_object().into_iter().flatten() {
        same("ommers", &block(number, node)?["uncles"], &ommers["hashes"])?;
    }
    for (number, withdrawals) in info["withdrawals"].as_object().into_iter().flatten() {
        same("withdrawals", &block(number, node)?["withdrawals"], &withdrawals["withdrawals"])?;
    }
    check_transactions(info, node)
}

/// Returns the block with this number, in decimal digits.
fn block(number: &str, node: &CaseNode) -> anyhow::Result<Value> {
    let tag = format!("{:#x}", number.parse::<u64>().context("block number")?);
    Ok(node.call("eth_getBlockByNumber", &json!([tag, false]).to_string())?)
}

fn check_transactions(info: &Value, node: &CaseNode) -> anyhow::Result<()> {
    match info {
        Value::Object(fields) => {
            check_one(info, node).with_context(|| info.to_string())?;
            fields.values().try_for_each(|field| check_transactions(field, node))
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_transactions(item, node)),
        _ => Ok(()),
    }
}

fn check_one(info: &Value, node: &CaseNode) -> anyhow::Result<()> {
    if info["authorizeTx"].is_string() {
        let params = json!([info["authorizeTx"]]).to_string();
        let transaction = node.call("eth_getTransactionByHash", &params)?;
        same("type", transaction["type"].as_str(), Some("0x4"))?;
    }
    let Some(block) = info["block"].as_str() else { return Ok(()) };
    if let Some(contract) = info["contract"].as_str() {
        let receipts = node.call("eth_getBlockReceipts", &json!([block]).to_string())?;
        let receipts = receipts.as_array().context("no receipts")?;
        let created = receipts.iter().any(|receipt| receipt["contractAddress"] == contract);
        ensure!(created, "no transaction of the block created it");
    }
    let hash = [&info["txhash"], &info["tx"]["hash"]].into_iter().find(|hash| hash.is_string());
    let Some(hash) = hash else { return Ok(()) };
    let params = json!([hash]).to_string();
    let transaction = node.call("eth_getTransactionByHash", &params)?;
    let receipt = node.call("eth_getTransactionReceipt", &params)?;
    same("hash", &transaction["hash"], hash)?;
    for found in [&transaction, &receipt] {
        same("block", found["blockNumber"].as_str(), Some(block))?;
        if let Some(sender) = info["sender"].as_str() {
            same("sender", found["from"].as_str(), Some(sender))?;
        }
        if let Some(index) = info["indexInBlock"].as_u64() {
            same("position", found["transactionIndex"].as_str(), Some(&*format!("{index:#x}")))?;
        }
    }
    // Chains that reach Amsterdam have transactions that run out of gas at its prices.
    if let Some(topic) = info["logtopic0"].as_str()
        && receipt["status"] == "0x1"
    {
        same("topic", receipt["logs"][0]["topics"][0].as_str(), Some(topic))?;
    }
    Ok(())
}
