//! Checks that docs/metrics.md lists every metric as the code describes it.

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
};

struct Description {
    kind: &'static str,
    unit: &'static str,
    text: String,
}

/// Recorder of the metrics' descriptions that ignores their values.
#[derive(Default)]
struct Listener {
    heard: Mutex<BTreeMap<String, Description>>,
}

impl Listener {
    fn hear(&self, kind: &'static str, name: &KeyName, unit: Option<Unit>, text: &SharedString) {
        let unit = match unit {
            None | Some(Unit::Count) => "",
            Some(unit) => unit.as_str(),
        };
        let text = text.to_string();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.insert(name.as_str().to_owned(), Description { kind, unit, text });
    }
}

impl Recorder for Listener {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.hear("counter", &name, unit, &text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.hear("gauge", &name, unit, &text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.hear("histogram", &name, unit, &text);
    }

    fn register_counter(&self, _key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Sections: title, prefix of the names in it, and the function that describes the metrics.
const SECTIONS: [(&str, &str, fn()); 16] = [
    ("executor", "tandem_executor_", tandem_executor::describe_metrics),
    ("multiproof-workers", "tandem_multiproof_workers_", || {
        tandem_multiproof_workers::describe_metrics();
        tandem_multiproof_workers_client::describe_metrics();
    }),
    ("storage-writer", "tandem_storage_writer_", || {
        tandem_storage_writer::describe_metrics();
        tandem_storage_writer_client::describe_metrics();
    }),
    ("blob-validator", "tandem_blob_validator_", || {
        tandem_blob_validator::describe_metrics();
        tandem_blob_validator_client::describe_metrics();
    }),
    ("discovery", "tandem_discovery_", tandem_discovery::describe_metrics),
    ("peer-sessions", "tandem_peer_sessions_", || {
        tandem_peer_sessions::describe_metrics();
        tandem_peer_sessions_client::describe_metrics();
    }),
    ("peer-table", "tandem_peer_table_", || {
        tandem_peer_table::describe_metrics();
        tandem_peer_table_client::describe_metrics();
    }),
    ("sync", "tandem_sync_", tandem_sync::describe_metrics),
    ("follower", "tandem_follower_", tandem_follower::describe_metrics),
    ("tx-pool", "tandem_tx_pool_", || {
        tandem_tx_pool::describe_metrics();
        tandem_tx_pool_client::describe_metrics();
    }),
    ("tx-executor", "tandem_tx_executor_", || {
        tandem_tx_executor::describe_metrics();
        tandem_tx_executor_client::describe_metrics();
    }),
    ("Queues between threads", "tandem_queue_", tandem_actor::describe_metrics),
    ("gRPC between services", "tandem_rpc_", tandem_rpc::describe_metrics),
    ("HTTP ports", "tandem_http_", tandem_http::describe_metrics),
    ("The event bus", "tandem_bus_", tandem_bus::describe_metrics),
    ("Every process", "tandem_", tandem_telemetry::describe_metrics),
];

const INTRODUCTION: &str = "# Metrics

All metrics of `/metrics`, made from their descriptions in the code; a test keeps this page true. A
service has those that it has come to use. Histograms have buckets, so quantiles can be computed from them
and added up over instances. What the ones of the proof pipeline mean beside those of reth is in
[tracing/README.md](../tracing/README.md).

The format is Prometheus' text format, and there are no exemplars: the exporter (metrics-exporter-prometheus) writes neither
OpenMetrics nor exemplars, and keeps nothing of a single value that could be one. From a slow newPayload to its trace leads its
time instead: `tandem overlap --min-ms`, Jaeger's least duration, or `slow{MS}` as
[sampling](configuration.md#sampling-of-traces).
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (title, prefix, describe) in SECTIONS {
        let listener = Listener::default();
        with_local_recorder(&listener, describe);
        let heard = listener.heard.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert!(!heard.is_empty(), "{title} describes nothing");
        write!(page, "\n## {title}\n\n| metric | kind | unit | meaning |\n|---|---|---|---|\n")
            .unwrap();
        for (name, Description { kind, unit, text }) in heard {
            assert!(name.starts_with(prefix), "{name} in {title}");
            // The code writes the first letter in either case.
            let mut letters = text.trim_end_matches('.').chars();
            let first = letters.next().map(|letter| letter.to_lowercase().to_string());
            let text = first.unwrap_or_default() + letters.as_str();
            writeln!(page, "| `{name}` | {kind} | {unit} | {text} |").unwrap();
        }
    }
    page
}

#[test]
fn the_catalogue_is_what_the_code_describes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = page();
    if fs::read_to_string(&path).unwrap_or_default() != page {
        let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("metrics.md");
        fs::write(&fresh, page).unwrap();
        panic!("docs/metrics.md is not what the code describes: take {}", fresh.display());
    }
}
