//! `differential`: runs any number of random blocks through geth and Tandem.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use anyhow::{Context as _, ensure};
use clap::Parser;
use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use tandem_differential::{Evm, Options, Summary, find_program, run};

/// Runs random blocks of Amsterdam through geth's `evm t8n` and through Tandem, and compares all
/// results.
#[derive(Parser)]
struct Args {
    /// Number of cases.
    #[arg(default_value_t = 500)]
    cases: u64,
    /// Number of the first case; each number is another case.
    #[arg(long, default_value_t = 0, env = "TANDEM_DIFFERENTIAL_SEED")]
    seed: u64,
    /// Cases that run at once; as many as there are processors if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Path of geth's evm (go install github.com/ethereum/go-ethereum/cmd/evm@v1.17.8); searched in
    /// PATH and Go's folder if not given.
    #[arg(long)]
    evm: Option<PathBuf>,
    /// Runs the code of `evm t8n` for many cases in one process, by tools/t8n-server, found in PATH if
    /// no path is given; instead of --evm.
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "t8n-server",
        conflicts_with = "evm"
    )]
    server: Option<PathBuf>,
    /// Folder for the input of cases on which the two disagree.
    #[arg(long)]
    keep: Option<PathBuf>,
    #[arg(long, env = "PATH", hide = true)]
    path: Option<std::ffi::OsString>,
    #[arg(long, env = "HOME", hide = true)]
    home: Option<std::ffi::OsString>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let found = || find_program("evm", args.path.as_deref(), args.home.as_deref());
    let evm = match args.server {
        Some(server) => Evm::Server(server),
        None => Evm::Process(args.evm.or_else(found).context(
            "evm is missing: go install github.com/ethereum/go-ethereum/cmd/evm@v1.17.8",
        )?),
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let options = Options {
        evm,
        seed: args.seed,
        cases: args.cases,
        threads: args.threads.unwrap_or(threads).max(1),
        keep: args.keep,
    };
    let started = Instant::now();
    let summary = run(&options, |done| {
        if done.is_multiple_of(1000) {
            println!("{done} of {} cases, {} s", options.cases, started.elapsed().as_secs());
        }
    })?;
    report(&summary);
    println!(
        "{} cases from seed {} in {} s, {} disagreements",
        summary.cases,
        options.seed,
        started.elapsed().as_secs(),
        summary.disagreements.len()
    );
    ensure!(summary.disagreements.is_empty(), "geth and Tandem disagree");
    Ok(())
}

fn report(summary: &Summary) {
    println!(
        "{} transactions in valid blocks, {} of them succeeded, {} gas",
        summary.included, summary.succeeded, summary.gas
    );
    let each = |time: Duration| time.as_secs_f64() * 1_000.0 / summary.cases.max(1) as f64;
    println!(
        "a case on its thread, in ms: geth {:.1}, Tandem's payloads {:.1}, its node {:.1}",
        each(summary.times.geth),
        each(summary.times.payloads),
        each(summary.times.node)
    );
    println!("blocks with requests, by type: {:?}", summary.requests);
    println!("rejected transactions, by reason: {:?}", summary.rejected);
    for (number, text) in &summary.disagreements {
        println!("case {number}: {text}\n    ./dev differential 1 --seed {number}");
    }
}
