//! Did a change move anything beyond noise? Two reports on the same blocks, paired block by block.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::analyze::PayloadReport;
use crate::model::TraceId;
use crate::report::{Report, Verdict};
use crate::stats::{Estimate, median};

/// Blocks named in [`Comparison::most_slower`].
const WORST: usize = 5;

/// The answer on one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The interval lies on the better side of no change.
    Better,
    /// It lies on the worse side.
    Worse,
    /// It includes no change, or there are too few blocks to say.
    NoVisibleDifference,
}

impl Change {
    /// The answer in words, on a time.
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

/// One figure over all pairs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the base's values.
    pub base: f64,
    /// Median of the new ones.
    pub new: f64,
    /// Median and 95 % interval of new / base or of new − base, pair by pair.
    pub change: Estimate,
    /// The answer.
    pub verdict: Change,
}

/// How a base and something new differ on the blocks that both have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Version of this structure: `tandem.compare/1`. Fields may be added under the same version.
    pub schema: &'static str,
    /// The seed of the bootstrap: the same inputs and seed give the same intervals.
    pub seed: u64,
    /// Blocks in both, each compared once, by the medians of its payloads.
    pub pairs: usize,
    /// Blocks that only one of the two has.
    pub unpaired: usize,
    /// Numbers under which the two have blocks of different hashes.
    pub different_blocks: usize,
    /// Payloads that do not say their block.
    pub unnamed: usize,
    /// One of the reports is a partial answer.
    pub partial: bool,
    /// The verdicts on overlap of base and new, each alone.
    pub overlap_verdicts: [Option<Verdict>; 2],
    /// Length of the payload, new / base; below 1 is better.
    pub new_payload_ns: Option<Figure>,
    /// Overlap, new − base; above 0 is better.
    pub overlap: Option<Figure>,
    /// Tail, new − base in nanoseconds; below 0 is better.
    pub tail_ns: Option<Figure>,
    /// Serialization, new − base; below 0 is better.
    pub serialization: Option<Figure>,
    /// The answer: that on the length of the payload. Absent without a pair.
    pub verdict: Option<Change>,
    /// The pairs that became slower most, the worst first.
    pub most_slower: Vec<Slower>,
}

/// A block that takes longer than before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slower {
    /// Its number.
    pub block_number: Option<u64>,
    /// Its hash.
    pub block_hash: Option<String>,
    /// Length of the payload, new / base.
    pub ratio: f64,
    /// Trace of the new payload, or the last of several.
    pub trace_id: TraceId,
}

/// One block of both.
struct Pair<'r> {
    base: Vec<&'r PayloadReport>,
    new: Vec<&'r PayloadReport>,
}

/// Compares `new` with `base`: blocks of the same number and, where both say it, the same hash. A
/// block that one has several payloads of counts by their median.
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

/// A block by number, or by hash where there is no number.
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

/// Those payloads of a number that are of one block. With forks a number has several: the first of
/// the base's that the other one has too.
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
    /// New / base, of which less is better.
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
