//! Comparison of two reports on the same blocks, paired block by block, to tell changes from noise.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tandem_verdict::Verdict;

use crate::analyze::PayloadReport;
use crate::model::TraceId;
use crate::report::Report;
use crate::stats::{Estimate, median};

/// Number of blocks named in [`Comparison::most_slower`].
const WORST: usize = 5;

/// Verdict on one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The interval lies on the better side of "no change".
    Better,
    /// The interval lies on the worse side of "no change".
    Worse,
    /// The interval includes "no change", or there are too few blocks.
    NoVisibleDifference,
}

impl Change {
    /// Returns the verdict in words, for a time.
    pub fn of_time(self) -> &'static str {
        match self {
            Self::Better => "faster",
            Self::Worse => "slower",
            Self::NoVisibleDifference => "no visible difference",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoVisibleDifference => "no visible difference",
        })
    }
}

/// Figure over all pairs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the base's values.
    pub base: f64,
    /// Median of the new values.
    pub new: f64,
    /// Median and 95 % interval of new / base or of new − base, pair by pair.
    pub change: Estimate,
    /// Verdict on the figure.
    pub verdict: Change,
}

/// Comparison of a base and a new report on the blocks that both have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Version of this structure: `tandem.compare/1`. Fields may be added under the same version.
    pub schema: &'static str,
    /// Seed of the bootstrap. Equal inputs and seeds give equal intervals.
    pub seed: u64,
    /// Number of blocks in both, each compared once, by the medians of its payloads.
    pub pairs: usize,
    /// Number of blocks that only one of the two has.
    pub unpaired: usize,
    /// Number of block numbers under which the two have blocks of different hashes.
    pub different_blocks: usize,
    /// Number of payloads that do not name their block.
    pub unnamed: usize,
    /// Whether one of the reports is partial.
    pub partial: bool,
    /// Verdicts on the overlap of base and new, each alone.
    pub overlap_verdicts: [Option<Verdict>; 2],
    /// Length of the payload, new / base. Below 1 is better.
    pub new_payload_ns: Option<Figure>,
    /// Overlap, new − base. Above 0 is better.
    pub overlap: Option<Figure>,
    /// Tail, new − base in nanoseconds. Below 0 is better.
    pub tail_ns: Option<Figure>,
    /// Serialization, new − base. Below 0 is better.
    pub serialization: Option<Figure>,
    /// Overall verdict: that on the length of the payload. Absent without a pair.
    pub verdict: Option<Change>,
    /// Pairs with the largest slowdown, the worst first.
    pub most_slower: Vec<Slower>,
}

/// Block that takes longer than before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slower {
    /// Number of the block.
    pub block_number: Option<u64>,
    /// Hash of the block.
    pub block_hash: Option<String>,
    /// Length of the payload, new / base.
    pub ratio: f64,
    /// Trace of the new payload, or of the last of several.
    pub trace_id: TraceId,
}

/// Payloads of one block in both reports.
struct Pair<'r> {
    base: Vec<&'r PayloadReport>,
    new: Vec<&'r PayloadReport>,
}

/// Compares `new` with `base`. Blocks pair by number and, if both reports know it, by hash. A block
/// with several payloads in one report counts by their median.
pub fn compare(base: &Report, new: &Report, seed: u64) -> Comparison {
    let (base_blocks, new_blocks) = (by_block(base), by_block(new));
    let mut pairs = Vec::new();
    let mut different_blocks = 0;
    for (block, base) in &base_blocks {
        let Some(new) = new_blocks.get(block) else { continue };
        match same_hash(base, new) {
            Some((base, new)) => pairs.push(Pair { base, new }),
            None => different_blocks += 1,
        }
    }
    let time = figure(&pairs, Scale::Ratio, seed, |one| Some(one.payload_ns as f64));
    let named = |report: &Report| report.payloads.iter().filter(|one| key(one).is_some()).count();
    let paired_keys = base_blocks.keys().filter(|block| new_blocks.contains_key(*block)).count();
    Comparison {
        schema: "tandem.compare/1",
        seed,
        pairs: pairs.len(),
        unpaired: base_blocks.len() + new_blocks.len() - 2 * paired_keys,
        different_blocks,
        unnamed: [base, new].map(|report| report.payloads.len() - named(report)).iter().sum(),
        partial: base.partial || new.partial,
        overlap_verdicts: [base.verdict, new.verdict],
        verdict: time.as_ref().map(|time| time.verdict),
        new_payload_ns: time,
        overlap: figure(&pairs, Scale::MoreIsBetter, seed, |one| one.overlap),
        tail_ns: figure(&pairs, Scale::LessIsBetter, seed, |one| Some(one.tail_ns? as f64)),
        serialization: figure(&pairs, Scale::LessIsBetter, seed, |one| one.serialization),
        most_slower: most_slower(&pairs),
    }
}

/// Block by number, or by hash if there is no number.
type Key = (Option<u64>, Option<String>);

fn key(payload: &PayloadReport) -> Option<Key> {
    match (payload.block_number, &payload.block_hash) {
        (Some(number), _) => Some((Some(number), None)),
        (None, Some(hash)) => Some((None, Some(hash.to_lowercase()))),
        (None, None) => None,
    }
}

fn by_block(report: &Report) -> BTreeMap<Key, Vec<&PayloadReport>> {
    let mut blocks: BTreeMap<Key, Vec<&PayloadReport>> = BTreeMap::new();
    for payload in &report.payloads {
        if let Some(key) = key(payload) {
            blocks.entry(key).or_default().push(payload);
        }
    }
    blocks
}

type Payloads<'r> = Vec<&'r PayloadReport>;

/// Returns the payloads of a number that belong to one block. With forks a number has several
/// blocks. The first of the base's blocks that the other report also has is used.
fn same_hash<'r>(
    base: &[&'r PayloadReport],
    new: &[&'r PayloadReport],
) -> Option<(Payloads<'r>, Payloads<'r>)> {
    let agree = |a: &Option<String>, b: &Option<String>| match (a, b) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
        _ => true,
    };
    let of = |payloads: &[&'r PayloadReport], hash: &Option<String>| -> Payloads<'r> {
        payloads.iter().copied().filter(|one| agree(&one.block_hash, hash)).collect()
    };
    base.iter().map(|one| &one.block_hash).find_map(|hash| {
        let new = of(new, hash);
        (!new.is_empty()).then(|| (of(base, hash), new))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// New / base, less is better.
    Ratio,
    /// New − base.
    LessIsBetter,
    /// New − base.
    MoreIsBetter,
}

fn figure(
    pairs: &[Pair<'_>],
    scale: Scale,
    seed: u64,
    value: impl Fn(&PayloadReport) -> Option<f64>,
) -> Option<Figure> {
    let side = |payloads: &[&PayloadReport]| {
        median(payloads.iter().filter_map(|one| value(one)).collect())
    };
    let values: Vec<(f64, f64)> =
        pairs.iter().filter_map(|pair| side(&pair.base).zip(side(&pair.new))).collect();
    let change = |(base, new): &(f64, f64)| match scale {
        Scale::Ratio => (*base > 0.0).then(|| new / base),
        Scale::LessIsBetter | Scale::MoreIsBetter => Some(new - base),
    };
    let changes: Vec<Vec<f64>> =
        values.iter().map(|pair| change(pair).into_iter().collect()).collect();
    let change = Estimate::of(&changes, seed)?;
    let none = if scale == Scale::Ratio { 1.0 } else { 0.0 };
    let verdict = match (change.side_of(none), scale) {
        (Ordering::Equal, _) => Change::NoVisibleDifference,
        (Ordering::Less, Scale::MoreIsBetter) => Change::Worse,
        (Ordering::Greater, Scale::MoreIsBetter) | (Ordering::Less, _) => Change::Better,
        (Ordering::Greater, _) => Change::Worse,
    };
    Some(Figure {
        base: median(values.iter().map(|(base, _)| *base).collect())?,
        new: median(values.iter().map(|(_, new)| *new).collect())?,
        change,
        verdict,
    })
}

fn most_slower(pairs: &[Pair<'_>]) -> Vec<Slower> {
    let length = |payloads: &[&PayloadReport]| {
        median(payloads.iter().map(|one| one.payload_ns as f64).collect())
    };
    let mut slower: Vec<Slower> = pairs
        .iter()
        .filter_map(|pair| {
            let (base, new) = length(&pair.base).zip(length(&pair.new))?;
            let last = pair.new.last()?;
            (base > 0.0 && new > base).then(|| Slower {
                block_number: last.block_number,
                block_hash: last.block_hash.clone(),
                ratio: new / base,
                trace_id: last.trace_id,
            })
        })
        .collect();
    slower.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    slower.truncate(WORST);
    slower
}
