//! Traces say the truth about a node: one processor, a lock-step and busy processors are told from
//! a parallel pipeline, a sequential one is found, recording costs little, and a gain that is
//! predicted comes true.

pub mod run;
mod truth;

use crate::{
    Setting,
    corpus::{Corpus, in_turn, ratio},
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
};
use anyhow::{Context as _, ensure};
use run::Run;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tandem_overlap::Verdict;

/// Workloads whose state root has weight, best first. The demo corpus has hardly any.
const WORKLOADS: [&str; 3] = ["erc20", "storage", "mixed"];
/// First blocks of a corpus that do not count: caches and predictions are new.
const WARMUP: usize = 10;
/// Time between blocks.
const GAP: Duration = Duration::from_millis(20);

/// All updates at the end, and no execution ahead of turns.
const SEQUENTIAL: &str = "[executor]\nprewarm_threads = 0\n\
    [policies]\ntransition_flush = \"fixed{100000}\"\n";
/// Room for one update at a worker.
const LOCK_STEP: &str = "[multiproof_workers]\nmailbox_capacity = 1\n";

/// Measures all figures on one corpus.
pub fn measure(setting: &Setting, report: &mut Report) {
    let folder = corpus(setting);
    report.say(&format!("corpus: {}", folder.display()));
    let run = |config: &str, processors: Option<&str>| {
        let corpus = Corpus::load(&folder, usize::MAX)?;
        Run::of(setting, &corpus, config, processors)
    };
    report.measure("usual settings", || run("", None)?.usual());
    report.measure("one processor: payloads that are PARALLEL", || {
        let run = run("", Some("0"))?;
        let name = "one processor: payloads that are PARALLEL";
        let parallel = run.count(Verdict::Parallel);
        Ok(vec![Figure::new(name, parallel, Limit::Exactly(0.0)).note(run.words())])
    });
    report.measure("mailbox of one: median is PARALLEL", || {
        let run = run(LOCK_STEP, None)?;
        let parallel = f64::from(run.report.verdict == Some(Verdict::Parallel));
        let note = format!("{}; {}", run.verdict(), run.words());
        let name = "mailbox of one: median is PARALLEL";
        Ok(vec![Figure::new(name, parallel, Limit::Exactly(0.0)).note(note)])
    });
    let sequential = || Ok(SEQUENTIAL.to_owned());
    let kinds: [(_, &dyn Fn() -> anyhow::Result<String>, _); 2] = [
        ("sequential", &sequential, Limit::AtMost(0.30)),
        ("partial", &|| partial(&folder), Limit::Between(0.30, 0.80)),
    ];
    for (kind, config, limit) in kinds {
        let name = format!("{kind} settings: part of the gain");
        report.measure(&name, || {
            let run = run(&config()?, None)?;
            let reached = run.report.summary.reached.context("no payload with both sides")?;
            let note = format!("{}; {}", run.verdict(), run.words());
            Ok(vec![Figure::new(&name, reached.p50, limit).note(note)])
        });
    }
    for workers in ["1", "2", "4"] {
        let name = format!("cluster with {workers} workers: part of the gain");
        report.measure(&name, || {
            let corpus = Corpus::load(&folder, usize::MAX)?;
            let flags = vec!["--workers".to_owned(), workers.to_owned()];
            let node = Node::start_with_flags(Kind::Six, &setting.tandem, &corpus.genesis, flags)?;
            Run::on(&node, &corpus)?.shared(&name)
        });
    }
    report.measure("busy processors: processor / busy time", || {
        let run = beside_busy_threads(|| run("", None))?;
        let share = run.report.summary.cpu_share.context("no processor time")?;
        let said = run.report.notes.iter().any(|note| note.contains("had a processor for"));
        ensure!(said, "the report does not say it: {:?}", run.report.notes);
        let name = "busy processors: processor / busy time";
        Ok(vec![Figure::new(name, share.p50, Limit::AtMost(0.90)).note(run.verdict())])
    });
    report.measure("cost: stage / off", || {
        let corpus = Corpus::load(&folder, usize::MAX)?;
        let rounds = if setting.quick { 2 } else { 6 };
        let replay = |level: &str| {
            let config = format!("[traces]\nlevel = \"{level}\"\n");
            let node = Node::start(&setting.tandem, &corpus.genesis, &config)?;
            let mut times = corpus.replay(&node, GAP)?;
            anyhow::Ok(times.split_off(WARMUP.min(times.len() / 2)))
        };
        let (with, without) = in_turn(rounds, || replay("stage"), || replay("off"))?;
        let estimate = ratio(&with, &without, setting.seed)?;
        let note = format!("{rounds} rounds of {} blocks", estimate.blocks);
        Ok(vec![Figure::estimate("cost: stage / off", estimate, Limit::AtMost(1.03)).note(note)])
    });
    report.measure("what if", || truth::measure(setting, &folder));
}

/// Returns settings with which updates are sent for half a block at a time.
fn partial(folder: &Path) -> anyhow::Result<String> {
    let corpus = Corpus::load(folder, usize::MAX)?;
    let count = |body: &str| {
        let request: Value = serde_json::from_str(body)?;
        let transactions = request["params"][0]["transactions"].as_array();
        anyhow::Ok(transactions.context("a payload without transactions")?.len())
    };
    let mut counts = corpus.bodies().map(count).collect::<anyhow::Result<Vec<_>>>()?;
    counts.sort_unstable();
    let half = counts.get(counts.len() / 2).context("no payloads")?.div_ceil(2);
    Ok(format!(
        "[executor]\nprewarm_threads = 0\n[policies]\ntransition_flush = \"fixed{{{half}}}\"\n"
    ))
}

/// Returns the first corpus whose name begins with a workload, or the demo.
fn corpus(setting: &Setting) -> PathBuf {
    let entries = setting.corpora.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("payloads.jsonl.gz").is_file())
        .filter_map(|path| Some((rank(&path)?, path)))
        .collect();
    found.sort();
    found.into_iter().next().map_or_else(|| setting.demo.clone(), |(_, path)| path)
}

fn rank(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_string_lossy();
    WORKLOADS.iter().position(|workload| name.starts_with(workload))
}

/// Runs `measure` while each processor has a thread that never waits.
fn beside_busy_threads<T>(measure: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    let processors = thread::available_parallelism().map_or(1, Into::into);
    thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = measure();
        stop.store(true, Relaxed);
        result
    })
}
