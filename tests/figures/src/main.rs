//! Figures with limits: `./dev figures TOPIC` starts real nodes and measures them. It prints a line
//! for each figure with its value, interval, limit and `ok` or `short` (docs/figures.md).
//!
//! A topic is a module that measures [`figure::Figure`]s; everything else here serves any topic.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod amsterdam;
mod big_state;
mod blocks;
mod both;
mod callers;
mod client;
mod corpus;
mod driven;
mod figure;
mod flood;
mod followers;
mod geth;
mod machines;
mod network;
mod node;
mod operations;
mod pool;
mod quota;
mod repairs;
mod rounds;
mod seeing;
mod serving;
mod sides;
mod snap;
mod snapshots;
mod steady;
mod sync;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use figure::Report;
use std::{path::PathBuf, process::ExitCode};

/// Measures a topic's figures; exit status 1 if one is short of its limit, 2 if one could not be
/// measured
#[derive(Parser, Debug)]
struct Arguments {
    /// Topic to measure
    topic: Topic,
    /// Binary of this version
    #[arg(long, value_name = "FILE")]
    tandem: PathBuf,
    /// Binary of the version to compare with; without it no versions are compared
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Folders with corpora, besides the demo corpus
    #[arg(long, value_name = "DIR", env = "TANDEM_CORPORA")]
    corpora: Option<PathBuf>,
    /// The demo corpus
    #[arg(long, value_name = "DIR", default_value = "corpora/demo")]
    demo: PathBuf,
    /// geth, to compare with
    #[arg(long, value_name = "FILE", env = "TANDEM_FIGURES_GETH")]
    geth: Option<PathBuf>,
    /// Seed of the random cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minutes instead of hours: shorter runs of fewer cases
    #[arg(long)]
    quick: bool,
    /// Only the figures whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    operations: operations::Options,
    #[command(flatten)]
    big_state: big_state::Options,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Topic {
    /// The chain continues, nothing is lost, and no caller stops it
    Repairs,
    /// Installation, upgrade, drain, rollback and security as documented
    Operations,
    /// Six processes, far state and the number of calls for it
    Rounds,
    /// Truth of the traces of a node, and the cost of recording them
    Seeing,
    /// Blocks with access lists: speed with and without them, wrong ones
    Amsterdam,
    /// Blocks with access lists on several machines, imitated by shares of a processor
    Machines,
    /// Peers: packets of discovery, and sync
    Network,
    /// Blocks from the pool: judged by geth, beside geth's own; newPayload in a flood
    Pool,
    /// Copies of the chain: cost, freshness, truth, catching up
    Followers,
    /// Processor time of a node among peers, by subsystem, with default and with legacy policies
    Steady,
    /// A state larger than memory: payloads in little memory, reads, bytes on the disk
    BigState,
    /// Snapshots: speed beside the disk's, memory, newPayload meanwhile
    Snapshots,
    /// Calls of another user of the machine, started by `operations`
    #[value(hide = true)]
    NeighbourCalls,
    /// Nodes in a network namespace of their own, started by `operations`
    #[value(hide = true)]
    QuietNodes,
}

/// Settings that the figures of all topics share.
struct Setting {
    tandem: PathBuf,
    before: Option<PathBuf>,
    corpora: Option<PathBuf>,
    demo: PathBuf,
    seed: u64,
    quick: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("figures: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { topic, tandem, before, corpora, demo, geth, seed, quick, only, .. } = arguments;
    let Arguments { operations, big_state, .. } = arguments;
    let tandem = tandem.canonicalize().with_context(|| format!("find {}", tandem.display()))?;
    let setting = Setting { tandem, before, corpora, demo, seed, quick };
    let mut report = Report::new(only);
    match topic {
        Topic::NeighbourCalls => return operations::neighbour::calls().map(|()| ExitCode::SUCCESS),
        Topic::QuietNodes => {
            return operations::quiet::nodes(&setting.tandem, quick).map(|()| ExitCode::SUCCESS);
        }
        Topic::Repairs => {
            report.head(seed, quick);
            repairs::measure(&setting, &mut report);
        }
        Topic::Rounds => {
            report.head(seed, quick);
            rounds::measure(&setting, geth.as_deref(), &mut report);
        }
        Topic::Seeing => {
            report.head(seed, quick);
            seeing::measure(&setting, &mut report);
        }
        Topic::Amsterdam => {
            report.head(seed, quick);
            amsterdam::measure(&setting, geth.as_deref(), &mut report);
        }
        Topic::Machines => {
            report.head(seed, quick);
            machines::measure(&setting, geth.as_deref(), &mut report);
        }
        Topic::Network => {
            report.head(seed, quick);
            network::measure(&setting, &mut report);
            sync::measure(&setting, &mut report);
            snap::measure(&setting, &mut report);
            serving::measure(&setting, &mut report);
        }
        Topic::Pool => {
            report.head(seed, quick);
            pool::measure(&setting, geth.as_deref(), &mut report);
            flood::measure(&setting, geth.as_deref(), &mut report);
        }
        Topic::Followers => {
            report.head(seed, quick);
            followers::measure(&setting, geth.as_deref(), &mut report);
        }
        Topic::Steady => {
            report.head(seed, quick);
            steady::measure(&setting, &mut report);
        }
        Topic::BigState => {
            report.head(seed, quick);
            big_state::measure(&setting, &big_state, &mut report);
        }
        Topic::Snapshots => {
            report.head(seed, quick);
            snapshots::measure(&setting, &big_state, &mut report);
        }
        Topic::Operations => {
            report.head(seed, quick);
            operations::measure(&setting, &operations, &mut report);
        }
    }
    Ok(report.end())
}
