//! Tests with a real Jaeger: it answers what was exported, and its searches find payloads by their
//! verdict.
//!
//! `TANDEM_JAEGER` names the executable, version 2. `TANDEM_JAEGER_UI` may name the folder of its
//! page, which is then looked at in Debian's `chromium`. Without them the tests say what they skip.

use super::{get, node_with};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::{Corpus, Running, send_head, send_payload};
use tempfile::TempDir;

/// Payloads that each node gets.
const BLOCKS: usize = 12;
/// Time without payloads in which no trace may appear.
const IDLE: Duration = Duration::from_secs(4);
/// Words of the verdict.
const VERDICTS: [&str; 5] = ["PARALLEL", "CONCURRENT", "PARTIAL", "SEQUENTIAL", "NOTHING_TO_GAIN"];
/// Services with a part in a payload.
const SERVICES: [&str; 3] = ["executor", "multiproof-workers", "storage-writer"];

/// A Jaeger that keeps everything in memory.
struct Jaeger {
    _process: Running,
    /// Address of its API and page.
    api: String,
    /// Address for spans over gRPC.
    otlp: String,
    /// Whether it has its page.
    has_page: bool,
}

impl Jaeger {
    /// Starts the Jaeger of `TANDEM_JAEGER`. Returns `None` if there is none.
    fn start(folder: &Path) -> Option<Self> {
        let binary = PathBuf::from(std::env::var_os("TANDEM_JAEGER")?);
        let page = std::env::var("TANDEM_JAEGER_UI").ok();
        let [api, query, otlp] = free_ports().map(|port| port.to_string());
        let mut ui = json!({});
        if let Some(folder) = &page {
            ui = json!({"assets_path": folder});
        }
        // YAML reads JSON.
        let config = json!({
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {
                    "traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]},
                },
                "telemetry": {"metrics": {"level": "none"}},
            },
            "extensions": {
                "jaeger_query": {
                    "storage": {"traces": "memory"},
                    "ui": ui,
                    "http": {"endpoint": api},
                    "grpc": {"endpoint": query},
                },
                "jaeger_storage": {
                    "backends": {"memory": {"memory": {"max_traces": 10_000}}},
                },
            },
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": otlp}}}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
        });
        let file = folder.join("jaeger.yaml");
        fs::write(&file, config.to_string()).unwrap();
        let words = ["--config", file.to_str().unwrap()];
        let mut process = Running::start(&binary, folder, "jaeger", words);
        process.says("Everything is ready");
        let otlp = format!("http://{otlp}");
        Some(Self { _process: process, api, otlp, has_page: page.is_some() })
    }

    /// Asks the API and returns its data.
    fn ask(&self, path: &str) -> Value {
        let answer = get(&self.api, path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{path}: {answer}");
        serde_json::from_str::<Value>(body).unwrap()["data"].take()
    }

    /// Returns the traces of a service by their ids, with this tag if one is given.
    fn traces(&self, service: &str, tag: Option<(&str, &str)>) -> BTreeMap<String, Value> {
        let tags = tag.map_or(String::new(), |(key, value)| {
            format!("&tags=%7B%22{key}%22%3A%22{value}%22%7D")
        });
        let found = self.ask(&format!("/api/traces?service={service}&limit=1000{tags}"));
        let found = found.as_array().cloned().unwrap_or_default();
        found.into_iter().map(|trace| (text(&trace["traceID"]), trace)).collect()
    }
}

/// Returns three addresses on which no process listens now.
fn free_ports() -> [SocketAddr; 3] {
    let listeners = [0; 3].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

/// Returns a JSON value as text, without the quotes of a string.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Span as both sides know it: times in microseconds, as Jaeger keeps them.
#[derive(Debug, PartialEq)]
struct Shown {
    name: String,
    service: String,
    parent: Option<String>,
    start_us: u64,
    end_us: u64,
    tags: BTreeMap<String, String>,
}

/// Returns the spans of the ring's payloads by trace and id.
fn of_ring(metrics: &str) -> BTreeMap<String, BTreeMap<String, Shown>> {
    let answer = get(metrics, "/debug/traces?n=1000");
    let all: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let mut traces = BTreeMap::<_, BTreeMap<_, _>>::new();
    for resource in all["resourceSpans"].as_array().unwrap() {
        let service = attributes(&resource["resource"]["attributes"])["service.name"].clone();
        let scopes = resource["scopeSpans"].as_array().unwrap();
        for span in scopes.iter().flat_map(|scope| scope["spans"].as_array().unwrap()) {
            let ns = |key: &str| text(&span[key]).parse::<u64>().unwrap();
            let shown = Shown {
                name: text(&span["name"]),
                service: service.clone(),
                parent: span["parentSpanId"].as_str().map(str::to_owned).filter(|p| !p.is_empty()),
                start_us: ns("startTimeUnixNano") / 1_000,
                end_us: ns("endTimeUnixNano") / 1_000,
                tags: attributes(&span["attributes"]),
            };
            let spans = traces.entry(text(&span["traceId"])).or_default();
            spans.insert(text(&span["spanId"]), shown);
        }
    }
    traces.retain(|_, spans| spans.values().any(|span| span.name == "on_new_payload"));
    traces
}

fn attributes(list: &Value) -> BTreeMap<String, String> {
    let list = list.as_array().into_iter().flatten();
    let value =
        |one: &Value| one["value"].as_object().and_then(|value| value.values().next().map(text));
    list.map(|one| (text(&one["key"]), value(one).unwrap_or_default())).collect()
}

/// Returns the spans of one of Jaeger's traces by id.
fn of_jaeger(trace: &Value) -> BTreeMap<String, Shown> {
    let shown = |span: &Value| {
        let start_us = span["startTime"].as_u64().unwrap();
        let references = span["references"].as_array().unwrap();
        for reference in references {
            assert_eq!(reference["refType"], "CHILD_OF", "{span}");
        }
        let tags = span["tags"].as_array().unwrap().iter();
        Shown {
            name: text(&span["operationName"]),
            service: text(&trace["processes"][text(&span["processID"])]["serviceName"]),
            parent: references.first().map(|reference| text(&reference["spanID"])),
            start_us,
            end_us: start_us + span["duration"].as_u64().unwrap(),
            tags: tags.map(|tag| (text(&tag["key"]), text(&tag["value"]))).collect(),
        }
    };
    let spans = trace["spans"].as_array().unwrap();
    spans.iter().map(|span| (text(&span["spanID"]), shown(span))).collect()
}

/// Checks that Jaeger has each span of a trace with its tags, and no other.
fn has_what_was_exported(trace: &Value, ring: &BTreeMap<String, Shown>) {
    assert!(trace["warnings"].as_array().is_none_or(Vec::is_empty), "{}", trace["warnings"]);
    let mut found = of_jaeger(trace);
    let roots = found.values().filter(|span| span.parent.is_none()).count();
    assert_eq!(roots, 1, "one root, and all others are a CHILD_OF");
    for (id, want) in ring {
        let mut got = found.remove(id).unwrap_or_else(|| panic!("no {want:?}"));
        // Jaeger adds tags of its own.
        got.tags.retain(|key, _| want.tags.contains_key(key));
        assert!(got.start_us.abs_diff(want.start_us) <= 1, "{got:?} instead of {want:?}");
        assert!(got.end_us.abs_diff(want.end_us) <= 2, "{got:?} instead of {want:?}");
        (got.start_us, got.end_us) = (want.start_us, want.end_us);
        assert_eq!(&got, want);
    }
    assert!(found.is_empty(), "not recorded: {found:?}");
}

/// Returns the text that the page of a trace shows in a browser. `None` if there is no browser.
fn page_of(jaeger: &Jaeger, folder: &Path, trace: &str) -> Option<String> {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,2000"])
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("http://{}/trace/{trace}", jaeger.api))
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jaeger_answers_what_was_exported_and_finds_payloads_by_their_verdict() {
    let folder = TempDir::new().unwrap();
    let Some(jaeger) = Jaeger::start(folder.path()) else {
        eprintln!("skipped: TANDEM_JAEGER names no Jaeger");
        return;
    };
    let corpus = Corpus::demo();
    let mut by_verdict = BTreeMap::<String, BTreeSet<String>>::new();
    for (run, variables, policy) in [
        ("parallel", "TANDEM__EXECUTOR__PREWARM_THREADS=1", "transition_flush=every-tx"),
        ("sequential", "TANDEM__EXECUTOR__PREWARM_THREADS=0", "transition_flush=fixed{100000}"),
    ] {
        let folder = folder.path().join(run);
        fs::create_dir(&folder).unwrap();
        let resource = format!("--otlp.resource=run={run}");
        let more =
            ["--trace.level=stage", "--otlp.endpoint", &jaeger.otlp, &resource, "--policy", policy];
        let (mut node, endpoints) = node_with(&[variables], &folder, &corpus, &more);
        let mut engine = endpoints.engine();
        for block in corpus.payloads().take(BLOCKS) {
            send_payload(&mut engine, &block).await.unwrap();
            send_head(&mut engine, block.hash).await.unwrap();
        }
        let metrics = node.says("listening port=\"metrics\" address=");
        let tag = Some(("run", run));
        let all = || {
            let ring = of_ring(&metrics);
            let found = jaeger.traces("executor", tag);
            let spans = |trace: &str| found.get(trace)?["spans"].as_array().map(Vec::len);
            let whole = |(trace, of_ring): (&String, &BTreeMap<_, _>)| {
                spans(trace).is_some_and(|count| count >= of_ring.len())
            };
            (ring.len() == BLOCKS && ring.iter().all(whole)).then_some((ring, found))
        };
        let (ring, found) = tokio::task::block_in_place(|| eventually("all payloads", all));
        for (trace, spans) in &ring {
            has_what_was_exported(&found[trace], spans);
            let root = spans.values().find(|span| span.name == "on_new_payload").unwrap();
            if let Some(verdict) = root.tags.get("overlap.verdict") {
                by_verdict.entry(verdict.clone()).or_default().insert(trace.clone());
            }
        }
        // An idle node has no traces.
        let count = || SERVICES.map(|service| jaeger.traces(service, tag).len());
        let before = count();
        tokio::time::sleep(IDLE).await;
        assert_eq!(count(), before, "traces of an idle node");
        assert!(node.terminate().0.success());
    }
    for verdict in VERDICTS {
        let found = jaeger.traces("executor", Some(("overlap.verdict", verdict)));
        let found: BTreeSet<_> = found.into_keys().collect();
        assert_eq!(found, by_verdict.remove(verdict).unwrap_or_default(), "{verdict}");
    }
    assert!(by_verdict.is_empty(), "{by_verdict:?}");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() + 60_000;
    let edges = jaeger.ask(&format!("/api/dependencies?endTs={now}&lookback=3600000"));
    let edges = edges.as_array().unwrap().iter();
    let edges = edges.map(|edge| (text(&edge["parent"]), text(&edge["child"])));
    // A span under another one of the same service is an edge too.
    let edges: BTreeSet<_> = edges.filter(|(parent, child)| parent != child).collect();
    let want =
        ["multiproof-workers", "storage-writer"].map(|to| ("executor".to_owned(), to.to_owned()));
    assert_eq!(edges, BTreeSet::from(want));
    if !jaeger.has_page {
        eprintln!("skipped: TANDEM_JAEGER_UI names no folder, so the page was not looked at");
        return;
    }
    for run in ["parallel", "sequential"] {
        let traces = jaeger.traces("executor", Some(("run", run)));
        let with_payload = |trace: &&Value| trace.to_string().contains("\"on_new_payload\"");
        let trace = text(&traces.values().find(with_payload).unwrap()["traceID"]);
        let Some(page) = page_of(&jaeger, folder.path(), &trace) else {
            eprintln!("skipped: no chromium on this machine, so the page was not looked at");
            return;
        };
        for name in ["payload processor", "await_state_root", "state root, after execution"] {
            assert!(page.contains(name), "{run}: no {name} on {page}");
        }
    }
}
