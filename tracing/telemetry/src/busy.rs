//! Busy intervals: the times in which a long-lived span really worked.
//!
//! A `storage worker` span lasts as long as the block. If its whole length counted as work, it
//! would overlap with execution by definition. The worker therefore brackets every piece of work,
//! and the overlap is computed on the brackets.

use tracing::Span;

use crate::record::{Thread, Value, unix_nanos};
use crate::recorder::{set_attribute, with_record};

/// Gap in ns below which the adjacent intervals are joined. A worker that takes the next job from
/// its queue within 20 µs counts as busy throughout.
pub(crate) const COALESCE_GAP_NS: u64 = 20_000;
/// Maximum number of intervals per span.
pub(crate) const INTERVALS_MAX: usize = 4_096;

/// Collector of the busy intervals of one span, which it attaches to the span when dropped.
///
/// It holds a handle to the span, which therefore ends no earlier than this value is dropped. All
/// methods are no-ops when the span is not recorded. On drop the span gets `busy.total_ns`, the
/// exact busy time before gaps were joined. Its thread is set to the thread that made this value.
///
/// ```
/// # use tandem_telemetry::BusyIntervals;
/// let span = tracing::info_span!("storage worker", jobs = tracing::field::Empty);
/// let mut busy = BusyIntervals::new(&span);
/// for job in 0..3u64 {
///     let _working = busy.enter();
///     // … compute the proof of `job` …
/// }
/// ```
#[derive(Debug)]
pub struct BusyIntervals {
    /// Handle to the span, `None` when the span is not recorded.
    span: Option<Span>,
    thread: Thread,
    started_ns: Option<u64>,
    intervals: IntervalList,
}

impl BusyIntervals {
    /// Starts collecting for `span`, idle.
    pub fn new(span: &Span) -> Self {
        Self {
            span: with_record(span, |_| ()).map(|()| span.clone()),
            thread: Thread::current(),
            started_ns: None,
            intervals: IntervalList::default(),
        }
    }

    /// Begins work. Has no effect when work has already begun.
    pub fn start(&mut self) {
        if self.span.is_some() && self.started_ns.is_none() {
            self.started_ns = Some(unix_nanos());
        }
    }

    /// Pauses work. Has no effect when work has not begun.
    pub fn stop(&mut self) {
        if let Some(start) = self.started_ns.take() {
            self.intervals.push(start, unix_nanos());
        }
    }

    /// Begins work, and pauses it when the guard is dropped, also by `?` or a panic.
    pub fn enter(&mut self) -> BusyGuard<'_> {
        self.start();
        BusyGuard(self)
    }

    /// Returns the busy time so far in nanoseconds, without an interval that is still open.
    pub fn total_ns(&self) -> u64 {
        self.intervals.total_ns
    }
}

impl Drop for BusyIntervals {
    fn drop(&mut self) {
        self.stop();
        let Some(span) = self.span.take() else { return };
        let intervals = std::mem::take(&mut self.intervals);
        with_record(&span, |record| {
            // Several workers may share one span. The times add up, and the analysis joins the
            // intervals.
            let before = record.attributes.iter().find_map(|(name, value)| match value {
                Value::Int(ns) if *name == "busy.total_ns" => u64::try_from(*ns).ok(),
                _ => None,
            });
            let total = before.unwrap_or(0).saturating_add(intervals.total_ns);
            set_attribute(&mut record.attributes, "busy.total_ns", Value::from(total));
            if intervals.gap_ns > COALESCE_GAP_NS {
                let gap = Value::from(intervals.gap_ns);
                set_attribute(&mut record.attributes, "busy.joined_gap_ns", gap);
            }
            record.thread = self.thread.clone();
            if record.busy.is_empty() {
                record.busy = intervals.list;
            } else {
                record.busy.extend(intervals.list);
            }
            // A span that collected and never worked was idle. An empty list would mean the
            // opposite.
            if record.busy.is_empty() {
                record.busy.push((record.start_ns, record.start_ns));
            }
        });
    }
}

/// Guard that keeps a span busy until dropped, made by [`BusyIntervals::enter`].
#[derive(Debug)]
pub struct BusyGuard<'a>(&'a mut BusyIntervals);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Bounded list of disjoint intervals in order of time.
#[derive(Debug)]
struct IntervalList {
    list: Vec<(u64, u64)>,
    /// Gap in ns below which intervals are joined. It doubles whenever the list is full.
    gap_ns: u64,
    /// Exact sum of the pushed lengths, in ns.
    total_ns: u64,
}

impl Default for IntervalList {
    fn default() -> Self {
        Self { list: Vec::new(), gap_ns: COALESCE_GAP_NS, total_ns: 0 }
    }
}

impl IntervalList {
    /// Appends `start..end`. Drops an interval that ends before it starts (the clock was set back),
    /// or that starts before the last one.
    fn push(&mut self, start: u64, end: u64) {
        let last_start = self.list.last().map_or(0, |last| last.0);
        if end < start || start < last_start {
            return;
        }
        self.total_ns = self.total_ns.saturating_add(end - start);
        if let Some(last) = self.list.last_mut()
            && start < last.1.saturating_add(self.gap_ns)
        {
            last.1 = last.1.max(end);
            return;
        }
        self.list.push((start, end));
        while self.list.len() >= INTERVALS_MAX {
            self.coalesce_harder();
        }
    }

    /// Doubles the gap until at least half of the list is joined away, so that the cost per push
    /// stays constant on average.
    fn coalesce_harder(&mut self) {
        while self.list.len() > INTERVALS_MAX / 2 {
            self.gap_ns = self.gap_ns.saturating_mul(2);
            let gap = self.gap_ns;
            self.list.dedup_by(|next, kept| {
                let joins = next.0 < kept.1.saturating_add(gap);
                if joins {
                    kept.1 = kept.1.max(next.1);
                }
                joins
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_below_20_us_is_joined_and_a_longer_one_is_not() {
        let mut list = IntervalList::default();
        list.push(0, 10_000);
        list.push(29_999, 40_000);
        list.push(60_000, 70_000);
        assert_eq!(list.list, [(0, 40_000), (60_000, 70_000)]);
        assert_eq!(list.total_ns, 10_000 + 10_001 + 10_000);
    }

    #[test]
    fn full_list_joins_wider_gaps_and_stays_bounded() {
        let mut list = IntervalList::default();
        for n in 0..100_000u64 {
            list.push(n * 100_000, n * 100_000 + 10);
        }
        assert!(list.list.len() < INTERVALS_MAX);
        assert!(list.list.is_sorted_by(|a, b| a.1 < b.0), "disjoint and in order");
        assert_eq!(list.list.first().unwrap().0, 0);
        assert_eq!(list.list.last().unwrap().1, 99_999 * 100_000 + 10);
        assert_eq!(list.total_ns, 1_000_000, "the total stays exact");
    }

    #[test]
    fn clock_set_back_drops_the_interval() {
        let mut list = IntervalList::default();
        list.push(1_000_000, 2_000_000);
        list.push(500_000, 600_000);
        list.push(3_000_000, 2_500_000);
        assert_eq!(list.list, [(1_000_000, 2_000_000)]);
    }

    #[test]
    fn disabled_span_costs_and_records_nothing() {
        let mut busy = BusyIntervals::new(&Span::none());
        busy.start();
        busy.stop();
        assert_eq!(busy.total_ns(), 0);
    }
}
