//! Turns measured blocks into an answer.

use super::experiment::{Experiment, Metric, Setup};
use super::load::Usage;
use super::program::CpuSet;
use super::run::{Cell, Measured, NodeUsage, Row, TraceFigures};
use super::scrape::{self, Reading};
use super::statistics::{self, Comparison, Pairs};
use crate::replay::{Summary, summary};
use serde::Serialize;
use std::collections::BTreeMap;
use tandem_overlap::stats::{self, Estimate, Verdict, quantile};
use tandem_overlap::{Thresholds, Verdict as OverlapVerdict};

/// CPUs that other processes may use before a run counts as disturbed.
pub const OTHERS_MAX: f64 = 0.2;
/// Seed of every bootstrap.
const SEED: u64 = 1;
/// Busy time on both sides, in milliseconds, above which a block has something to overlap. Below
/// it, a single wait of a millisecond decides.
pub const WORK_MIN_MS: f64 = 2.0;
/// Indices of the base and of the base again among the nodes.
const BASE_AT: usize = 0;
const AGAIN_AT: usize = 1;

/// Result of an experiment.
#[derive(Debug, Serialize)]
pub struct LabReport {
    /// Version of this structure: fields may be added under it, but none removed or changed.
    pub schema: &'static str,
    /// Name of the experiment.
    pub experiment: String,
    /// Question of the experiment.
    pub question: String,
    /// Version and commit of this program.
    pub version: &'static str,
    /// Number of cores of this machine.
    pub cpus: usize,
    /// Results, one per corpus.
    pub runs: Vec<RunReport>,
}

/// Result on one corpus.
#[derive(Debug, Serialize)]
pub struct RunReport {
    /// The payload file.
    pub corpus: String,
    /// Number of rounds requested.
    pub rounds: u32,
    /// Number of warm-up blocks in each round.
    pub warmup: u64,
    /// Pause after each block of each node, in milliseconds.
    pub gap_ms: u64,
    /// Number of measured blocks, over all rounds.
    pub blocks: usize,
    /// Gas of the measured blocks.
    pub gas: u64,
    /// Number of transactions in the measured blocks.
    pub transactions: usize,
    /// Reason why the run ended early; none if all answers were VALID.
    pub failure: Option<String>,
    /// CPUs that other processes used meanwhile, on average.
    pub others_cpus: Option<f64>,
    /// Whether that was too much to trust the times.
    pub disturbed: bool,
    /// The base's time as a ratio to itself: differences within its interval are noise.
    pub noise: Option<Estimate>,
    /// The base, the base again, and the variants.
    pub nodes: Vec<NodeReport>,
    /// Requested metrics.
    pub metrics: Vec<MetricReport>,
    /// All blocks with the times of each node.
    pub rows: Vec<Row>,
}

/// Result of one configuration.
#[derive(Debug, Serialize)]
pub struct NodeReport {
    /// Name of the configuration.
    pub name: String,
    /// Settings of the configuration.
    pub config: toml::Table,
    /// The program: this one, a binary, a command, or a URL.
    pub program: String,
    /// Name and version that the program gives itself.
    pub version: Option<String>,
    /// Processors of the node, `None` for all.
    pub cpus: Option<CpuSet>,
    /// Statistics of `newPayload` over the measured blocks.
    pub new_payload: Option<Summary>,
    /// Statistics of `forkchoiceUpdated` over the measured blocks.
    pub forkchoice_updated: Option<Summary>,
    /// Median over blocks of newPayload's time as a ratio to the base's; none for the base.
    pub ratio: Option<Estimate>,
    /// Comparison that heeds the memory of the noise, also of p50, p95 and p99; none for the base.
    pub comparison: Option<Comparison>,
    /// Verdict; none for the base and the base again.
    pub verdict: Option<Verdict>,
    /// Effect that nine such runs in ten would find, and the blocks that the wished one takes; none
    /// for the base and the base again.
    pub power: Option<Power>,
    /// CPU time per block and its forkchoice, in milliseconds, including background work.
    pub cpu_ms_per_block: Option<f64>,
    /// Context switches of its threads per block.
    pub context_switches_per_block: Option<f64>,
    /// Page faults per block that read nothing.
    pub minor_faults_per_block: Option<f64>,
    /// Page faults per block that read from a disk.
    pub major_faults_per_block: Option<f64>,
    /// Peak memory, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Figures from its traces.
    pub traces: TraceReport,
}

/// Effects that a run could find.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Power {
    /// Smallest effect, as a share of the time, that nine such runs in ten would find.
    pub smallest_effect: f64,
    /// Wished effect, see [`Experiment::effect`].
    pub wished_effect: f64,
    /// Blocks with which nine runs in ten would find the wished effect.
    pub blocks_for_wished: u64,
}

/// Figures from the traces of a node; medians over the blocks that have the figure.
#[derive(Debug, Serialize)]
pub struct TraceReport {
    /// Number of blocks whose trace was found.
    pub found: usize,
    /// Number of found blocks with work on both sides.
    pub both_sides: usize,
    /// Overlap on busy time.
    pub overlap: Option<f64>,
    /// Word for the medians, as `tandem overlap` says it; it does not tell CONCURRENT from PARALLEL.
    pub verdict: Option<OverlapVerdict>,
    /// Part of the possible gain of overlapping that is reached.
    pub reached: Option<f64>,
    /// Difference of the overlap to the base's on the same block, paired; none for the base.
    pub overlap_difference: Option<Estimate>,
    /// Serialization.
    pub serialization: Option<f64>,
    /// Tail after the last transaction, in milliseconds.
    pub tail_ms: Option<f64>,
    /// Busy time of the payload side, in milliseconds.
    pub a_ms: Option<f64>,
    /// Busy time of the proof side, in milliseconds.
    pub b_ms: Option<f64>,
    /// Evenness of the overlap; none if no block has enough work.
    pub worked: Option<WorkedReport>,
}

/// Overlap of blocks with more than [`WORK_MIN_MS`] on both sides.
#[derive(Debug, Serialize)]
pub struct WorkedReport {
    /// Number of such blocks, over all rounds.
    pub n: usize,
    /// 1st percentile of their overlap.
    pub overlap_p1: f64,
    /// 5th percentile of their overlap.
    pub overlap_p5: f64,
    /// Block with the least overlap.
    pub least: BlockOverlap,
}

/// One block over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BlockOverlap {
    /// Height of the block.
    pub number: u64,
    /// Median of the overlap over the rounds.
    pub overlap: f64,
}

/// One metric on all nodes.
#[derive(Debug, Serialize)]
pub struct MetricReport {
    /// Requested metric.
    pub metric: Metric,
    /// Readings in the order of [`RunReport::nodes`].
    pub readings: Vec<Reading>,
}

impl RunReport {
    /// Returns the report on one corpus.
    pub fn new(experiment: &Experiment, corpus: String, measured: Measured) -> Self {
        let Measured { rows, usage, others_cpu_seconds, seconds, failure, .. } = measured;
        let others_cpus = others_cpu_seconds.map(|others| others / seconds.max(1e-9));
        let noise = ratio(&rows, AGAIN_AT);
        let setups = experiment.setups();
        let nodes = setups.into_iter().zip(&usage).enumerate();
        let metrics = experiment.metric.iter().map(|metric| MetricReport {
            metric: metric.clone(),
            readings: usage
                .iter()
                .map(|usage| scrape::read(&usage.scrapes, metric, rows.len()))
                .collect(),
        });
        Self {
            corpus,
            rounds: experiment.rounds,
            warmup: experiment.warmup,
            gap_ms: experiment.gap_ms,
            blocks: rows.len(),
            gas: rows.iter().map(|row| row.gas).sum(),
            transactions: rows.iter().map(|row| row.transactions).sum(),
            failure,
            others_cpus,
            disturbed: others_cpus.is_some_and(|others| others > OTHERS_MAX),
            nodes: nodes.map(|(at, (setup, usage))| node(setup, usage, &rows, at)).collect(),
            noise,
            metrics: metrics.collect(),
            rows,
        }
    }

    /// Returns whether every block of every node was VALID.
    pub fn is_complete(&self) -> bool {
        self.failure.is_none()
    }
}

/// Gives each variant its verdict: all runs of a report are one question.
pub fn decide(runs: &mut [RunReport], wished_effect: f64) {
    let variants = |run: &RunReport| {
        let noise = run.nodes.get(AGAIN_AT).and_then(|again| again.comparison);
        let variants = run.nodes.iter().skip(AGAIN_AT + 1);
        variants.map(move |node| node.comparison.zip(noise)).collect::<Vec<_>>()
    };
    let pairs: Vec<_> = runs.iter().flat_map(variants).flatten().collect();
    let mut verdicts = statistics::verdicts(&pairs).into_iter();
    for node in runs.iter_mut().flat_map(|run| run.nodes.iter_mut().skip(AGAIN_AT + 1)) {
        let Some(comparison) = &node.comparison else { continue };
        node.verdict = verdicts.next();
        node.power = Some(Power {
            smallest_effect: comparison.smallest_effect(pairs.len()),
            wished_effect,
            blocks_for_wished: comparison.blocks_for(wished_effect, pairs.len()),
        });
    }
}

fn node(setup: Setup, usage: &NodeUsage, rows: &[Row], at: usize) -> NodeReport {
    let gas = rows.iter().map(|row| row.gas).sum();
    let times = |time: fn(&Cell) -> f64| rows.iter().map(|row| time(&row.nodes[at])).collect();
    let is_compared = at != BASE_AT;
    let blocks = rows.len().max(1) as f64;
    let per_block = |value: fn(Usage) -> f64| usage.usage.map(|used| value(used) / blocks);
    NodeReport {
        name: setup.name,
        config: setup.config,
        program: setup.program.describe(),
        version: usage.version.clone(),
        cpus: setup.cpus,
        new_payload: summary("newPayload", times(|cell| cell.new_payload_ms), gas),
        forkchoice_updated: summary(
            "forkchoiceUpdated",
            times(|cell| cell.forkchoice_updated_ms),
            gas,
        ),
        ratio: is_compared.then(|| ratio(rows, at)).flatten(),
        comparison: is_compared.then(|| comparison(rows, at)).flatten(),
        verdict: None,
        power: None,
        cpu_ms_per_block: per_block(|used| used.cpu_seconds * 1e3),
        context_switches_per_block: per_block(|used| used.context_switches as f64),
        minor_faults_per_block: per_block(|used| used.minor_faults as f64),
        major_faults_per_block: per_block(|used| used.major_faults as f64),
        memory_peak_bytes: usage.usage.map(|used| used.memory_peak_bytes),
        traces: traces(rows, at),
    }
}

fn comparison(rows: &[Row], at: usize) -> Option<Comparison> {
    let mut blocks: BTreeMap<u64, Pairs> = BTreeMap::new();
    for row in rows {
        let time = |at: usize| row.nodes[at].new_payload_ms;
        blocks.entry(row.number).or_default().push((time(BASE_AT), time(at)));
    }
    Comparison::of(&blocks.into_values().collect::<Vec<_>>(), SEED)
}

/// Groups the values by block.
fn by_block(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> BTreeMap<u64, Vec<f64>> {
    let mut blocks: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in rows {
        blocks.entry(row.number).or_default().extend(value(row));
    }
    blocks
}

/// Returns an estimate from whole blocks, with all rounds of each.
fn estimate(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Option<Estimate> {
    Estimate::of(&by_block(rows, value).into_values().collect::<Vec<_>>(), SEED)
}

fn ratio(rows: &[Row], at: usize) -> Option<Estimate> {
    let ratio = |row: &Row| row.nodes[at].new_payload_ms / row.nodes[BASE_AT].new_payload_ms;
    estimate(rows, |row| Some(ratio(row)))
}

fn traces(rows: &[Row], at: usize) -> TraceReport {
    let trace = |row: &Row, at: usize| row.nodes[at].trace;
    let median = |value: fn(TraceFigures) -> Option<f64>| {
        stats::median(rows.iter().filter_map(|row| value(trace(row, at)?)).collect())
    };
    let overlap = |row: &Row, at: usize| trace(row, at)?.overlap;
    let difference = |row: &Row| Some(overlap(row, at)? - overlap(row, BASE_AT)?);
    let [reached, weight, tail_share] = [
        median(|figures| figures.reached),
        median(|figures| figures.weight),
        median(|figures| figures.tail_share),
    ];
    TraceReport {
        verdict: Thresholds::default().verdict(reached, weight, tail_share, None),
        reached,
        found: rows.iter().filter(|row| trace(row, at).is_some()).count(),
        both_sides: rows.iter().filter(|row| overlap(row, at).is_some()).count(),
        overlap: median(|figures| figures.overlap),
        overlap_difference: (at != BASE_AT).then(|| estimate(rows, difference)).flatten(),
        serialization: median(|figures| figures.serialization),
        tail_ms: median(|figures| figures.tail_ms),
        a_ms: median(|figures| Some(figures.a_ms)),
        b_ms: median(|figures| Some(figures.b_ms)),
        worked: worked(rows, at),
    }
}

fn worked(rows: &[Row], at: usize) -> Option<WorkedReport> {
    let overlap = |row: &Row| {
        row.nodes[at].trace.filter(|trace| trace.a_ms.min(trace.b_ms) > WORK_MIN_MS)?.overlap
    };
    let mut all: Vec<f64> = rows.iter().filter_map(overlap).collect();
    all.sort_by(f64::total_cmp);
    let blocks = by_block(rows, overlap).into_iter().filter_map(|(number, overlaps)| {
        Some(BlockOverlap { number, overlap: stats::median(overlaps)? })
    });
    Some(WorkedReport {
        n: all.len(),
        overlap_p1: quantile(&all, 0.01)?,
        overlap_p5: quantile(&all, 0.05)?,
        least: blocks.min_by(|a, b| a.overlap.total_cmp(&b.overlap))?,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tandem_overlap::stats::SplitMix;

    /// Returns blocks on the base, the base again, and a variant that takes `factor` times as long
    /// and overlaps by half as much.
    pub fn measured(blocks: u64, factor: f64) -> Measured {
        let cell = |ms: f64, overlap: f64| Cell {
            new_payload_ms: ms,
            forkchoice_updated_ms: 0.5,
            trace: Some(TraceFigures {
                overlap: Some(overlap),
                serialization: Some(1.0 - overlap),
                tail_ms: Some(1.5),
                a_ms: ms,
                b_ms: 2.0,
                reached: Some(overlap),
                weight: Some(0.2),
                tail_share: Some(0.05),
            }),
        };
        let rows = (0..blocks).map(|number| {
            let ms = 40.0 + number as f64;
            // Noise of one percent, up and down in no order.
            let noise = if SplitMix(number).below(2) == 0 { 1.01 } else { 0.99 };
            Row {
                round: 0,
                number,
                gas: 30_000_000,
                transactions: 200,
                nodes: vec![cell(ms, 0.8), cell(ms * noise, 0.8), cell(ms * factor, 0.4)],
            }
        });
        Measured {
            rows: rows.collect(),
            rounds: 1,
            usage: vec![
                NodeUsage {
                    usage: Some(Usage {
                        cpu_seconds: 1.0,
                        context_switches: 80,
                        minor_faults: 400,
                        memory_peak_bytes: 1 << 20,
                        ..Usage::default()
                    }),
                    ..NodeUsage::default()
                };
                3
            ],
            others_cpu_seconds: Some(1.0),
            seconds: 10.0,
            failure: None,
        }
    }

    /// Returns the report on one run, decided.
    pub fn decided(experiment: &Experiment, measured: Measured) -> RunReport {
        let mut runs = [RunReport::new(experiment, "demo".into(), measured)];
        decide(&mut runs, experiment.effect);
        let [run] = runs;
        run
    }

    pub fn experiment() -> Experiment {
        let text =
            "name = \"caches\"\nquestion = \"Does it matter?\"\n[[variant]]\nname = \"none\"";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_slower_variant_is_called_so() {
        let report = decided(&experiment(), measured(40, 1.5));
        assert_eq!((report.blocks, report.gas, report.disturbed), (40, 1_200_000_000, false));
        let [base, again, variant] = &report.nodes[..] else { panic!("three nodes") };
        assert_eq!((base.ratio, base.verdict, again.verdict), (None, None, None));
        assert!(again.ratio.is_some_and(|ratio| ratio.low >= 0.989 && ratio.high <= 1.011));
        assert_eq!(variant.ratio.map(|ratio| ratio.median), Some(1.5));
        assert_eq!(variant.verdict, Some(Verdict::Slower));
        assert_eq!(variant.traces.overlap_difference.map(|d| d.median), Some(-0.4));
        assert_eq!(variant.traces.verdict, Some(OverlapVerdict::Partial));
        assert_eq!(base.traces.verdict, Some(OverlapVerdict::Parallel));
        assert_eq!(variant.cpu_ms_per_block, Some(25.0));
        assert_eq!(variant.context_switches_per_block, Some(2.0));
        assert_eq!(variant.minor_faults_per_block, Some(10.0));
        assert_eq!((base.comparison, base.power, again.power), (None, None, None));
        let comparison = variant.comparison.unwrap();
        for interval in [comparison.median, comparison.p50, comparison.p95, comparison.p99] {
            assert!((interval.ratio - 1.5).abs() < 1e-9, "{comparison:?}");
        }
        assert_eq!(variant.power.map(|power| power.wished_effect), Some(0.03));
        assert_eq!(base.new_payload.as_ref().map(|summary| summary.p50_ms), Some(59.5));
    }

    #[test]
    fn what_lies_within_the_noise_is_no_difference() {
        for (blocks, factor) in [(40, 1.005), (40, 1.0), (4, 3.0)] {
            let report = decided(&experiment(), measured(blocks, factor));
            assert_eq!(report.nodes[2].verdict, Some(Verdict::NoDifference), "{factor}");
        }
    }

    #[test]
    fn the_block_that_overlaps_least_is_named() {
        let mut measured = measured(100, 1.0);
        let again = |row: &Row, round: u32| Row { round, ..row.clone() };
        measured.rows = (0..3)
            .flat_map(|round| measured.rows.iter().map(move |row| again(row, round)))
            .collect();
        for row in &mut measured.rows {
            let trace = row.nodes[0].trace.as_mut().unwrap();
            // Block 5 is low once, block 7 in two rounds of three, block 9 always but with too
            // little work.
            (trace.b_ms, trace.overlap) = match (row.number, row.round) {
                (5, 0) => (5.0, Some(0.1)),
                (7, 0) => (5.0, Some(0.5)),
                (7, 1) => (5.0, Some(0.6)),
                (9, _) => (WORK_MIN_MS, Some(0.0)),
                _ => (5.0, Some(0.8)),
            };
        }
        measured.rows[250].nodes[0].trace = None;
        let report = RunReport::new(&experiment(), "demo".into(), measured);
        let worked = report.nodes[0].traces.worked.as_ref().unwrap();
        assert_eq!(worked.n, 296);
        assert_eq!(worked.least, BlockOverlap { number: 7, overlap: 0.6 });
        assert!(worked.overlap_p1 < 0.8 && worked.overlap_p5 == 0.8, "{worked:?}");
        // Two milliseconds are not more than two.
        assert!(report.nodes[1].traces.worked.is_none());
    }

    #[test]
    fn other_load_makes_a_run_disturbed() {
        let measured = Measured { others_cpu_seconds: Some(2.5), ..measured(10, 1.0) };
        let report = RunReport::new(&experiment(), "demo".into(), measured);
        assert_eq!((report.others_cpus, report.disturbed), (Some(0.25), true));
    }

    #[test]
    fn without_blocks_there_are_no_figures() {
        let failed = Measured { failure: Some("INVALID".into()), ..measured(0, 1.0) };
        let report = RunReport::new(&experiment(), "demo".into(), failed);
        assert!(!report.is_complete());
        assert!(report.nodes.iter().all(|node| node.new_payload.is_none()));
        assert_eq!((report.noise, report.nodes[2].verdict), (None, None));
    }
}
