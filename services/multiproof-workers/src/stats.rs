//! Counts of an owner: plain numbers while it works, metrics when a block is over.

use crate::metrics as names;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;
use tandem_trie::Counts;
use tracing::Span;

/// Values below this are counted one by one.
const EXACT: usize = 65;

/// Small numbers on their way into a histogram.
pub struct Tally {
    counts: [u32; EXACT],
    histogram: Histogram,
}

impl Tally {
    fn new(histogram: Histogram) -> Self {
        Self { counts: [0; EXACT], histogram }
    }

    pub fn add(&mut self, value: usize) {
        match self.counts.get_mut(value) {
            Some(count) => *count += 1,
            None => self.histogram.record(value as f64),
        }
    }

    fn flush(&mut self) {
        for (value, count) in self.counts.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            self.histogram.record_many(value as f64, *count as usize);
            *count = 0;
        }
    }
}

/// Metrics of one owner, looked up once.
pub struct Instruments {
    pub batch_updates: Tally,
    pub dispatch_targets: Tally,
    pub dispatch_chunks: Tally,
    pub idle_workers: Tally,
    pub active_storage: Tally,
    pub active_account: Tally,
    pub chunking_skipped: Counter,
    root_seconds: Histogram,
    queue_wait_seconds: Histogram,
    pub proof_gap_seconds: Histogram,
    pub stale_proofs: Counter,
    targets: Counter,
    duplicates: Counter,
    pub prefetch_dropped: Counter,
    nodes: Counter,
    hashed_ahead: Counter,
    hashed_at_end: Counter,
    hashed_again: Counter,
    foreseen: Counter,
    withdrawn: Counter,
    pub trie_bytes: Gauge,
    pub layer_bytes: Gauge,
    pub cleared: Counter,
}

impl Instruments {
    /// Looks up the metrics of the owner with this number.
    pub fn new(owner: usize) -> Self {
        let tally = |name: &'static str| Tally::new(histogram!(name));
        Self {
            batch_updates: tally(names::BATCH_UPDATES),
            dispatch_targets: tally(names::DISPATCH_TARGETS),
            dispatch_chunks: tally(names::DISPATCH_CHUNKS),
            idle_workers: tally(names::IDLE_WORKERS),
            active_storage: tally(names::ACTIVE_STORAGE_WORKERS),
            active_account: tally(names::ACTIVE_ACCOUNT_WORKERS),
            chunking_skipped: counter!(names::CHUNKING_SKIPPED),
            root_seconds: histogram!(names::ROOT_SECONDS),
            queue_wait_seconds: histogram!(names::QUEUE_WAIT_SECONDS),
            proof_gap_seconds: histogram!(names::PROOF_GAP_SECONDS),
            stale_proofs: counter!(names::STALE_PROOFS),
            targets: counter!(names::TARGETS),
            duplicates: counter!(names::DUPLICATES),
            prefetch_dropped: counter!(names::PREFETCH_DROPPED),
            nodes: counter!(names::NODES),
            hashed_ahead: counter!(names::HASHED, "when" => "ahead"),
            hashed_at_end: counter!(names::HASHED, "when" => "end"),
            hashed_again: counter!(names::HASHED_AGAIN),
            foreseen: counter!(names::FORESEEN, "outcome" => "confirmed"),
            withdrawn: counter!(names::FORESEEN, "outcome" => "withdrawn"),
            trie_bytes: gauge!(names::TRIE_BYTES, "worker" => owner.to_string()),
            layer_bytes: gauge!(names::LAYER_BYTES, "worker" => owner.to_string()),
            cleared: counter!(names::CLEARED),
        }
    }

    /// Counts a block that is over: the time since its last update, if all were in, the longest
    /// wait of an update, the keys requested, and the keys that were under way already.
    pub fn count_block(
        &mut self,
        root_time: Option<Duration>,
        queue_wait: Duration,
        targets: u64,
        duplicates: u64,
    ) {
        if let Some(root_time) = root_time {
            self.root_seconds.record(root_time);
        }
        self.queue_wait_seconds.record(queue_wait);
        self.targets.increment(targets);
        self.duplicates.increment(duplicates);
        self.flush();
    }

    /// Counts the changed nodes of a block, and each shard's work on them.
    pub fn count_nodes(&self, nodes: u64, shards: impl Iterator<Item = Counts>) {
        self.nodes.increment(nodes);
        for counts in shards {
            self.hashed_ahead.increment(counts.ahead);
            self.hashed_at_end.increment(counts.at_end);
            self.hashed_again.increment(counts.again);
            self.foreseen.increment(counts.foreseen - counts.withdrawn);
            self.withdrawn.increment(counts.withdrawn);
        }
    }

    /// Passes the counts on to the histograms.
    fn flush(&mut self) {
        let tallies = [
            &mut self.batch_updates,
            &mut self.dispatch_targets,
            &mut self.dispatch_chunks,
            &mut self.idle_workers,
            &mut self.active_storage,
            &mut self.active_account,
        ];
        tallies.into_iter().for_each(Tally::flush);
    }
}

/// Maximum number of gaps kept for the median of one block.
const GAPS_MAX: usize = 4096;

/// Times for which answers lay ready before they were taken, in one block.
#[derive(Default)]
pub struct Gaps {
    micros: Vec<u32>,
    max: Duration,
    /// Time from the block's beginning.
    first_ready: Option<Duration>,
    first_taken: Option<Duration>,
}

impl Gaps {
    pub fn clear(&mut self) {
        let mut micros = std::mem::take(&mut self.micros);
        micros.clear();
        *self = Self { micros, ..Self::default() };
    }

    /// Adds an answer that was ready and was taken at these times after the block's beginning.
    pub fn add(&mut self, ready: Duration, taken: Duration) {
        let gap = taken.saturating_sub(ready);
        self.max = self.max.max(gap);
        if self.micros.len() < GAPS_MAX {
            self.micros.push(u32::try_from(gap.as_micros()).unwrap_or(u32::MAX));
        }
        self.first_ready = Some(self.first_ready.map_or(ready, |first| first.min(ready)));
        self.first_taken.get_or_insert(taken);
    }

    /// Returns the longest time for which an answer lay ready.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Records the block's figures on its span, in microseconds.
    pub fn record(&mut self, span: &Span) {
        let (Some(ready), Some(taken)) = (self.first_ready, self.first_taken) else { return };
        span.record("proof.first_ready_us", ready.as_micros() as u64);
        span.record("proof.first_taken_us", taken.as_micros() as u64);
        span.record("proof.gap_max_us", self.max.as_micros() as u64);
        let middle = self.micros.len() / 2;
        let (_, median, _) = self.micros.select_nth_unstable(middle);
        span.record("proof.gap_p50_us", u64::from(*median));
    }
}
