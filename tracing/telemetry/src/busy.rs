//! Busy intervals: the times in which a long-lived span really worked.
//!
//! A `storage worker` span lasts as long as the block. If its whole length counted as work, it
//! would overlap with execution by definition. The worker therefore brackets every piece of work,
//! and the overlap is computed on the brackets.

use std::{cell::RefCell, marker::PhantomData, sync::Arc};

use parking_lot::Mutex;
use tracing::Span;

use crate::record::{Thread, Value, unix_nanos};
use crate::recorder::{set_attribute, with_record};
use rustix::time::{ClockId, clock_gettime};

/// Gap in ns below which the adjacent intervals are joined. A worker that takes the next job from
/// its queue within 20 µs counts as busy throughout.
pub(crate) const COALESCE_GAP_NS: u64 = 20_000;
/// Maximum number of intervals per span.
pub(crate) const INTERVALS_MAX: usize = 4_096;

/// Busy intervals of several spans, also of those that are not recorded. Each [`BusyIntervals`] adds
/// its own when it is dropped. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct BusyLog(Arc<Mutex<Logged>>);

#[derive(Debug, Default)]
struct Logged {
    intervals: Vec<(u64, u64)>,
    cpu_ns: u64,
}

impl BusyLog {
    /// Returns the intervals so far, `(start, end)` in nanoseconds since the Unix epoch, in any
    /// order.
    pub fn intervals(&self) -> Vec<(u64, u64)> {
        self.0.lock().intervals.clone()
    }

    /// Returns the sum of the threads' processor times in the intervals so far.
    pub fn cpu_ns(&self) -> u64 {
        self.0.lock().cpu_ns
    }
}

/// Returns the union of busy intervals in any order: disjoint, in order of time.
pub fn union_of_intervals(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.retain(|(start, end)| start < end);
    intervals.sort_unstable();
    intervals.dedup_by(|next, kept| {
        let joins = next.0 <= kept.1;
        if joins {
            kept.1 = kept.1.max(next.1);
        }
        joins
    });
    intervals
}

/// Collector of the busy intervals of one span, which it attaches to the span when dropped.
///
/// It holds a handle to the span, which therefore ends no earlier than this value is dropped. All
/// methods are no-ops when the span is not recorded. On drop the span gets `busy.total_ns`, the
/// exact busy time before gaps were joined, `busy.cpu_ns`, the processor time in it, and the time
/// of each kind of [`waiting`] under its name. Its thread is set to the thread that made this value.
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
    log: Option<BusyLog>,
    thread: Thread,
    started: Option<Instant>,
    intervals: IntervalList,
    /// Processor time of the thread while it was busy.
    cpu_ns: u64,
    waits: Waits,
    /// End of the span, if it is not that of its last handle.
    end_ns: Option<u64>,
}

/// A moment of a thread.
#[derive(Debug, Clone, Copy)]
struct Instant {
    unix_ns: u64,
    /// Processor time that the thread has used.
    cpu_ns: u64,
}

impl Instant {
    fn now() -> Self {
        Self { unix_ns: unix_nanos(), cpu_ns: thread_cpu_ns() }
    }
}

/// Returns the processor time that this thread has used.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

impl BusyIntervals {
    /// Starts collecting for `span`, idle.
    pub fn new(span: &Span) -> Self {
        Self::logged(span, None)
    }

    /// Starts collecting for `span` and for `log`, idle. With a log, it collects also when the span
    /// is not recorded.
    pub fn logged(span: &Span, log: Option<&BusyLog>) -> Self {
        Self {
            span: with_record(span, |_| ()).map(|()| span.clone()),
            log: log.cloned(),
            thread: Thread::current(),
            started: None,
            intervals: IntervalList::default(),
            cpu_ns: 0,
            waits: Waits::default(),
            end_ns: None,
        }
    }

    /// Begins work. Has no effect when work has already begun.
    pub fn start(&mut self) {
        if (self.span.is_some() || self.log.is_some()) && self.started.is_none() {
            self.started = Some(Instant::now());
        }
    }

    /// Pauses work. Has no effect when work has not begun.
    pub fn stop(&mut self) {
        if let Some(start) = self.started.take() {
            let end = Instant::now();
            self.intervals.push(start.unix_ns, end.unix_ns);
            self.cpu_ns += end.cpu_ns.saturating_sub(start.cpu_ns);
        }
    }

    /// Ends the span at this time, and takes back what was noted as busy after it. Work must be
    /// paused.
    pub fn cut(&mut self, end_unix_ns: u64) {
        self.end_ns = Some(end_unix_ns);
        let cut_ns = self.intervals.cut(end_unix_ns);
        self.cpu_ns = self.cpu_ns.saturating_sub(cut_ns);
    }

    /// Begins work, and pauses it when the guard is dropped, also by `?` or a panic. Meanwhile
    /// [`waiting`] on this thread pauses it as well.
    pub fn enter(&mut self) -> BusyGuard<'_> {
        self.start();
        let work = Work {
            started: self.started.take(),
            intervals: std::mem::take(&mut self.intervals),
            waits: std::mem::take(&mut self.waits),
        };
        let outer = WORK.replace(Some(work));
        BusyGuard { busy: self, outer, _thread: PhantomData }
    }

    /// Returns the busy time so far in nanoseconds, without an interval that is still open.
    pub fn total_ns(&self) -> u64 {
        self.intervals.total_ns
    }

    /// Returns the times of this kind of wait so far, like [`Self::intervals`]. Spans that are not
    /// recorded have them too.
    pub fn waited(&self, what: &str) -> &[(u64, u64)] {
        self.waits.of(what).map_or(&[], |waits| &waits.list)
    }

    /// Returns the sum of these times in nanoseconds.
    pub fn waited_ns(&self, what: &str) -> u64 {
        self.waits.of(what).map_or(0, |waits| waits.total_ns)
    }

    /// Returns the intervals so far, `(start, end)` in nanoseconds since the Unix epoch, in order of
    /// time, without one that is still open.
    pub fn intervals(&self) -> &[(u64, u64)] {
        &self.intervals.list
    }
}

impl Drop for BusyIntervals {
    fn drop(&mut self) {
        self.stop();
        let cpu_ns = self.cpu_ns.min(self.intervals.total_ns);
        if let Some(log) = self.log.take() {
            let mut log = log.0.lock();
            log.intervals.extend_from_slice(&self.intervals.list);
            log.cpu_ns += cpu_ns;
        }
        let Some(span) = self.span.take() else { return };
        let intervals = std::mem::take(&mut self.intervals);
        with_record(&span, |record| {
            // Several workers may share one span. The times add up, and the analysis joins the
            // intervals.
            let before = int_attribute(&record.attributes, "busy.total_ns").unwrap_or(0);
            let total = before.saturating_add(intervals.total_ns);
            set_attribute(&mut record.attributes, "busy.total_ns", Value::from(total));
            let before = int_attribute(&record.attributes, "busy.cpu_ns").unwrap_or(0);
            let cpu = Value::from(before.saturating_add(cpu_ns));
            set_attribute(&mut record.attributes, "busy.cpu_ns", cpu);
            for (what, waits) in &self.waits.0 {
                set_attribute(&mut record.attributes, what, Value::from(waits.total_ns));
            }
            if intervals.gap_ns > COALESCE_GAP_NS {
                let gap = Value::from(intervals.gap_ns);
                set_attribute(&mut record.attributes, "busy.joined_gap_ns", gap);
            }
            record.thread = self.thread.clone();
            if let Some(end_ns) = self.end_ns {
                record.end_ns = end_ns.max(record.start_ns);
            }
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

fn int_attribute(attributes: &[(&'static str, Value)], key: &str) -> Option<u64> {
    attributes.iter().find_map(|(name, value)| match value {
        Value::Int(ns) if *name == key => u64::try_from(*ns).ok(),
        _ => None,
    })
}

/// Guard that keeps a span busy until dropped, made by [`BusyIntervals::enter`].
#[derive(Debug)]
pub struct BusyGuard<'a> {
    busy: &'a mut BusyIntervals,
    /// Work that goes on once this ends.
    outer: Option<Work>,
    /// The work is the thread's.
    _thread: PhantomData<*const ()>,
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let Some(work) = WORK.replace(self.outer.take()) else { return };
        self.busy.started = work.started;
        self.busy.intervals = work.intervals;
        self.busy.waits = work.waits;
        self.busy.stop();
    }
}

thread_local! {
    /// Work of this thread under its innermost [`BusyGuard`].
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

/// Work that goes on.
#[derive(Debug)]
struct Work {
    /// Start of the current interval, and the processor time at the start of the first one.
    started: Option<Instant>,
    intervals: IntervalList,
    waits: Waits,
}

impl Work {
    fn waited(&mut self, what: &'static str, start: u64, end: u64) {
        if end.saturating_sub(start) < COALESCE_GAP_NS {
            return;
        }
        if let Some(started) = &mut self.started {
            self.intervals.push(started.unix_ns, start);
            started.unix_ns = end;
        }
        self.waits.add(what, start, end);
    }
}

/// Times of each kind of wait. A span has a few kinds.
#[derive(Debug, Default)]
struct Waits(Vec<(&'static str, IntervalList)>);

impl Waits {
    fn add(&mut self, what: &'static str, start: u64, end: u64) {
        let at = self.0.iter().position(|(name, _)| *name == what).unwrap_or_else(|| {
            self.0.push((what, IntervalList::default()));
            self.0.len() - 1
        });
        self.0[at].1.push(start, end);
    }

    fn of(&self, what: &str) -> Option<&IntervalList> {
        self.0.iter().find(|(name, _)| *name == what).map(|(_, waits)| waits)
    }
}

/// Runs `wait`, during which this thread does not count as busy if it takes 20 µs or more. `what`
/// names the attribute that the span gets with the sum of such times in ns, as `wait.state_ns`.
///
/// ```
/// # use tandem_telemetry::{BusyIntervals, waiting};
/// let mut busy = BusyIntervals::new(&tracing::info_span!("payload processor"));
/// let working = busy.enter();
/// waiting("wait.state_ns", || std::thread::sleep(std::time::Duration::from_millis(1)));
/// drop(working);
/// assert!(busy.waited_ns("wait.state_ns") >= 1_000_000);
/// ```
pub fn waiting<T>(what: &'static str, wait: impl FnOnce() -> T) -> T {
    if WORK.with_borrow(Option::is_none) {
        return wait();
    }
    let start = unix_nanos();
    let answer = wait();
    let end = unix_nanos();
    WORK.with_borrow_mut(|work| {
        if let Some(work) = work {
            work.waited(what, start, end);
        }
    });
    answer
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
    /// Removes what lies after `end`, and returns its length.
    fn cut(&mut self, end: u64) -> u64 {
        let mut removed = 0;
        while let Some(last) = self.list.last_mut().filter(|last| last.1 > end) {
            removed += last.1 - last.0.max(end);
            last.1 = end;
            if last.0 >= end {
                self.list.pop();
            }
        }
        self.total_ns = self.total_ns.saturating_sub(removed);
        removed
    }

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
    fn a_wait_is_no_work_and_the_outer_work_goes_on() {
        let span = Span::none();
        let (mut outer, mut inner) = (BusyIntervals::new(&span), BusyIntervals::new(&span));
        // As if the span were recorded.
        let working = outer.enter();
        let start = Instant { unix_ns: 100_000, cpu_ns: thread_cpu_ns() };
        WORK.with_borrow_mut(|work| work.as_mut().unwrap().started = Some(start));
        WORK.with_borrow_mut(|work| work.as_mut().unwrap().waited("a", 200_000, 300_000));
        drop(inner.enter());
        WORK.with_borrow_mut(|work| work.as_mut().unwrap().waited("b", 400_000, 450_000));
        WORK.with_borrow_mut(|work| work.as_mut().unwrap().waited("a", 500_000, 600_000));
        WORK.with_borrow_mut(|work| work.as_mut().unwrap().waited("short", 650_000, 660_000));
        drop(working);
        let busy: Vec<_> = outer.intervals.list.iter().map(|&(start, _)| start).collect();
        assert_eq!(busy, [100_000, 300_000, 450_000, 600_000]);
        assert_eq!(
            outer.intervals.list[..3],
            [(100_000, 200_000), (300_000, 400_000), (450_000, 500_000)]
        );
        assert_eq!((outer.waited_ns("a"), outer.waited_ns("b")), (200_000, 50_000));
        assert_eq!(outer.waited("b").len(), 1);
        assert!(inner.waited("a").is_empty() && WORK.with_borrow(Option::is_none));
    }

    #[test]
    fn union_of_threads_is_disjoint_and_in_order() {
        let parts = vec![(5, 9), (1, 3), (3, 4), (8, 12), (20, 20)];
        assert_eq!(union_of_intervals(parts), [(1, 4), (5, 12)]);
    }

    #[test]
    fn cut_takes_back_what_lies_after_it() {
        let mut list = IntervalList::default();
        list.push(100_000, 200_000);
        list.push(300_000, 400_000);
        list.push(500_000, 600_000);
        assert_eq!(list.cut(350_000), 150_000);
        assert_eq!(
            (&*list.list, list.total_ns),
            (&[(100_000, 200_000), (300_000, 350_000)][..], 150_000)
        );
        assert_eq!(list.cut(1_000_000), 0);
        assert_eq!((list.cut(100_000), list.list.len()), (150_000, 0));
    }

    #[test]
    fn a_thread_that_sleeps_uses_no_processor() {
        let before = thread_cpu_ns();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let asleep = thread_cpu_ns() - before;
        let started = std::time::Instant::now();
        while started.elapsed().as_millis() < 20 {}
        let awake = thread_cpu_ns() - before - asleep;
        assert!(asleep < 10_000_000 && awake > 0, "{asleep} {awake}");
    }

    #[test]
    fn log_has_the_intervals_of_spans_that_are_not_recorded() {
        let log = BusyLog::default();
        for _ in 0..2 {
            let mut busy = BusyIntervals::logged(&Span::none(), Some(&log));
            busy.start();
            busy.stop();
            assert_eq!(busy.intervals().len(), 1);
        }
        assert_eq!(log.intervals().len(), 2);
        let busy: u64 = log.intervals().iter().map(|(start, end)| end - start).sum();
        assert!(log.cpu_ns() <= busy);
    }

    #[test]
    fn disabled_span_costs_and_records_nothing() {
        let mut busy = BusyIntervals::new(&Span::none());
        busy.start();
        busy.stop();
        assert_eq!(busy.total_ns(), 0);
    }
}
