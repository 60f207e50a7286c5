//! The answer on all payloads together: distributions, totals, the worst ones, and the verdict.

use std::fmt;

use serde::Serialize;

use crate::aggregate::{Aggregate, Options};
use crate::analyze::{PayloadDetail, PayloadReport};
use crate::clocks::{Clock, Skew};
use crate::filter::Filter;
use crate::model::{Input, Problems, TraceId};
use crate::select::Selection;
use crate::stats;

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

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Version of this structure: `tandem.overlap/1`. Fields may be added under the same version.
    pub schema: &'static str,
    /// What was looked for.
    pub selection: Selection,
    /// Which payloads count.
    pub filter: Filter,
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
    /// Payloads that the filter left out.
    pub filtered: usize,
    /// The numbers over all payloads.
    pub summary: Summary,
    /// Where Jaeger shows traces, if that is known.
    pub jaeger_ui: Option<String>,
    /// Trace ids of the payloads with the least overlap, the worst first.
    pub worst: Vec<TraceId>,
    /// Their pages in Jaeger, where one is known.
    pub worst_urls: Vec<Option<String>>,
    /// Trace ids of the payloads that took longest, the slowest first.
    pub slowest: Vec<TraceId>,
    /// Their pages in Jaeger, where one is known.
    pub slowest_urls: Vec<Option<String>>,
    /// Queue gaps, the largest median first.
    pub queue_gaps: Vec<QueueGap>,
    /// Clock skew between services, where there is evidence of it.
    pub skew: Vec<Skew>,
    /// What is known of the clocks of hosts, compared with that of most payloads.
    pub clocks: Vec<Clock>,
    /// Every payload, in order of start.
    pub payloads: Vec<PayloadReport>,
    /// Of each payload, where it is shown.
    #[serde(skip)]
    pub(crate) details: Vec<Option<PayloadDetail>>,
}

impl Report {
    /// The median overlap, the number that `--fail-under` compares.
    pub fn median_overlap(&self) -> Option<f64> {
        self.summary.overlap.map(|overlap| overlap.p50)
    }
}

/// Analyses the youngest `limit` payloads of `input`.
pub fn analyze(input: Input, selection: &Selection, limit: usize) -> Report {
    analyze_with(input, Options::new(selection.clone(), limit))
}

/// As [`analyze`], with more to choose.
pub fn analyze_with(input: Input, options: Options) -> Report {
    let mut aggregate = Aggregate::new(options);
    aggregate.add(input.spans);
    aggregate.finish(input.problems)
}
