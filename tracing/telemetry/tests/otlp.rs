//! Export to a real OTLP/gRPC receiver, to failing ones, and to a silent one.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{Span as OtlpSpan, span::SpanKind, status::StatusCode};
use tandem_telemetry::{BusyIntervals, Config, Telemetry};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tracing::{Span, info_span};
use tracing_subscriber::layer::SubscriberExt;

/// Received spans with the `service.name` of their resource.
type Received = Arc<Mutex<Vec<(String, OtlpSpan)>>>;

struct Receiver(Received);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource_spans in request.into_inner().resource_spans {
            let resource = resource_spans.resource.unwrap_or_default();
            let service = text(&resource.attributes, "service.name");
            for span in resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                self.0.lock().unwrap().push((service.clone(), span));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|kv| kv.key == key).and_then(|kv| kv.value.clone());
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(int)) => int.to_string(),
        other => format!("{other:?}"),
    }
}

/// Starts a receiver on a free port of its own runtime thread.
fn receiver() -> (SocketAddr, Received) {
    receiver_on("127.0.0.1:0")
}

/// Starts a receiver on this address.
fn receiver_on(address: &str) -> (SocketAddr, Received) {
    let bound = address.to_owned();
    let received = Received::default();
    let service = TraceServiceServer::new(Receiver(Arc::clone(&received)));
    let (address_sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(bound).await.unwrap();
            address_sender.send(listener.local_addr().unwrap()).unwrap();
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
    });
    (address.recv().unwrap(), received)
}

fn telemetry(endpoint: String, queue: usize) -> Telemetry {
    let config =
        Config { otlp_endpoint: Some(endpoint), export_queue_spans: queue, ..Config::default() };
    Telemetry::detached(&config).unwrap()
}

/// Runs `f` on a new thread under the same subscriber, as a worker thread of a node would.
fn on_thread(f: impl FnOnce() + Send + 'static) {
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let run = move || tracing::dispatcher::with_default(&dispatch, f);
    std::thread::spawn(run).join().unwrap();
}

/// Sends one payload through six services, each on its own thread, handing its span to the next.
fn payload() {
    let root = info_span!(target: "tandem_executor", "on_new_payload", block.number = 1u64);
    let parent = root.clone();
    on_thread(move || {
        let worker = info_span!(target: "tandem_multiproof_workers::pool", parent: &parent, "storage worker");
        BusyIntervals::new(&worker).start();
        let walk = move |parent: &Span| {
            let _walk =
                info_span!(target: "tandem_storage_writer::walk", parent: parent, "walk_trie");
        };
        on_thread(move || walk(&worker));
        let _blobs = info_span!(target: "tandem_blob_validator", parent: &parent, "validate_blobs");
    });
    let _lookup = info_span!(target: "tandem_discovery", parent: &root, "lookup").entered();
    let _sample = info_span!(target: "tandem_peer_table", "sample").entered();
}

#[test]
fn six_services_of_one_process_appear_under_their_own_names() {
    let (address, received) = receiver();
    let telemetry = telemetry(format!("http://{address}"), 1_000);
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    tracing::subscriber::with_default(subscriber, payload);
    telemetry.shutdown();

    let received = received.lock().unwrap();
    let services: BTreeMap<&str, &str> =
        received.iter().map(|(service, span)| (span.name.as_str(), service.as_str())).collect();
    let expected = BTreeMap::from([
        ("on_new_payload", "executor"),
        ("storage worker", "multiproof-workers"),
        ("walk_trie", "storage-writer"),
        ("validate_blobs", "blob-validator"),
        ("lookup", "discovery"),
        ("sample", "peer-table"),
    ]);
    assert_eq!(services, expected);

    let span = |name: &str| &received.iter().find(|(_, span)| span.name == name).unwrap().1;
    let parents = [
        ("storage worker", "on_new_payload"),
        ("walk_trie", "storage worker"),
        ("validate_blobs", "on_new_payload"),
        ("lookup", "on_new_payload"),
        ("sample", "lookup"),
    ];
    for (child, parent) in parents {
        assert_eq!(span(child).parent_span_id, span(parent).span_id, "{child} is under {parent}");
    }
    assert!(span("on_new_payload").parent_span_id.is_empty());
    let traces: BTreeSet<&[u8]> =
        received.iter().map(|(_, span)| span.trace_id.as_slice()).collect();
    assert_eq!(traces.len(), 1, "one trace over all services");
    assert_eq!(text(&span("on_new_payload").attributes, "block.number"), "1");
    assert_eq!(telemetry.export_stats().exported, 6);
}

#[test]
fn busy_intervals_travel_as_events() {
    let (address, received) = receiver();
    let telemetry = telemetry(format!("http://{address}"), 1_000);
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    tracing::subscriber::with_default(subscriber, || {
        let span = info_span!(target: "tandem_multiproof_workers", "storage worker");
        let mut busy = BusyIntervals::new(&span);
        for _ in 0..2 {
            busy.start();
            busy.stop();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    telemetry.shutdown();
    let received = received.lock().unwrap();
    let events = &received[0].1.events;
    assert_eq!(events.len(), 2);
    for (event, (start, end)) in events.iter().zip(&telemetry.ring().traces(1)[0][0].busy) {
        assert_eq!((event.name.as_str(), event.time_unix_nano), ("busy", *start));
        assert_eq!(text(&event.attributes, "busy.start_unix_nano"), start.to_string());
        assert_eq!(text(&event.attributes, "busy.end_unix_nano"), end.to_string());
    }
}

#[test]
fn kinds_and_failures_are_exported() {
    let (address, received) = receiver();
    let telemetry = telemetry(format!("http://{address}"), 1_000);
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    tracing::subscriber::with_default(subscriber, || {
        let rpc = info_span!(target: "tandem_executor", "rpc", otel.kind = "server");
        let failed = tracing::field::Empty;
        let span = info_span!(
            target: "tandem_executor", parent: &rpc, "on_new_payload",
            otel.status_description = failed,
        );
        span.record("otel.status_description", "gas_used: 7 instead of 9");
        let _call =
            info_span!(target: "tandem_executor", parent: &span, "call", otel.kind = "client");
    });
    telemetry.shutdown();
    let received = received.lock().unwrap();
    let span = |name: &str| &received.iter().find(|(_, span)| span.name == name).unwrap().1;
    let kinds = ["rpc", "on_new_payload", "call"].map(|name| span(name).kind());
    assert_eq!(kinds, [SpanKind::Server, SpanKind::Internal, SpanKind::Client]);
    let status = span("on_new_payload").status.as_ref().unwrap();
    assert_eq!((status.code(), &*status.message), (StatusCode::Error, "gas_used: 7 instead of 9"));
    assert_eq!(span("rpc").status.as_ref().map_or(0, |status| status.code), 0, "unset");
    let keys = received.iter().flat_map(|(_, span)| &span.attributes).map(|pair| &*pair.key);
    assert_eq!(keys.filter(|key| key.starts_with("otel.")).count(), 0, "they are no attributes");
    let json = telemetry.traces_json(1);
    assert!(json.contains(r#""status":{"message":"gas_used: 7 instead of 9","code":2}"#), "{json}");
}

#[test]
fn thousands_of_spans_all_arrive() {
    let (address, received) = receiver();
    let telemetry = telemetry(format!("http://{address}"), 100_000);
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    tracing::subscriber::with_default(subscriber, || {
        let _root = info_span!(target: "tandem_executor", "on_new_payload").entered();
        for _ in 0..20_000 {
            let _span = info_span!(target: "tandem_executor", "stage").entered();
        }
    });
    telemetry.shutdown();
    let received = received.lock().unwrap();
    let ids: BTreeSet<&[u8]> = received.iter().map(|(_, span)| span.span_id.as_slice()).collect();
    assert_eq!(ids.len(), 20_001);
    let again = received.len() - ids.len();
    assert!(
        again < 20_001,
        "on a stalled machine, a call may arrive although it timed out: {again}"
    );
}

/// Records `spans` spans against `endpoint` and returns how long recording and shutdown took.
fn record_against(endpoint: String, queue: usize, spans: u64) -> (Telemetry, Duration, Duration) {
    let telemetry = telemetry(endpoint, queue);
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    let start = Instant::now();
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..spans {
            let _span = info_span!(target: "tandem_executor", "on_new_payload").entered();
        }
    });
    let recorded = start.elapsed();
    let start = Instant::now();
    telemetry.shutdown();
    (telemetry, recorded, start.elapsed())
}

#[test]
fn endpoint_that_refuses_is_harmless() {
    // Port 1 of the loopback interface answers with a reset.
    let (telemetry, recorded, shutdown) = record_against("http://127.0.0.1:1".to_owned(), 100, 50);
    assert!(recorded < Duration::from_secs(1), "{recorded:?}");
    assert!(shutdown < Duration::from_secs(5), "{shutdown:?}");
    assert_eq!(telemetry.export_stats().failed, 50);
    assert_eq!(telemetry.ring().len(), 50, "the ring has them all the same");
}

#[test]
fn endpoint_that_was_dead_for_a_while_gets_every_span() {
    // The port is free after this, until the receiver listens on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let telemetry = telemetry(format!("http://{port}"), 1_000);
    let subscriber = tracing_subscriber::registry().with(telemetry.layer());
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..20 {
            payload();
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let stats = telemetry.export_stats();
    assert_eq!((stats.exported, stats.failed, stats.dropped), (0, 0, 0), "{stats:?}");
    let received = receiver_on(&port.to_string()).1;
    let start = Instant::now();
    while telemetry.export_stats().exported < 120 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    telemetry.shutdown();
    let stats = telemetry.export_stats();
    assert_eq!((stats.exported, stats.failed, stats.dropped, stats.queued), (120, 0, 0, 0));
    let received = received.lock().unwrap();
    let ids: BTreeSet<&[u8]> = received.iter().map(|(_, span)| span.span_id.as_slice()).collect();
    assert_eq!(ids.len(), 120);
}

#[test]
fn endpoint_that_is_dead_for_good_leaves_no_span_uncounted() {
    let (telemetry, ..) = record_against("http://127.0.0.1:1".to_owned(), 64, 5_000);
    let stats = telemetry.export_stats();
    assert_eq!((stats.exported, stats.queued), (0, 0), "{stats:?}");
    assert_eq!(stats.failed + stats.dropped, 5_000, "{stats:?}");
}

#[test]
fn endpoint_that_is_malformed_is_harmless() {
    for endpoint in ["not an endpoint", "http://[::1", "://"] {
        let (telemetry, ..) = record_against(endpoint.to_owned(), 100, 50);
        assert_eq!(telemetry.export_stats().failed, 50, "{endpoint}");
        assert_eq!(telemetry.ring().len(), 50, "the ring has them all the same");
    }
}

#[test]
fn endpoint_that_never_answers_fills_the_queue_which_drops_and_never_blocks() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let (telemetry, recorded, shutdown) = record_against(endpoint, 100, 50_000);
    assert!(recorded < Duration::from_secs(3), "{recorded:?}");
    assert!(shutdown <= Duration::from_millis(5_500), "{shutdown:?}");
    let stats = telemetry.export_stats();
    assert!(stats.dropped > 40_000, "{stats:?}");
    assert_eq!((stats.exported, stats.queued), (0, 0));
    assert_eq!(stats.failed + stats.dropped, 50_000, "{stats:?}");
}

#[test]
fn shutdown_again_and_without_endpoint_returns_at_once() {
    let telemetry = Telemetry::detached(&Config::default()).unwrap();
    let start = Instant::now();
    telemetry.shutdown();
    telemetry.clone().shutdown();
    assert!(start.elapsed() < Duration::from_secs(1));
}
