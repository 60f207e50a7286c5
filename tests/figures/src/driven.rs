//! An execution client, as a consensus client drives it: heads, builds and payloads.

use crate::client::{Client, quantity, raw_transactions, request};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, Bytes, hex};
use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::{fs, ops::Range, path::PathBuf, time::Duration};
use tandem_chain::{Fork, Payload, PayloadSidecar, decode_transaction};
use tandem_cluster_tests::{Builder, Forks, GENESIS_TIME, new_payload};
use tempfile::TempDir;

/// Genesis with funded senders, in a file.
pub struct Genesis {
    pub builder: Builder,
    pub file: PathBuf,
    _folder: TempDir,
}

impl Genesis {
    /// Writes a genesis whose blocks have the rules of a fork, Osaka or Amsterdam, and this gas limit.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(fork: Fork, gas_limit: &str) -> anyhow::Result<Self> {
        let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
        let mut genesis: Value = serde_json::from_str(builder.genesis_json())?;
        genesis["gasLimit"] = json!(gas_limit);
        if fork == Fork::Amsterdam {
            genesis["config"]["amsterdamTime"] = json!(GENESIS_TIME + 1);
        }
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        let file = folder.path().join("genesis.json");
        fs::write(&file, genesis.to_string())?;
        Ok(Self { builder, file, _folder: folder })
    }
}

/// Returns attributes with this limit as the wanted one, if their fork asks for it.
pub fn with_limit(mut attributes: Value, gas_limit: &str) -> Value {
    if !attributes["targetGasLimit"].is_null() {
        attributes["targetGasLimit"] = json!(gas_limit);
    }
    attributes
}

/// Client, as a consensus client drives it.
pub struct Driven {
    engine: Client,
    fork: Fork,
}

/// Answer of getPayload.
pub struct Built {
    pub payload: Payload,
    pub sidecar: PayloadSidecar,
    /// Income of the fee recipient, in wei.
    pub value: u128,
    /// Time of the call.
    pub took: Duration,
}

impl Driven {
    /// Returns a client whose blocks have the rules of this fork.
    pub fn new(engine: Client, fork: Fork) -> Self {
        Self { engine, fork }
    }

    /// Returns the hash of the genesis block.
    ///
    /// # Errors
    /// If the client does not answer.
    pub fn genesis(&mut self) -> anyhow::Result<B256> {
        let block = self.engine.call("eth_getBlockByNumber", &json!(["0x0", false]))?;
        Ok(serde_json::from_value(block["hash"].clone())?)
    }

    /// Makes a block the head, and begins to build on it if there are attributes. Returns the
    /// payload's id.
    ///
    /// # Errors
    /// If the client does not answer, or does not have the block.
    pub fn choose(&mut self, head: B256, attributes: &Value) -> anyhow::Result<Option<String>> {
        let state = json!({
            "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
        });
        let answer = match self.fork {
            Fork::Amsterdam => {
                self.engine.call("engine_forkchoiceUpdatedV4", &json!([state, attributes, null]))?
            }
            _ => self.engine.call("engine_forkchoiceUpdatedV3", &json!([state, attributes]))?,
        };
        let status = &answer["payloadStatus"];
        ensure!(status["status"] == "VALID", "forkchoiceUpdated: {status}");
        Ok(answer["payloadId"].as_str().map(str::to_owned))
    }

    /// Takes the payload of a build.
    ///
    /// # Errors
    /// If the client does not answer, or has no such payload.
    pub fn take(&mut self, id: &str) -> anyhow::Result<Built> {
        let version = if self.fork == Fork::Amsterdam { 6 } else { 5 };
        let method = format!("engine_getPayloadV{version}");
        let answer = self.engine.post(&request(&method, &json!([id])))?;
        // Until the answer's last byte: reading its JSON is the caller's work.
        let (took, mut answer) = (answer.elapsed, answer.value);
        ensure!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        let answer = answer["result"].take();
        let payload: Payload = serde_json::from_value(answer["executionPayload"].clone())?;
        let mut hashes = Vec::new();
        for raw in &payload.transactions {
            let transaction = decode_transaction(raw).map_err(anyhow::Error::msg)?;
            hashes.extend_from_slice(transaction.blob_versioned_hashes().unwrap_or_default());
        }
        let sidecar = PayloadSidecar {
            versioned_hashes: Some(hashes),
            parent_beacon_block_root: Some(B256::repeat_byte(0xbe)),
            execution_requests: serde_json::from_value(answer["executionRequests"].clone())?,
        };
        let value = answer["blockValue"].as_str().context("no blockValue")?;
        let value = u128::from_str_radix(value.trim_start_matches("0x"), 16)?;
        Ok(Built { payload, sidecar, value, took })
    }

    /// Sends a payload, and returns whether the client finds it valid.
    ///
    /// # Errors
    /// If the client does not answer.
    pub fn send(&mut self, built: &Built) -> anyhow::Result<bool> {
        let (method, params) = new_payload(self.fork, &built.payload, &built.sidecar);
        Ok(self.engine.call(method, &params)?["status"] == "VALID")
    }

    /// Sends a transaction to the pool, and returns its hash.
    ///
    /// # Errors
    /// If the client does not answer, or refuses it.
    pub fn add(&mut self, raw: &[u8]) -> anyhow::Result<B256> {
        let raw = hex::encode_prefixed(raw);
        let hash = self.engine.call("eth_sendRawTransaction", &json!([raw]))?;
        Ok(serde_json::from_value(hash)?)
    }

    /// Returns sender and nonce of those of these transactions that the pool has.
    ///
    /// # Errors
    /// If the client does not answer.
    pub fn has(&mut self, hashes: &[B256]) -> anyhow::Result<Vec<Option<(Address, u64)>>> {
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        let call = |hash| request("eth_getTransactionByHash", &json!([hash]));
        let calls: Vec<_> = hashes.iter().map(call).collect();
        let answers = self.engine.post(&format!("[{}]", calls.join(",")))?.value;
        let answers = answers.as_array().context("no batch of answers")?;
        ensure!(
            answers.len() == hashes.len(),
            "{} answers to {} calls",
            answers.len(),
            hashes.len()
        );
        let found = |answer: &Value| {
            ensure!(answer["error"].is_null(), "eth_getTransactionByHash: {}", answer["error"]);
            let transaction = &answer["result"];
            if transaction.is_null() || !transaction["blockHash"].is_null() {
                return Ok(None);
            }
            let sender = serde_json::from_value(transaction["from"].clone())?;
            Ok(Some((sender, quantity(&transaction["nonce"])?)))
        };
        answers.iter().map(found).collect()
    }

    /// Sends transactions to the pool in one request.
    ///
    /// # Errors
    /// If the client does not answer, or refuses one.
    pub fn add_all(&mut self, all: &[Bytes]) -> anyhow::Result<()> {
        let answers = self.engine.post(&raw_transactions(all))?.value;
        let answers = answers.as_array().context("no batch of answers")?;
        ensure!(answers.len() == all.len(), "{} answers to {} calls", answers.len(), all.len());
        let refused = answers.iter().find(|answer| !answer["result"].is_string());
        refused.map_or(Ok(()), |answer| bail!("eth_sendRawTransaction: {}", answer["error"]))
    }

    /// Returns the nonce after those of a sender's transactions in chain and pool.
    ///
    /// # Errors
    /// If the client does not answer.
    pub fn next_nonce(&mut self, sender: Address) -> anyhow::Result<u64> {
        self.nonce(sender, "pending")
    }

    /// Returns the nonces that a sender's transactions need, so that they can be executed: from the
    /// chain's next one on, without a gap.
    ///
    /// # Errors
    /// If the client does not answer.
    pub fn executable(&mut self, sender: Address) -> anyhow::Result<Range<u64>> {
        Ok(self.nonce(sender, "latest")?..self.nonce(sender, "pending")?)
    }

    fn nonce(&mut self, sender: Address, block: &str) -> anyhow::Result<u64> {
        quantity(&self.engine.call("eth_getTransactionCount", &json!([sender, block]))?)
    }
}
