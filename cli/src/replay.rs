//! `tandem replay`: sends a file of payloads to the Engine API of any client and measures the
//! answers.

mod corpus;
mod report;
mod session;

pub use corpus::{Corpus, DATADIR, Entry, parse as parse_line};
pub use report::{BlockTimes, Mismatch, ReplayReport, Summary, summarize, summary};
pub use session::{CallTimes, Session};

use crate::http_client::HttpClient;
use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
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
    /// Distance of the safe and the finalized block from the head, in blocks
    #[arg(long, value_name = "SAFE,FINALIZED", default_value = "32,64")]
    pub finality: Finality,
    /// Send payloads only, no forkchoice updates
    #[arg(long)]
    pub no_forkchoice: bool,
    /// Pause before every block after the first, in milliseconds: a real chain leaves time to
    /// persist
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub gap_ms: u64,
    /// Give up on a call after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub call_timeout: u64,
    /// URL at which Jaeger shows traces; asks the engine for the trace of each payload and names the
    /// pages of the slowest
    #[arg(long, value_name = "URL", value_parser = crate::overlap::parse_page)]
    pub jaeger_ui: Option<String>,
}

/// Distances of the safe and the finalized block from the head; 0 for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finality {
    /// Blocks from the head to the safe block.
    pub safe: usize,
    /// Blocks from the head to the finalized block.
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

/// Error of invalid arguments: the command was called wrongly (exit code 2).
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

/// Runs the command: replays and prints the table. Exit code 0 if every payload was VALID, 1 if one
/// was not, 2 for invalid arguments.
///
/// # Errors
/// Returns the errors of [`run`] except [`UsageError`].
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

/// Replays a corpus and writes the JSON report on request. Shows a progress bar on stderr if that
/// is a terminal. An answer that is not VALID ends the replay and is in the report; it is not an
/// error of this function.
///
/// # Errors
/// [`UsageError`] for invalid arguments; others if the engine cannot be reached or the corpus
/// cannot be read.
pub async fn run(args: ReplayArgs) -> anyhow::Result<ReplayReport> {
    let secret = Secret::load(&args.jwtsecret).map_err(usage)?;
    let corpus = Corpus::open(&args.corpus).map_err(usage)?;
    let call_time_max = Duration::from_secs(args.call_timeout);
    let client = HttpClient::new(&args.engine, Some(secret), call_time_max).map_err(usage)?;
    let finality = (!args.no_forkchoice).then_some(args.finality);
    let mut session = Session::new(client, finality);
    if args.jaeger_ui.is_some() {
        session = session.traced();
    }

    let name = session.client_name().await.with_context(|| args.engine.clone())?;
    let mut entries = corpus.read(args.from..=args.to);
    let bar = progress_bar(&args, corpus.len());
    let started = Instant::now();
    let (mut blocks, mut failure) = (Vec::new(), None);
    while let Some(entry) = entries.recv().await {
        let entry = entry?;
        if !blocks.is_empty() {
            tokio::time::sleep(Duration::from_millis(args.gap_ms)).await;
        }
        let times = match session.block(&entry).await? {
            Ok(times) => times,
            Err(mismatch) => {
                failure = Some(mismatch);
                break;
            }
        };
        bar.inc(1);
        bar.set_message(format!("block {}: {:.1} ms", entry.number, times.new_payload_ms));
        let warmup = (blocks.len() as u64) < args.warmup;
        blocks.push(BlockTimes::new(entry, times, warmup));
    }
    bar.finish_and_clear();

    let report = ReplayReport {
        engine: args.engine.clone(),
        client: name,
        corpus: corpus.path().display().to_string(),
        calls: summarize(&blocks),
        blocks,
        wall_seconds: started.elapsed().as_secs_f64(),
        jaeger_ui: args.jaeger_ui.clone(),
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
    // The first block of a corpus is block 1.
    let len = corpus_len.map(|len| len.min(args.to).saturating_sub(args.from.max(1) - 1));
    let template = match len {
        Some(_) => "{bar:32} {pos}/{len} blocks  {elapsed} elapsed, {eta} left  {msg}",
        None => "{spinner} {pos} blocks  {elapsed} elapsed  {msg}",
    };
    // The target hides itself if stderr is not a terminal.
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests;
