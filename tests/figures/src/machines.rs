//! Blocks whose transactions are executed by several processes, as if each were a machine: every
//! process has the same share of a processor.
//!
//! The corpora are folders whose name begins with `amsterdam` (docs/figures.md).

use crate::{
    Setting,
    client::series,
    corpus::{Corpus, name_of, ratio},
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
    quota::Quota,
    sides::WARMUP,
};
use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Share of a processor that each process has. All processes with four tx-executors fit into two
/// processors.
const SHARE: f64 = 0.2;

/// Numbers of tx-executors, with the least speed-up over one.
const NUMBERS: [(u16, Limit); 3] =
    [(1, Limit::None), (2, Limit::AtLeast(1.8)), (4, Limit::AtLeast(3.2))];

/// Pause between two blocks, in which no process uses its share up.
const GAP: Duration = Duration::from_millis(100);

/// Measures all figures on the available corpora.
pub fn measure(setting: &Setting, report: &mut Report) {
    let folders = corpora(setting);
    let names: Vec<_> = folders.iter().map(|folder| name_of(folder)).collect();
    if folders.is_empty() {
        report.say("no corpora whose name begins with `amsterdam` in TANDEM_CORPORA");
    }
    report.say(&format!("corpora: {}; {SHARE} of a processor for each process", names.join(", ")));
    if let Err(error) = Quota::of_each(&[], SHARE) {
        return report.say(&format!("skipped, processes cannot be limited: {error:#}"));
    }
    for folder in &folders {
        let name = name_of(folder);
        for (number, limit) in NUMBERS {
            let figure = format!("one process / {number} tx-executors, {name}");
            report.measure(&figure, || compare(setting, &figure, folder, 0, number, Limit::None));
            if number > 1 {
                let figure = format!("1 tx-executor / {number}, {name}");
                report.measure(&figure, || compare(setting, &figure, folder, 1, number, limit));
            }
        }
    }
}

/// Returns the folders of the corpora with access lists.
fn corpora(setting: &Setting) -> Vec<PathBuf> {
    let entries = setting.corpora.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("payloads.jsonl.gz").is_file())
        .filter(|path| name_of(path).starts_with("amsterdam"))
        .collect();
    found.sort();
    found
}

/// Compares newPayload with two numbers of tx-executors, 0 for one process alone.
fn compare(
    setting: &Setting,
    name: &str,
    folder: &Path,
    few: u16,
    many: u16,
    limit: Limit,
) -> anyhow::Result<Vec<Figure>> {
    let blocks_max = if setting.quick { WARMUP + 30 } else { usize::MAX };
    let corpus = Corpus::load(folder, blocks_max)?;
    let rounds = if setting.quick { 2 } else { 6 };
    let mut leased = 0.0;
    let mut replay = |tx_executors| {
        let (times, of_these) = replay(setting, &corpus, tx_executors)?;
        leased += if tx_executors == many { of_these } else { 0.0 };
        anyhow::Ok(times)
    };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // Each goes first equally often.
        if round % 2 == 0 {
            first.push(replay(few)?);
            second.push(replay(many)?);
        } else {
            second.push(replay(many)?);
            first.push(replay(few)?);
        }
    }
    let estimate = ratio(&first, &second, setting.seed)?;
    let executed = leased / f64::from(rounds);
    let note = format!("{rounds} rounds of {} blocks, {executed} leased", estimate.blocks);
    Ok(vec![Figure::estimate(name, estimate, limit).note(note)])
}

/// Replays the corpus. Returns the milliseconds of each newPayload, and the number of transactions
/// that tx-executors executed.
fn replay(
    setting: &Setting,
    corpus: &Corpus,
    tx_executors: u16,
) -> anyhow::Result<(Vec<f64>, f64)> {
    let kind = if tx_executors == 0 { Kind::One } else { Kind::Six };
    let flags = match kind {
        Kind::Six => vec!["--tx-executors".to_owned(), tx_executors.to_string()],
        _ => Vec::new(),
    };
    let node = Node::start_with_flags(kind, &setting.tandem, &corpus.genesis, flags)?;
    let processes: Vec<_> = node.processes()?.into_iter().map(|(_, pid)| pid).collect();
    let quota = Quota::of_each(&processes, SHARE).context("limit the processes")?;
    let mut times = corpus.replay(&node, GAP)?;
    let text = node.metrics()?;
    let executed = "tandem_executor_leased_transactions_total{outcome=\"executed\"}";
    let leased = series(&text, executed);
    // A group can be removed only without its process.
    drop(node);
    drop(quota);
    Ok((times.split_off(WARMUP.min(times.len() / 2)), leased))
}
