//! State far away: six processes, a store with a delay, and how many calls a block makes for it.
//!
//! The corpora are folders named after their workload, such as `storage-7` (docs/figures.md).

use crate::{
    Setting,
    client::series,
    corpus::{Corpus, name_of},
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
    sides::{Side, WARMUP, compare},
};
use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tandem_overlap::stats::quantile;

/// Workloads with limits.
const WORKLOADS: [&str; 6] = ["eth", "erc20", "storage", "mixed", "wide", "hot"];

const NO_SYNC: &str = "[storage_writer]\nsync = false\n";
const DELAY: &str = "[storage_writer]\nsync = false\nread_delay_micros = 150\n";
const ONE_BY_ONE: &str = "[policies]\nreads = \"one-by-one\"\n";

/// Measures all figures on the available corpora.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    let folders = corpora(setting);
    let names: Vec<_> = folders.iter().map(|folder| name_of(folder)).collect();
    report.say(&format!("corpora: {}", names.join(", ")));
    let tandem = setting.tandem.as_path();
    let side = |kind, config: &str| (kind, tandem, config.to_owned());
    for folder in &folders {
        let name = name_of(folder);
        let compare = |figure: &str, this: Side<'_>, that: Side<'_>, limit| {
            compare(setting, figure, folder, this, that, limit)
        };
        let figure = format!("six processes / one, {name}");
        report.measure(&figure, || {
            let (six, one) = (side(Kind::Six, ""), side(Kind::One, ""));
            compare(&figure, six, one, Limit::AtMost(1.35))
        });
        let figure = format!("six processes / geth, {name}");
        report.measure(&figure, || {
            let geth = geth.context("no --geth: the client to compare with")?;
            let geth = (Kind::Geth, geth, String::new());
            compare(&figure, side(Kind::Six, ""), geth, Limit::AtMost(0.65))
        });
        report.measure(&format!("calls, {name}"), || calls(setting, &name, folder));
        let figure = format!("one process, 0.15 ms a read / none, {name}");
        report.measure(&figure, || {
            let (delayed, none) = (side(Kind::One, DELAY), side(Kind::One, NO_SYNC));
            compare(&figure, delayed, none, Limit::AtMost(1.3))
        });
        let figure = format!("the same, one-by-one, {name}");
        report.measure(&figure, || {
            let delayed = side(Kind::One, &[DELAY, ONE_BY_ONE].concat());
            compare(&figure, delayed, side(Kind::One, NO_SYNC), Limit::None)
        });
        for (what, kind) in [("one process", Kind::One), ("six processes", Kind::Six)] {
            let figure = format!("{what}, this / before, {name}");
            report.measure(&figure, || {
                let before = setting.before.as_ref().context("no --before: the version before")?;
                let before = (kind, before.as_path(), NO_SYNC.to_owned());
                compare(&figure, side(kind, NO_SYNC), before, Limit::Between(0.90, 1.02))
            });
        }
    }
}

/// Returns the folders of all corpora whose names begin with a workload, the demo if there is none.
fn corpora(setting: &Setting) -> Vec<PathBuf> {
    let entries = setting.corpora.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("payloads.jsonl.gz").is_file())
        .filter(|path| WORKLOADS.iter().any(|workload| name_of(path).starts_with(workload)))
        .collect();
    found.sort();
    if found.is_empty() { vec![setting.demo.clone()] } else { found }
}

/// Counts rounds and calls of each block in six processes.
fn calls(setting: &Setting, name: &str, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = Corpus::load(folder, usize::MAX)?;
    let node = Node::start_kind(Kind::Six, &setting.tandem, &corpus.genesis, "")?;
    let (mut rounds, mut calls) = (Vec::new(), Vec::new());
    let mut before = [0.0; 2];
    corpus.replay_with(&node, Duration::from_millis(20), |block| {
        let text = node.metrics()?;
        let now = [
            series(&text, "tandem_executor_read_rounds_sum"),
            series(&text, "tandem_storage_writer_client_seconds_count{call=\"read_state\"}"),
        ];
        if block.index >= WARMUP {
            rounds.push(now[0] - before[0]);
            calls.push(now[1] - before[1]);
        }
        before = now;
        Ok(())
    })?;
    rounds.sort_by(f64::total_cmp);
    calls.sort_by(f64::total_cmp);
    let figure = |what: &str, values: &[f64], q, limit| {
        let value = quantile(values, q).context("no block")?;
        anyhow::Ok(Figure::new(format!("{what}, {name}"), value, limit))
    };
    Ok(vec![
        figure("rounds a block, median", &rounds, 0.5, Limit::AtMost(8.0))?,
        figure("rounds a block, p99", &rounds, 0.99, Limit::AtMost(20.0))?,
        figure("calls of read_state a block, median", &calls, 0.5, Limit::AtMost(25.0))?,
        figure("calls of read_state a block, p99", &calls, 0.99, Limit::None)?,
    ])
}
