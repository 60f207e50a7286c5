//! Random questions to a follower and to its leader, whose answers have to be the same.

use crate::client::{Client, request};
use anyhow::{Context as _, ensure};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};

/// Blocks below the head whose state is asked for. A base stays at least 16 blocks behind its head.
const RECENT: u64 = 12;

/// Most blocks of a question about logs.
const LOG_BLOCKS: u64 = 64;

/// Asks both `count` rounds of questions. Returns the number of questions, and those whose answers
/// differ.
///
/// # Errors
/// If one of them does not answer.
pub fn compare(
    leader: &mut Client,
    follower: &mut Client,
    count: usize,
    random: &mut StdRng,
) -> anyhow::Result<(usize, Vec<String>)> {
    let head = super::number_of_head(leader)?;
    ensure!(head > RECENT, "only {head} blocks");
    let (mut asked, mut differ) = (0, Vec::new());
    for _ in 0..count {
        for (method, params) in questions(leader, head, random)? {
            let body = request(method, &params);
            let [want, got] = [leader.post(&body)?.value, follower.post(&body)?.value];
            asked += 1;
            // The texts of errors may name what only one of them is.
            let are_same = match (want.get("error"), got.get("error")) {
                (Some(want), Some(got)) => want["code"] == got["code"],
                _ => want == got,
            };
            if !are_same {
                differ.push(format!("{method} {params}"));
            }
        }
    }
    Ok((asked, differ))
}

/// Returns questions about a random block, the accounts of one of its transactions, and the slots that
/// it touches.
fn questions(
    leader: &mut Client,
    head: u64,
    random: &mut StdRng,
) -> anyhow::Result<Vec<(&'static str, Value)>> {
    let number = random.random_range(1..=head);
    let at = format!("{number:#x}");
    let recent = format!("{:#x}", head - random.random_range(0..RECENT));
    let to = format!("{:#x}", (number + random.random_range(0..LOG_BLOCKS)).min(head));
    let block = leader.call("eth_getBlockByNumber", &json!([at, true]))?;
    let mut questions = vec![
        ("eth_getBlockByHash", json!([block["hash"], true])),
        ("eth_getBlockReceipts", json!([at])),
        ("eth_getLogs", json!([{"fromBlock": at, "toBlock": to}])),
        ("debug_getRawBlock", json!([at])),
    ];
    let transactions = block["transactions"].as_array().context("no transactions")?;
    let Some(transaction) = transactions.choose(random) else { return Ok(questions) };
    questions.push(("eth_getTransactionReceipt", json!([transaction["hash"]])));
    let call = json!({
        "from": transaction["from"], "to": transaction["to"], "input": transaction["input"],
    });
    questions.push(("eth_call", json!([call, recent])));
    questions.push(("eth_estimateGas", json!([call, recent])));
    let touched = leader.post(&request("eth_createAccessList", &json!([call, recent])))?.value;
    let lists = touched["result"]["accessList"].as_array().cloned().unwrap_or_default();
    let touched = lists.iter().map(|entry| (&entry["address"], &entry["storageKeys"]));
    let none = json!([]);
    let own = ["from", "to"].map(|side| (&transaction[side], &none));
    for (address, keys) in own.into_iter().chain(touched).filter(|(of, _)| !of.is_null()) {
        let keys: Vec<&Value> = keys.as_array().into_iter().flatten().take(4).collect();
        questions.push(("eth_getBalance", json!([address, recent])));
        questions.push(("eth_getTransactionCount", json!([address, recent])));
        questions.push(("eth_getCode", json!([address, recent])));
        questions.push(("eth_getProof", json!([address, keys, recent])));
        for key in keys {
            questions.push(("eth_getStorageAt", json!([address, key, recent])));
        }
    }
    Ok(questions)
}
