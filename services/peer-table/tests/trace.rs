//! A call's trace continues in the process of the table. This test has a binary of its own, as the
//! recorder serves all threads of a process.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_peer_table::{Config, Deps, PeerTable, grpc::Server};
use tandem_peer_table_client::{Client, ClientConfig};
use tandem_proto::peer_table::PeerTableApi;
use tandem_telemetry::{Recorder, Ring, SpanContext, SpanRecord, TraceLevel, traceparent};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;
use tracing::info_span;
use tracing_subscriber::layer::SubscriberExt;

fn eventually<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(Instant::now() < end, "{what} within 60 s");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_trace_of_a_call_goes_on_in_the_process_of_the_table() {
    let recorder = Recorder::new(TraceLevel::Stage, Arc::new(Ring::new(1_000, 1 << 20)));
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let (runtime, bus, stop) = (Runtime::new().unwrap(), Bus::default(), CancellationToken::new());
    let deps = Deps { bus: bus.clone(), fatal: CancellationToken::new() };
    let table = PeerTable::start(Config::default(), deps).unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = runtime.spawn(Server::new(table.clone(), bus).serve(listener, stop.clone()));
    let config = ClientConfig { answer_ms_max: 20_000, ..ClientConfig::default() };
    let client = Client::connect(&url, config, Bus::default(), runtime.handle()).unwrap();
    eventually("a connection", || client.is_connected().then_some(()));

    // Without a span on this side there is none on the other.
    client.stats().unwrap();
    let span = info_span!(target: "tandem_discovery", "caller");
    let caller = SpanContext::parse(&traceparent(&span).unwrap()).unwrap();
    span.in_scope(|| {
        client.stats().unwrap();
        client.sample_for_enr().unwrap();
        client.set_connected(3).unwrap();
    });
    drop(span);
    let calls = || -> Vec<Arc<SpanRecord>> {
        let spans = recorder.ring().traces(usize::MAX).into_iter().flatten();
        spans.filter(|span| span.name == "peer_table_call").collect()
    };
    let calls = eventually("three spans", || Some(calls()).filter(|calls| calls.len() >= 3));
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert_eq!((call.trace_id, call.parent_id), (caller.trace_id, caller.span_id));
        assert!(call.parent_is_remote);
        assert_eq!(call.service, "peer-table");
    }
    stop.cancel();
    runtime.block_on(server).unwrap().unwrap();
    table.stop();
}
