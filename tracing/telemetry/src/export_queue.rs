//! Bounded queue of spans between the recording threads and the exporting thread, with its counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::record::SpanRecord;

/// Counts of the spans offered for export, and of those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportStats {
    /// Number of spans delivered to the collector.
    pub exported: u64,
    /// Number of spans dropped because the queue was full.
    pub dropped: u64,
    /// Number of spans given up because the collector did not take them, and there was no room to
    /// keep them.
    pub failed: u64,
    /// Number of spans not offered because sampling left their traces out.
    pub left_out: u64,
    /// Number of spans that wait in the queue, or are on their way to the collector.
    pub queued: u64,
}

/// Bounded queue between the recording threads and the exporting thread.
#[derive(Debug)]
pub(crate) struct ExportQueue {
    sender: Sender<Arc<SpanRecord>>,
    receiver: Receiver<Arc<SpanRecord>>,
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    /// Number of spans that were taken from the queue, and are neither exported nor given up yet.
    under_way: AtomicU64,
}

impl ExportQueue {
    pub(crate) fn new(spans_max: usize) -> Self {
        let (sender, receiver) = crossbeam_channel::bounded(spans_max.max(1));
        Self {
            sender,
            receiver,
            exported: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
        }
    }

    /// Queues a span, or drops and counts it when the queue is full. It never waits. It also never
    /// wakes a thread, because the exporting thread polls the queue instead of sleeping on it.
    pub(crate) fn offer(&self, record: Arc<SpanRecord>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.sender.try_send(record)
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes up to `spans_max` waiting spans, which are under way from then on.
    pub(crate) fn take(&self, spans_max: usize) -> impl Iterator<Item = Arc<SpanRecord>> {
        let note = |_: &Arc<SpanRecord>| _ = self.under_way.fetch_add(1, Ordering::Relaxed);
        self.receiver.try_iter().take(spans_max).inspect(note)
    }

    /// Notes that the collector took this many spans.
    pub(crate) fn note_exported(&self, spans: usize) {
        self.exported.fetch_add(spans as u64, Ordering::Relaxed);
        self.under_way.fetch_sub(spans as u64, Ordering::Relaxed);
    }

    /// Notes that this many spans are given up.
    pub(crate) fn note_failed(&self, spans: usize) {
        self.failed.fetch_add(spans as u64, Ordering::Relaxed);
        self.under_way.fetch_sub(spans as u64, Ordering::Relaxed);
    }

    /// Puts spans back that the collector did not take, while half of the queue is free. Traces are
    /// put back or given up as a whole, the youngest first.
    pub(crate) fn put_back(&self, records: Vec<Arc<SpanRecord>>) {
        let mut traces: HashMap<u128, Vec<Arc<SpanRecord>>> = HashMap::new();
        for record in records {
            traces.entry(record.trace_id).or_default().push(record);
        }
        let mut traces: Vec<_> = traces.into_values().collect();
        traces.sort_by_key(|spans| spans.iter().map(|span| span.start_ns).min());
        let room_max = self.receiver.capacity().unwrap_or(0).div_ceil(2);
        let mut kept = Vec::new();
        while let Some(spans) = traces.pop() {
            if self.receiver.len() + kept.len() + spans.len() > room_max {
                self.note_failed(spans.len());
            } else {
                kept.extend(spans);
            }
        }
        // Rarely, other threads have filled the queue meanwhile.
        for record in kept {
            match self.sender.try_send(record) {
                Ok(()) => _ = self.under_way.fetch_sub(1, Ordering::Relaxed),
                Err(_) => self.note_failed(1),
            }
        }
    }

    /// Gives up all spans that wait or are under way. Nothing is exported afterwards.
    pub(crate) fn give_up(&self) {
        let waiting = self.receiver.try_iter().count() as u64;
        let under_way = self.under_way.swap(0, Ordering::Relaxed);
        self.failed.fetch_add(waiting + under_way, Ordering::Relaxed);
    }

    /// Returns the counts of the offered spans. The count of spans left out by sampling is unknown
    /// here.
    pub(crate) fn stats(&self) -> ExportStats {
        ExportStats {
            exported: self.exported.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            left_out: 0,
            queued: self.receiver.len() as u64 + self.under_way.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::record;

    #[test]
    fn full_queue_drops_and_counts() {
        let queue = ExportQueue::new(2);
        for _ in 0..5 {
            queue.offer(record(0));
        }
        assert_eq!((queue.stats().dropped, queue.stats().queued), (3, 2));
        assert_eq!(queue.take(1).count(), 1);
        queue.note_exported(1);
        assert_eq!((queue.stats().dropped, queue.stats().queued), (3, 1));
    }

    #[test]
    fn failed_spans_come_back_as_whole_traces_and_the_counts_add_up() {
        let queue = ExportQueue::new(12);
        let of_trace = |trace_id: u128| {
            let mut one = SpanRecord::clone(&record(0));
            (one.trace_id, one.start_ns) = (trace_id, trace_id as u64);
            Arc::new(one)
        };
        for trace in 1..=5_u128 {
            queue.offer(of_trace(trace));
            queue.offer(of_trace(trace));
        }
        let taken: Vec<_> = queue.take(100).collect();
        assert_eq!(queue.stats().queued, 10, "what is under way is not forgotten");
        queue.put_back(taken);
        let stats = queue.stats();
        assert_eq!((stats.queued, stats.failed), (6, 4), "half of the queue stays free");
        let mut kept: Vec<u128> = queue.take(100).map(|span| span.trace_id).collect();
        kept.sort_unstable();
        assert_eq!(kept, [3, 3, 4, 4, 5, 5], "the youngest traces, each whole");
    }
}
