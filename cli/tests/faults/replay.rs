//! Replays recorded blocks while faults happen to the processes that execute them.

use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tandem_cluster_tests::{
    Client, Corpus, Endpoints, Process, Recorded, ends_of_logs, send_head, send_payload,
};
use tokio::time::sleep;

/// Longest time without a verdict. Generous, because the machine may be busy otherwise.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// The demo corpus, block by block, as a consensus client sends it.
pub struct Replay {
    corpus: Corpus,
    blocks: Vec<Recorded>,
    endpoints: Endpoints,
    engine: Client,
    folder: PathBuf,
    /// Number of blocks that were answered VALID.
    valid: usize,
    pub rng: StdRng,
    label: String,
    /// Answers other than a verdict since the last fault.
    pub errors: Vec<String>,
}

impl Replay {
    /// Returns a replay to this executor. `folder` has the logs, which are shown on failure.
    pub fn new(seed: u64, endpoints: &Endpoints, folder: &Path) -> Self {
        let corpus = Corpus::demo();
        Self {
            blocks: corpus.payloads().collect(),
            corpus,
            endpoints: endpoints.clone(),
            engine: endpoints.engine(),
            folder: folder.to_owned(),
            valid: 0,
            rng: StdRng::seed_from_u64(seed),
            label: format!("seed {seed}, calm"),
            errors: Vec::new(),
        }
    }

    /// Returns the number of remaining blocks.
    pub fn left(&self) -> usize {
        self.blocks.len() - self.valid
    }

    /// Sends the next block and makes it the head, with retries.
    pub async fn advance(&mut self) {
        let block = &self.blocks[self.valid];
        let end = Instant::now() + RECOVERY_MAX;
        let mut sent = false;
        loop {
            let result = match sent {
                false => send_payload(&mut self.engine, block).await,
                true => send_head(&mut self.engine, block.hash).await,
            };
            match result {
                Ok(()) if sent => break,
                Ok(()) => sent = true,
                Err(error) => {
                    let late = Instant::now() >= end;
                    assert!(!late, "{}: {error}\n{}", self.label, ends_of_logs(&self.folder));
                    self.errors.push(error);
                    sleep(RETRY).await;
                }
            }
        }
        self.valid += 1;
    }

    /// Sends a few blocks without a fault, or none.
    pub async fn calm(&mut self, blocks_max: usize) {
        for _ in 0..self.rng.random_range(0..=blocks_max) {
            self.advance().await;
        }
    }

    /// Causes a fault at a random moment of a block, and sends the blocks after it. Returns the
    /// time from the beginning of the fault until two more blocks were there.
    pub async fn suffer(&mut self, fault: &str, strike: impl Future<Output = ()>) -> Duration {
        self.label = format!("{fault} at block {}", self.valid + 1);
        eprintln!("{}", self.label);
        self.errors.clear();
        let block = self.blocks[self.valid].clone();
        let moment = Duration::from_micros(self.rng.random_range(0..150_000));
        let mut caller = self.endpoints.engine();
        let work = tokio::spawn(async move {
            // The result may be lost with the fault; an answer that arrives counts.
            let valid = send_payload(&mut caller, &block).await.is_ok();
            valid && send_head(&mut caller, block.hash).await.is_ok()
        });
        sleep(moment).await;
        let begun = Instant::now();
        let recovered = async {
            work.await.unwrap();
            self.advance().await;
            self.advance().await;
            begun.elapsed()
        };
        // The fault may last longer than the recovery.
        let (took, ()) = tokio::join!(recovered, strike);
        self.advance().await;
        self.assert_all_there().await;
        took
    }

    /// Asserts that every block that was answered VALID is there.
    pub async fn assert_all_there(&mut self) {
        let mut http = self.endpoints.http();
        for block in &self.blocks[..self.valid] {
            let header = http.call("eth_getBlockByHash", json!([block.hash, false])).await.unwrap();
            assert_eq!(header["hash"], json!(block.hash), "{}: a valid block is lost", self.label);
        }
    }

    /// Makes the executor build a payload on the last block. Returns it as a block that may be
    /// sent.
    pub async fn build(&mut self) -> Recorded {
        let parent = &self.blocks[self.valid - 1];
        let time = parent.params[0]["timestamp"].as_str().unwrap();
        let time = u64::from_str_radix(&time[2..], 16).unwrap() + 12;
        let beacon_root = B256::repeat_byte(7);
        let state = json!({
            "headBlockHash": parent.hash, "safeBlockHash": B256::ZERO,
            "finalizedBlockHash": B256::ZERO,
        });
        let attributes = json!({
            "timestamp": format!("{time:#x}"),
            "prevRandao": B256::repeat_byte(8),
            "suggestedFeeRecipient": "0x0e00000000000000000000000000000000000001",
            "withdrawals": [{
                "index": "0x7", "validatorIndex": "0x9", "amount": "0x3b9aca00",
                "address": "0x0d00000000000000000000000000000000000001",
            }],
            "parentBeaconBlockRoot": beacon_root,
        });
        let begin = self.engine.call("engine_forkchoiceUpdatedV3", json!([state, attributes]));
        let id = begin.await.unwrap()["payloadId"].clone();
        let mut built = self.engine.call("engine_getPayloadV5", json!([id])).await.unwrap();
        let (payload, requests) =
            (built["executionPayload"].take(), built["executionRequests"].take());
        let hash = serde_json::from_value(payload["blockHash"].clone()).unwrap();
        let params = json!([payload, [], beacon_root, requests]);
        Recorded { method: "engine_newPayloadV4".to_owned(), params, hash }
    }

    /// Sends the remaining blocks. The head is then that of the corpus.
    pub async fn finish(&mut self) {
        while self.left() > 0 {
            self.advance().await;
        }
        self.assert_all_there().await;
        let latest = json!(["latest", false]);
        let head = self.endpoints.http().call("eth_getBlockByNumber", latest).await.unwrap();
        assert_eq!(head["hash"], json!(self.corpus.head_hash), "{}", self.label);
        assert_eq!(head["stateRoot"], json!(self.corpus.head_state_root), "{}", self.label);
    }

    /// Verifies the database after all writers have ended.
    pub fn verify(&self) {
        let (status, text) = Process::verify(crate::binary(), &self.folder);
        assert!(status.success(), "{}: {status}\n{text}", self.label);
    }
}
