//! Computes the figures from two readings of all processes and from their recent traces.

use super::subsystems::Subsystems;
use crate::scrape::{Labels, Scrape};
use std::collections::BTreeMap;
use tandem_overlap::{PayloadReport, Report, Verdict};

/// Readings of all processes at one moment, in the order of their addresses.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Time of the readings, in seconds from an arbitrary moment.
    pub at: f64,
    /// Reading of each process; `None` for a process that did not answer.
    pub scrapes: Vec<Option<Scrape>>,
}

/// All figures on the screen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Seconds between the two readings.
    pub seconds: f64,
    pub processes: Vec<ProcessFigures>,
    pub payloads: Payloads,
    pub workers: Workers,
    pub caches: Caches,
    /// Processors used by each service, most first.
    pub cpu: Vec<(String, f64)>,
    /// Processors used by each subsystem, if profiles are taken.
    pub subsystems: Option<Subsystems>,
    /// Payloads, newest first.
    pub blocks: Vec<Block>,
    /// Reason why there are no blocks.
    pub no_blocks: Option<String>,
}

/// A watched process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessFigures {
    pub name: String,
    pub answers: bool,
    pub resident_bytes: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Payloads {
    pub per_second: Option<f64>,
    pub p50_seconds: Option<f64>,
    pub p95_seconds: Option<f64>,
    /// Share of newPayload after the last transaction.
    pub tail: Option<f64>,
    /// Part of the possible gain that overlapping reached: median.
    pub reached: Option<f64>,
    /// Part of a payload that overlapping can save at most: median.
    pub weight: Option<f64>,
    /// Seconds that overlapping saved, and could still save, a payload.
    pub saved_seconds: Option<f64>,
    pub could_save_seconds: Option<f64>,
    /// Number of payloads by the verdict on their overlap.
    pub verdicts: BTreeMap<String, f64>,
    pub gas_per_second: Option<f64>,
    pub head: Option<f64>,
    /// Blocks by which the durable base is behind the head.
    pub base_lag: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workers {
    /// Number of live processes, as the executor of a cluster hears.
    pub alive: Option<f64>,
    /// Number of processes by use: active, trial, suspended, quarantined.
    pub uses: BTreeMap<String, f64>,
    /// Processors used by the threads that own tries, and by the threads that read for them.
    pub trie_cores: Option<f64>,
    pub reader_cores: Option<f64>,
    /// Reader threads at a dispatch: idle, and at work.
    pub idle: Option<f64>,
    pub busy: Option<f64>,
    /// Share of the trie nodes that were hashed while their block was executed.
    pub hashed_ahead: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Caches {
    /// Share of state reads by the place that answered: layers, cache, storage.
    pub reads: Vec<(String, f64)>,
    pub cache_bytes: Option<f64>,
    pub layer_bytes: Option<f64>,
    pub trie_bytes: Option<f64>,
    /// Share of blobs whose verdict was known.
    pub blob_hits: Option<f64>,
}

/// A payload from the recent traces. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    pub number: Option<u64>,
    pub payload_ns: u64,
    pub overlap: Option<f64>,
    pub verdict: Option<Verdict>,
    /// Time with both sides busy, only A, only B, neither; together the whole payload.
    pub parts_ns: [u64; 4],
}

impl Figures {
    /// Returns the figures between two looks. `names` has the name of each process, and whether it
    /// is that of a service.
    pub fn between(before: &Sample, after: &Sample, names: &[(String, bool)]) -> Self {
        let seconds = after.at - before.at;
        let gains = Gains { before, after };
        Self {
            seconds,
            processes: processes(after, names),
            payloads: gains.payloads(seconds),
            workers: gains.workers(seconds),
            caches: gains.caches(),
            cpu: gains.cpu(seconds, names),
            subsystems: None,
            blocks: Vec::new(),
            no_blocks: None,
        }
    }

    /// Adds the payloads of these traces, at most `blocks_max`.
    pub fn with_blocks(mut self, report: &Report, blocks_max: usize) -> Self {
        let mut payloads: Vec<&PayloadReport> = report.payloads.iter().collect();
        payloads.sort_by_key(|payload| std::cmp::Reverse(payload.start_unix_ns));
        self.blocks = payloads.into_iter().take(blocks_max).map(Block::of).collect();
        if self.blocks.is_empty() {
            self.no_blocks = Some("no payload among the recent traces".to_owned());
        }
        self
    }
}

impl Block {
    fn of(payload: &PayloadReport) -> Self {
        let PayloadReport { payload_ns, a_ns, b_ns, both_ns, .. } = *payload;
        let (a, b) = (a_ns.saturating_sub(both_ns), b_ns.saturating_sub(both_ns));
        let neither = payload_ns.saturating_sub(both_ns + a + b);
        Self {
            number: payload.block_number,
            payload_ns,
            overlap: payload.overlap,
            verdict: payload.verdict,
            parts_ns: [both_ns, a, b, neither],
        }
    }
}

fn processes(sample: &Sample, names: &[(String, bool)]) -> Vec<ProcessFigures> {
    let resident = |scrape: &Scrape| scrape.sum("tandem_process_resident_bytes", &Labels::new());
    let of = |((name, _), scrape): (&(String, bool), &Option<Scrape>)| ProcessFigures {
        name: name.clone(),
        answers: scrape.is_some(),
        resident_bytes: scrape.as_ref().and_then(resident),
    };
    names.iter().zip(&sample.scrapes).map(of).collect()
}

/// Gains of counters from one look to the next, over all processes.
struct Gains<'a> {
    before: &'a Sample,
    after: &'a Sample,
}

impl Gains<'_> {
    /// Returns the readings of processes that answered both times.
    fn pairs(&self) -> impl Iterator<Item = (&Scrape, &Scrape)> {
        let pairs = self.before.scrapes.iter().zip(&self.after.scrapes);
        pairs.filter_map(|(before, after)| Some((before.as_ref()?, after.as_ref()?)))
    }

    fn gain(&self, name: &str, labels: &Labels) -> Option<f64> {
        let gains = self.pairs().filter_map(|(before, after)| {
            let now = after.sum(name, labels)?;
            Some(more(before.sum(name, labels), now))
        });
        gains.fold(None, |sum, gain| Some(sum.unwrap_or(0.0) + gain))
    }

    fn total(&self, name: &str) -> Option<f64> {
        self.gain(name, &Labels::new())
    }

    fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut gains = BTreeMap::new();
        for (before, after) in self.pairs() {
            let was = before.by_label(name, label);
            for (value, now) in after.by_label(name, label) {
                *gains.entry(value.clone()).or_default() += more(was.get(&value).copied(), now);
            }
        }
        gains
    }

    /// Returns the current values of a gauge, from all processes that have it.
    fn now(&self, name: &str) -> impl Iterator<Item = f64> {
        let scrapes = self.after.scrapes.iter().flatten();
        scrapes.filter_map(move |scrape| scrape.sum(name, &Labels::new()))
    }

    fn largest(&self, name: &str) -> Option<f64> {
        self.now(name).reduce(f64::max)
    }

    fn sum_now(&self, name: &str) -> Option<f64> {
        self.now(name).reduce(|a, b| a + b)
    }

    /// Returns the mean of a histogram's new values.
    fn mean(&self, name: &str) -> Option<f64> {
        ratio(self.total(&format!("{name}_sum"))?, self.total(&format!("{name}_count"))?)
    }

    /// Returns the buckets of a histogram's new values: upper bound, and number of values up to it.
    fn buckets(&self, name: &str, labels: &Labels) -> Vec<(f64, f64)> {
        let mut gained: Vec<(f64, f64)> = Vec::new();
        for (before, after) in self.pairs() {
            let was = before.buckets(name, labels);
            for (bound, now) in after.buckets(name, labels) {
                let was = was.iter().find(|(known, _)| *known == bound).map(|(_, count)| *count);
                match gained.iter_mut().find(|(known, _)| *known == bound) {
                    Some((_, count)) => *count += more(was, now),
                    None => gained.push((bound, more(was, now))),
                }
            }
        }
        gained.sort_by(|a, b| a.0.total_cmp(&b.0));
        gained
    }

    fn payloads(&self, seconds: f64) -> Payloads {
        const NEW_PAYLOAD: &str = "tandem_executor_new_payload_seconds";
        let valid = Labels::from([("status".to_owned(), "VALID".to_owned())]);
        let buckets = self.buckets(NEW_PAYLOAD, &valid);
        let waited = self.total("tandem_executor_root_wait_seconds_sum");
        let took = self.gain(&format!("{NEW_PAYLOAD}_sum"), &valid);
        let head = self.largest("tandem_executor_head_block");
        let base = self.largest("tandem_storage_writer_base_block");
        let overlap =
            |what| self.buckets(&format!("tandem_executor_overlap_{what}_ratio"), &Labels::new());
        let verdicts = self.by_label("tandem_executor_overlap_verdicts_total", "verdict");
        let times = self.by_label("tandem_executor_overlap_microseconds_total", "of");
        let counted: f64 = verdicts.values().sum();
        let a_payload = |us: f64| ratio(us / 1e6, counted);
        let (both, shorter) = (times.get("both").copied(), times.get("shorter").copied());
        Payloads {
            per_second: self
                .total(&format!("{NEW_PAYLOAD}_count"))
                .and_then(|count| ratio(count, seconds)),
            p50_seconds: quantile(&buckets, 0.50),
            p95_seconds: quantile(&buckets, 0.95),
            tail: waited.zip(took).and_then(|(waited, took)| ratio(waited, took)),
            reached: quantile(&overlap("reached"), 0.50),
            weight: quantile(&overlap("weight"), 0.50),
            saved_seconds: both.and_then(a_payload),
            could_save_seconds: shorter.zip(both).and_then(|(of, both)| a_payload(of - both)),
            verdicts: verdicts.into_iter().filter(|(_, count)| *count > 0.0).collect(),
            gas_per_second: self
                .total("tandem_executor_gas_total")
                .and_then(|gas| ratio(gas, seconds)),
            head,
            base_lag: head.zip(base).map(|(head, base)| (head - base).max(0.0)),
        }
    }

    fn workers(&self, seconds: f64) -> Workers {
        let threads = self.by_label(CPU, "thread");
        let cores = |kind: &str| {
            threads.get(kind).and_then(|milliseconds| ratio(milliseconds / 1_000.0, seconds))
        };
        let mut uses = BTreeMap::new();
        for scrape in self.after.scrapes.iter().flatten() {
            for (state, count) in
                scrape.by_label("tandem_multiproof_workers_fleet_workers", "state")
            {
                *uses.entry(state).or_default() += count;
            }
        }
        let active = ["storage", "account"]
            .map(|tries| self.mean(&format!("tandem_multiproof_workers_active_{tries}_workers")));
        let hashed = self.by_label("tandem_multiproof_workers_nodes_hashed_total", "when");
        let all: f64 = hashed.values().sum();
        Workers {
            alive: self.largest("tandem_multiproof_workers_alive"),
            uses,
            trie_cores: cores("proof-worker"),
            reader_cores: cores("proof-reader"),
            idle: self.mean("tandem_multiproof_workers_idle_workers"),
            // A job may have keys of both kinds of tries, so a thread is sometimes counted twice.
            busy: active.into_iter().flatten().reduce(f64::max),
            hashed_ahead: hashed.get("ahead").and_then(|ahead| ratio(*ahead, all)),
        }
    }

    fn caches(&self) -> Caches {
        let reads = self.by_label("tandem_executor_state_reads_total", "from");
        let all: f64 = reads.values().sum();
        let blobs = ["hits", "shared", "verifications"]
            .map(|what| self.total(&format!("tandem_blob_validator_{what}_total")).unwrap_or(0.0));
        Caches {
            reads: reads
                .into_iter()
                .filter_map(|(place, count)| Some((place, ratio(count, all)?)))
                .collect(),
            cache_bytes: self.sum_now("tandem_executor_cache_bytes"),
            layer_bytes: self.sum_now("tandem_executor_layer_bytes"),
            trie_bytes: self.sum_now("tandem_multiproof_workers_trie_bytes"),
            blob_hits: ratio(blobs[0], blobs.iter().sum()),
        }
    }

    /// Returns the processors used by each service. A process without a given service is split by
    /// the kind of thread.
    fn cpu(&self, seconds: f64, names: &[(String, bool)]) -> Vec<(String, f64)> {
        let mut services = BTreeMap::<String, f64>::new();
        let pairs = self.before.scrapes.iter().zip(&self.after.scrapes);
        for ((before, after), (name, is_service)) in pairs.zip(names) {
            let (Some(before), Some(after)) = (before, after) else { continue };
            let was = before.by_label(CPU, "thread");
            for (kind, now) in after.by_label(CPU, "thread") {
                let service = if *is_service { name.as_str() } else { service_of_thread(&kind) };
                let gain = more(was.get(&kind).copied(), now) / 1_000.0;
                *services.entry(service.to_owned()).or_default() += gain;
            }
        }
        let cores = |(service, used)| Some((service, ratio(used, seconds)?));
        let mut cpu: Vec<(String, f64)> = services.into_iter().filter_map(cores).collect();
        cpu.sort_by(|a, b| b.1.total_cmp(&a.1));
        cpu
    }
}

const CPU: &str = "tandem_process_cpu_milliseconds_total";

/// Returns the service of a thread in a process of several services, by the kind of thread. Kinds
/// that serve several are `shared`: sockets, and the threads of calls between processes.
fn service_of_thread(kind: &str) -> &'static str {
    match kind {
        "engine" | "prewarm" | "rounds" | "receipts" | "rayon" | "tx-executor" => "executor",
        "persist" => "storage-writer",
        "fork-id" => "discovery",
        _ if kind.starts_with("proof-") => "multiproof-workers",
        _ if kind.starts_with("rocksdb") => "storage-writer",
        _ if kind.starts_with("blob-") => "blob-validator",
        _ if kind.starts_with("discovery") => "discovery",
        "chain-status" | "peer-answers" => "peer-sessions",
        _ if kind.starts_with("peer-sessions") => "peer-sessions",
        _ if kind.starts_with("peer-table") => "peer-table",
        _ if kind.starts_with("tx-") => "tx-pool",
        _ => "shared",
    }
}

/// Returns the gain of a counter. A counter below its old value restarted with its process.
fn more(before: Option<f64>, now: f64) -> f64 {
    match before {
        Some(before) if before <= now => now - before,
        _ => now,
    }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns the value below which a share `q` of the values lies, like Prometheus'
/// `histogram_quantile`. Values count as evenly spread over their bucket.
fn quantile(buckets: &[(f64, f64)], q: f64) -> Option<f64> {
    let total = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let rank = q * total;
    let at = buckets.iter().position(|(_, up_to_here)| *up_to_here >= rank)?;
    let (low, before) = at.checked_sub(1).map_or((0.0, 0.0), |at| buckets[at]);
    let (high, up_to_here) = buckets[at];
    if high.is_infinite() {
        return Some(low);
    }
    Some(low + (high - low) * ratio(rank - before, up_to_here - before).unwrap_or(1.0))
}

#[cfg(test)]
mod tests;
