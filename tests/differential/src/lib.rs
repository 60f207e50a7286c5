//! Compares Tandem with geth on random blocks of Amsterdam.
//!
//! A case is a random state and one block of random transactions ([`Case`]). geth's `evm t8n`
//! executes it, in a process of its own or in one that stays ([`Evm`]). Its results become a payload: state root, receipts root, bloom, gas, requests and
//! access list. Tandem has to find that payload valid, which it does only if it computes the same.
//! A transaction that geth rejects makes a payload of its own, which Tandem has to refuse for that
//! transaction's sake.

#![forbid(unsafe_code)]

mod case;
mod geth;
mod program;
mod tandem;
mod transactions;

pub use case::Case;
pub use geth::{Evm, Oracle, find as find_program, input as geth_input};

use anyhow::Context as _;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Cases to run.
pub struct Options {
    /// geth.
    pub evm: Evm,
    /// Number of the first case.
    pub seed: u64,
    /// Number of cases.
    pub cases: u64,
    /// Cases that run at once.
    pub threads: usize,
    /// Folder for the input of cases on which the two disagree.
    pub keep: Option<PathBuf>,
}

/// Time of the parts of cases, over all threads.
#[derive(Clone, Copy, Default, Debug)]
pub struct Times {
    /// Making the case, and starting and stopping Tandem's node.
    pub node: Duration,
    /// geth's execution, with the start of its process if each case has one.
    pub geth: Duration,
    /// Tandem's execution of the payloads.
    pub payloads: Duration,
}

/// Counts of a run.
#[derive(Default, Debug)]
pub struct Summary {
    /// Cases that ran.
    pub cases: u64,
    /// Transactions in valid blocks.
    pub included: u64,
    /// Transactions of these that succeeded.
    pub succeeded: u64,
    /// Gas of the valid blocks.
    pub gas: u64,
    /// Execution requests by type.
    pub requests: BTreeMap<u8, u64>,
    /// Rejected transactions by Tandem's reason.
    pub rejected: BTreeMap<String, u64>,
    /// Disagreements by case.
    pub disagreements: BTreeMap<u64, String>,
    /// Time of the parts.
    pub times: Times,
}

impl Summary {
    fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.included += other.included;
        self.succeeded += other.succeeded;
        self.gas += other.gas;
        self.disagreements.extend(other.disagreements);
        self.times.node += other.times.node;
        self.times.geth += other.times.geth;
        self.times.payloads += other.times.payloads;
        for (kind, count) in other.requests {
            *self.requests.entry(kind).or_default() += count;
        }
        for (kind, count) in other.rejected {
            *self.rejected.entry(kind).or_default() += count;
        }
    }
}

/// Runs cases. Calls `progress` with the number of cases that are done, after each.
///
/// # Errors
/// If geth cannot run, or a node cannot start.
pub fn run(options: &Options, progress: impl Fn(u64) + Sync) -> anyhow::Result<Summary> {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let summary = Mutex::new(Summary::default());
    let work = || -> anyhow::Result<()> {
        let mut oracle = Oracle::start(&options.evm)?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= options.cases {
                return Ok(());
            }
            let number = options.seed.wrapping_add(index);
            let result =
                compare(options, &mut oracle, number).with_context(|| format!("case {number}"))?;
            if let Ok(mut summary) = summary.lock() {
                summary.add(result);
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    summary.into_inner().map_err(|_| anyhow::anyhow!("a case panicked"))
}

fn compare(options: &Options, oracle: &mut Oracle, number: u64) -> anyhow::Result<Summary> {
    let started = Instant::now();
    let case = Case::new(number);
    let node = tandem::Tandem::start(&case)?;
    let input = geth::input(&case, node.genesis());
    let asked = Instant::now();
    let geth = oracle.transition(&input)?;
    let answered = Instant::now();
    let result = node.compare(&case, &geth);
    let compared = Instant::now();
    node.stop();
    let mut summary = result?;
    summary.times = Times {
        node: (asked - started) + compared.elapsed(),
        geth: answered - asked,
        payloads: compared - answered,
    };
    if let Some(disagreement) = summary.disagreements.get_mut(&number)
        && let Some(folder) = &options.keep
    {
        keep(folder, number, &input, &geth)?;
        *disagreement += &format!("; kept in {}", folder.display());
    }
    summary.cases = 1;
    Ok(summary)
}

/// Keeps what a case's disagreement can be found with: the input of `evm t8n`, and its answer.
fn keep(
    folder: &Path,
    number: u64,
    input: &serde_json::Value,
    geth: &geth::Geth,
) -> anyhow::Result<()> {
    fs::create_dir_all(folder).context("make the folder of disagreements")?;
    let write = |name: String, text: String| {
        fs::write(folder.join(&name), text).with_context(|| format!("write {name}"))
    };
    write(format!("{number}.json"), input.to_string())?;
    write(format!("{number}.geth.txt"), format!("{geth:#?}\n"))
}
