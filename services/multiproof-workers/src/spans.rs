//! Spans of the proof threads in one block.

use parking_lot::Mutex;
use tandem_primitives::BlockNumber;
use tandem_telemetry::BusyIntervals;
use tracing::{Span, field::Empty, info_span};

/// One span for each proof thread that works on the block. All jobs of the block share them, and
/// they end with the last job.
pub struct BlockSpans {
    parent: Span,
    number: BlockNumber,
    threads: Box<[Mutex<Option<ThreadSpan>>]>,
}

struct ThreadSpan {
    span: Span,
    busy: BusyIntervals,
    jobs: u64,
    targets: u64,
}

impl BlockSpans {
    /// Creates the spans for a block and a number of proof threads, as children of `parent`.
    pub fn new(parent: Span, number: BlockNumber, threads: usize) -> Self {
        Self { parent, number, threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// Runs a job on its proof thread. The thread's span is busy meanwhile. The job gets it as the
    /// parent of its own span.
    pub fn work<R>(&self, thread: usize, targets: usize, job: impl FnOnce(&Span) -> R) -> R {
        let Some(slot) = self.threads.get(thread) else { return job(&self.parent) };
        // No other thread takes this lock before the block is over.
        let mut slot = slot.lock();
        let own = slot.get_or_insert_with(|| {
            let span = info_span!(
                parent: &self.parent, "proof worker",
                worker = thread, block.number = self.number, jobs = Empty, targets = Empty,
            );
            ThreadSpan { busy: BusyIntervals::new(&span), span, jobs: 0, targets: 0 }
        });
        own.jobs += 1;
        own.targets += targets as u64;
        let _working = own.busy.enter();
        job(&own.span)
    }
}

impl Drop for BlockSpans {
    fn drop(&mut self) {
        for own in self.threads.iter_mut().filter_map(|slot| slot.get_mut().as_ref()) {
            own.span.record("jobs", own.jobs);
            own.span.record("targets", own.targets);
        }
    }
}
