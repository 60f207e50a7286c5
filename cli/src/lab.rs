//! `tandem lab`: compares configurations on the same payloads, interleaved block by block.
//!
//! ```text
//! experiment.toml ─► setups: base, base again, variants
//! corpus ─► genesis ─► one node process each ─► every block to every node, in changing order
//!                                          └──► times, traces, metrics, CPU ─► report
//! ```
//!
//! Times on one machine vary from minute to minute by more than most changes are worth. The
//! comparison therefore uses the same block at about the same time. The base is also compared with
//! itself, beside the variants: a difference no larger than that is noise.

mod child;
mod experiment;
mod load;
pub mod program;
mod progress;
mod record;
mod report;
mod run;
mod scrape;
mod statistics;
mod text;

pub use child::{Launched, launch};

use crate::replay::Corpus;
use anyhow::Context;
use experiment::Experiment;
use record::Record;
use report::{LabReport, RunReport};
use run::Limits;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Options of `tandem lab`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 when every answer was VALID, whatever the figures say; 1 when \
one was not or something failed; 2 for an experiment or a corpus that cannot be used.

The nodes run on free ports of the loopback interface and on temporary data directories (in TMPDIR); \
both are gone when the command ends."
)]
pub struct Args {
    /// Experiment file (TOML, see lab/README.md)
    #[arg(value_name = "EXPERIMENT")]
    experiment: PathBuf,
    /// Corpus directory to run on, instead of the experiment's; may be given several times
    #[arg(long, value_name = "DIR")]
    corpus: Vec<PathBuf>,
    /// Maximum number of blocks to measure per corpus, after the warm-up [default: the
    /// experiment's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    blocks: Option<u64>,
    /// First blocks of a round, which are not measured [default: the experiment's]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Number of times to run everything from the genesis [default: the experiment's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Write the report, including every block, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep complete rounds in this file, and go on after those that it has
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Give up on a call after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3_600))]
    call_timeout: u64,
    /// End early if everything takes longer than this; blocks measured so far are reported
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600,
        value_parser = clap::value_parser!(u64).range(1..=604_800))]
    time_limit: u64,
}

/// Runs the experiment and prints the tables.
#[allow(clippy::print_stdout)] // the answer of the command
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let (experiment, corpora, mut record) = match usable(args) {
        Ok(usable) => usable,
        Err(error) => {
            eprintln!("tandem lab: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    // Outlives the reactor: one of its threads may still write there when a signal comes.
    let folder = tempfile::Builder::new().prefix("tandem-lab-").tempdir();
    let folder = folder.context("make a temporary folder")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let limits = Limits {
        call_time_max: Duration::from_secs(args.call_timeout),
        deadline: Instant::now() + Duration::from_secs(args.time_limit),
    };
    let report = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
        // Dropping the future ends its processes.
        tokio::select! {
            report = carry_out(&experiment, &corpora, folder.path(), &limits, &mut record) => report,
            _ = interrupt.recv() => anyhow::bail!("interrupted"),
            _ = terminate.recv() => anyhow::bail!("terminated"),
            _ = hangup.recv() => anyhow::bail!("the terminal is gone"),
        }
    });
    drop(runtime);
    let report = report?;
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
    }
    print!("{}", text::render(&report));
    let complete = report.runs.iter().all(RunReport::is_complete);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the experiment as changed by the command line, its corpora, and the rounds that are there
/// already.
fn usable(args: &Args) -> anyhow::Result<(Experiment, Vec<Corpus>, Record)> {
    let mut experiment = Experiment::load(&args.experiment)?;
    experiment.blocks = args.blocks.or(experiment.blocks);
    experiment.warmup = args.warmup.unwrap_or(experiment.warmup);
    experiment.rounds = args.rounds.unwrap_or(experiment.rounds);
    let paths = if args.corpus.is_empty() { &experiment.corpora } else { &args.corpus };
    anyhow::ensure!(!paths.is_empty(), "no corpus: the experiment names none, see --corpus");
    let open = |path: &PathBuf| {
        let corpus = Corpus::open(path)?;
        if corpus.datadir().is_none() {
            corpus.genesis()?;
        }
        Ok(corpus)
    };
    let corpora = paths.iter().map(open).collect::<anyhow::Result<_>>()?;
    let record = Record::open(args.resume.as_deref(), &experiment)?;
    Ok((experiment, corpora, record))
}

async fn carry_out(
    experiment: &Experiment,
    corpora: &[Corpus],
    folder: &Path,
    limits: &Limits,
    record: &mut Record,
) -> anyhow::Result<LabReport> {
    let mut runs = Vec::with_capacity(corpora.len());
    for (index, corpus) in corpora.iter().enumerate() {
        let folder = folder.join(index.to_string());
        std::fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let name = corpus.path().display().to_string();
        let measured = run::measure(experiment, corpus, &folder, limits, record).await;
        let measured = measured.with_context(|| name.clone())?;
        runs.push(RunReport::new(experiment, name, measured));
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    report::decide(&mut runs, experiment.effect);
    Ok(LabReport {
        schema: "tandem.lab/1",
        experiment: experiment.name.clone(),
        question: experiment.question.clone(),
        version: crate::VERSION,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        runs,
    })
}
