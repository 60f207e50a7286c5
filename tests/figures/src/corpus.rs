//! Recorded payloads, and the time a node takes to execute them.

use crate::{
    client::{Answer, Client, request},
    node::Node,
};
use anyhow::{Context as _, ensure};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_cluster_tests::new_payload;
use tandem_overlap::stats::{Estimate, median};

const ZERO: &str = "0x0000000000000000000000000000000000000000000000000000000000000000";
/// Distances in blocks from the head to the safe block and to the finalized block.
const FINALITY: [usize; 2] = [32, 64];

/// Bytes of a header, about.
const HEADER_BYTES: usize = 700;

/// A folder with a genesis file and payloads.
pub struct Corpus {
    pub name: String,
    pub genesis: PathBuf,
    entries: Vec<Entry>,
}

struct Entry {
    hash: String,
    forkchoice_version: u8,
    body: String,
}

/// A block that became the head.
pub struct Replayed<'a> {
    /// Its place in the corpus.
    pub index: usize,
    pub hash: &'a str,
    /// Moment at which newPayload said that it is valid.
    pub valid: Instant,
}

impl Corpus {
    /// Reads a corpus, at most `blocks_max` blocks of it.
    ///
    /// # Errors
    /// If a file is missing or has another format.
    pub fn load(folder: &Path, blocks_max: usize) -> anyhow::Result<Self> {
        let name = name_of(folder);
        let file = folder.join("payloads.jsonl.gz");
        let file = File::open(&file).with_context(|| format!("open {}", file.display()))?;
        let lines = BufReader::new(GzDecoder::new(file)).lines().take(blocks_max);
        let entries = lines.map(|line| entry(&line?)).collect::<anyhow::Result<_>>()?;
        let genesis = ["genesis.json.gz", "genesis.json"].map(|name| folder.join(name));
        let genesis = genesis.into_iter().find(|file| file.is_file()).context("no genesis")?;
        Ok(Self { name, genesis, entries })
    }

    /// Makes a corpus of payloads of a fork, each with the other parameters of newPayload.
    pub fn of<'a>(
        name: &str,
        genesis: PathBuf,
        fork: Fork,
        payloads: impl Iterator<Item = (&'a Payload, &'a PayloadSidecar)>,
    ) -> Self {
        let forkchoice_version = if fork >= Fork::Amsterdam { 4 } else { 3 };
        let entries = payloads.map(|(payload, sidecar)| {
            let (method, params) = new_payload(fork, payload, sidecar);
            let (hash, body) = (payload.block_hash.to_string(), request(method, &params));
            Entry { hash, forkchoice_version, body }
        });
        Self { name: name.to_owned(), genesis, entries: entries.collect() }
    }

    /// Sends all blocks to a node, each as the head, and returns the milliseconds of each
    /// newPayload. Waits for `gap` before each block.
    ///
    /// # Errors
    /// If a block is not VALID, or a call gets no answer.
    pub fn replay(&self, node: &Node, gap: Duration) -> anyhow::Result<Vec<f64>> {
        self.replay_with(node, gap, |_| Ok(()))
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Divides it into the first blocks and the others.
    pub fn split_at(mut self, blocks: usize) -> (Self, Self) {
        let entries = self.entries.split_off(blocks.min(self.entries.len()));
        let rest = Self { name: self.name.clone(), genesis: self.genesis.clone(), entries };
        (self, rest)
    }

    /// Returns the hash of the last block.
    pub fn head(&self) -> Option<&str> {
        self.entries.last().map(|entry| entry.hash.as_str())
    }

    /// Returns the bodies of the newPayload requests.
    pub fn bodies(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.body.as_str())
    }

    /// Returns the bytes of all blocks with their access lists, about: those of transactions and lists, and of
    /// a header each.
    ///
    /// # Errors
    /// If a body is no call of newPayload.
    pub fn block_bytes(&self) -> anyhow::Result<f64> {
        let mut bytes = 0;
        for body in self.bodies() {
            let body: Value = serde_json::from_str(body)?;
            let payload = &body["params"][0];
            let transactions = payload["transactions"].as_array().context("no transactions")?;
            let list = [&payload["blockAccessList"]];
            let texts = transactions.iter().chain(list).filter_map(Value::as_str);
            bytes += HEADER_BYTES + texts.map(|hex| hex.len() / 2 - 1).sum::<usize>();
        }
        Ok(bytes as f64)
    }

    /// As [`Corpus::replay`], and calls `after` with each block that became the head.
    ///
    /// # Errors
    /// As for [`Corpus::replay`], and the errors of `after`.
    pub fn replay_with(
        &self,
        node: &Node,
        gap: Duration,
        after: impl FnMut(Replayed<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        self.replay_by(node, gap, |engine, body| engine.post(body), after)
    }

    /// As [`Corpus::replay_with`], where `send` sends the body of newPayload.
    ///
    /// # Errors
    /// As for [`Corpus::replay_with`], and the errors of `send`.
    pub fn replay_by(
        &self,
        node: &Node,
        gap: Duration,
        send: impl FnMut(&mut Client, &str) -> anyhow::Result<Answer>,
        after: impl FnMut(Replayed<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        self.replay_to(&mut node.engine()?, gap, send, after)
    }

    /// As [`Corpus::replay_by`], to the Engine API of any node.
    ///
    /// # Errors
    /// As for [`Corpus::replay_by`].
    pub fn replay_to(
        &self,
        engine: &mut Client,
        gap: Duration,
        mut send: impl FnMut(&mut Client, &str) -> anyhow::Result<Answer>,
        mut after: impl FnMut(Replayed<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::with_capacity(self.entries.len());
        for (index, entry) in self.entries.iter().enumerate() {
            std::thread::sleep(gap);
            let (time, valid) = self.block(index, engine, &mut send)?;
            times.push(time);
            after(Replayed { index, hash: &entry.hash, valid })?;
        }
        Ok(times)
    }

    /// Sends all blocks to two nodes, each to one after the other, and first to another one each time.
    /// Returns the milliseconds of each newPayload at both.
    ///
    /// # Errors
    /// As for [`Corpus::replay`].
    pub fn replay_in_turn(
        &self,
        engines: &mut [Client; 2],
        gap: Duration,
    ) -> anyhow::Result<[Vec<f64>; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for index in 0..self.entries.len() {
            for place in [index % 2, (index + 1) % 2] {
                std::thread::sleep(gap);
                let post = &mut |engine: &mut Client, body: &str| engine.post(body);
                times[place].push(self.block(index, &mut engines[place], post)?.0);
            }
        }
        Ok(times)
    }

    /// Makes a block the head. Returns the milliseconds of newPayload, and the moment of its answer.
    fn block(
        &self,
        index: usize,
        engine: &mut Client,
        send: &mut impl FnMut(&mut Client, &str) -> anyhow::Result<Answer>,
    ) -> anyhow::Result<(f64, Instant)> {
        let entry = &self.entries[index];
        let answer = send(engine, &entry.body);
        let answer = answer.with_context(|| format!("newPayload {index}"))?;
        let valid = Instant::now();
        let status = &answer.value["result"]["status"];
        ensure!(status == "VALID", "newPayload {index}: {}", answer.value);
        let [safe, finalized] = FINALITY.map(|behind| {
            let at = index.checked_sub(behind);
            at.map_or(ZERO, |at| &self.entries[at].hash)
        });
        let state = json!({"headBlockHash": entry.hash, "safeBlockHash": safe,
            "finalizedBlockHash": finalized});
        let method = format!("engine_forkchoiceUpdatedV{}", entry.forkchoice_version);
        let forkchoice = engine.call(&method, &json!([state, null]))?;
        let status = &forkchoice["payloadStatus"]["status"];
        ensure!(status == "VALID", "forkchoice {index}: {forkchoice}");
        Ok((answer.elapsed.as_secs_f64() * 1e3, valid))
    }
}

/// Returns the name of a corpus: that of its folder.
pub fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn entry(line: &str) -> anyhow::Result<Entry> {
    let value: Value = serde_json::from_str(line)?;
    let method = value["method"].as_str().context("no method")?;
    let version: u8 = method.trim_start_matches("engine_newPayloadV").parse()?;
    let hash = value["executionPayload"]["blockHash"].as_str().context("no hash")?.to_owned();
    let mut params = vec![value["executionPayload"].clone()];
    if version >= 3 {
        params.push(value["versionedHashes"].clone());
        params.push(value["parentBeaconBlockRoot"].clone());
    }
    if version >= 4 {
        params.push(value["executionRequests"].clone());
    }
    // forkchoiceUpdatedV3 came with newPayloadV3 and stayed until V5.
    let forkchoice_version = if version >= 5 { 4 } else { version.min(3) };
    let body = request(method, &Value::Array(params));
    Ok(Entry { hash, forkchoice_version, body })
}

/// Measures two sides in turn, `rounds` times; each side goes first equally often.
///
/// # Errors
/// The errors of the sides.
pub fn in_turn<T>(
    rounds: usize,
    this: impl Fn() -> anyhow::Result<T>,
    that: impl Fn() -> anyhow::Result<T>,
) -> anyhow::Result<(Vec<T>, Vec<T>)> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            without.push(that()?);
            with.push(this()?);
        } else {
            with.push(this()?);
            without.push(that()?);
        }
    }
    Ok((with, without))
}

/// Returns the ratio of each block's times in `with` to those in `without`, over rounds of both.
pub fn ratio(with: &[Vec<f64>], without: &[Vec<f64>], seed: u64) -> anyhow::Result<Estimate> {
    let blocks = without.first().map_or(0, Vec::len);
    let ratios: Vec<Vec<f64>> = (0..blocks)
        .map(|block| {
            let at = |rounds: &[Vec<f64>]| -> Vec<f64> {
                rounds.iter().filter_map(|times| times.get(block).copied()).collect()
            };
            let base = median(at(without)).unwrap_or(f64::NAN);
            at(with).into_iter().map(|time| time / base).collect()
        })
        .collect();
    Estimate::of(&ratios, seed).context("nothing was measured")
}

/// Returns the ratio of the medians of two sets of times, with the interval from resampling both.
pub fn ratio_of_medians(with: &[f64], without: &[f64], seed: u64) -> anyhow::Result<Estimate> {
    let one_by_one = |times: &[f64]| times.iter().map(|time| vec![*time]).collect::<Vec<_>>();
    let with = Estimate::of(&one_by_one(with), seed).context("nothing was measured")?;
    let without = Estimate::of(&one_by_one(without), !seed).context("nothing was measured")?;
    Ok(Estimate {
        blocks: with.blocks,
        median: with.median / without.median,
        low: with.low / without.high,
        high: with.high / without.low,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_the_same_block() {
        // Blocks differ a hundredfold; the load makes each one take twice as long.
        let without: Vec<f64> = (0..20).map(|block| f64::from(1 + block * 5)).collect();
        let with: Vec<f64> = without.iter().map(|time| time * 2.0).collect();
        let estimate = ratio(&[with.clone(), with], &[without.clone(), without], 1).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high), (2.0, 2.0, 2.0));
        assert!(ratio(&[], &[], 1).is_err());
    }

    #[test]
    fn a_ratio_of_medians_has_an_interval_around_it() {
        let without: Vec<f64> = (0..50).map(|n| 10.0 + f64::from(n % 5)).collect();
        let with: Vec<f64> = without.iter().map(|time| time * 1.5).collect();
        let Estimate { median, low, high, .. } = ratio_of_medians(&with, &without, 3).unwrap();
        assert!((median - 1.5).abs() < 1e-9 && low <= median && median <= high && high < 1.9);
    }
}
