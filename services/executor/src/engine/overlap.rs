//! Figures of a payload's overlap, as attributes of its span: whether execution and state root went on
//! at the same time. `tandem overlap` computes the same from the spans.

use std::{num::NonZero, sync::LazyLock, thread::available_parallelism};
use tracing::Span;

/// Part of the possible gain from which a payload counts as parallel, and below which it counts as
/// sequential. These bounds are those of `tandem overlap`.
const PARALLEL: f64 = 0.8;
const SEQUENTIAL: f64 = 0.3;
/// Largest tail of a parallel payload, as a part of its time.
const TAIL: f64 = 0.1;
/// Part of the payload's time under which the shorter side is not worth hiding.
const WEIGHT: f64 = 0.1;

/// Number of processors that this process may use. Finding it out reads files.
static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));

/// Times of one payload, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Overlap {
    /// Time of execution: side A.
    a_ns: u64,
    /// Time in which any worker was busy: side B.
    b_ns: u64,
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
    /// Returns the times of a payload that was executed in the interval `executing`, whose root was
    /// known at `root_ns`. `work` are the times at which any worker was busy, in any order.
    pub fn of(executing: (u64, u64), work: &[(u64, u64)], root_ns: u64) -> Self {
        let (begin, end) = executing;
        let mut work = work.to_vec();
        work.sort_unstable();
        let (mut b_ns, mut both_ns, mut at) = (0, 0, 0);
        let (mut first, mut last) = (begin, end);
        for (start, stop) in work {
            let (start, stop) = (start.max(at), stop.min(root_ns));
            at = at.max(stop);
            b_ns += stop.saturating_sub(start);
            if start < stop {
                (first, last) = (first.min(start), last.max(stop));
            }
            both_ns += stop.min(end).saturating_sub(start.max(begin));
        }
        Self {
            a_ns: end.saturating_sub(begin),
            b_ns,
            both_ns,
            tail_ns: root_ns.saturating_sub(end),
            wall_ns: last.saturating_sub(first),
            all_ns: root_ns.saturating_sub(begin),
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
        span.record("overlap.tail_us", self.tail_ns / 1_000);
        span.record("overlap.saved_us", self.both_ns / 1_000);
        let Some(share) = self.share() else { return };
        span.record("overlap.percent", (share * 100.0).round() as u64);
        span.record("overlap.verdict", self.verdict(*PROCESSORS));
    }

    /// Returns the verdict on a payload with work on both sides, on a machine with so many
    /// processors for this process.
    fn verdict(&self, processors: usize) -> &'static str {
        let shorter = self.a_ns.min(self.b_ns) as f64;
        let reached = (self.a_ns + self.b_ns).saturating_sub(self.wall_ns) as f64 / shorter;
        if shorter < WEIGHT * self.all_ns as f64 {
            "NOTHING_TO_GAIN"
        } else if reached < SEQUENTIAL {
            "SEQUENTIAL"
        } else if reached < PARALLEL || self.tail_ns as f64 > TAIL * self.all_ns as f64 {
            "PARTIAL"
        } else if processors == 1 {
            "CONCURRENT"
        } else {
            "PARALLEL"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_once_and_only_until_the_root() {
        let work = [(150, 250), (50, 120), (100, 130), (250, 400)];
        let overlap = Overlap::of((100, 200), &work, 300);
        let [wall_ns, all_ns] = [250, 200];
        let expected = Overlap { a_ns: 100, b_ns: 230, both_ns: 80, tail_ns: 100, wall_ns, all_ns };
        assert_eq!(overlap, expected);
        assert_eq!(overlap.share(), Some(0.8));
    }

    #[test]
    fn verdict_is_a_word_and_missing_without_work() {
        let verdict =
            |work, root, processors| Overlap::of((0, 800), &[work], root).verdict(processors);
        assert_eq!(verdict((100, 500), 820, 2), "PARALLEL");
        assert_eq!(verdict((100, 500), 820, 1), "CONCURRENT");
        assert_eq!(verdict((100, 500), 900, 2), "PARTIAL", "the answer waits");
        assert_eq!(verdict((600, 1_000), 1_000, 2), "PARTIAL");
        assert_eq!(verdict((750, 1_150), 1_150, 2), "SEQUENTIAL");
        assert_eq!(verdict((100, 150), 800, 2), "NOTHING_TO_GAIN");
        assert_eq!(Overlap::of((100, 200), &[], 300).share(), None);
    }
}
