//! `tandem replay`: gives a file of payloads to an Engine API, any client's, and measures.

mod corpus;
mod report;

pub use corpus::{Corpus, Entry};
pub use report::{BlockTimes, Mismatch, ReplayReport, summarize};

use crate::http_client::{Answer, HttpClient, result};
use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use report::milliseconds;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tandem_auth::Secret;

/// Arguments of `tandem replay`.
#[derive(Args, Debug, Clone)]
pub struct ReplayArgs {
    /// URL of the Engine API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8551")]
    pub engine: String,
    /// File with the JWT secret, 32 bytes in hex
    #[arg(long, value_name = "FILE")]
    pub jwtsecret: PathBuf,
    /// Corpus directory, or payloads.jsonl with or without .gz
    #[arg(value_name = "CORPUS")]
    pub corpus: PathBuf,
    /// Leave the first N blocks out of the statistics
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warmup: u64,
    /// First block to send
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub from: u64,
    /// Last block to send
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX, hide_default_value = true)]
    pub to: u64,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// How many blocks the safe and the finalized block stay behind the head
    #[arg(long, value_name = "SAFE,FINALIZED", default_value = "32,64")]
    pub finality: Finality,
    /// Send payloads only, no forkchoice updates
    #[arg(long)]
    pub no_forkchoice: bool,
    /// Give up on a call after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub call_timeout: u64,
}

/// Distances of the safe and the finalized block from the head; 0 for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finality {
    /// Blocks from the head to the safe one.
    pub safe: usize,
    /// Blocks from the head to the finalized one.
    pub finalized: usize,
}

impl std::str::FromStr for Finality {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "expected two numbers, SAFE,FINALIZED, the second not below the first";
        let (safe, finalized) = text.split_once(',').ok_or(FORM)?;
        let safe = safe.trim().parse().map_err(|_| FORM)?;
        let finalized = finalized.trim().parse().map_err(|_| FORM)?;
        if finalized != 0 && finalized < safe {
            return Err(FORM);
        }
        Ok(Self { safe, finalized })
    }
}

/// Arguments that cannot be used: the command was called wrongly (exit code 2).
#[derive(Debug)]
pub struct UsageError(anyhow::Error);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for UsageError {}

fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    UsageError(error.into()).into()
}

/// The command: replays and prints the table. Exit code 0 when every payload was VALID, 1 when
/// one was not, 2 for arguments that cannot be used.
///
/// # Errors
/// Those of [`run`] but for [`UsageError`].
#[allow(clippy::print_stdout)]
pub fn main(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(run(args)) {
        Ok(report) => {
            print!("{}", report.render());
            Ok(if report.is_valid() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) if error.is::<UsageError>() => {
            eprintln!("tandem replay: {error}");
            Ok(ExitCode::from(2))
        }
        Err(error) => Err(error),
    }
}

/// Replays a corpus, with a progress bar on stderr when that is a terminal, and writes the JSON
/// report where one is asked for. An answer that is not VALID ends the replay and stands in the
/// report; it is no error of this function.
///
/// # Errors
/// [`UsageError`] for arguments that cannot be used; others when the engine cannot be reached or
/// the corpus cannot be read.
pub async fn run(args: ReplayArgs) -> anyhow::Result<ReplayReport> {
    let secret = Secret::load(&args.jwtsecret).map_err(usage)?;
    let corpus = Corpus::open(&args.corpus).map_err(usage)?;
    let call_time_max = Duration::from_secs(args.call_timeout);
    let client = HttpClient::new(&args.engine, Some(secret), call_time_max).map_err(usage)?;
    let mut replay = Replay { client, args: &args, recent: VecDeque::new(), blocks: Vec::new() };

    let name = replay.client_name().await?;
    let mut entries = corpus.read(args.from..=args.to);
    let bar = progress_bar(&args, corpus.len());
    let started = Instant::now();
    let mut failure = None;
    while let Some(entry) = entries.recv().await {
        failure = replay.block(entry?).await?;
        if failure.is_some() {
            break;
        }
        bar.inc(1);
        if let Some(block) = replay.blocks.last() {
            bar.set_message(format!("block {}: {:.1} ms", block.number, block.new_payload_ms));
        }
    }
    bar.finish_and_clear();

    let report = ReplayReport {
        engine: args.engine.clone(),
        client: name,
        corpus: corpus.path().display().to_string(),
        calls: summarize(&replay.blocks),
        blocks: replay.blocks,
        wall_seconds: started.elapsed().as_secs_f64(),
        failure,
    };
    if report.blocks.is_empty() && report.is_valid() {
        return Err(usage(anyhow::anyhow!("the corpus has no payload of these blocks")));
    }
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(report)
}

fn progress_bar(args: &ReplayArgs, corpus_len: Option<u64>) -> ProgressBar {
    // Block 1 is a corpus' first.
    let len = corpus_len.map(|len| len.min(args.to).saturating_sub(args.from.max(1) - 1));
    let template = match len {
        Some(_) => "{bar:32} {pos}/{len} blocks  {elapsed} elapsed, {eta} left  {msg}",
        None => "{spinner} {pos} blocks  {elapsed} elapsed  {msg}",
    };
    // The target hides itself where stderr is no terminal.
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

struct Replay<'a> {
    client: HttpClient,
    args: &'a ReplayArgs,
    /// Hashes of the newest blocks, the newest at the front.
    recent: VecDeque<String>,
    blocks: Vec<BlockTimes>,
}

const ZERO_HASH: &str = "0x0000000000000000000000000000000000000000000000000000000000000000";

impl Replay<'_> {
    /// How the client names itself, `None` when it does not say. Also the proof that it is there
    /// and takes the secret.
    async fn client_name(&mut self) -> anyhow::Result<Option<String>> {
        let us = json!([{
            "code": "TD", "name": "tandem replay", "version": env!("CARGO_PKG_VERSION"),
            "commit": "0x00000000",
        }]);
        let body = json!({
            "jsonrpc": "2.0", "id": 0, "method": "engine_getClientVersionV1", "params": us,
        });
        let answer = self.client.post(body.to_string().into()).await?;
        let versions = match result(&answer) {
            Ok(raw) => serde_json::from_str(raw.get()).ok(),
            // A client may not have this method, but it must let us in.
            Err(_) if answer.status.is_success() => None,
            Err(text) => anyhow::bail!("{}: {text}", self.args.engine),
        };
        Ok(versions.and_then(|versions: Value| {
            let first = versions.get(0)?;
            Some(format!("{} {}", first["name"].as_str()?, first["version"].as_str()?))
        }))
    }

    /// Gives one payload and makes it the head. Returns the answer that was not as expected.
    async fn block(&mut self, entry: Entry) -> anyhow::Result<Option<Mismatch>> {
        let Entry { number, hash, parent_hash, gas, transactions, method, version, body } = entry;
        if self.recent.is_empty() {
            self.recent.push_front(parent_hash);
        }
        let no_answer = |method: &str| format!("{method} of block {number}");
        let answer = self.client.post(body).await.with_context(|| no_answer(&method))?;
        let mismatch = check(&method, number, &hash, &answer, |result| result);
        if mismatch.is_some() {
            return Ok(mismatch);
        }
        let new_payload_ms = milliseconds(answer.elapsed);

        self.recent.push_front(hash.clone());
        self.recent.truncate(self.args.finality.safe.max(self.args.finality.finalized) + 1);
        let mut forkchoice_updated_ms = None;
        if !self.args.no_forkchoice {
            // The newest version of the forks that this version of newPayload serves.
            let method = format!("engine_forkchoiceUpdatedV{}", version.min(3));
            let body = self.forkchoice(&method, number);
            let answer = self.client.post(body.into()).await.with_context(|| no_answer(&method))?;
            let mismatch =
                check(&method, number, &hash, &answer, |result| &result["payloadStatus"]);
            if mismatch.is_some() {
                return Ok(mismatch);
            }
            forkchoice_updated_ms = Some(milliseconds(answer.elapsed));
        }
        let warmup = (self.blocks.len() as u64) < self.args.warmup;
        self.blocks.push(BlockTimes {
            number,
            hash,
            gas,
            transactions,
            warmup,
            new_payload_ms,
            forkchoice_updated_ms,
        });
        Ok(None)
    }

    /// The request that makes the newest block the head.
    fn forkchoice(&self, method: &str, number: u64) -> String {
        let behind = |distance: usize| match distance {
            0 => ZERO_HASH,
            _ => self.recent.get(distance).map_or(ZERO_HASH, String::as_str),
        };
        let state = json!({
            "headBlockHash": self.recent.front(),
            "safeBlockHash": behind(self.args.finality.safe),
            "finalizedBlockHash": behind(self.args.finality.finalized),
        });
        json!({"jsonrpc": "2.0", "id": number, "method": method, "params": [state, null]})
            .to_string()
    }
}

/// Compares an answer with the one that says VALID, and returns it when it is another. `status`
/// finds the payload status in the result.
fn check(
    method: &str,
    number: u64,
    hash: &str,
    answer: &Answer,
    status: impl Fn(&Value) -> &Value,
) -> Option<Mismatch> {
    let got = match result(answer) {
        Ok(raw) => match serde_json::from_str::<Value>(raw.get()) {
            Ok(value) => {
                let status = status(&value);
                let valid_hash = status["latestValidHash"].as_str().unwrap_or_default();
                if status["status"] == "VALID" && valid_hash.eq_ignore_ascii_case(hash) {
                    return None;
                }
                describe(&status["status"], &status["latestValidHash"], &status["validationError"])
            }
            Err(error) => error.to_string(),
        },
        Err(text) => text,
    };
    let expected = describe(&json!("VALID"), &json!(hash), &Value::Null);
    Some(Mismatch {
        method: method.to_owned(),
        number,
        hash: hash.to_owned(),
        expected,
        got,
        answer: String::from_utf8_lossy(&answer.body).trim().to_owned(),
    })
}

/// A payload status with its members in the order of the Engine API.
fn describe(status: &Value, latest_valid_hash: &Value, validation_error: &Value) -> String {
    format!("status {status}, latestValidHash {latest_valid_hash}, error {validation_error}")
}

#[cfg(test)]
mod tests;
