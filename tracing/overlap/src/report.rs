//! Result over all payloads: distributions, totals, the worst payloads, and the verdict.

use serde::Serialize;
use tandem_verdict::{Thresholds, Verdict};

use crate::aggregate::{Aggregate, Options};
use crate::analyze::{PayloadDetail, PayloadReport};
use crate::clocks::{Clock, Skew};
use crate::filter::Filter;
use crate::model::{Input, Problems, TraceId};
use crate::select::Selection;
use crate::stats;
use crate::what_if::StageGain;

/// Distribution of values. Quantiles are interpolated linearly between the nearest two values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of values.
    pub n: usize,
    /// Smallest value.
    pub min: f64,
    /// 5th percentile.
    pub p5: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest value.
    pub max: f64,
}

impl Distribution {
    /// Returns the distribution of `values`, or `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            n: values.len(),
            min: *values.first()?,
            p5: stats::quantile(&values, 0.05)?,
            p50: stats::quantile(&values, 0.50)?,
            p95: stats::quantile(&values, 0.95)?,
            max: *values.last()?,
        })
    }
}

/// Figures over all analysed payloads. A distribution is absent when no payload has the value.
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
    /// Distribution of |A|.
    pub a_ns: Option<Distribution>,
    /// Distribution of |B|.
    pub b_ns: Option<Distribution>,
    /// Work of B whose results were thrown away; it is no part of |B|.
    pub wasted_ns: Option<Distribution>,
    /// Delay of the start of B after the start of A.
    pub b_lag_ns: Option<Distribution>,
    /// Tail after the last transaction.
    pub tail_ns: Option<Distribution>,
    /// Tail as a part of the payload.
    pub tail_share: Option<Distribution>,
    /// Overlap to expect by chance.
    pub chance: Option<Distribution>,
    /// (|A| + |B|) / wall.
    pub gain: Option<Distribution>,
    /// Part of the possible gain that was reached.
    pub reached: Option<Distribution>,
    /// |B| / |A|.
    pub b_per_a: Option<Distribution>,
    /// Largest over mean busy time of the workers.
    pub imbalance: Option<Distribution>,
    /// Part of the payload that overlapping can save at most.
    pub weight: Option<Distribution>,
    /// Processor time of the threads as a part of their busy time.
    pub cpu_share: Option<Distribution>,
    /// Part of the overlap that processor time proves.
    pub proved: Option<Distribution>,
    /// Time that overlapping saved, and could still save, of payloads with work on both sides.
    pub saved_ns: Option<Distribution>,
    /// See `saved_ns`.
    pub could_save_ns: Option<Distribution>,
    /// Part of the tail in which side B was busy, and in which it was not.
    pub tail_busy_ns: Option<Distribution>,
    /// See `tail_busy_ns`.
    pub tail_waiting_ns: Option<Distribution>,
    /// Sums over all payloads with work on both sides.
    pub total: Totals,
}

/// Sums over the payloads with work on both sides, times in nanoseconds.
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
    /// Σ of the parts of the wall in which neither side is busy.
    pub neither_ns: u64,
    /// Σ|A∩B| / Σ min(|A|,|B|): the overlap weighted by work, in which tiny blocks count little.
    pub overlap: Option<f64>,
}

/// Time from "ready in a queue" to "taken from it", by the name of the consuming span. It runs from
/// `queue.ready_unix_nano` to the start of the span. Without that attribute it is `queue_wait_us`,
/// the longest wait that the span counted itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueGap {
    /// Name of the consuming spans.
    pub name: String,
    /// Gaps in nanoseconds.
    pub gap_ns: Distribution,
}

/// Result of the analysis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of this structure: `tandem.overlap/1`. Fields may be added under the same version.
    pub schema: &'static str,
    /// Names of the spans to look for.
    pub selection: Selection,
    /// Filter of the payloads that count.
    pub filter: Filter,
    /// Bounds of the verdicts.
    pub thresholds: Thresholds,
    /// Verdict on the medians of payloads without doubts. Absent when no payload has work on both
    /// sides, or half of those that do have doubts.
    pub verdict: Option<Verdict>,
    /// Whether something is missing: the input is damaged, or payloads have spans without their
    /// parent.
    pub partial: bool,
    /// Problems of the input.
    pub problems: Problems,
    /// Notes that help to read the numbers, in words.
    pub notes: Vec<String>,
    /// Number of spans in the input.
    pub spans: usize,
    /// Number of traces in the input without a root span.
    pub other_traces: usize,
    /// Number of payloads that the filter left out.
    pub filtered: usize,
    /// Figures over all payloads.
    pub summary: Summary,
    /// Address at which Jaeger shows traces, if known.
    pub jaeger_ui: Option<String>,
    /// Trace ids of the payloads with the least overlap, the worst first.
    pub worst: Vec<TraceId>,
    /// Pages of the worst payloads in Jaeger, if known.
    pub worst_urls: Vec<Option<String>>,
    /// Trace ids of the payloads that took longest, the slowest first.
    pub slowest: Vec<TraceId>,
    /// Pages of the slowest payloads in Jaeger, if known.
    pub slowest_urls: Vec<Option<String>>,
    /// Queue gaps, the largest median first.
    pub queue_gaps: Vec<QueueGap>,
    /// Gains of faster stages, the largest first; empty unless wanted ([`Options::what_if`]).
    pub what_if: Vec<StageGain>,
    /// Clock skew between services, if there is evidence of it.
    pub skew: Vec<Skew>,
    /// Known facts on the clocks of hosts, compared with the clock of the host with most payloads.
    pub clocks: Vec<Clock>,
    /// All payloads, in order of start.
    pub payloads: Vec<PayloadReport>,
    /// Details of each payload that is shown.
    #[serde(skip)]
    pub(crate) details: Vec<Option<PayloadDetail>>,
    /// Number of processes that made the payloads, as far as they say which they are.
    #[serde(skip)]
    pub(crate) processes: usize,
    /// Number of payloads that say that side B worked, without any of its spans.
    #[serde(skip)]
    pub(crate) lost_sides: usize,
    /// Maximum number of payloads.
    #[serde(skip)]
    pub(crate) limit: usize,
}

impl Report {
    /// Returns the median overlap, the number that `--fail-under` compares, or `None` without a
    /// verdict.
    pub fn median_overlap(&self) -> Option<f64> {
        self.verdict.and(self.summary.overlap).map(|overlap| overlap.p50)
    }
}

/// Analyses the `limit` youngest payloads of `input`.
pub fn analyze(input: Input, selection: &Selection, limit: usize) -> Report {
    analyze_with(input, Options::new(selection.clone(), limit))
}

/// Analyses `input` as [`analyze`] does, with more options.
pub fn analyze_with(input: Input, options: Options) -> Report {
    let mut aggregate = Aggregate::new(options);
    aggregate.add(input.spans);
    aggregate.finish(input.problems)
}
