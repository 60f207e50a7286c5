//! Overlap of a payload: whether execution and state root went on at the same time. It becomes
//! attributes of the payload's span and metrics. `tandem overlap` computes the same from the spans.

use crate::metrics as names;
use metrics::{counter, histogram};
use std::{num::NonZero, sync::LazyLock, thread::available_parallelism, time::Duration};
use tandem_proto::multiproof::ProofStats;
use tandem_telemetry::union_of_intervals;
use tandem_verdict::{Thresholds, Verdict};
use tracing::Span;

/// Number of processors that this process may use. Finding it out reads files.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));

/// Times of the workers on one payload.
#[derive(Default, Debug)]
pub(super) struct Work {
    /// Times at which any worker was busy, in any order.
    times: Vec<(u64, u64)>,
    /// Sum of the workers' busy times, and the part of it that was in vain.
    busy: Duration,
    wasted: Duration,
}

impl Work {
    /// Adds the times of an answer.
    pub fn add(&mut self, times: Vec<(u64, u64)>, stats: &ProofStats) {
        self.times.extend(times);
        self.busy += stats.busy;
        self.wasted += stats.wasted;
    }

    /// Returns the part of the workers' time that was in vain.
    fn wasted_share(&self) -> f64 {
        let busy = self.busy.as_secs_f64();
        if busy > 0.0 { (self.wasted.as_secs_f64() / busy).min(1.0) } else { 0.0 }
    }
}

/// Times of one payload, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Overlap {
    /// Time of execution: side A.
    a_ns: u64,
    /// Time in which any worker was busy, without wasted work: side B.
    b_ns: u64,
    /// Time in which workers did work whose results were thrown away.
    wasted_ns: u64,
    /// Time of both at once, which the payload would have taken longer one after the other.
    both_ns: u64,
    /// Time from the last transaction to the root.
    tail_ns: u64,
    /// Time from the first to the last instant at which either side was busy.
    wall_ns: u64,
    /// Time from the begin of execution to the root.
    all_ns: u64,
}

impl Overlap {
    /// Returns the times of a payload whose root was known at `root_ns`. `executing` are the times
    /// at which it was executed, in any order.
    pub fn of(executing: Vec<(u64, u64)>, work: Work, root_ns: u64) -> Self {
        let wasted = work.wasted_share();
        let until_root = |intervals: Vec<(u64, u64)>| {
            let mut union = union_of_intervals(intervals);
            union.retain_mut(|(start, end)| {
                *end = (*end).min(root_ns);
                start < end
            });
            union
        };
        let (a, b) = (until_root(executing), until_root(work.times));
        let hull = |of: &[(u64, u64)]| Some((of.first()?.0, of.last()?.1));
        let (begin, end) = hull(&a).unwrap_or((root_ns, root_ns));
        let (first, last) = hull(&b).unwrap_or((begin, end));
        let (a_ns, b_ns) = (total(&a), total(&b));
        let both_ns = a_ns + b_ns - total(&union_of_intervals([a, b].concat()));
        // Work that is wasted was done ahead, while transactions were executed.
        let wasted_ns = ((b_ns as f64 * wasted) as u64).min(both_ns);
        Self {
            a_ns,
            b_ns: b_ns - wasted_ns,
            wasted_ns,
            both_ns: both_ns - wasted_ns,
            tail_ns: root_ns - end,
            wall_ns: end.max(last) - begin.min(first),
            all_ns: root_ns - begin,
        }
    }

    /// Returns the share of the shorter side's time in which the other side was busy too, or `None`
    /// when a side has no work.
    fn share(&self) -> Option<f64> {
        let shorter = self.a_ns.min(self.b_ns);
        (shorter > 0).then(|| self.both_ns as f64 / shorter as f64)
    }

    /// Records the figures on the span of the payload.
    pub fn record(&self, span: &Span) {
        span.record("processors", *PROCESSORS as u64);
        span.record("overlap.a_us", self.a_ns / 1_000);
        span.record("overlap.b_us", self.b_ns / 1_000);
        span.record("overlap.wasted_us", self.wasted_ns / 1_000);
        span.record("overlap.tail_us", self.tail_ns / 1_000);
        span.record("overlap.saved_us", self.both_ns / 1_000);
        let Some(share) = self.share() else { return };
        span.record("overlap.percent", (share * 100.0).round() as u64);
        if let Some(verdict) = self.verdict(*PROCESSORS) {
            span.record("overlap.verdict", verdict.word());
        }
    }

    /// Counts the figures in the metrics of valid payloads.
    pub fn count(&self) {
        let times = [
            ("execution", self.a_ns),
            ("state_root", self.b_ns),
            ("wasted", self.wasted_ns),
            ("both", self.both_ns),
            ("shorter", self.a_ns.min(self.b_ns)),
            ("tail", self.tail_ns),
            ("payload", self.all_ns),
        ];
        for (time, ns) in times {
            counter!(names::OVERLAP_MICROSECONDS, "of" => time).increment(ns / 1_000);
        }
        let (Some(reached), Some(weight)) = (self.reached(), self.weight()) else { return };
        histogram!(names::OVERLAP_REACHED).record(reached);
        histogram!(names::OVERLAP_WEIGHT).record(weight);
        if let Some(tail) = self.tail() {
            histogram!(names::OVERLAP_TAIL).record(tail);
        }
        if let Some(verdict) = self.verdict(*PROCESSORS) {
            counter!(names::OVERLAP_VERDICTS, "verdict" => verdict.word()).increment(1);
        }
    }

    /// Returns the part of the possible gain that was reached.
    fn reached(&self) -> Option<f64> {
        let gained = (self.a_ns + self.b_ns).saturating_sub(self.wall_ns);
        Some(ratio(gained, self.a_ns.min(self.b_ns))?.min(1.0))
    }

    /// Returns the part of the payload that overlapping can save at most.
    fn weight(&self) -> Option<f64> {
        ratio(self.a_ns.min(self.b_ns), self.all_ns)
    }

    fn tail(&self) -> Option<f64> {
        ratio(self.tail_ns, self.all_ns)
    }

    /// Returns the verdict on a payload with work on both sides, on a machine with so many
    /// processors for this process. On a single one the sides took turns.
    fn verdict(&self, processors: usize) -> Option<Verdict> {
        let proved = (processors == 1).then_some(0.0);
        Thresholds::default().verdict(self.reached(), self.weight(), self.tail(), proved)
    }
}

fn total(union: &[(u64, u64)]) -> u64 {
    union.iter().map(|(start, end)| end - start).sum()
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_useful(times: Vec<(u64, u64)>) -> Work {
        Work { times, ..Work::default() }
    }

    #[test]
    fn work_counts_once_and_only_until_the_root() {
        let work = vec![(150, 250), (50, 120), (100, 130), (250, 400)];
        let overlap = Overlap::of(vec![(100, 200)], all_useful(work), 300);
        let expected = Overlap {
            a_ns: 100,
            b_ns: 230,
            wasted_ns: 0,
            both_ns: 80,
            tail_ns: 100,
            wall_ns: 250,
            all_ns: 200,
        };
        assert_eq!(overlap, expected);
        assert_eq!(overlap.share(), Some(0.8));
    }

    #[test]
    fn wasted_work_is_no_part_of_the_overlap() {
        // A fifth of the workers' 100 was in vain: 30 of the 80 that are left were hidden.
        let of = |wasted| {
            let mut work = Work::default();
            let [busy, wasted] = [500, wasted].map(Duration::from_nanos);
            work.add(vec![(50, 150)], &ProofStats { busy, wasted, ..ProofStats::default() });
            Overlap::of(vec![(0, 100)], work, 150)
        };
        let overlap = of(100);
        assert_eq!((overlap.b_ns, overlap.wasted_ns, overlap.both_ns), (80, 20, 30));
        assert_eq!((overlap.share(), overlap.reached()), (Some(0.375), Some(0.375)));
        assert_eq!(of(0).share(), Some(0.5));
        assert_eq!((of(500).b_ns, of(500).both_ns), (50, 0), "no more than was hidden");
    }

    #[test]
    fn verdict_is_missing_without_work() {
        let verdict = |work, root, processors| {
            Overlap::of(vec![(0, 800)], all_useful(vec![work]), root).verdict(processors)
        };
        assert_eq!(verdict((100, 500), 820, 2), Some(Verdict::Parallel));
        assert_eq!(verdict((100, 500), 820, 1), Some(Verdict::Concurrent));
        assert_eq!(verdict((100, 500), 900, 2), Some(Verdict::Partial), "the answer waits");
        assert_eq!(verdict((600, 1_000), 1_000, 2), Some(Verdict::Partial));
        assert_eq!(verdict((750, 1_150), 1_150, 2), Some(Verdict::Sequential));
        assert_eq!(verdict((100, 150), 800, 2), Some(Verdict::NothingToGain));
        for [executing, work] in [[vec![(100, 200)], vec![]], [vec![], vec![(100, 200)]]] {
            let overlap = Overlap::of(executing, all_useful(work), 300);
            assert_eq!((overlap.share(), overlap.verdict(2)), (None, None));
        }
    }

    #[test]
    fn sides_that_wait_for_each_other_are_sequential() {
        // Execution waits for room in the worker's queue, and the worker for the next update.
        let turns = |from: u64| (from..1_000).step_by(100).map(|at| (at, at + 50)).collect();
        let overlap = Overlap::of(turns(0), all_useful(turns(50)), 1_000);
        assert_eq!((overlap.both_ns, overlap.a_ns, overlap.b_ns), (0, 500, 500));
        assert_eq!(overlap.verdict(2), Some(Verdict::Sequential));
    }
}
