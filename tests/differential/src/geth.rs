//! geth's opinion: `evm t8n`, a process for each case.

use crate::case::{CHAIN_ID, Case, GENESIS_TIME};
use alloy_primitives::{B256, Bloom, Bytes, U64, U256};
use alloy_rlp::Encodable;
use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

/// Results of a block, under the names of geth.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Geth {
    pub state_root: B256,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
    pub gas_used: U64,
    pub current_base_fee: U256,
    pub current_excess_blob_gas: U64,
    pub blob_gas_used: U64,
    #[serde(default)]
    pub requests: Vec<Bytes>,
    pub block_access_list: Bytes,
    /// Transactions that are invalid.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// Receipts, for the report of a disagreement.
    #[serde(default)]
    pub receipts: Value,
}

/// An invalid transaction.
#[derive(Deserialize, Debug)]
pub struct Rejected {
    /// Place among all transactions.
    pub index: usize,
    /// Reason.
    pub error: String,
}

/// Returns the path of `evm`, from `PATH` or Go's folder.
pub fn find(path: Option<&std::ffi::OsStr>, home: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let mut folders: Vec<_> =
        path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    folders.extend(home.map(|home| PathBuf::from(home).join("go/bin")));
    folders.into_iter().map(|folder| folder.join("evm")).find(|path| path.is_file())
}

/// Returns the input of `evm t8n`.
pub fn input(case: &Case, genesis_hash: B256) -> Value {
    let mut list = Vec::new();
    let items: usize = case.transactions.iter().map(item_len).sum();
    alloy_rlp::Header { list: true, payload_length: items }.encode(&mut list);
    for raw in &case.transactions {
        // A legacy transaction is an RLP list itself, the others are strings.
        if raw[0] >= 0xc0 { list.extend_from_slice(raw) } else { raw.encode(&mut list) }
    }
    json!({
        "alloc": case.alloc_json(),
        "env": {
            "currentCoinbase": case.beneficiary,
            "currentGasLimit": format!("{:#x}", case.gas_limit),
            "currentNumber": "0x1",
            "currentTimestamp": format!("{:#x}", case.timestamp),
            "currentRandom": case.prev_randao,
            "currentDifficulty": "0x0",
            "parentTimestamp": format!("{GENESIS_TIME:#x}"),
            "parentBaseFee": format!("{:#x}", case.base_fee),
            "parentGasUsed": "0x0",
            "parentGasLimit": format!("{:#x}", case.gas_limit),
            "parentExcessBlobGas": format!("{:#x}", case.excess_blob_gas),
            "parentBlobGasUsed": "0x0",
            "parentBeaconBlockRoot": case.beacon_root,
            "slotNumber": format!("{:#x}", case.slot),
            "blockHashes": {"0x0": genesis_hash},
            "withdrawals": case.withdrawals,
        },
        "txsRlp": Bytes::from(list),
    })
}

fn item_len(raw: &Bytes) -> usize {
    if raw[0] >= 0xc0 { raw.len() } else { raw.length() }
}

/// Runs `evm t8n`.
///
/// # Errors
/// If the process fails, or answers in another form.
pub fn transition(evm: &std::path::Path, input: &Value) -> anyhow::Result<Geth> {
    let mut child = Command::new(evm)
        .args(["t8n", "--state.fork=Amsterdam", "--state.reward=-1"])
        .arg(format!("--state.chainid={CHAIN_ID}"))
        .args(["--input.alloc=stdin", "--input.env=stdin", "--input.txs=stdin"])
        .args(["--output.result=stdout", "--output.alloc=", "--output.body="])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", evm.display()))?;
    let mut stdin = child.stdin.take().context("the process has no input")?;
    let text = input.to_string();
    let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().context("wait for evm")?;
    // A process that gives up early closes its input; its error says more.
    let _ = writer.join();
    if !output.status.success() {
        bail!("evm t8n: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    #[derive(Deserialize)]
    struct Answer {
        result: Geth,
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("evm's answer {}", String::from_utf8_lossy(&output.stdout)))?;
    Ok(answer.result)
}
