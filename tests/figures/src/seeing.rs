//! Traces say the truth about a node: one processor, a lock-step and busy processors are told from
//! a parallel pipeline, a sequential one is found, and recording costs little.

use crate::{
    Setting,
    corpus::{Corpus, in_turn, ratio},
    figure::{Figure, Limit, Report},
    node::Node,
};
use anyhow::{Context as _, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tandem_overlap::{Selection, Verdict, analyze, read, stats::quantile};

/// Workloads whose state root has weight, best first. The demo corpus has hardly any.
const WORKLOADS: [&str; 3] = ["erc20", "storage", "mixed"];
/// First blocks of a corpus that do not count: caches and predictions are new.
const WARMUP: usize = 10;
/// Time between blocks.
const GAP: Duration = Duration::from_millis(20);

/// All updates at the end, and no execution ahead of turns.
const SEQUENTIAL: &str = "[executor]\nprewarm_threads = 0\n\
    [policies]\ntransition_flush = \"fixed{100000}\"\n";
/// Updates of half a block at a time.
const PARTIAL: &str = "[executor]\nprewarm_threads = 0\n\
    [policies]\ntransition_flush = \"fixed{100}\"\n";
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
    for (kind, config, limit) in [
        ("sequential", SEQUENTIAL, Limit::AtMost(0.30)),
        ("partial", PARTIAL, Limit::Between(0.30, 0.80)),
    ] {
        let name = format!("{kind} settings: part of the gain");
        report.measure(&name, || {
            let run = run(config, None)?;
            let reached = run.report.summary.reached.context("no payload with both sides")?;
            let note = format!("{}; {}", run.verdict(), run.words());
            Ok(vec![Figure::new(&name, reached.p50, limit).note(note)])
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

/// Analysis of the traces of a run, without its first blocks.
struct Run {
    report: tandem_overlap::Report,
    /// Spans of each payload, in ascending order.
    spans: Vec<f64>,
    /// Bytes of all traces as OTLP/JSON.
    bytes: usize,
}

impl Run {
    /// Replays the corpus on a node with these settings, on these processors, and reads its ring.
    fn of(
        setting: &Setting,
        corpus: &Corpus,
        config: &str,
        processors: Option<&str>,
    ) -> anyhow::Result<Self> {
        let node = Node::start_on(processors, &setting.tandem, &corpus.genesis, config)?;
        let times = corpus.replay(&node, GAP)?;
        let text = node.traces()?;
        let mut input = read("the node", text.as_bytes());
        ensure!(input.problems.is_empty(), "{:?}", input.problems.lines());
        let counted = times.len() - WARMUP.min(times.len() / 2);
        let report = analyze(std::mem::take(&mut input), &Selection::default(), counted);
        ensure!(report.payloads.len() == counted, "{} payloads", report.payloads.len());
        let mut spans: Vec<_> = report.payloads.iter().map(|one| one.spans as f64).collect();
        spans.sort_by(f64::total_cmp);
        Ok(Self { report, spans, bytes: text.len() / times.len() })
    }

    /// Returns the figures of a run with the usual settings. They have no limits.
    fn usual(&self) -> anyhow::Result<Vec<Figure>> {
        let stated = |name: &str, value: Option<f64>| {
            let value = value.with_context(|| format!("no {name}"))?;
            anyhow::Ok(Figure::new(format!("usual settings: {name}"), value, Limit::None))
        };
        let summary = &self.report.summary;
        let median = |of: Option<tandem_overlap::Distribution>| of.map(|of| of.p50);
        let reached = stated("part of the gain", median(summary.reached))?;
        Ok(vec![
            reached.note(format!("{}; {}", self.verdict(), self.words())),
            stated("weight", median(summary.weight))?,
            stated("tail / payload", median(summary.tail_share))?,
            stated("spans a payload, median", quantile(&self.spans, 0.5))?,
            stated("spans a payload, most", quantile(&self.spans, 1.0))?,
            stated("bytes a payload, OTLP/JSON", Some(self.bytes as f64))?,
        ])
    }

    fn count(&self, verdict: Verdict) -> f64 {
        let with = |one: &&tandem_overlap::PayloadReport| one.verdict == Some(verdict);
        self.report.payloads.iter().filter(with).count() as f64
    }

    /// Returns the verdict on the median payload.
    fn verdict(&self) -> String {
        self.report.verdict.map_or_else(|| "no verdict".to_owned(), |verdict| verdict.to_string())
    }

    /// Returns the number of payloads by verdict.
    fn words(&self) -> String {
        let count = |verdict| format!("{} {}", self.count(verdict), verdict);
        let words = Verdict::ALL.into_iter().filter(|verdict| self.count(*verdict) > 0.0);
        words.map(count).collect::<Vec<_>>().join(", ")
    }
}
