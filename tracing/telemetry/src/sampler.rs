//! Gate of the export queue: passes the traces that [`Sampling`] chooses.
//!
//! Under [`Sampling::Slow`] the spans of a trace are held until there is a verdict. The process in
//! which `on_new_payload` ends knows it then. Other processes are told ([`Sampler::keep`]) of slow
//! traces only. Traces without a verdict are evicted for new ones, the oldest first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::export_queue::ExportQueue;
use crate::record::SpanRecord;
use crate::sampling::Sampling;

/// Span whose time decides whether its trace was slow.
const VERDICT_SPAN: &str = "on_new_payload";
/// Maximum number of traces held without a verdict, besides the limit of their bytes.
const TRACES_MAX: usize = 4_096;
/// Maximum number of verdicts remembered, for spans that end later than the payload.
const VERDICTS_MAX: usize = 4_096;
/// Maximum number of slow traces that other processes have not yet been told of.
const UNTOLD_MAX: usize = 256;

/// Sampler that takes finished spans and offers some of them for export. It waits only for its
/// lock.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    queue: Arc<ExportQueue>,
    bytes_max: usize,
    held: Mutex<Held>,
    left_out: AtomicU64,
    /// Channel of the traces that were slow here, for other processes.
    slow: mpsc::Sender<u128>,
    slow_receiver: Mutex<Option<mpsc::Receiver<u128>>>,
}

/// Spans that wait for a verdict, and the verdicts so far.
#[derive(Debug)]
struct Held {
    /// Traces without a verdict, in the order of their first spans.
    traces: LruCache<u128, Trace>,
    bytes: usize,
    /// Whether each trace was slow, in the order of the first verdicts.
    verdicts: LruCache<u128, bool>,
}

impl Default for Held {
    fn default() -> Self {
        Self { traces: LruCache::unbounded(), bytes: 0, verdicts: LruCache::unbounded() }
    }
}

#[derive(Debug)]
struct Trace {
    spans: Vec<Arc<SpanRecord>>,
    bytes: usize,
}

impl Sampler {
    /// Creates a sampler. `bytes_max` bounds the spans held without a verdict, by
    /// [`SpanRecord::size_bytes`].
    pub(crate) fn new(sampling: Sampling, queue: Arc<ExportQueue>, bytes_max: usize) -> Self {
        let (slow, receiver) = mpsc::channel(UNTOLD_MAX);
        Self {
            sampling,
            queue,
            bytes_max,
            held: Mutex::default(),
            left_out: AtomicU64::new(0),
            slow,
            slow_receiver: Mutex::new(Some(receiver)),
        }
    }

    /// Takes a finished span.
    pub(crate) fn offer(&self, record: Arc<SpanRecord>) {
        match self.sampling {
            Sampling::Always => self.queue.offer(record),
            Sampling::Ratio(share) if Sampling::takes(share, record.trace_id) => {
                self.queue.offer(record);
            }
            Sampling::Ratio(_) => self.leave_out(1),
            Sampling::Slow(threshold) => self.hold(record, threshold),
        }
    }

    /// Exports the held and later spans of a trace that was slow elsewhere.
    pub(crate) fn keep(&self, trace_id: u128) {
        if matches!(self.sampling, Sampling::Slow(_)) {
            self.decide(&mut self.held.lock(), trace_id, true);
        }
    }

    /// Returns the receiver of the traces that this process finds slow from now on. Returns `None`
    /// when there can be none, or when the receiver is already taken.
    pub(crate) fn slow_traces(&self) -> Option<mpsc::Receiver<u128>> {
        match self.sampling {
            Sampling::Slow(_) => self.slow_receiver.lock().take(),
            _ => None,
        }
    }

    /// Returns the number of spans not chosen, including those evicted without a verdict.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn leave_out(&self, spans: usize) {
        self.left_out.fetch_add(spans as u64, Ordering::Relaxed);
    }

    fn hold(&self, record: Arc<SpanRecord>, threshold: Duration) {
        let trace_id = record.trace_id;
        let ends = record.name == VERDICT_SPAN;
        let slow = ends && took(&record) >= threshold;
        let mut held = self.held.lock();
        // One slow payload of several in a trace suffices from then on.
        if ends && (slow || !held.verdicts.contains(&trace_id)) {
            self.decide(&mut held, trace_id, slow);
            if slow {
                // The channel is full when no receiver takes them, or when there is no other
                // process.
                let _ = self.slow.try_send(trace_id);
            }
        }
        match held.verdicts.peek(&trace_id) {
            Some(true) => self.queue.offer(record),
            Some(false) => self.leave_out(1),
            None => {
                held.add(record);
                while held.bytes > self.bytes_max || held.traces.len() > TRACES_MAX {
                    let Some(trace) = held.evict_oldest() else { break };
                    self.leave_out(trace.spans.len());
                }
            }
        }
    }

    fn decide(&self, held: &mut Held, trace_id: u128, slow: bool) {
        held.remember(trace_id, slow);
        let Some(trace) = held.traces.pop(&trace_id) else { return };
        held.bytes -= trace.bytes;
        if !slow {
            return self.leave_out(trace.spans.len());
        }
        for span in trace.spans {
            self.queue.offer(span);
        }
    }
}

impl Held {
    fn add(&mut self, record: Arc<SpanRecord>) {
        let size = record.size_bytes() + size_of::<Arc<SpanRecord>>();
        let trace_id = record.trace_id;
        self.bytes += size;
        if let Some(trace) = self.traces.peek_mut(&trace_id) {
            trace.bytes += size;
            trace.spans.push(record);
        } else {
            self.traces.put(trace_id, Trace { spans: vec![record], bytes: size });
        }
    }

    fn evict_oldest(&mut self) -> Option<Trace> {
        let (_, trace) = self.traces.pop_lru()?;
        self.bytes -= trace.bytes;
        Some(trace)
    }

    fn remember(&mut self, trace_id: u128, slow: bool) {
        if let Some(verdict) = self.verdicts.peek_mut(&trace_id) {
            *verdict = slow;
            return;
        }
        self.verdicts.put(trace_id, slow);
        if self.verdicts.len() > VERDICTS_MAX {
            self.verdicts.pop_lru();
        }
    }
}

fn took(record: &SpanRecord) -> Duration {
    Duration::from_nanos(record.end_ns.saturating_sub(record.start_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Kind, Thread};

    fn record(trace_id: u128, name: &'static str, took_ms: u64) -> Arc<SpanRecord> {
        Arc::new(SpanRecord {
            trace_id,
            span_id: 1,
            parent_id: 0,
            parent_is_remote: false,
            service: "executor",
            name,
            kind: Kind::Internal,
            error: None,
            start_ns: 5,
            end_ns: 5 + took_ms * 1_000_000,
            attributes: Vec::new(),
            thread: Thread::current(),
            busy: Vec::new(),
            links: Vec::new(),
        })
    }

    /// Sampler, with the queue that it passes spans to.
    struct Fixture {
        sampler: Sampler,
        queue: Arc<ExportQueue>,
    }

    impl Fixture {
        fn new(sampling: Sampling, bytes_max: usize) -> Self {
            let queue = Arc::new(ExportQueue::new(100_000));
            Self { sampler: Sampler::new(sampling, Arc::clone(&queue), bytes_max), queue }
        }

        fn slow(milliseconds: u64) -> Self {
            Self::new(Sampling::Slow(Duration::from_millis(milliseconds)), 1 << 20)
        }

        fn offer(&self, trace_id: u128, name: &'static str, took_ms: u64) {
            self.sampler.offer(record(trace_id, name, took_ms));
        }

        fn passed(&self) -> Vec<(u128, &'static str)> {
            self.queue.take(usize::MAX).map(|span| (span.trace_id, span.name)).collect()
        }
    }

    #[test]
    fn a_ratio_takes_or_leaves_all_spans_of_a_trace() {
        let fixture = Fixture::new(Sampling::Ratio(0.5), 0);
        let (low, high) = (1, (1 << 56) - 1);
        for name in ["on_new_payload", "payload processor"] {
            fixture.offer(low, name, 1);
            fixture.offer(high, name, 1);
        }
        assert_eq!(fixture.passed(), [(high, "on_new_payload"), (high, "payload processor")]);
        assert_eq!(fixture.sampler.left_out(), 2);
        assert!(fixture.sampler.slow_traces().is_none());
    }

    #[test]
    fn a_slow_payload_brings_its_whole_trace_and_a_fast_one_nothing() {
        let fixture = Fixture::slow(10);
        let names = ["payload processor", "await_state_root", "on_new_payload", "rpc"];
        let all = names.map(|name| (1_u128, name));
        for (trace, took_ms, expected) in [(1, 10, &all[..]), (2, 9, &all[..0])] {
            fixture.offer(trace, "payload processor", 5);
            fixture.offer(trace, "await_state_root", 1);
            assert_eq!(fixture.passed(), [], "nothing is known yet");
            fixture.offer(trace, "on_new_payload", took_ms);
            // A span that ends after the payload follows the verdict.
            fixture.offer(trace, "rpc", 11);
            assert_eq!(fixture.passed(), expected, "trace {trace}");
        }
        assert_eq!(fixture.sampler.left_out(), 4);
        let mut slow = fixture.sampler.slow_traces().unwrap();
        assert_eq!((slow.try_recv(), slow.try_recv().is_err()), (Ok(1), true));
        assert!(fixture.sampler.slow_traces().is_none(), "one hears of them");
    }

    #[test]
    fn a_verdict_from_elsewhere_holds_for_what_is_held_and_what_comes() {
        let fixture = Fixture::slow(10);
        fixture.offer(1, "process_block", 3);
        fixture.offer(2, "process_block", 3);
        fixture.sampler.keep(1);
        fixture.offer(1, "storage worker", 3);
        // A verdict that comes before the first span counts as well.
        fixture.sampler.keep(3);
        fixture.offer(3, "commit_block", 1);
        let expected = [(1, "process_block"), (1, "storage worker"), (3, "commit_block")];
        assert_eq!(fixture.passed(), expected);
        assert_eq!(fixture.sampler.left_out(), 0, "trace 2 may still be asked for");
        let mut slow = fixture.sampler.slow_traces().unwrap();
        assert!(slow.try_recv().is_err(), "nothing is told twice");
    }

    #[test]
    fn a_slow_payload_after_a_fast_one_of_the_same_trace_counts() {
        let fixture = Fixture::slow(10);
        for took_ms in [1, 20, 1] {
            fixture.offer(7, "on_new_payload", took_ms);
        }
        assert_eq!(fixture.passed().len(), 2);
        assert_eq!(fixture.sampler.left_out(), 1);
    }

    #[test]
    fn without_a_verdict_the_oldest_trace_makes_room_and_is_counted() {
        let one = record(0, "process_block", 1).size_bytes() + size_of::<Arc<SpanRecord>>();
        let fixture = Fixture::new(Sampling::Slow(Duration::ZERO), 10 * one);
        for trace in 1..=100 {
            fixture.offer(trace, "process_block", 1);
            assert!(fixture.sampler.held.lock().bytes <= 10 * one);
        }
        assert_eq!(fixture.sampler.left_out(), 90);
        fixture.sampler.keep(91);
        fixture.sampler.keep(90);
        assert_eq!(fixture.passed(), [(91, "process_block")]);
    }

    #[test]
    fn nothing_grows_with_the_number_of_traces() {
        let fixture = Fixture::slow(1);
        for trace in 1..=3 * TRACES_MAX as u128 {
            fixture.offer(trace, "payload processor", 1);
            if trace % 2 == 0 {
                fixture.offer(trace, "on_new_payload", u64::from(trace % 4 == 0));
            }
        }
        let held = fixture.sampler.held.lock();
        assert!(held.traces.len() <= TRACES_MAX);
        assert!(held.verdicts.len() <= VERDICTS_MAX);
        let bytes: usize = held.traces.iter().map(|(_, trace)| trace.bytes).sum();
        assert_eq!(held.bytes, bytes);
    }
}
