//! Traces of a block: its lane, and a span for each proof thread at the level of jobs.

use crate::lane::{Counts, Lane};
use parking_lot::Mutex;
use std::{
    mem,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};
use tandem_primitives::BlockNumber;
use tandem_telemetry::{BusyIntervals, BusyLog, union_of_intervals};
use tracing::{Span, debug_span, field::Empty};

/// Work of all threads on one block. It is drawn when the last thread is done with the block.
pub struct BlockSpans {
    number: BlockNumber,
    threads: Box<[Mutex<Option<ThreadSpan>>]>,
    counts: Mutex<Counts>,
    /// Whether a proof thread has read for the block.
    has_read: AtomicBool,
    lane: Lane,
}

/// Work of one proof thread.
struct ThreadSpan {
    span: Span,
    busy: BusyIntervals,
    jobs: u64,
    targets: u64,
}

impl BlockSpans {
    /// Creates the spans for a block and a number of proof threads, as children of `parent`.
    pub fn new(parent: Span, number: BlockNumber, threads: usize) -> Self {
        let threads = (0..threads).map(|_| Mutex::default()).collect();
        Self {
            number,
            threads,
            counts: Mutex::default(),
            has_read: AtomicBool::new(false),
            lane: Lane::new(parent),
        }
    }

    /// Runs a job on its proof thread. The thread is busy meanwhile. The job gets the thread's span
    /// as the parent of its own span.
    pub fn work<R>(&self, thread: usize, targets: usize, job: impl FnOnce(&Span) -> R) -> R {
        let Some(slot) = self.threads.get(thread) else { return job(self.lane.parent()) };
        // No other thread waits for this lock before the block is over.
        let mut slot = slot.lock();
        let own = slot.get_or_insert_with(|| {
            let span = debug_span!(
                parent: self.lane.parent(), "proof worker",
                worker = thread, block.number = self.number, jobs = Empty, targets = Empty,
            );
            let busy = BusyIntervals::logged(&span, self.lane.log());
            ThreadSpan { busy, span, jobs: 0, targets: 0 }
        });
        own.jobs += 1;
        own.targets += targets as u64;
        let _working = own.busy.enter();
        if self.has_read.swap(true, Relaxed) {
            return job(&own.span);
        }
        // The first call for the block is a span at storage-writer, so that the edge between the
        // services shows. A span for each call would be too many.
        self.lane.parent().in_scope(|| job(&own.span))
    }

    /// Returns the log of busy intervals, if spans are recorded.
    pub fn log(&self) -> Option<&BusyLog> {
        self.lane.log()
    }

    /// Notes when the last transaction ended. The first note counts.
    pub fn note_executed(&self, unix_ns: u64) {
        self.lane.note_executed(unix_ns);
    }

    /// Adds the counts of an owner that is done with the block.
    pub fn add(&self, counts: Counts) {
        self.counts.lock().add(counts);
    }

    /// Returns the times at which any thread was busy so far, without those of owners that are not
    /// done, and of proof threads that still work on advice.
    pub fn work_so_far(&self) -> Vec<(u64, u64)> {
        let Some(log) = self.lane.log() else { return Vec::new() };
        let mut intervals = log.intervals();
        for thread in self.threads.iter().filter_map(|slot| slot.try_lock()) {
            let own = thread.as_ref().map_or(&[][..], |own| own.busy.intervals());
            intervals.extend_from_slice(own);
        }
        union_of_intervals(intervals)
    }
}

impl Drop for BlockSpans {
    fn drop(&mut self) {
        let mut counts = *self.counts.get_mut();
        for own in mem::take(&mut self.threads).into_iter().filter_map(Mutex::into_inner) {
            own.span.record("jobs", own.jobs);
            own.span.record("targets", own.targets);
            // Jobs and targets are in the owners' counts.
            let busy_ns = own.busy.total_ns();
            counts.add(Counts { threads: 1, busy_ns, ..Counts::default() });
        }
        self.lane.draw(&counts);
    }
}
