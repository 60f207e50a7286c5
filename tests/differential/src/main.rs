//! `differential`: runs any number of random blocks through geth and Tandem.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use anyhow::{Context as _, ensure};
use clap::Parser;
use std::{path::PathBuf, thread, time::Instant};
use tandem_differential::{Options, Summary, find_evm, run};

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
    let evm = args
        .evm
        .or_else(|| find_evm(args.path.as_deref(), args.home.as_deref()))
        .context("evm is missing: go install github.com/ethereum/go-ethereum/cmd/evm@v1.17.8")?;
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
    println!("blocks with requests, by type: {:?}", summary.requests);
    println!("rejected transactions, by reason: {:?}", summary.rejected);
    for (number, text) in &summary.disagreements {
        println!("case {number}: {text}\n    ./dev differential 1 --seed {number}");
    }
}
