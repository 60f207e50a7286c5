//! Predictions of what a faster stage gains, beside the gain when the stage really becomes faster.

use super::run::Run;
use crate::{
    Setting,
    corpus::{Corpus, ratio},
    figure::{Figure, Limit},
};
use std::{collections::HashMap, path::Path};

/// Blocks of a run.
const BLOCKS: usize = 34;
/// Stage that is all of side B.
const STATE_ROOT: &str = "state root";
const EXECUTION: &str = "payload processor";
const STATE_WAIT: &str = "execution waits: for state";

/// Nothing of the tries is kept, so that each block has much to read.
const COLD: &str = "[multiproof_workers]\ntrie_bytes_max = 1\n";
/// No execution ahead of turns, values read when the EVM asks for them.
const ALONE: &str = "[executor]\nprewarm_threads = 0\n[policies]\nreads = \"one-by-one\"\n";
/// All updates at the end.
const HELD_BACK: &str = "[executor]\nprewarm_threads = 0\n\
    [policies]\ntransition_flush = \"fixed{100000}\"\n";

/// A change that makes a stage faster.
struct Change {
    name: &'static str,
    stage: &'static str,
    slow: String,
    fast: String,
}

/// Returns the changes of settings and policies.
fn changes() -> Vec<Change> {
    let change = |name, stage, slow: &[&str], fast: &[&str]| {
        let (slow, fast) = (slow.concat(), fast.concat());
        Change { name, stage, slow, fast }
    };
    let reads = |micros: u32| format!("[storage_writer]\nread_delay_micros = {micros}\n");
    let walks = |micros: u32| format!("[storage_writer]\ntrie_read_delay_micros = {micros}\n");
    let threads = |count: u32| format!("{COLD}proof_threads = {count}\n");
    let published = "[policies]\ndispatch = \"blocking\"\nbatching = \"fixed{16,500}\"\n\
        chunking = \"never\"\n";
    vec![
        change("trie reads of 0.2 ms to none", STATE_ROOT, &[COLD, &walks(200)], &[COLD]),
        change("trie reads of 0.05 ms to none", STATE_ROOT, &[COLD, &walks(50)], &[COLD]),
        change("tries kept", STATE_ROOT, &[COLD], &[""]),
        change("tries kept, updates at the end", STATE_ROOT, &[COLD, HELD_BACK], &[HELD_BACK]),
        change(
            "trie reads of 0.1 ms by 16 threads instead of 1",
            STATE_ROOT,
            &[&threads(1), &walks(100)],
            &[&threads(16), &walks(100)],
        ),
        change(
            "batches that are not waited for",
            STATE_ROOT,
            &[&threads(16), &walks(100), published],
            &[&threads(16), &walks(100)],
        ),
        change("values read in 0.1 ms to none", STATE_WAIT, &[ALONE, &reads(100)], &[ALONE]),
        change("values read in 0.02 ms to none", STATE_WAIT, &[ALONE, &reads(20)], &[ALONE]),
        change(
            "transactions executed ahead",
            EXECUTION,
            &["[executor]\nprewarm_threads = 0\n"],
            &[""],
        ),
        change("no wait for the disk", "write_batch", &[""], &["[storage_writer]\nsync = false\n"]),
    ]
}

/// Measures all changes, and the rank correlation of predictions and gains.
///
/// # Errors
/// If a run fails.
pub fn measure(setting: &Setting, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = Corpus::load(folder, BLOCKS)?;
    let mut runs: HashMap<String, Vec<Run>> = HashMap::new();
    let rounds = if setting.quick { 1 } else { 3 };
    let changes = changes();
    let mut configs: Vec<&String> =
        changes.iter().flat_map(|change| [&change.slow, &change.fast]).collect();
    configs.sort_unstable();
    configs.dedup();
    for _ in 0..rounds {
        for config in &configs {
            let run = Run::of(setting, &corpus, config, None)?;
            runs.entry((*config).clone()).or_default().push(run);
        }
    }
    let (mut figures, mut predicted, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    for change in &changes {
        let [slow, fast] = [&change.slow, &change.fast].map(|config| &runs[config]);
        let times = |runs: &[Run]| runs.iter().map(|run| run.times.clone()).collect::<Vec<_>>();
        let gain = 1.0 - ratio(&times(fast), &times(slow), setting.seed)?.median;
        let part = 1.0 - (stage_ns(&fast[0], change.stage) / stage_ns(&slow[0], change.stage));
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        let stages = slow[0].what_if(part);
        let stage = stages.iter().find(|one| one.stage == change.stage);
        let prediction =
            stage.and_then(|one| one.gain_asked).map_or(0.0, |estimate| estimate.median);
        predicted.push(prediction);
        measured.push(gain);
        let note =
            format!("{prediction:.3} predicted: {} takes {:.0} % less", change.stage, 100.0 * part);
        let name = format!("what if: gain, {}", change.name);
        figures.push(Figure::new(name, gain, Limit::None).note(note));
    }
    let name = "what if: rank correlation with measured gains";
    let correlation = rank_correlation(&predicted, &measured);
    let note = format!("{} changes, {rounds} rounds", changes.len());
    figures.push(Figure::new(name, correlation, Limit::AtLeast(0.8)).note(note));
    Ok(figures)
}

/// Returns the time of a stage in the median payload: all of side B, or the stage's time on the
/// critical path.
fn stage_ns(run: &Run, stage: &str) -> f64 {
    let summary = &run.report.summary;
    if stage == STATE_ROOT {
        return summary.b_ns.map_or(0.0, |of| of.p50);
    }
    let on_path = run.report.what_if.iter().find(|one| one.stage == stage);
    let payload = summary.payload_ns.map_or(0.0, |of| of.p50);
    on_path.map_or(0.0, |one| one.on_path.median * payload)
}

/// Returns Spearman's rank correlation. Equal values have the mean of their ranks.
fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let (one, other) = (ranks(one), ranks(other));
    let mean = |ranks: &[f64]| ranks.iter().sum::<f64>() / ranks.len() as f64;
    let (mean_one, mean_other) = (mean(&one), mean(&other));
    let of = |one: &[f64], mean_one: f64, other: &[f64], mean_other: f64| -> f64 {
        one.iter().zip(other).map(|(a, b)| (a - mean_one) * (b - mean_other)).sum()
    };
    let spread = of(&one, mean_one, &one, mean_one) * of(&other, mean_other, &other, mean_other);
    of(&one, mean_one, &other, mean_other) / spread.sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count() as f64;
        let equal = values.iter().filter(|other| *other == value).count() as f64;
        below + (equal - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_correlation_heeds_order_alone() {
        let values = [0.1, 0.5, 0.2, 0.9];
        assert_eq!(rank_correlation(&values, &values.map(|value| value * value)), 1.0);
        assert_eq!(rank_correlation(&values, &values.map(|value| -value)), -1.0);
        // Ranks 0, 3, 1, 2 and 0, 2, 1, 3: 1 - 6 * 2 / (4 * 15).
        let swapped = rank_correlation(&[1.0, 9.0, 2.0, 3.0], &[1.0, 5.0, 2.0, 8.0]);
        assert!((swapped - 0.8).abs() < 1e-9, "{swapped}");
        assert_eq!(ranks(&[2.0, 1.0, 2.0]), [1.5, 0.0, 1.5]);
    }

    #[test]
    fn each_change_changes_something_and_is_named_once() {
        let changes = changes();
        assert!(changes.len() >= 8);
        let mut names: Vec<_> = changes.iter().map(|change| change.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), changes.len());
        assert!(changes.iter().all(|change| change.slow != change.fast));
    }
}
