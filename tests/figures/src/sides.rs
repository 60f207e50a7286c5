//! Two clients, or one with two settings, that replay a corpus in turn.

use crate::{
    Setting,
    corpus::{Corpus, in_turn, ratio},
    figure::{Figure, Limit},
    node::{Kind, Node},
};
use std::{path::Path, time::Duration};

/// First blocks of a corpus that do not count: caches and predictions are new.
pub const WARMUP: usize = 10;

/// One side of a comparison: kind, binary, settings.
pub type Side<'a> = (Kind, &'a Path, String);

/// Replays a corpus on both sides alternately; each side goes first equally often.
pub fn compare(
    setting: &Setting,
    name: &str,
    folder: &Path,
    this: Side<'_>,
    that: Side<'_>,
    limit: Limit,
) -> anyhow::Result<Vec<Figure>> {
    let corpus = Corpus::load(folder, usize::MAX)?;
    let rounds = if setting.quick { 2 } else { 6 };
    let replay = |(kind, binary, config): &Side<'_>| {
        let node = Node::start_kind(*kind, binary, &corpus.genesis, config)?;
        let mut times = corpus.replay(&node, Duration::from_millis(20))?;
        anyhow::Ok(times.split_off(WARMUP.min(times.len() / 2)))
    };
    let (with, without) = in_turn(rounds, || replay(&this), || replay(&that))?;
    let estimate = ratio(&with, &without, setting.seed)?;
    let note = format!("{rounds} rounds of {} blocks", estimate.blocks);
    Ok(vec![Figure::estimate(name, estimate, limit).note(note)])
}
