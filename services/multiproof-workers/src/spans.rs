//! The spans of the proof threads in one block.

use parking_lot::Mutex;
use tandem_primitives::BlockNumber;
use tandem_telemetry::BusyIntervals;
use tracing::{Span, field::Empty, info_span};

/// One span for each proof thread that works on the block, shared by all who work on it: the spans
/// end with the last of them.
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
    /// For a block whose spans are children of `parent`, and so many proof threads.
    pub fn new(parent: Span, number: BlockNumber, threads: usize) -> Self {
        Self { parent, number, threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// Does a job of a proof thread, called by that thread; the span, which the job is given as a
    /// parent for its own, is busy meanwhile.
    pub fn work<R>(&self, thread: usize, targets: usize, job: impl FnOnce(&Span) -> R) -> R {
        let Some(slot) = self.threads.get(thread) else { return job(&self.parent) };
        // Nobody else takes this lock before the block is over.
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
