//! Blocks whose transactions are executed by several processes, as if each were a machine: every
//! process has the same share of a processor.
//!
//! The corpora are folders whose name begins with `amsterdam` (docs/figures.md).

mod faults;
mod outside;
mod worst;

use crate::{
    Setting,
    client::series,
    corpus::{Corpus, in_turn, name_of, ratio},
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
    quota::Quota,
    sides::WARMUP,
};
use anyhow::Context as _;
use outside::Outside;
use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tandem_overlap::stats::quantile;

/// Share of a processor that each process has: with a period of 5 ms, groups can have no less. Those
/// that work for a payload fit into two processors, with eight tx-executors just so.
const SHARE: f64 = 0.2;

/// Numbers of tx-executors, with the least speed-up over one process. The executor takes a share itself,
/// so one tx-executor makes two machines.
const NUMBERS: [(u16, Limit); 4] = [
    (1, Limit::None),
    (2, Limit::AtLeast(1.8)),
    (4, Limit::AtLeast(3.2)),
    (8, Limit::AtLeast(5.5)),
];

/// Tx-executors beside the worst blocks, and the longest time of such a block, as a ratio to that of one
/// process.
const WORST: (u16, Limit) = (2, Limit::AtMost(1.05));

/// Settings of tx-executors: with less than a processor, a second thread would take from the longest
/// transaction.
const ONE_THREAD: &str = "[tx_executor]\nthreads = 1\n";

/// Delay of the network, one way. Its timers round up to whole milliseconds, so that this is 1 ms on average.
const DELAY: Duration = Duration::from_micros(500);

/// Pause between two blocks, in which no process uses its share up.
const GAP: Duration = Duration::from_millis(100);

/// Measures all figures on the available corpora.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    let folders = corpora(setting);
    let names: Vec<_> = folders.iter().map(|folder| name_of(folder)).collect();
    if folders.is_empty() {
        report.say("no corpora whose name begins with `amsterdam` in TANDEM_CORPORA");
    }
    report.say(&format!("corpora: {}; {SHARE} of a processor for each process", names.join(", ")));
    if let Err(error) = Quota::of_each(&[], SHARE) {
        return report.say(&format!("skipped, processes cannot be limited: {error:#}"));
    }
    for kind in worst::Kind::ALL {
        let (number, limit) = WORST;
        let figure = format!("{number} tx-executors / one process, {}", kind.name());
        report.measure(&figure, || {
            let genesis = worst::genesis()?;
            let corpus = worst::chain(setting, kind, &genesis)?;
            compare(setting, &figure, &corpus, (number, 0), limit)
        });
    }
    for folder in &folders {
        let name = name_of(folder);
        let blocks_max = if setting.quick { WARMUP + 30 } else { usize::MAX };
        let load = || Corpus::load(folder, blocks_max);
        for (number, limit) in NUMBERS {
            let figure = format!("one process / {number} tx-executors, {name}");
            report.measure(&figure, || compare(setting, &figure, &load()?, (0, number), limit));
        }
        for (number, _) in NUMBERS {
            let figure = format!("geth / {number} tx-executors, {name}");
            report.measure(&figure, || {
                let geth = geth.context("no --geth: the client to compare with")?;
                compare_geth(setting, &figure, &load()?, geth, number)
            });
        }
        let figure = format!("2 tx-executors, 0 / 1 ms one way, {name}");
        report.measure(&figure, || compare_delay(setting, &figure, &load()?));
        let figure = format!("bytes between processes / block and list, {name}");
        report.measure(&figure, || count_bytes(setting, &figure, &load()?));
        let figure = format!("faults, {name}");
        report.measure(&figure, || faults::measure(setting, &figure, &load()?));
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

/// Compares newPayload with two numbers of tx-executors, 0 for one process alone: the time with the first
/// as a ratio to that with the second.
fn compare(
    setting: &Setting,
    name: &str,
    corpus: &Corpus,
    (first, second): (u16, u16),
    limit: Limit,
) -> anyhow::Result<Vec<Figure>> {
    let rounds = if setting.quick { 2 } else { 6 };
    let replay = |tx_executors| replay(setting, corpus, tx_executors);
    let (with, without) = in_turn(rounds, || replay(first), || replay(second))?;
    // The larger number is that of interest.
    let shared = if first > second { &with } else { &without };
    let leased: f64 = shared.iter().map(|replay| replay.leased).sum();
    let [with, without] =
        [with, without].map(|all| all.into_iter().map(|it| it.times).collect::<Vec<_>>());
    let estimate = ratio(&with, &without, setting.seed)?;
    let [of_first, of_second] = [with, without].map(|all| {
        let mut times = all.concat();
        times.sort_by(f64::total_cmp);
        quantile(&times, 0.5).unwrap_or_default()
    });
    // A sum of nothing is -0.
    let executed = leased / rounds as f64 + 0.0;
    let blocks = estimate.blocks;
    let note = format!(
        "p50 {of_first:.0} and {of_second:.0} ms, {rounds} rounds of {blocks} blocks, {executed} leased"
    );
    Ok(vec![Figure::estimate(name, estimate, limit).note(note)])
}

/// Compares newPayload of geth with that of a cluster with tx-executors. geth gets the shares of all its
/// processes, as far as the machine has so much.
fn compare_geth(
    setting: &Setting,
    name: &str,
    corpus: &Corpus,
    geth: &Path,
    number: u16,
) -> anyhow::Result<Vec<Figure>> {
    let rounds = if setting.quick { 2 } else { 6 };
    let machine = thread::available_parallelism().map_or(1, Into::into) as f64;
    // The cluster comes first.
    let share = Cell::new(0.0);
    let replay_geth = || {
        let node = Node::start_kind(Kind::Geth, geth, &corpus.genesis, "")?;
        limited(node, share.get(), |node| replay_times(node, corpus))
    };
    let replay_cluster = || {
        let replay = replay(setting, corpus, number)?;
        share.set((replay.processes as f64 * SHARE).min(machine));
        Ok(replay.times)
    };
    let (with, without) = in_turn(rounds, replay_geth, replay_cluster)?;
    let estimate = ratio(&with, &without, setting.seed)?;
    let note = format!(
        "{rounds} rounds of {} blocks; geth has {:.1} of the machine's {machine} processors",
        estimate.blocks,
        share.get()
    );
    Ok(vec![Figure::estimate(name, estimate, Limit::None).note(note)])
}

/// Compares newPayload with two tx-executors behind a network with and without a delay.
fn compare_delay(setting: &Setting, name: &str, corpus: &Corpus) -> anyhow::Result<Vec<Figure>> {
    let rounds = if setting.quick { 2 } else { 6 };
    let replay = |delay| {
        let mut outside = Outside::start(&setting.tandem, 2)?;
        outside.delay(delay);
        let node = outside.start_cluster(&corpus.genesis)?;
        outside.limit()?;
        Ok(replay_on(node, corpus)?.times)
    };
    let (near, far) = in_turn(rounds, || replay(Duration::ZERO), || replay(DELAY))?;
    let estimate = ratio(&near, &far, setting.seed)?;
    let note = format!("{rounds} rounds of {} blocks", estimate.blocks);
    Ok(vec![Figure::estimate(name, estimate, Limit::AtLeast(0.8)).note(note)])
}

/// Counts the bytes between the processes of a cluster with two tx-executors.
fn count_bytes(setting: &Setting, name: &str, corpus: &Corpus) -> anyhow::Result<Vec<Figure>> {
    let pairs = replay(setting, corpus, 2)?.bytes;
    let ratio = pairs.values().sum::<f64>() / corpus.block_bytes()?;
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let per_block = |bytes: f64| bytes / corpus.len() as f64 / 1e6;
    let mut note = format!("MB a block: {:.2}", per_block(pairs.iter().map(|(_, it)| it).sum()));
    for (labels, bytes) in pairs.iter().take(6) {
        // Writing to a string cannot fail.
        let _ = write!(note, "; {:.2} {labels}", per_block(*bytes));
    }
    Ok(vec![Figure::new(name, ratio, Limit::AtMost(3.0)).note(note)])
}

/// Outcome of a replay.
struct Replay {
    /// Milliseconds of each newPayload that counts.
    times: Vec<f64>,
    /// Number of transactions that tx-executors executed.
    leased: f64,
    /// Bytes between the processes by the metric's labels: of their calls and streams, and of events.
    bytes: BTreeMap<String, f64>,
    /// Number of processes.
    processes: usize,
}

/// Replays a corpus with so many tx-executors, 0 for one process alone.
fn replay(setting: &Setting, corpus: &Corpus, tx_executors: u16) -> anyhow::Result<Replay> {
    let kind = if tx_executors == 0 { Kind::One } else { Kind::Six };
    let flags = match kind {
        Kind::Six => vec!["--tx-executors".to_owned(), tx_executors.to_string()],
        _ => Vec::new(),
    };
    let node = Node::start_configured(kind, &setting.tandem, &corpus.genesis, ONE_THREAD, flags)?;
    replay_on(node, corpus)
}

/// Replays a corpus on a node, each of whose processes has its share.
fn replay_on(node: Node, corpus: &Corpus) -> anyhow::Result<Replay> {
    limited(node, SHARE, |node| {
        let exchanged = || -> anyhow::Result<BTreeMap<String, f64>> {
            let mut sums = node.sums_by_labels("tandem_rpc_bytes_total")?;
            sums.extend(node.sums_by_labels("tandem_bus_sent_bytes_total")?);
            Ok(sums)
        };
        let before = exchanged()?;
        let times = replay_times(node, corpus)?;
        let mut bytes = exchanged()?;
        for (labels, bytes) in &mut bytes {
            *bytes -= before.get(labels).copied().unwrap_or_default();
        }
        let executed = "tandem_executor_leased_transactions_total{outcome=\"executed\"}";
        let leased = series(&node.metrics()?, executed);
        Ok(Replay { times, leased, bytes, processes: node.processes()?.len() })
    })
}

/// Does something with a node each of whose processes has this share of a processor.
fn limited<T>(
    node: Node,
    share: f64,
    work: impl FnOnce(&Node) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let processes: Vec<_> = node.processes()?.into_iter().map(|(_, pid)| pid).collect();
    let quota = Quota::of_each(&processes, share).context("limit the processes")?;
    let done = work(&node);
    // A group can be removed only without its process.
    drop(node);
    drop(quota);
    done
}

/// Returns the milliseconds of each newPayload that counts.
fn replay_times(node: &Node, corpus: &Corpus) -> anyhow::Result<Vec<f64>> {
    let mut times = corpus.replay(node, GAP)?;
    Ok(times.split_off(WARMUP.min(times.len() / 2)))
}
