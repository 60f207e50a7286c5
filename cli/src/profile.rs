//! `tandem profile`: what the processors are busy with, by subsystem and function.
//!
//! ```text
//!  /debug/pprof/profile of every process, or files ──► merge ──► table, flame graph, pprof file
//! ```

use crate::{
    http_client::get_within,
    output::{print, write},
    target::Target,
};
use anyhow::Context;
use std::{fs, path::PathBuf, process::ExitCode, time::Duration};
use tandem_profile::{Budget, Profile, flamegraph};
use tokio::task::JoinSet;

/// Longest wait for an answer after the sampling: functions are named first.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Options of `tandem profile`.
#[derive(clap::Args)]
#[command(
    after_help = "A sample is taken whenever a process has used another period of processor time. \
    \"flat\" counts the samples in which a subsystem or function worked itself, \"cum.\" those in \
    which it was anywhere on the stack. Functions of general use work for their caller.\n\n\
    Processes must run a build with the feature profiling: ./dev profiling.\n\n\
    Exit codes: 0; 1 when a process does not answer, or a file is no profile; 2 for wrong usage."
)]
pub struct Args {
    /// Read profiles from files in pprof's format, instead of taking them
    #[arg(value_name = "FILE", conflicts_with = "metrics")]
    files: Vec<PathBuf>,
    /// Metrics port of a process, such as http://127.0.0.1:9100; several for a cluster, with commas
    /// between them. executor=http://… gives the process this name
    #[arg(
        long,
        value_name = "[SERVICE=]URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:9100"
    )]
    metrics: Vec<Target>,
    /// Time of sampling
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Samples for each second of processor time. The clock of most kernels allows 250
    #[arg(long, value_name = "N", default_value_t = 99,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Maximum number of functions and threads to print
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Draw a flame graph into this file, as SVG
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,
    /// Write the samples into this file in pprof's format, for `go tool pprof` and the like
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Takes or reads profiles, prints them and writes the files.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let profiles = if args.files.is_empty() { take(args)? } else { read(&args.files)? };
    let profile = Profile::merge(profiles).map_err(anyhow::Error::msg).context("merge profiles")?;
    if let Some(path) = &args.flamegraph {
        write(path, flamegraph(&profile))?;
    }
    if let Some(path) = &args.out {
        write(path, profile.encode())?;
    }
    let text = Budget::of(&profile).text(&profile, args.rows);
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Profile>> {
    let read = |path: &PathBuf| {
        let bytes = fs::read(path)?;
        anyhow::Ok(Profile::parse(&bytes)?)
    };
    let named = |path| read(path).with_context(|| format!("read {}", path.display()));
    files.iter().map(named).collect()
}

fn take(args: &Args) -> anyhow::Result<Vec<Profile>> {
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let taken = ask(&args.metrics, args.seconds, args.frequency);
    reactor.context("start the reactor")?.block_on(taken)
}

/// Asks all processes at once, so that their samples are of the same time.
///
/// # Errors
/// Returns an error that names the process if one does not answer with a profile.
pub async fn ask(targets: &[Target], seconds: u32, frequency: u32) -> anyhow::Result<Vec<Profile>> {
    let time_max = Duration::from_secs(seconds.into()) + ANSWER_MAX;
    let mut asked = JoinSet::new();
    for (at, target) in targets.iter().enumerate() {
        let url = &target.url;
        let url = format!("{url}/debug/pprof/profile?seconds={seconds}&frequency={frequency}");
        asked.spawn(async move { (at, get_within(&url, time_max).await) });
    }
    let mut profiles: Vec<Option<Profile>> = vec![None; targets.len()];
    while let Some(answer) = asked.join_next().await {
        let (at, bytes) = answer.context("ask for a profile")?;
        let target = &targets[at];
        let profile = Profile::parse(&bytes?);
        let profile = profile.with_context(|| format!("read the answer of {}", target.url))?;
        let (name, is_service) = target.name();
        let is_named = is_service || targets.len() > 1;
        profiles[at] = Some(if is_named { profile.of_process(&name) } else { profile });
    }
    Ok(profiles.into_iter().flatten().collect())
}
