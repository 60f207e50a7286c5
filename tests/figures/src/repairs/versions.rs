//! Speed of this version compared with the version before, and the cost of syncing.

use crate::{
    Setting,
    corpus::{Corpus, in_turn, ratio},
    figure::{Figure, Limit, Report},
    node::Node,
};
use anyhow::Context as _;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Corpora whose speed has limits.
const CORPORA: [&str; 2] = ["mixed-30m", "erc20-30m"];
/// Limit of the ratio to the version before.
const LIMIT: Limit = Limit::Between(0.97, 1.03);

const SYNC: &str = "[storage_writer]\nsync = true\n";
const NO_SYNC: &str = "[storage_writer]\nsync = false\n";

/// Measures all figures, on the available corpora.
pub fn measure(setting: &Setting, report: &mut Report) {
    let found: Vec<PathBuf> = match &setting.corpora {
        Some(folder) => CORPORA.iter().map(|name| folder.join(name)).collect(),
        None => Vec::new(),
    };
    let found: Vec<PathBuf> = found.into_iter().filter(|folder| folder.is_dir()).collect();
    let names: Vec<_> = found
        .iter()
        .map(|folder| folder.file_name().unwrap_or_default().to_string_lossy())
        .collect();
    report.say(&format!(
        "corpora found: {}",
        if names.is_empty() { "none, so demo".into() } else { names.join(", ") }
    ));
    let folders = if found.is_empty() { vec![setting.demo.clone()] } else { found };
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let figure = format!("versions: newPayload of this / before, {name}");
        report.measure(&figure, || {
            let before =
                setting.before.as_ref().context("no --before: the version to compare with")?;
            // Both without syncing, whose cost is stated separately.
            let [this, before] = [(setting.tandem.as_path(), NO_SYNC), (before.as_path(), NO_SYNC)];
            versions(setting, &figure, &folder, this, before, LIMIT)
        });
        let figure = format!("versions: newPayload with sync / without, {name}");
        report.measure(&figure, || {
            let tandem = setting.tandem.as_path();
            versions(setting, &figure, &folder, (tandem, SYNC), (tandem, NO_SYNC), Limit::None)
        });
    }
}

/// Replays a corpus on both sides alternately; each side goes first equally often.
fn versions(
    setting: &Setting,
    name: &str,
    folder: &Path,
    this: (&Path, &str),
    before: (&Path, &str),
    limit: Limit,
) -> anyhow::Result<Vec<Figure>> {
    let corpus = Corpus::load(folder, usize::MAX)?;
    let rounds = if setting.quick { 2 } else { 8 };
    let replay = |(binary, config): (&Path, &str)| {
        let node = Node::start(binary, &corpus.genesis, config)?;
        corpus.replay(&node, Duration::ZERO)
    };
    let (with, without) = in_turn(rounds, || replay(this), || replay(before))?;
    let estimate = ratio(&with, &without, setting.seed)?;
    let note = format!("{rounds} rounds of {} blocks of {}", estimate.blocks, corpus.name);
    Ok(vec![Figure::estimate(name, estimate, limit).note(note)])
}
