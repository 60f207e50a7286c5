//! Export over OTLP/gRPC: a bounded queue, one background thread, one exporter per service.
//!
//! Spans that the collector did not take go back into the queue while half of it is free, as whole
//! traces, and are sent again. Spans for which there is no room are given up and counted.
//!
//! An OTLP exporter speaks for one resource, and `service.name` is part of the resource. Spans are
//! therefore grouped by service, and every service gets an exporter of its own on first use.
//!
//! The thread has its own single-threaded runtime. Exporting on the application's runtime can
//! deadlock at shutdown when that runtime has one worker.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opentelemetry::trace as otel;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::export_queue::{ExportQueue, ExportStats};
use crate::otlp_json::SCOPE;
use crate::record::{Kind, SpanRecord, Value, unix_nanos};
use crate::redact::redacted;
use crate::resource::Resource as ProcessResource;
use crate::telemetry::QUEUE_WAIT_SECONDS;

/// Deadline of one export call.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of spans, and of bytes, per export call. By default, gRPC receivers refuse
/// messages over 4 MiB. A busy interval takes about three times its memory on the wire.
const BATCH_SPANS_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 512 << 10;
/// Maximum number of spans taken from the queue in one round.
const ROUND_SPANS_MAX: usize = 8_192;
/// Minimum time between two warnings in the log about a failing endpoint.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Pause after a failed round: the first, and the longest.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Pause before another attempt to set up an exporter, for example after a missing file.
const SET_UP_RETRY: Duration = Duration::from_secs(5);

/// Receiver of spans.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    /// Address of the collector, `http://…` or `https://…`.
    pub endpoint: String,
    /// Certificates (PEM) of the authority that vouches for the collector, instead of the system's.
    pub ca: Option<PathBuf>,
}

impl Collector {
    /// Returns the settings of an encrypted connection, or `None` for one in plain text.
    fn tls(&self) -> Result<Option<ClientTlsConfig>, String> {
        if !self.endpoint.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
            return Ok(None);
        }
        let tls = ClientTlsConfig::new();
        let Some(path) = &self.ca else { return Ok(Some(tls.with_enabled_roots())) };
        let pem =
            std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
        Ok(Some(tls.ca_certificate(Certificate::from_pem(pem))))
    }
}

/// Sender of queued spans to one collector. It lives on the telemetry thread.
pub(crate) struct OtlpExport {
    queue: Arc<ExportQueue>,
    collector: Collector,
    process: ProcessResource,
    exporters: BTreeMap<&'static str, Arc<SpanExporter>>,
    /// Whether the collector's address and certificates were checked.
    is_checked: bool,
    /// Time and reason of the last failure to set up an exporter.
    broken: Option<(Instant, String)>,
    /// Time of the last warning, and whether the last round failed.
    warned: Option<Instant>,
    failing: bool,
    /// Number of spans lost before the present failures began.
    lost_before: u64,
    /// Time of the next attempt, and the pause before it, after a failed round.
    retry: Option<(Instant, Duration)>,
}

impl OtlpExport {
    /// Creates an export that connects on first use. An unusable collector is only a warning in the
    /// log, as is a silent one.
    pub(crate) fn new(
        queue: Arc<ExportQueue>,
        collector: Collector,
        process: ProcessResource,
    ) -> Self {
        Self {
            queue,
            collector,
            process,
            exporters: BTreeMap::new(),
            is_checked: false,
            broken: None,
            warned: None,
            failing: false,
            lost_before: 0,
            retry: None,
        }
    }

    /// Warns once, before there are spans, if the collector cannot be used.
    fn check(&mut self) {
        if self.is_checked {
            return;
        }
        self.is_checked = true;
        if let Err(reason) = build_exporter(&self.collector, SCOPE, &self.process) {
            self.report(Some(reason));
        }
    }

    /// Exports the present queue like [`Self::round`], except in the pause after a failed round.
    pub(crate) async fn round_if_due(&mut self) {
        if self.retry.is_none_or(|(at, _)| Instant::now() >= at) {
            self.round().await;
        }
    }

    /// Exports the present queue, all services at once. Returns after at most [`EXPORT_TIMEOUT`],
    /// with whether any span was taken from the queue. Must be called inside a tokio runtime.
    async fn round(&mut self) -> bool {
        self.check();
        let mut services: BTreeMap<&'static str, Vec<Arc<SpanRecord>>> = BTreeMap::new();
        let mut oldest_ns = None;
        for record in self.queue.take(ROUND_SPANS_MAX) {
            oldest_ns.get_or_insert(record.end_ns);
            services.entry(record.service).or_default().push(record);
        }
        let Some(oldest_ns) = oldest_ns else { return false };
        let waited = Duration::from_nanos(unix_nanos().saturating_sub(oldest_ns));
        metrics::histogram!(QUEUE_WAIT_SECONDS).record(waited);
        let mut calls = JoinSet::new();
        let (mut failure, mut not_taken) = (None, Vec::new());
        for (service, records) in services {
            let exporter = match self.exporter(service) {
                Ok(exporter) => exporter,
                Err(reason) => {
                    not_taken.extend(records);
                    failure = Some(reason);
                    continue;
                }
            };
            let queue = Arc::clone(&self.queue);
            calls.spawn(async move { export_service(&exporter, &queue, records).await });
        }
        while let Some(done) = calls.join_next().await {
            match done {
                Ok(Ok(())) => {}
                Ok(Err((reason, records))) => {
                    not_taken.extend(records);
                    failure = Some(reason);
                }
                Err(join) => failure = Some(join.to_string()),
            }
        }
        self.queue.put_back(not_taken);
        let pause = self.retry.map_or(RETRY_PAUSE, |(_, pause)| (pause * 2).min(RETRY_PAUSE_MAX));
        self.retry = failure.as_ref().map(|_| (Instant::now() + pause, pause));
        self.report(failure);
        true
    }

    /// Returns the exporter of a service, or the reason why there is none.
    fn exporter(&mut self, service: &'static str) -> Result<Arc<SpanExporter>, String> {
        if let Some(exporter) = self.exporters.get(service) {
            return Ok(Arc::clone(exporter));
        }
        if let Some((_, reason)) =
            self.broken.as_ref().filter(|(at, _)| at.elapsed() < SET_UP_RETRY)
        {
            return Err(reason.clone());
        }
        match build_exporter(&self.collector, service, &self.process) {
            Ok(exporter) => {
                self.broken = None;
                let exporter = Arc::new(exporter);
                self.exporters.insert(service, Arc::clone(&exporter));
                Ok(exporter)
            }
            Err(reason) => {
                self.broken = Some((Instant::now(), reason.clone()));
                Err(reason)
            }
        }
    }

    /// Returns the number of spans that were lost so far.
    fn lost(&self) -> u64 {
        let ExportStats { dropped, failed, .. } = self.queue.stats();
        dropped + failed
    }

    /// Ends the export. What is left is given up, and the log says how much was lost.
    fn end(&self) {
        self.queue.give_up();
        let ExportStats { exported, dropped, failed, .. } = self.queue.stats();
        if dropped + failed > 0 {
            let endpoint = redacted(&self.collector.endpoint);
            warn!(%endpoint, exported, failed, dropped, "spans were lost");
        }
    }

    /// Logs the first failure, an occasional reminder, and the recovery with the number of spans
    /// that were lost meanwhile. Passwords are redacted.
    fn report(&mut self, failure: Option<String>) {
        let endpoint = redacted(&self.collector.endpoint);
        match failure {
            None if self.failing => {
                self.failing = false;
                self.warned = None;
                let lost_spans = self.lost() - self.lost_before;
                info!(%endpoint, lost_spans, "trace export works again");
            }
            None => {}
            Some(reason) => {
                if !self.failing {
                    self.failing = true;
                    self.lost_before = self.lost();
                }
                let (kept_spans, lost_spans) = (self.queue.stats().queued, self.lost());
                if self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                    self.warned = Some(Instant::now());
                    let reason = reason.replace(&self.collector.endpoint, &endpoint);
                    warn!(
                        %endpoint, %reason, kept_spans, lost_spans,
                        "trace export fails, spans are kept while there is room"
                    );
                }
            }
        }
    }
}

fn build_exporter(
    collector: &Collector,
    service: &'static str,
    process: &ProcessResource,
) -> Result<SpanExporter, String> {
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(&collector.endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .with_retry_policy(RetryPolicy::disabled().with_max_retries(1));
    if let Some(tls) = collector.tls()? {
        exporter = exporter.with_tls_config(tls);
    }
    let mut exporter = exporter.build().map_err(|error| error.to_string())?;
    let of_process =
        process.attributes().map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned()));
    let resource = Resource::builder_empty()
        .with_attributes(of_process)
        .with_service_name(service)
        .with_attributes([
            KeyValue::new("service.namespace", SCOPE),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .build();
    exporter.set_resource(&resource);
    Ok(exporter)
}

/// Exports one service's spans in messages of bounded size, with one deadline for all of them.
/// Returns the reason of a failure with the spans that were not taken.
async fn export_service(
    exporter: &SpanExporter,
    queue: &ExportQueue,
    mut records: Vec<Arc<SpanRecord>>,
) -> Result<(), (String, Vec<Arc<SpanRecord>>)> {
    let mut taken = 0;
    let sends = async {
        for batch in batches(&records) {
            let spans: Vec<SpanData> = batch.iter().map(|record| span_data(record)).collect();
            exporter.export(spans).await.map_err(|error| error.to_string())?;
            taken += batch.len();
            queue.note_exported(batch.len());
        }
        Ok(())
    };
    let result = tokio::time::timeout(EXPORT_TIMEOUT, sends)
        .await
        .unwrap_or_else(|_| Err("deadline exceeded".to_owned()));
    result.map_err(|reason| (reason, records.split_off(taken)))
}

/// Splits `records` into runs within the span and byte limits. Every run has at least one span.
fn batches(records: &[Arc<SpanRecord>]) -> Vec<&[Arc<SpanRecord>]> {
    let (mut runs, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, record) in records.iter().enumerate() {
        let size = record.size_bytes();
        if at > start && (at - start >= BATCH_SPANS_MAX || bytes + size > BATCH_BYTES_MAX) {
            runs.push(&records[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    if start < records.len() {
        runs.push(&records[start..]);
    }
    runs
}

fn span_data(record: &SpanRecord) -> SpanData {
    let mut attributes: Vec<KeyValue> = record
        .attributes
        .iter()
        .map(|(key, value)| match value {
            Value::Str(text) => KeyValue::new(*key, text.clone()),
            Value::Int(int) => KeyValue::new(*key, *int),
            Value::Float(float) => KeyValue::new(*key, *float),
            Value::Bool(bool) => KeyValue::new(*key, *bool),
        })
        .collect();
    attributes.push(KeyValue::new("thread.id", signed(record.thread.id)));
    attributes.push(KeyValue::new("thread.name", record.thread.name.to_string()));
    let mut events = SpanEvents::default();
    events.events = record.busy.iter().map(busy_event).collect();
    let mut links = SpanLinks::default();
    links.links = record
        .links
        .iter()
        .map(|link| otel::Link::with_context(context(link.trace_id, link.span_id, false)))
        .collect();
    SpanData {
        span_context: context(record.trace_id, record.span_id, false),
        parent_span_id: otel::SpanId::from_bytes(record.parent_id.to_be_bytes()),
        parent_span_is_remote: record.parent_is_remote,
        span_kind: match record.kind {
            Kind::Internal => otel::SpanKind::Internal,
            Kind::Server => otel::SpanKind::Server,
            Kind::Client => otel::SpanKind::Client,
        },
        name: record.name.into(),
        start_time: time(record.start_ns),
        end_time: time(record.end_ns),
        attributes,
        dropped_attributes_count: 0,
        events,
        links,
        status: match &record.error {
            Some(reason) => otel::Status::error(reason.to_string()),
            None => otel::Status::Unset,
        },
        instrumentation_scope: InstrumentationScope::builder(SCOPE).build(),
    }
}

fn busy_event(&(start, end): &(u64, u64)) -> otel::Event {
    let attributes = vec![
        KeyValue::new("busy.start_unix_nano", signed(start)),
        KeyValue::new("busy.end_unix_nano", signed(end)),
    ];
    otel::Event::new("busy", time(start), attributes, 0)
}

fn context(trace_id: u128, span_id: u64, remote: bool) -> otel::SpanContext {
    otel::SpanContext::new(
        otel::TraceId::from_bytes(trace_id.to_be_bytes()),
        otel::SpanId::from_bytes(span_id.to_be_bytes()),
        otel::TraceFlags::SAMPLED,
        remote,
        otel::TraceState::NONE,
    )
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn time(unix_ns: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_nanos(unix_ns)).unwrap_or(UNIX_EPOCH)
}

/// Runs export rounds and metrics upkeep until `stop` resolves. Then it drains the queue for no
/// longer than `drain`.
pub(crate) async fn run(
    mut export: Option<OtlpExport>,
    mut upkeep: impl FnMut(),
    mut stop: tokio::sync::oneshot::Receiver<()>,
    drain: Duration,
) {
    /// Pause between rounds.
    const POLL: Duration = Duration::from_millis(100);
    const UPKEEP_EVERY_NS: u64 = 5_000_000_000;
    let mut upkeep_due = unix_nanos() + UPKEEP_EVERY_NS;
    loop {
        // Both a signal and a dropped sender end the loop.
        if tokio::time::timeout(POLL, &mut stop).await.is_ok() {
            break;
        }
        if let Some(export) = &mut export {
            export.round_if_due().await;
        }
        if unix_nanos() >= upkeep_due {
            upkeep();
            upkeep_due = unix_nanos() + UPKEEP_EVERY_NS;
        }
    }
    if let Some(mut export) = export {
        let drained = async { while export.round().await && !export.failing {} };
        // Spans that do not fit into this time are counted as lost.
        let _ = tokio::time::timeout(drain, drained).await;
        export.end();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::Thread;

    pub(crate) fn record(busy: usize) -> Arc<SpanRecord> {
        Arc::new(SpanRecord {
            trace_id: 1,
            span_id: 2,
            parent_id: 0,
            parent_is_remote: false,
            service: "executor",
            name: "on_new_payload",
            kind: Kind::Internal,
            error: None,
            start_ns: 1,
            end_ns: 2,
            attributes: Vec::new(),
            thread: Thread::current(),
            busy: vec![(1, 2); busy],
            links: Vec::new(),
        })
    }

    #[test]
    fn batches_stay_within_both_limits_and_lose_nothing() {
        let small: Vec<_> = (0..1_100).map(|_| record(0)).collect();
        assert_eq!(batches(&small).iter().map(|run| run.len()).collect::<Vec<_>>(), [512, 512, 76]);
        let large: Vec<_> = (0..20).map(|_| record(4_096)).collect();
        let runs = batches(&large);
        assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), 20);
        assert!(
            runs.iter()
                .all(|run| run.iter().map(|r| r.size_bytes()).sum::<usize>() <= BATCH_BYTES_MAX)
        );
        let huge = [record(100_000)];
        assert_eq!(batches(&huge).len(), 1, "a span over the limit travels alone");
    }
}
