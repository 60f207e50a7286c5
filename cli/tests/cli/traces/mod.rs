//! Tests exported traces of one process and of six: a payload is one tree, whose spans are where
//! the catalogue places them.

mod catalogue;
mod jaeger;
mod receiver;

use crate::binary;
use catalogue::catalogue;
use receiver::{Receiver, Span};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_cluster_tests::{
    Client, Corpus, Endpoints, Recorded, Running, Six, send_head, send_payload,
};
use tempfile::TempDir;

/// Longest wait for the last span of a trace before another block is tried.
const TRACE_TIME_MAX: Duration = Duration::from_secs(2);

/// Spans that every block has, wherever its services run.
const ALWAYS: [&str; 12] = [
    "on_new_payload",
    "decode_payload",
    "recover_senders",
    "validate_block_with_state",
    "get_overlay",
    "spawn_payload_processor",
    "payload processor",
    "await_state_root",
    "state root, after execution",
    "commit_block",
    "encode_block",
    "write_batch",
];
/// Spans that calls between processes add.
const ACROSS: [&str; 2] = ["process_block", "storage_call"];

/// Starts `tandem node` with exported traces. Returns it with its endpoints.
fn node(folder: &Path, corpus: &Corpus, more: &[&str]) -> (Running, Endpoints) {
    node_with(&[], folder, corpus, more)
}

/// Starts `tandem node` like [`node`], with these variables, `NAME=VALUE`.
fn node_with(
    variables: &[&str],
    folder: &Path,
    corpus: &Corpus,
    more: &[&str],
) -> (Running, Endpoints) {
    let (datadir, secret) = (folder.join("data"), folder.join("jwt.hex"));
    let genesis = corpus.genesis();
    let given = [
        "node",
        "--disable-discovery",
        "--datadir",
        datadir.to_str().unwrap(),
        "--genesis",
        genesis.to_str().unwrap(),
        "--authrpc.jwtsecret",
        secret.to_str().unwrap(),
    ];
    let ports = ["--authrpc.port=0", "--http.port=0", "--metrics.port=0"];
    let program = [binary().to_str().unwrap()];
    let words = [variables, &program, &given, &ports, more].concat();
    let mut node = Running::start(Path::new("/usr/bin/env"), folder, "node", words);
    let mut at = |port| node.says(&format!("listening port=\"{port}\" address=")).parse().unwrap();
    let (engine, http) = (at("engine"), at("http"));
    (node, Endpoints::new(engine, http, secret))
}

/// Returns the faults of a trace according to the catalogue; empty if there are none.
fn faults(spans: &[Span], wanted: &[&str]) -> Vec<String> {
    let catalogue = catalogue();
    let by_id: BTreeMap<_, _> = spans.iter().map(|span| (&span.id, span)).collect();
    let names: BTreeSet<_> = spans.iter().map(|span| &*span.name).collect();
    let missing = wanted.iter().filter(|name| !names.contains(**name));
    let mut faults: Vec<String> = missing.map(|name| format!("there is no {name}")).collect();
    for Span { name, parent, .. } in spans {
        let Some(entry) = catalogue.get(name) else {
            faults.push(format!("{name} is not in the catalogue"));
            continue;
        };
        match by_id.get(parent) {
            Some(above) if entry.under.contains(&above.name) => {}
            Some(above) => faults.push(format!("{name} is under {}", above.name)),
            None if parent.is_empty() && entry.may_be_root => {}
            None if parent.is_empty() => faults.push(format!("{name} has no parent")),
            None => faults.push(format!("the parent of {name} is missing")),
        }
    }
    for span in spans {
        // A span of a library belongs to its caller.
        let known = catalogue.get(&span.name).map(|entry| &entry.service);
        if known.is_some_and(|service| service != span.service()) {
            faults.push(format!("{} is of {}", span.name, span.service()));
        }
    }
    faults
}

/// Sends blocks until the trace of one is without fault, and returns it.
async fn whole_trace(
    engine: &mut Client,
    receiver: &Receiver,
    blocks: impl Iterator<Item = Recorded>,
    wanted: &[&str],
) -> Vec<Span> {
    let mut found = Vec::new();
    for block in blocks {
        send_payload(engine, &block).await.unwrap();
        send_head(engine, block.hash).await.unwrap();
        let hex = block.params[0]["blockNumber"].as_str().unwrap();
        let number = u64::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap();
        let sent = Instant::now();
        while sent.elapsed() < TRACE_TIME_MAX {
            let spans = receiver.trace_of(number);
            found = faults(&spans, wanted);
            if found.is_empty() {
                return spans;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    panic!("no trace without fault; of the last one: {found:#?}");
}

fn values<'a>(spans: &'a [Span], key: &str) -> BTreeSet<&'a str> {
    spans.iter().map(|span| span.resource.get(key).map_or("", |value| &**value)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_payload_of_one_process_is_one_tree() {
    let (folder, corpus, receiver) = (TempDir::new().unwrap(), Corpus::demo(), Receiver::start());
    let url = receiver.url();
    let more = [
        "--trace.level=stage",
        "--otlp.endpoint",
        &url,
        "--otlp.resource=k8s.pod.name=tandem-0,k8s.node.name=node-7,k8s.namespace.name=chain",
    ];
    let (mut node, endpoints) = node(folder.path(), &corpus, &more);
    let spans = whole_trace(&mut endpoints.engine(), &receiver, corpus.payloads(), &ALWAYS).await;
    let services = BTreeSet::from(["executor", "multiproof-workers", "storage-writer"]);
    assert_eq!(values(&spans, "service.name"), services);
    let execution = spans.iter().find(|span| span.name == "payload processor").unwrap();
    for piece in spans.iter().filter(|span| span.name == "state root, while executing") {
        assert!(piece.start_ns <= piece.end_ns && piece.end_ns < execution.end_ns);
    }
    let after = spans.iter().filter(|span| span.name == "state root, after execution");
    assert!(after.map(|piece| piece.start_ns).min() > Some(execution.start_ns));
    // One process has the same attributes for all its services.
    for (key, value) in [
        ("k8s.pod.name", "tandem-0"),
        ("k8s.node.name", "node-7"),
        ("k8s.namespace.name", "chain"),
        ("service.namespace", "tandem"),
    ] {
        assert_eq!(values(&spans, key), BTreeSet::from([value]), "{key}");
    }
    for key in ["service.instance.id", "host.name"] {
        let found = values(&spans, key);
        assert!(found.len() == 1 && !found.contains(""), "{key}: {found:?}");
    }
    assert!(node.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_payload_of_six_processes_is_one_tree_also_when_only_slow_ones_are_exported() {
    let (folder, corpus, receiver) = (TempDir::new().unwrap(), Corpus::demo(), Receiver::start());
    let (url, nats) = (receiver.url(), NatsServer::start());
    // With a bus, the other processes are told which payloads were slow, here all of them. Without
    // a bus they would not be told, so all traces are exported then.
    let sampling = if nats.is_some() { "slow{0}" } else { "always" };
    let bus = nats.as_ref().map_or("none".to_owned(), NatsServer::url);
    let more = [
        "--nats",
        &bus,
        "--trace.level=stage",
        "--trace.sampling",
        sampling,
        "--otlp.endpoint",
        &url,
    ];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    let wanted = [&ALWAYS[..], &ACROSS].concat();
    let mut engine = six.endpoints.engine();
    let spans = whole_trace(&mut engine, &receiver, corpus.payloads(), &wanted).await;
    let mut processes = BTreeMap::<&str, BTreeSet<&str>>::new();
    for span in &spans {
        let id = span.resource.get("service.instance.id").expect("every process has one");
        processes.entry(id).or_default().insert(span.service());
    }
    let services: BTreeSet<_> = processes
        .values()
        .map(|services| {
            assert_eq!(services.len(), 1, "a process is one service: {processes:?}");
            *services.first().unwrap()
        })
        .collect();
    assert_eq!(services, BTreeSet::from(["executor", "multiproof-workers", "storage-writer"]));
    assert_eq!(values(&spans, "host.name").len(), 1, "all are on this machine");
    for span in &spans {
        let is_server = ACROSS.contains(&&*span.name);
        assert_eq!(span.kind, if is_server { SERVER } else { INTERNAL }, "{}", span.name);
    }
    // Reads of a worker are an edge between services: its first call for a block is a span.
    let all = receiver.spans();
    let of_worker = |span: &Span| {
        let parent = all.iter().find(|one| one.trace == span.trace && one.id == span.parent);
        parent.is_some_and(|parent| parent.name == "process_block")
    };
    assert!(all.iter().any(|span| span.name == "storage_call" && of_worker(span)));
    assert!(six.stop().0.success(), "{}", six.log());
}

/// Returns the figures of `tandem overlap` on the ring of a node, by block.
fn analysis(folder: &Path, metrics: &str) -> BTreeMap<u64, serde_json::Value> {
    let file = folder.join("overlap.json");
    let mut command = std::process::Command::new(binary());
    command.args(["overlap", "--node", &format!("http://{metrics}"), "--json"]).arg(&file);
    assert!(command.output().unwrap().status.success());
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let payloads = report["payloads"].as_array().unwrap().clone();
    payloads.into_iter().map(|one| (one["block_number"].as_u64().unwrap(), one)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_says_its_overlap_as_the_analysis_does() {
    let (folder, corpus, receiver) = (TempDir::new().unwrap(), Corpus::demo(), Receiver::start());
    let url = receiver.url();
    let (mut node, endpoints) =
        node(folder.path(), &corpus, &["--trace.level=stage", "--otlp.endpoint", &url]);
    let mut engine = endpoints.engine();
    for block in corpus.payloads().take(8) {
        send_payload(&mut engine, &block).await.unwrap();
    }
    let metrics = node.says("listening port=\"metrics\" address=");
    // A span is in the ring a moment after the answer.
    let mut tries = std::iter::repeat_with(|| analysis(folder.path(), &metrics)).take(20);
    let analysis = tries.find(|analysis| analysis.len() == 8).expect("all payloads");
    assert!(node.terminate().0.success());
    let spans = receiver.spans();
    let payloads: Vec<_> = spans.iter().filter(|span| span.name == "on_new_payload").collect();
    assert_eq!(payloads.len(), 8);
    let mut compared = 0;
    for payload in payloads {
        let figures = &analysis[&payload.attributes["block.number"].parse().unwrap()];
        let us = |name: &str| payload.attributes[&format!("overlap.{name}_us")].parse().unwrap();
        let ns = |name: &str| figures[format!("{name}_ns")].as_u64().unwrap() / 1_000;
        let about = |name: &str, got: u64, want: u64, slack: u64| {
            assert!(got.abs_diff(want) <= slack, "{name}: {got} instead of {want}");
        };
        let slack = |name: &str| 50 + ns(name) / 20;
        // Prewarm threads that work while the engine waits for something else, and proof threads that
        // still worked on advice, are in the analysis alone. On a busy machine they are a lot.
        let [has_more_a, has_more_b] = ["a", "b"].map(|name| us(name) + slack(name) < ns(name));
        if has_more_a || has_more_b {
            continue;
        }
        compared += 1;
        about("a", us("a"), ns("a"), slack("a"));
        about("b", us("b"), ns("b"), slack("b"));
        // Time of both sides at once differs by as much as the two sides together.
        let of_both = slack("a") + slack("b");
        about("saved", us("saved"), ns("both"), of_both);
        about("tail", us("tail"), ns("tail"), slack("tail"));
        let slack = 0.05 + of_both as f64 / ns("a").min(ns("b")).max(1) as f64;
        let percent: f64 = payload.attributes["overlap.percent"].parse().unwrap();
        let overlap = figures["overlap"].as_f64().unwrap();
        assert!((percent / 100.0 - overlap).abs() < slack, "{percent} instead of {overlap}");
        let is_clear = |figure: &str, limits: &[f64]| {
            let value = figures[figure].as_f64().unwrap();
            limits.iter().all(|limit| (value - limit).abs() > slack)
        };
        let verdict = figures["verdict"].as_str().unwrap();
        let clear = is_clear("reached", &[0.3, 0.8])
            && is_clear("weight", &[0.1])
            && is_clear("tail_share", &[0.1]);
        // Only the analysis knows how long threads had a processor.
        if clear && verdict != "CONCURRENT" {
            assert_eq!(payload.attributes["overlap.verdict"], verdict);
        }
    }
    assert!(compared > 0, "the figures of a payload are those of the analysis");
}

/// Kinds `SPAN_KIND_INTERNAL` and `SPAN_KIND_SERVER` of OTLP.
const INTERNAL: i32 = 1;
const SERVER: i32 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_payload_is_a_failed_span_with_its_reason() {
    let (folder, corpus, receiver) = (TempDir::new().unwrap(), Corpus::demo(), Receiver::start());
    let url = receiver.url();
    let (mut node, endpoints) =
        node(folder.path(), &corpus, &["--trace.level=stage", "--otlp.endpoint", &url]);
    let mut engine = endpoints.engine();
    let mut blocks = corpus.payloads();
    send_payload(&mut engine, &blocks.next().unwrap()).await.unwrap();
    let mut wrong = blocks.next().unwrap();
    wrong.params[0]["gasUsed"] = "0x1".into();
    let answer = engine.call(&wrong.method, wrong.params).await.unwrap();
    assert_eq!(answer["status"], "INVALID");
    assert!(node.terminate().0.success());
    let spans = receiver.spans();
    let failed: Vec<_> = spans.iter().filter(|span| span.error.is_some()).collect();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert_eq!(failed[0].name, "on_new_payload");
    assert_eq!(failed[0].error.as_deref(), answer["validationError"].as_str());
    assert_eq!(failed[0].attributes["status"], "INVALID", "as it was answered");
    assert_eq!(failed[0].attributes["rpc.method"], wrong.method);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_slow_is_not_exported_and_counted() {
    let (folder, corpus, receiver) = (TempDir::new().unwrap(), Corpus::demo(), Receiver::start());
    let url = receiver.url();
    let more =
        ["--trace.level=stage", "--otlp.endpoint", &url, "--trace.sampling", "slow{3600000}"];
    let (mut node, endpoints) = node(folder.path(), &corpus, &more);
    let mut engine = endpoints.engine();
    for block in corpus.payloads().take(4) {
        send_payload(&mut engine, &block).await.unwrap();
    }
    let metrics = node.says("listening port=\"metrics\" address=");
    let left_out = || {
        let text = get(&metrics, "/metrics");
        let line = text.lines().find_map(|line| {
            line.strip_prefix("tandem_telemetry_left_out_spans_total ")?.parse::<u64>().ok()
        });
        line.filter(|spans| *spans >= 2 * ALWAYS.len() as u64)
    };
    // The process exports its counters every five seconds.
    tokio::task::block_in_place(|| eventually("spans that were left out", left_out));
    let exported: Vec<_> = receiver.spans().into_iter().map(|span| span.name).collect();
    assert!(exported.is_empty(), "{exported:?}");
    // The ring, and the metrics port, have them all the same.
    assert!(get(&metrics, "/debug/traces?n=100").contains("\"on_new_payload\""));
    assert!(node.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn execution_is_not_busy_while_it_waits_for_state() {
    const DELAY_NS: u64 = 500_000;
    let (folder, corpus, receiver) = (TempDir::new().unwrap(), Corpus::demo(), Receiver::start());
    let url = receiver.url();
    let more = [
        "--trace.level=stage",
        "--policy=reads=one-by-one",
        "--policy=transition_flush=fixed{100000}",
        "--otlp.endpoint",
        &url,
    ];
    let variables = [
        "TANDEM__STORAGE_WRITER__READ_DELAY_MICROS=500",
        // Otherwise its reads are awaited by other threads.
        "TANDEM__EXECUTOR__PREWARM_THREADS=0",
    ];
    let (mut node, endpoints) = node_with(&variables, folder.path(), &corpus, &more);
    let spans = whole_trace(&mut endpoints.engine(), &receiver, corpus.payloads(), &ALWAYS).await;
    let execution = spans.iter().find(|span| span.name == "payload processor").unwrap();
    let number = |name: &str| execution.attributes[name].parse::<u64>().unwrap();
    let (unforeseen, waited) = (number("reads.unforeseen"), number("wait.state_ns"));
    assert!(unforeseen > 10 && waited >= unforeseen * DELAY_NS, "{execution:?}");
    let metrics = get(&node.says("listening port=\"metrics\" address="), "/metrics");
    for line in [
        "tandem_executor_execution_wait_seconds_count{for=\"state\"}",
        "tandem_executor_execution_wait_seconds_count{for=\"workers\"}",
        "tandem_executor_unforeseen_reads_count",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    assert!(node.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_go_over_tls_with_headers() {
    const HEADERS: [(&str, &str); 2] = [("authorization", "Bearer let me in"), ("x-tenant", "one")];
    let (folder, corpus) = (TempDir::new().unwrap(), Corpus::demo());
    let receiver = Receiver::start_tls(&HEADERS);
    let (url, ca) = (receiver.url(), Receiver::certificate("ca.pem"));
    let variables = [
        "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20let%20me%20in,x-tenant=one",
        &format!("OTEL_EXPORTER_OTLP_CERTIFICATE={}", ca.display()),
        &format!("OTEL_EXPORTER_OTLP_ENDPOINT={url}"),
    ];
    let more = ["--trace.level=stage"];
    let (mut node, endpoints) = node_with(&variables, folder.path(), &corpus, &more);
    whole_trace(&mut endpoints.engine(), &receiver, corpus.payloads(), &ALWAYS).await;
    assert!(node.terminate().0.success());
    assert!(!node.log().contains("trace export fails"), "{}", node.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_wrong_is_a_warning_and_its_password_stays_out_of_the_log() {
    let (corpus, receiver) = (Corpus::demo(), Receiver::start_tls(&[]));
    let url = receiver.url();
    let ca = |name: &str| format!("--otlp.ca={}", Receiver::certificate(name).display());
    let cases = [
        (url.clone(), String::new()),
        (url.clone(), ca("other-ca.pem")),
        (url, ca("missing.pem")),
        ("http://trace:hunter2@[::1".to_owned(), String::new()),
        ("https://trace:hunter2@127.0.0.1:1".to_owned(), ca("ca.pem")),
        ("trace:hunter2@127.0.0.1:1".to_owned(), String::new()),
    ];
    for (endpoint, ca) in cases {
        let folder = TempDir::new().unwrap();
        let endpoint = format!("--otlp.endpoint={endpoint}");
        let mut more = vec!["--trace.level=stage", &endpoint];
        more.extend((!ca.is_empty()).then_some(&*ca));
        let (mut node, endpoints) = node(folder.path(), &corpus, &more);
        let block = corpus.payloads().next().unwrap();
        send_payload(&mut endpoints.engine(), &block).await.unwrap();
        tokio::task::block_in_place(|| node.says("trace export fails"));
        let metrics = node.says("listening port=\"metrics\" address=");
        assert!(get(&metrics, "/readyz").starts_with("HTTP/1.0 200"), "{endpoint} {ca}");
        assert!(!node.log().contains("hunter2"), "{}", node.log());
        assert!(node.terminate().0.success(), "{}", node.log());
    }
    assert!(receiver.spans().is_empty());
}

/// Returns the answer to a GET, including its head.
fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
