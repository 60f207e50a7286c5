//! Lane of the work on a block: short spans that show when any thread of the process was busy.
//!
//! A span of a worker is open as long as the block, whatever the worker did meanwhile. The lane is
//! for the eye instead: pieces of the union of all threads' busy intervals, cut at the last
//! transaction. Each piece carries the exact intervals in it, so figures do not suffer from gaps
//! that are closed for the eye.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tandem_telemetry::{BusyLog, SpanContext, set_times, union_of_intervals};
use tracing::{Span, field::Empty, info_span};

/// Gap in ns that a piece is not interrupted for.
const GAP_NS: u64 = 200_000;
/// Distance in ns of the work before the last transaction's end to that end. A viewer with
/// microseconds would otherwise take the work for the cause of what came next.
const DISTANCE_NS: u64 = 2_000;

/// Counts of the threads that worked on a block.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Number of owners and proof threads.
    pub threads: u64,
    pub jobs: u64,
    pub targets: u64,
    pub batches: u64,
    pub queue_wait_us: u64,
    pub gap_max_us: u64,
    pub busy_ns: u64,
    /// Part of the busy times whose results were thrown away.
    pub wasted_ns: u64,
    /// Threads among them that own tries, and their busy times: in sum, and the largest.
    pub owners: u64,
    pub owners_busy_ns: u64,
    pub owners_busy_max_ns: u64,
}

impl Counts {
    /// Adds the counts of a thread.
    pub fn add(&mut self, other: Self) {
        self.threads += other.threads;
        self.jobs += other.jobs;
        self.targets += other.targets;
        self.batches += other.batches;
        self.queue_wait_us = self.queue_wait_us.max(other.queue_wait_us);
        self.gap_max_us = self.gap_max_us.max(other.gap_max_us);
        self.busy_ns += other.busy_ns;
        self.wasted_ns += other.wasted_ns;
        self.owners += other.owners;
        self.owners_busy_ns += other.owners_busy_ns;
        self.owners_busy_max_ns = self.owners_busy_max_ns.max(other.owners_busy_max_ns);
    }
}

/// Busy intervals of a block's threads, and the span under which they are drawn.
pub struct Lane {
    parent: Span,
    /// Intervals of all threads, `None` when the parent is not recorded.
    log: Option<BusyLog>,
    /// End of the last transaction, 0 while it is unknown.
    executed_ns: AtomicU64,
}

impl Lane {
    /// Creates an empty lane under `parent`.
    pub fn new(parent: Span) -> Self {
        let log = SpanContext::of(&parent).map(|_| BusyLog::default());
        Self { parent, log, executed_ns: AtomicU64::new(0) }
    }

    /// Returns the parent of the spans.
    pub fn parent(&self) -> &Span {
        &self.parent
    }

    /// Returns the log for the busy intervals of the block's threads, if spans are recorded.
    pub fn log(&self) -> Option<&BusyLog> {
        self.log.as_ref()
    }

    /// Notes when the last transaction ended. The first note counts.
    pub fn note_executed(&self, unix_ns: u64) {
        let _ = self.executed_ns.compare_exchange(0, unix_ns, Relaxed, Relaxed);
    }

    /// Draws the lane. Its first span has the counts of all threads.
    pub fn draw(&self, counts: &Counts) {
        let Some(log) = &self.log else { return };
        let executed_ns = self.executed_ns.load(Relaxed);
        for (at, piece) in
            pieces(&union_of_intervals(log.intervals()), executed_ns).into_iter().enumerate()
        {
            let span = if piece.executing {
                info_span!(
                    parent: &self.parent, "state root, while executing",
                    threads = Empty, jobs = Empty, targets = Empty, batches = Empty,
                    queue_wait_us = Empty, proof.gap_max_us = Empty, threads.busy_ns = Empty,
                    threads.cpu_ns = Empty, threads.wasted_ns = Empty, owners = Empty,
                    owners.busy_ns = Empty, owners.busy_max_ns = Empty,
                )
            } else {
                info_span!(
                    parent: &self.parent, "state root, after execution",
                    threads = Empty, jobs = Empty, targets = Empty, batches = Empty,
                    queue_wait_us = Empty, proof.gap_max_us = Empty, threads.busy_ns = Empty,
                    threads.cpu_ns = Empty, threads.wasted_ns = Empty, owners = Empty,
                    owners.busy_ns = Empty, owners.busy_max_ns = Empty,
                )
            };
            if at == 0 {
                span.record("threads", counts.threads);
                span.record("jobs", counts.jobs);
                span.record("targets", counts.targets);
                span.record("batches", counts.batches);
                span.record("queue_wait_us", counts.queue_wait_us);
                span.record("proof.gap_max_us", counts.gap_max_us);
                span.record("threads.busy_ns", counts.busy_ns);
                span.record("threads.cpu_ns", log.cpu_ns());
                span.record("threads.wasted_ns", counts.wasted_ns);
                span.record("owners", counts.owners);
                span.record("owners.busy_ns", counts.owners_busy_ns);
                span.record("owners.busy_max_ns", counts.owners_busy_max_ns);
            }
            set_times(&span, piece.start_ns, piece.end_ns, piece.busy);
        }
    }
}

/// Span of the lane.
#[derive(Debug, PartialEq)]
struct Piece {
    /// Whether transactions were still being executed.
    executing: bool,
    start_ns: u64,
    end_ns: u64,
    /// Exact intervals of work.
    busy: Vec<(u64, u64)>,
}

/// Returns the pieces of a union of intervals, cut at the end of the last transaction, which is 0 if
/// it is unknown.
fn pieces(union: &[(u64, u64)], executed_ns: u64) -> Vec<Piece> {
    let executed_ns = if executed_ns == 0 { u64::MAX } else { executed_ns };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut push = |executing: bool, (start, end): (u64, u64)| match pieces.last_mut() {
        Some(last) if last.executing == executing && start < last.end_ns + GAP_NS => {
            last.end_ns = end;
            last.busy.push((start, end));
        }
        _ => {
            pieces.push(Piece { executing, start_ns: start, end_ns: end, busy: vec![(start, end)] })
        }
    };
    for &(start, end) in union {
        if start < executed_ns {
            push(true, (start, end.min(executed_ns)));
        }
        if end > executed_ns {
            push(false, (start.max(executed_ns), end));
        }
    }
    for piece in pieces.iter_mut().filter(|piece| piece.executing) {
        piece.end_ns = piece.end_ns.min(executed_ns - DISTANCE_NS);
        piece.start_ns = piece.start_ns.min(piece.end_ns);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn piece(executing: bool, start_ns: u64, end_ns: u64, busy: &[(u64, u64)]) -> Piece {
        Piece { executing, start_ns, end_ns, busy: busy.to_vec() }
    }

    #[test]
    fn short_gaps_are_closed_and_the_last_transaction_cuts() {
        let work = [(MS, 2 * MS), (2 * MS + 199_999, 3 * MS), (4 * MS, 7 * MS), (8 * MS, 9 * MS)];
        let expected = [
            piece(true, MS, 3 * MS, &work[..2]),
            piece(true, 4 * MS, 5 * MS - 2_000, &[(4 * MS, 5 * MS)]),
            piece(false, 5 * MS, 7 * MS, &[(5 * MS, 7 * MS)]),
            piece(false, 8 * MS, 9 * MS, &[(8 * MS, 9 * MS)]),
        ];
        assert_eq!(pieces(&work, 5 * MS), expected);
    }

    #[test]
    fn exact_work_is_the_union_whatever_is_closed_and_cut() {
        let work = [(MS, MS + 10), (MS + 50, MS + 90), (MS + 95, 3 * MS)];
        for executed_ns in [0, MS / 2, MS + 1, MS + 60, MS + 93, MS + 95, 2 * MS, 9 * MS] {
            let busy = pieces(&work, executed_ns).into_iter().flat_map(|piece| piece.busy);
            let busy: Vec<_> = union_of_intervals(busy.collect());
            assert_eq!(busy, work, "{executed_ns}");
        }
    }

    #[test]
    fn work_before_the_last_transaction_ends_a_little_earlier() {
        let all = pieces(&[(MS - 1_000, MS + 1)], MS);
        assert_eq!(all[0], piece(true, MS - 2_000, MS - 2_000, &[(MS - 1_000, MS)]));
        assert_eq!(all[1], piece(false, MS, MS + 1, &[(MS, MS + 1)]));
    }

    #[test]
    fn block_that_was_given_up_has_all_its_work_while_executing() {
        assert_eq!(pieces(&[(1, 2)], 0), [piece(true, 1, 2, &[(1, 2)])]);
        assert_eq!(pieces(&[], 7), []);
    }
}
