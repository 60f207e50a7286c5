//! Setup of telemetry, and the handle that the rest of the process holds.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::Subscriber;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Config, LogFormat};
use crate::error::Error;
use crate::export::{self, Collector, OtlpExport};
use crate::export_queue::{ExportQueue, ExportStats};
use crate::process::Process;
use crate::recorder::Recorder;
use crate::resource::Resource;
use crate::ring::Ring;
use crate::sampler::Sampler;

/// Upper bounds of the buckets of histograms named `*_seconds`: 10 µs to 10 s, three per decade in
/// the range of a block's stages. Without buckets the exporter would render summaries, which cannot
/// be added up over instances.
const SECONDS_BUCKETS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.006, 0.01,
    0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Bounds for histograms of sizes in bytes.
const BYTES_BUCKETS: &[f64] = &[
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
/// Bounds for all other histograms: counts such as targets per chunk or messages per batch. Small
/// counts have a bucket each, including zero, which matters for idle workers.
const COUNT_BUCKETS: &[f64] = &[
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0, 16.0, 20.0, 32.0, 50.0, 64.0, 100.0, 200.0, 500.0,
    1_000.0, 5_000.0, 20_000.0,
];

/// Bounds for histograms named `*_ratio`, of values from 0 to 1. The bounds between the verdicts
/// are among them.
const RATIO_BUCKETS: &[f64] =
    &[0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0];

/// Maximum total time of [`Telemetry::shutdown`].
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Part of that time for draining the queue. A round in progress may take up to 2 s before that.
const DRAIN: Duration = Duration::from_millis(2_500);

/// Handle to the telemetry of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Telemetry {
    recorder: Recorder,
    metrics: PrometheusHandle,
    process: Arc<Mutex<Process>>,
    export: Option<Export>,
    resource: Resource,
    worker: Arc<Mutex<Option<Worker>>>,
}

/// Path of exported spans.
#[derive(Clone, Debug)]
struct Export {
    sampler: Arc<Sampler>,
    queue: Arc<ExportQueue>,
}

impl Export {
    fn stats(&self) -> ExportStats {
        ExportStats { left_out: self.sampler.left_out(), ..self.queue.stats() }
    }
}

/// Background thread. Dropping `stop` ends it, and `done` signals its end.
#[derive(Debug)]
struct Worker {
    stop: oneshot::Sender<()>,
    done: mpsc::Receiver<()>,
}

/// Sets up logging, recording, export and metrics for the whole process. It installs the global
/// `tracing` subscriber and the global `metrics` recorder, so it can be called only once.
///
/// # Errors
/// Returns an error for a malformed log filter, or if a global subscriber or recorder already
/// exists. A malformed or silent endpoint is only a warning in the log.
pub fn init(config: &Config) -> Result<Telemetry, Error> {
    let logs = log_layer(config)?;
    let (telemetry, metrics_recorder) = build(config)?;
    metrics::set_global_recorder(metrics_recorder).map_err(|error| Error::AlreadyInstalled {
        what: "metrics recorder",
        reason: error.to_string(),
    })?;
    tracing_subscriber::registry()
        .with(telemetry.layer::<Registry>())
        .with(logs)
        .try_init()
        .map_err(|error| Error::AlreadyInstalled {
            what: "subscriber",
            reason: error.to_string(),
        })?;
    Ok(telemetry)
}

impl Telemetry {
    /// Creates telemetry that installs nothing global: for tests, and for a cluster started inside
    /// one. Spans reach it through [`Self::layer`]. Metrics do not reach it.
    ///
    /// # Errors
    /// Returns an error if the background thread does not start.
    pub fn detached(config: &Config) -> Result<Self, Error> {
        Ok(build(config)?.0)
    }

    /// Returns the layer that records spans into this telemetry, for the caller's own subscriber.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'a> LookupSpan<'a> + 'static,
    {
        self.recorder.layer()
    }

    /// Returns the ring of recent traces.
    pub fn ring(&self) -> &Arc<Ring> {
        self.recorder.ring()
    }

    /// Returns the `limit` youngest traces as one OTLP/JSON object, the body of `/debug/traces`.
    pub fn traces_json(&self, limit: usize) -> String {
        self.ring().otlp_json(limit, &self.resource)
    }

    /// Returns all metrics in Prometheus' text format, the body of `/metrics`. Process and
    /// telemetry metrics are read at this moment. That takes file operations, so do not call it on
    /// an async worker thread.
    pub fn render_metrics(&self) -> String {
        publish(self.export.as_ref(), self.ring());
        self.process.lock().publish();
        self.metrics.render()
    }

    /// Returns the counts of the spans offered for export, all zero without an endpoint.
    pub fn export_stats(&self) -> ExportStats {
        self.export.as_ref().map(Export::stats).unwrap_or_default()
    }

    /// Returns the receiver of the ids of traces that this process finds slow
    /// ([`crate::Sampling::Slow`]). Processes with other spans of these traces need them: see
    /// [`Self::keep_trace`].
    ///
    /// Only one caller gets the receiver. The result is `None` for others, and if traces are not
    /// exported or are sampled otherwise. Ids that are not received are dropped.
    pub fn slow_traces(&self) -> Option<tokio::sync::mpsc::Receiver<u128>> {
        self.export.as_ref()?.sampler.slow_traces()
    }

    /// Exports the held and later spans of a trace that another process found slow. Without effect
    /// unless slow traces are exported.
    pub fn keep_trace(&self, trace_id: u128) {
        if let Some(export) = &self.export {
            export.sampler.keep(trace_id);
        }
    }

    /// Exports the remaining queue and ends the background thread. Blocks for at most 5 s, so do
    /// not call it on an async worker thread. Later calls, and calls on clones, return at once.
    pub fn shutdown(&self) {
        let Some(worker) = self.worker.lock().take() else { return };
        // An error means that the thread has already ended.
        let _ = worker.stop.send(());
        let _ = worker.done.recv_timeout(SHUTDOWN);
    }
}

fn build(config: &Config) -> Result<(Telemetry, PrometheusRecorder), Error> {
    let metrics_recorder = metrics_recorder()?;
    let metrics = metrics_recorder.handle();
    let ring = Arc::new(Ring::new(config.ring_traces_max, config.ring_bytes_max));
    let mut recorder = Recorder::new(config.traces.level, ring);
    let collector = collector(config);
    let export = collector.as_ref().map(|_| {
        let queue = Arc::new(ExportQueue::new(config.export_queue_spans));
        let traces = &config.traces;
        let sampler = Sampler::new(traces.sampling, Arc::clone(&queue), traces.held_bytes_max);
        Export { sampler: Arc::new(sampler), queue }
    });
    if let Some(export) = &export {
        recorder = recorder.with_sampler(Arc::clone(&export.sampler));
    }
    let resource = config.resource.clone();
    let target = export.clone().zip(collector).map(|(export, collector)| Target {
        export,
        collector,
        resource: resource.clone(),
    });
    let process = Arc::new(Mutex::new(Process::this(config.allocator)));
    let upkeep = Upkeep {
        metrics: metrics.clone(),
        ring: Arc::clone(recorder.ring()),
        process: Arc::clone(&process),
    };
    let worker = start_worker(target, upkeep)?;
    let worker = Arc::new(Mutex::new(Some(worker)));
    let telemetry = Telemetry { recorder, metrics, process, export, resource, worker };
    Ok((telemetry, metrics_recorder))
}

/// Returns the receiver of exported spans, if any.
fn collector(config: &Config) -> Option<Collector> {
    let endpoint = config.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty())?;
    // Users also write `localhost:4317`.
    let endpoint = match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false => format!("http://{endpoint}"),
    };
    let ca = config.otlp_ca.clone().filter(|path| !path.as_os_str().is_empty());
    Some(Collector { endpoint, ca })
}

fn metrics_recorder() -> Result<PrometheusRecorder, Error> {
    let refused =
        |error: metrics_exporter_prometheus::BuildError| Error::Metrics(error.to_string());
    let builder = PrometheusBuilder::new()
        .set_buckets(COUNT_BUCKETS)
        .map_err(refused)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS_BUCKETS)
        .map_err(refused)?
        .set_buckets_for_metric(Matcher::Suffix("_ratio".to_owned()), RATIO_BUCKETS)
        .map_err(refused)?
        .set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), BYTES_BUCKETS)
        .map_err(refused)?;
    Ok(builder.build_recorder())
}

/// Client library of NATS. It logs with every attempt to connect what the bus logs once.
const TALKATIVE: &str = "async_nats";

/// Returns the filter of log lines. It silences [`TALKATIVE`] unless the text names it.
fn log_filter(text: &str) -> Result<EnvFilter, Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::LogFilter {
        filter: text.to_owned(),
        reason: error.to_string(),
    };
    let filter = EnvFilter::try_new(text).map_err(|error| wrong(&error))?;
    if text.contains(TALKATIVE) {
        return Ok(filter);
    }
    let quiet = format!("{TALKATIVE}=off").parse().map_err(|error| wrong(&error))?;
    Ok(filter.add_directive(quiet))
}

/// Returns the layer that logs events only. Spans are left to the recorder: formatting their fields
/// for the log would cost more than recording them.
fn log_layer<S>(config: &Config) -> Result<impl Layer<S> + Send + Sync + 'static, Error>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync + 'static,
{
    let filter = log_filter(&config.log_filter)?;
    let layer =
        fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let layer = match config.log_format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => {
            layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    // The hint says that this part does not restrict levels. A combination with a part without a
    // hint has no hint either, and then every `debug!` of every crate is evaluated.
    let events = filter_fn(|meta| meta.is_event()).with_max_level_hint(LevelFilter::TRACE);
    Ok(layer.with_filter(filter.and(events)))
}

/// Destination of exported spans, with the resource of this process.
struct Target {
    export: Export,
    collector: Collector,
    resource: Resource,
}

/// State that must be updated even without readers. Otherwise histograms would grow, and the time
/// by kind of threads that end would be lost.
struct Upkeep {
    metrics: PrometheusHandle,
    ring: Arc<Ring>,
    process: Arc<Mutex<Process>>,
}

/// Starts the thread that exports spans and drains the histograms, and waits until it runs.
fn start_worker(target: Option<Target>, upkeep: Upkeep) -> Result<Worker, Error> {
    let (stop, stopped) = oneshot::channel();
    let (done_sender, done) = mpsc::sync_channel(1);
    let (ready_sender, ready) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("telemetry".to_owned());
    thread.spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = ready_sender.send(Err(Error::Thread(error)));
                return;
            }
        };
        runtime.block_on(async {
            let counted = target.as_ref().map(|target| target.export.clone());
            let export = target.map(|target| {
                OtlpExport::new(target.export.queue, target.collector, target.resource)
            });
            let _ = ready_sender.send(Ok(()));
            describe_metrics();
            let upkeep = || {
                upkeep.metrics.run_upkeep();
                publish(counted.as_ref(), &upkeep.ring);
                upkeep.process.lock().publish();
            };
            export::run(export, upkeep, stopped, DRAIN).await;
        });
        let _ = done_sender.send(());
    })?;
    match ready.recv() {
        Ok(ready) => ready?,
        Err(_) => return Err(Error::Thread(std::io::Error::other("ended while starting"))),
    }
    Ok(Worker { stop, done })
}

const RING_DROPPED: &str = "tandem_telemetry_ring_dropped_spans_total";
const EXPORTED: &str = "tandem_telemetry_exported_spans_total";
const DROPPED: &str = "tandem_telemetry_dropped_spans_total";
const FAILED: &str = "tandem_telemetry_failed_spans_total";
const LEFT_OUT: &str = "tandem_telemetry_left_out_spans_total";
const QUEUED: &str = "tandem_telemetry_queued_spans";
pub(crate) const QUEUE_WAIT_SECONDS: &str = "tandem_telemetry_queue_wait_seconds";

/// Publishes the losses of telemetry, and the spans that wait for export, as metrics.
fn publish(export: Option<&Export>, ring: &Ring) {
    metrics::counter!(RING_DROPPED).absolute(ring.dropped_spans());
    let Some(stats) = export.map(Export::stats) else { return };
    metrics::counter!(EXPORTED).absolute(stats.exported);
    metrics::counter!(DROPPED).absolute(stats.dropped);
    metrics::counter!(FAILED).absolute(stats.failed);
    metrics::counter!(LEFT_OUT).absolute(stats.left_out);
    metrics::gauge!(QUEUED).set(stats.queued as f64);
}

/// Describes telemetry's own metrics, and those of the process, to the recorder.
pub fn describe_metrics() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    let count = Unit::Count;
    describe_counter!(RING_DROPPED, count, "Spans that the ring of recent traces had no room for");
    describe_counter!(EXPORTED, count, "Spans handed to the OTLP endpoint");
    describe_counter!(DROPPED, count, "Spans lost because the queue to the exporter was full");
    describe_counter!(FAILED, count, "Spans given up because the OTLP endpoint did not take them");
    describe_counter!(LEFT_OUT, count, "Spans of traces that sampling did not choose for export");
    describe_gauge!(QUEUED, count, "Spans that wait for export or are on their way");
    let text =
        "From the end of the oldest span that waited until it is exported, per round of exports";
    describe_histogram!(QUEUE_WAIT_SECONDS, Unit::Seconds, text);
    crate::process::describe();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_seconds_are_rendered_with_buckets() {
        let recorder = metrics_recorder().unwrap();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("tandem_executor_new_payload_seconds").record(0.003);
            metrics::counter!("tandem_executor_blocks_total").increment(2);
        });
        let text = handle.render();
        assert!(
            text.contains("tandem_executor_new_payload_seconds_bucket{le=\"0.004\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("tandem_executor_new_payload_seconds_bucket{le=\"0.002\"} 0"),
            "{text}"
        );
        assert!(text.contains("tandem_executor_blocks_total 2"), "{text}");
    }

    #[test]
    fn histograms_of_counts_tell_none_from_one_and_the_usual_limits_apart() {
        let recorder = metrics_recorder().unwrap();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            for count in [0, 1, 9, 10, 15, 16, 17] {
                metrics::histogram!("tandem_batch_updates").record(f64::from(count));
            }
        });
        let text = handle.render();
        for (bound, count) in [(0, 1), (1, 2), (8, 2), (10, 4), (16, 6), (20, 7)] {
            let line = format!("tandem_batch_updates_bucket{{le=\"{bound}\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn a_malformed_filter_is_refused_with_the_filter_in_the_message() {
        let config = Config { log_filter: "tandem=loud=very".to_owned(), ..Config::default() };
        let error = log_layer::<Registry>(&config).err().unwrap();
        assert!(error.to_string().contains("tandem=loud=very"), "{error}");
    }

    #[test]
    fn the_client_of_nats_is_silent_unless_it_is_asked_for() {
        for (text, silent) in [("info", true), ("", true), ("info,async_nats=debug", false)] {
            let filter = log_filter(text).unwrap().to_string();
            assert_eq!(filter.contains("async_nats=off"), silent, "{filter}");
        }
    }

    #[test]
    fn every_log_format_builds_a_layer() {
        for log_format in [LogFormat::Text, LogFormat::Json] {
            let config = Config { log_format, ..Config::default() };
            assert!(log_layer::<Registry>(&config).is_ok());
        }
    }
}
