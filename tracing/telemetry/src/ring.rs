//! Recent traces in memory, so that `tandem overlap` needs no collector.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::otlp_json;
use crate::record::SpanRecord;
use crate::resource::Resource;

/// Bounded store of recent traces, kept and evicted whole.
///
/// Over either limit, the trace without activity for the longest time is evicted. One trace may
/// take a quarter of the bytes. Its further spans are dropped and counted, so one runaway trace
/// cannot evict the rest.
#[derive(Debug)]
pub struct Ring {
    traces_max: usize,
    bytes_max: usize,
    dropped_spans: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    traces: HashMap<u128, Trace>,
    bytes: usize,
    /// Number of pushes, which orders traces by first and by last activity.
    pushes: u64,
}

#[derive(Debug)]
struct Trace {
    spans: Vec<Arc<SpanRecord>>,
    bytes: usize,
    first_push: u64,
    last_push: u64,
}

impl Ring {
    /// Creates an empty ring of at most `traces_max` traces (at least 1) and `bytes_max` bytes, as
    /// measured by [`SpanRecord::size_bytes`].
    pub fn new(traces_max: usize, bytes_max: usize) -> Self {
        Self {
            traces_max: traces_max.max(1),
            bytes_max,
            dropped_spans: AtomicU64::new(0),
            inner: Mutex::new(Inner::default()),
        }
    }

    /// Adds a finished span to its trace.
    pub fn push(&self, record: Arc<SpanRecord>) {
        let size = record.size_bytes() + size_of::<Arc<SpanRecord>>();
        // Evicted traces are freed after the lock is released: a trace may hold thousands of spans.
        let mut evicted = Vec::new();
        {
            let mut inner = self.inner.lock();
            inner.pushes += 1;
            let now = inner.pushes;
            let trace = inner.traces.entry(record.trace_id).or_insert_with(|| Trace {
                spans: Vec::new(),
                bytes: 0,
                first_push: now,
                last_push: now,
            });
            trace.last_push = now;
            if trace.bytes + size > self.bytes_max / 4 {
                self.dropped_spans.fetch_add(1, Ordering::Relaxed);
                return;
            }
            trace.bytes += size;
            trace.spans.push(record);
            inner.bytes += size;
            while inner.traces.len() > self.traces_max || inner.bytes > self.bytes_max {
                let Some(trace) = inner.evict_most_silent() else { break };
                evicted.push(trace);
            }
        }
        drop(evicted);
    }

    /// Returns the `limit` youngest traces, oldest first, each with its spans in order of
    /// completion.
    pub fn traces(&self, limit: usize) -> Vec<Vec<Arc<SpanRecord>>> {
        let inner = self.inner.lock();
        let mut order: Vec<&Trace> =
            inner.traces.values().filter(|trace| !trace.spans.is_empty()).collect();
        order.sort_unstable_by_key(|trace| trace.first_push);
        let skipped = order.len().saturating_sub(limit);
        order[skipped..].iter().map(|trace| trace.spans.clone()).collect()
    }

    /// Returns the `limit` youngest traces as one OTLP/JSON `TracesData` object, grouped by
    /// `service.name`, as spans of this process.
    pub fn otlp_json(&self, limit: usize, process: &Resource) -> String {
        otlp_json::render(self.traces(limit).iter().flatten().map(AsRef::as_ref), process)
    }

    /// Returns the number of traces held.
    pub fn len(&self) -> usize {
        self.inner.lock().traces.len()
    }

    /// Returns whether no trace is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes held, by the measure of [`SpanRecord::size_bytes`].
    pub fn bytes(&self) -> usize {
        self.inner.lock().bytes
    }

    /// Returns the number of spans refused because their trace exceeded its share.
    pub fn dropped_spans(&self) -> u64 {
        self.dropped_spans.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Removes the trace with the oldest last span. The scan runs once per new trace over some
    /// hundred entries. An ordered structure would cost every span.
    fn evict_most_silent(&mut self) -> Option<Trace> {
        let id = *self.traces.iter().min_by_key(|(_, trace)| trace.last_push)?.0;
        let trace = self.traces.remove(&id)?;
        self.bytes -= trace.bytes;
        Some(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Thread, Value};

    fn record(trace_id: u128, span_id: u64, text_bytes: usize) -> Arc<SpanRecord> {
        Arc::new(SpanRecord {
            trace_id,
            span_id,
            parent_id: 0,
            parent_is_remote: false,
            service: "executor",
            name: "on_new_payload",
            kind: crate::record::Kind::Internal,
            error: None,
            start_ns: 1,
            end_ns: 2,
            attributes: vec![("text", Value::Str("x".repeat(text_bytes)))],
            thread: Thread::current(),
            busy: Vec::new(),
            links: Vec::new(),
        })
    }

    #[test]
    fn full_ring_evicts_the_trace_silent_longest_as_a_whole() {
        let ring = Ring::new(2, 1 << 20);
        for (trace, span) in [(1, 1), (1, 2), (2, 3), (1, 4), (3, 5)] {
            ring.push(record(trace, span, 0));
        }
        let kept: Vec<Vec<u64>> = ring
            .traces(10)
            .iter()
            .map(|trace| trace.iter().map(|span| span.span_id).collect())
            .collect();
        assert_eq!(kept, [vec![1, 2, 4], vec![5]], "trace 2 went, trace 1 is whole");
    }

    #[test]
    fn bytes_stay_under_the_limit() {
        let ring = Ring::new(1_000, 100_000);
        for trace in 1..500 {
            ring.push(record(trace, 1, 5_000));
            assert!(ring.bytes() <= 100_000);
        }
        assert!(ring.len() >= 15, "the limit is used: {}", ring.len());
        assert_eq!(ring.dropped_spans(), 0);
    }

    #[test]
    fn runaway_trace_is_cut_and_does_not_evict_others() {
        let ring = Ring::new(10, 100_000);
        ring.push(record(1, 1, 5_000));
        for span in 1..100 {
            ring.push(record(2, span, 5_000));
        }
        assert_eq!(ring.len(), 2);
        assert!(ring.dropped_spans() > 90);
    }

    #[test]
    fn limit_selects_the_youngest_traces() {
        let ring = Ring::new(10, 1 << 20);
        for trace in 1..=5 {
            ring.push(record(trace, 1, 0));
        }
        let ids: Vec<u128> = ring.traces(2).iter().map(|trace| trace[0].trace_id).collect();
        assert_eq!(ids, [4, 5]);
    }
}
