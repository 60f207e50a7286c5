//! All payloads together: distributions, totals, the worst ones, and the verdict.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Serialize;

use crate::analyze::{PayloadDetail, PayloadReport, analyze_payload, ratio};
use crate::model::{Input, Problems, TraceId};
use crate::payloads::Index;
use crate::select::Selection;

/// Payloads named in [`Report::worst`].
const WORST: usize = 5;
/// Clock readings of one machine may differ by this much between formats that round to microseconds.
const SKEW_TOLERANCE_NS: u64 = 2_000;

/// Did the two sides run at the same time?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The shorter side hides behind the longer one: total time ≈ the longer side.
    Parallel,
    /// Something in between.
    Partial,
    /// One side waits for the other: total time ≈ the sum.
    Sequential,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Parallel => "PARALLEL",
            Self::Partial => "PARTIAL",
            Self::Sequential => "SEQUENTIAL",
        })
    }
}

/// The bounds between the verdicts, on the overlap.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Thresholds {
    /// At least this is [`Verdict::Parallel`].
    pub parallel: f64,
    /// Below this is [`Verdict::Sequential`].
    pub sequential: f64,
}

impl Default for Thresholds {
    /// 0.80 is what the project demands of blocks with work on both sides. Below 0.30 more than 70 %
    /// of the shorter side adds to the block time; the pipeline that lost its parallelism in the
    /// published regression (309 ms and 321 ms of work in 555 ms) had 0.24.
    fn default() -> Self {
        Self { parallel: 0.80, sequential: 0.30 }
    }
}

impl Thresholds {
    /// The verdict on an overlap.
    pub fn verdict(&self, overlap: f64) -> Verdict {
        if overlap >= self.parallel {
            Verdict::Parallel
        } else if overlap >= self.sequential {
            Verdict::Partial
        } else {
            Verdict::Sequential
        }
    }
}

/// Some numbers in one line. Quantiles are interpolated linearly between the nearest two values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// How many values.
    pub n: usize,
    /// Smallest.
    pub min: f64,
    /// 5th percentile.
    pub p5: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// The distribution of `values`; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let quantile = |q: f64| {
            let at = q * (values.len() - 1) as f64;
            let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
            below + (above - below) * at.fract()
        };
        Some(Self {
            n: values.len(),
            min: *values.first()?,
            p5: quantile(0.05),
            p50: quantile(0.50),
            p95: quantile(0.95),
            max: *values.last()?,
        })
    }
}

/// All analysed payloads in numbers. A distribution is absent when no payload has the value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Overlap on busy time.
    pub overlap: Option<Distribution>,
    /// Overlap of whole spans.
    pub container_overlap: Option<Distribution>,
    /// Serialization.
    pub serialization: Option<Distribution>,
    /// Length of the root.
    pub payload_ns: Option<Distribution>,
    /// |A|.
    pub a_ns: Option<Distribution>,
    /// |B|.
    pub b_ns: Option<Distribution>,
    /// How much later B began.
    pub b_lag_ns: Option<Distribution>,
    /// Tail after the last transaction.
    pub tail_ns: Option<Distribution>,
    /// The same as a part of the payload.
    pub tail_share: Option<Distribution>,
    /// Sums over all payloads with work on both sides.
    pub total: Totals,
}

/// Sums in nanoseconds over the payloads with work on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Totals {
    /// Σ wall.
    pub wall_ns: u64,
    /// Σ |A|.
    pub a_ns: u64,
    /// Σ |B|.
    pub b_ns: u64,
    /// Σ |A∩B|.
    pub both_ns: u64,
    /// Σ wall in which neither side is busy.
    pub neither_ns: u64,
    /// Σ|A∩B| / Σ min(|A|,|B|): the overlap weighted by work, in which tiny blocks count little.
    pub overlap: Option<f64>,
}

/// Time between "ready in a queue" and "taken from it", by the name of the span that took it: from
/// `queue.ready_unix_nano` to its start, or else `queue_wait_us`, the longest wait it counted itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueGap {
    /// Name of the consuming spans.
    pub name: String,
    /// Gaps in nanoseconds.
    pub gap_ns: Distribution,
}

/// Clocks of two services that cannot both be right: spans that start before their parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skew {
    /// Service of the parents.
    pub parent_service: String,
    /// Service of the children.
    pub child_service: String,
    /// The child's clock is behind by at least this much.
    pub at_least_ns: u64,
    /// Parent and child pairs between the two services.
    pub pairs: u64,
    /// Pairs in which the child starts first.
    pub violations: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of this structure: `tandem.overlap/1`. Fields may be added under the same version.
    pub schema: &'static str,
    /// What was looked for.
    pub selection: Selection,
    /// The bounds of the verdicts.
    pub thresholds: Thresholds,
    /// The verdict on the median overlap; absent when no payload has work on both sides.
    pub verdict: Option<Verdict>,
    /// Something is missing: damaged input, or payloads with spans whose parent is not there.
    pub partial: bool,
    /// What was wrong with the input.
    pub problems: Problems,
    /// Things to know when reading the numbers, in words.
    pub notes: Vec<String>,
    /// Spans in the input.
    pub spans: usize,
    /// Traces in the input without a root span.
    pub other_traces: usize,
    /// The numbers over all payloads.
    pub summary: Summary,
    /// Trace ids of the payloads with the least overlap, the worst first.
    pub worst: Vec<TraceId>,
    /// Queue gaps, the largest median first.
    pub queue_gaps: Vec<QueueGap>,
    /// Clock skew between services, where there is evidence of it.
    pub skew: Vec<Skew>,
    /// Every payload, in order of start.
    pub payloads: Vec<PayloadReport>,
    #[serde(skip)]
    pub(crate) details: Vec<PayloadDetail>,
}

impl Report {
    /// The median overlap, the number that `--fail-under` compares.
    pub fn median_overlap(&self) -> Option<f64> {
        self.summary.overlap.map(|overlap| overlap.p50)
    }
}

/// Analyses the youngest `limit` payloads of `input`.
pub fn analyze(input: &Input, selection: &Selection, limit: usize) -> Report {
    let thresholds = Thresholds::default();
    let index = Index::new(&input.spans);
    let mut found = index.payloads(selection);
    let roots: HashSet<TraceId> =
        found.iter().map(|payload| input.spans[payload.root].trace_id).collect();
    let traces: HashSet<TraceId> = input.spans.iter().map(|span| span.trace_id).collect();
    found.drain(..found.len().saturating_sub(limit));
    let (payloads, details): (Vec<_>, Vec<_>) = found
        .iter()
        .map(|payload| analyze_payload(&index, payload, selection, &thresholds))
        .unzip();
    let summary = summarize(&payloads);
    let members = details.iter().flat_map(|detail| &detail.members);
    let members: HashSet<usize> = members.copied().collect();
    let mut report = Report {
        schema: "tandem.overlap/1",
        selection: selection.clone(),
        thresholds,
        verdict: summary.overlap.map(|overlap| thresholds.verdict(overlap.p50)),
        partial: input.problems.lost_something() || payloads.iter().any(|one| one.orphans > 0),
        problems: input.problems.clone(),
        notes: Vec::new(),
        spans: input.spans.len(),
        other_traces: traces.difference(&roots).count(),
        worst: worst(&payloads),
        queue_gaps: queue_gaps(&index, &members),
        skew: skew(&index, &members),
        summary,
        payloads,
        details,
    };
    report.notes = notes(&report);
    report
}

fn summarize(payloads: &[PayloadReport]) -> Summary {
    let over = |value: fn(&PayloadReport) -> Option<f64>| {
        Distribution::of(payloads.iter().filter_map(value))
    };
    let mut total = Totals::default();
    let mut shorter = 0;
    for payload in payloads.iter().filter(|payload| payload.overlap.is_some()) {
        total.wall_ns += payload.wall_ns;
        total.a_ns += payload.a_ns;
        total.b_ns += payload.b_ns;
        total.both_ns += payload.both_ns;
        total.neither_ns += payload.neither_ns;
        shorter += payload.a_ns.min(payload.b_ns);
    }
    total.overlap = ratio(total.both_ns, shorter);
    Summary {
        overlap: over(|one| one.overlap),
        container_overlap: over(|one| one.container_overlap),
        serialization: over(|one| one.serialization),
        payload_ns: over(|one| Some(one.payload_ns as f64)),
        a_ns: over(|one| Some(one.a_ns as f64)),
        b_ns: over(|one| Some(one.b_ns as f64)),
        b_lag_ns: over(|one| one.b_lag_ns.map(|ns| ns as f64)),
        tail_ns: over(|one| one.tail_ns.map(|ns| ns as f64)),
        tail_share: over(|one| one.tail_share),
        total,
    }
}

fn worst(payloads: &[PayloadReport]) -> Vec<TraceId> {
    let mut order: Vec<(f64, TraceId)> =
        payloads.iter().filter_map(|one| Some((one.overlap?, one.trace_id))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.into_iter().take(WORST).map(|(_, trace_id)| trace_id).collect()
}

fn queue_gaps(index: &Index<'_>, members: &HashSet<usize>) -> Vec<QueueGap> {
    let mut gaps: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for at in members {
        let span = &index.spans[*at];
        let number = |key: &str| span.attribute(key).and_then(|value| value.as_u64());
        let gap_ns = match number("queue.ready_unix_nano") {
            Some(ready) => Some(span.start_ns.saturating_sub(ready)),
            None => number("queue_wait_us").map(|us| us.saturating_mul(1_000)),
        };
        if let Some(gap_ns) = gap_ns {
            gaps.entry(&span.name).or_default().push(gap_ns as f64);
        }
    }
    let mut gaps: Vec<QueueGap> = gaps
        .into_iter()
        .filter_map(|(name, gaps)| {
            Some(QueueGap { name: name.to_owned(), gap_ns: Distribution::of(gaps)? })
        })
        .collect();
    gaps.sort_by(|a, b| b.gap_ns.p50.total_cmp(&a.gap_ns.p50));
    gaps
}

/// A child cannot start before its parent. Where it seems to, the clocks differ by at least the
/// largest such lead. (The ends say nothing: work may outlive the request that started it.)
fn skew(index: &Index<'_>, members: &HashSet<usize>) -> Vec<Skew> {
    let mut pairs: BTreeMap<(&str, &str), (u64, u64, u64)> = BTreeMap::new();
    for &at in members {
        let Some(parent) = index.parent(at).map(|parent| &index.spans[parent]) else { continue };
        let child = &index.spans[at];
        if parent.service == child.service {
            continue;
        }
        let (pairs, violations, most) = pairs.entry((&parent.service, &child.service)).or_default();
        let lead = parent.start_ns.saturating_sub(child.start_ns);
        *pairs += 1;
        if lead > SKEW_TOLERANCE_NS {
            *violations += 1;
            *most = (*most).max(lead);
        }
    }
    pairs
        .into_iter()
        .filter(|(_, (_, violations, _))| *violations > 0)
        .map(|((parent, child), (pairs, violations, at_least_ns))| Skew {
            parent_service: parent.to_owned(),
            child_service: child.to_owned(),
            at_least_ns,
            pairs,
            violations,
        })
        .collect()
}

fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let count =
        |test: fn(&PayloadReport) -> bool| report.payloads.iter().filter(|one| test(one)).count();
    if report.payloads.is_empty() {
        notes.push(format!(
            "no span is named `{}`: nothing to analyse in {} spans of {} traces",
            report.selection.root, report.spans, report.other_traces
        ));
    }
    let mut note = |n: usize, what: String| {
        if n > 0 {
            notes.push(format!("{n} {what}"));
        }
    };
    let (a, b) = (report.selection.a.label(), report.selection.b.label());
    note(count(|one| one.a_ns == 0), format!("payloads without work on side A ({a})"));
    note(count(|one| one.b_ns == 0), format!("payloads without work on side B ({b})"));
    note(
        report.payloads.iter().map(|one| one.whole_spans).sum(),
        "spans without busy intervals counted for their whole length; if they are containers, the \
         overlap is an upper bound"
            .to_owned(),
    );
    note(
        report.payloads.iter().map(|one| one.orphans).sum(),
        "spans whose parent is missing (still open, dropped, or in another file)".to_owned(),
    );
    for skew in &report.skew {
        notes.push(format!(
            "clocks differ: spans of {} start up to {:.3} ms before their parent in {} ({} of {} pairs)",
            skew.child_service,
            skew.at_least_ns as f64 / 1e6,
            skew.parent_service,
            skew.violations,
            skew.pairs
        ));
    }
    notes
}
