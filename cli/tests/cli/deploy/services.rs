//! Tests of a running node: its metrics against the dashboards, and the commands that maintain it.

use crate::deploy::{
    get,
    metrics::{all_uses, metric_of},
    succeeds, tandem,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{Read, Write},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};
use tandem_cluster_tests::repository;
use tempfile::TempDir;

/// Longest wait for any event, on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// A `tandem node` on the demo corpus' genesis.
struct Node {
    child: Child,
    folder: TempDir,
    /// Addresses by port: `engine`, `http`, `metrics`, `sessions`.
    addresses: BTreeMap<String, String>,
}

impl Node {
    #[allow(clippy::zombie_processes)] // waited for when it is dropped
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let child = tandem()
            .args(["node", "--disable-discovery", "--authrpc.port", "0", "--http.port", "0"])
            .args(["--sessions.addr", "127.0.0.1", "--sessions.port", "0"])
            .args(["--metrics.port", "0", "--log.filter", "info", "--datadir"])
            .arg(folder.path().join("data"))
            .arg("--genesis")
            .arg(genesis())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut node = Self { child, folder, addresses: BTreeMap::new() };
        eventually("the node listens", || {
            let log = fs::read_to_string(node.folder.path().join("log")).unwrap();
            assert!(node.child.try_wait().unwrap().is_none(), "the node ended\n{log}");
            // Only whole lines are read: the last one may be incomplete.
            for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let Some((_, rest)) = line.split_once("listening port=\"") else { continue };
                let (port, address) = rest.split_once("\" address=").unwrap();
                node.addresses.insert(port.to_owned(), address.trim().to_owned());
            }
            (node.addresses.len() == 4).then_some(())
        });
        node
    }

    fn url(&self, port: &str, path: &str) -> String {
        format!("http://{}{path}", self.addresses[port])
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Sends the first blocks of the demo corpus.
    fn replay(&self, blocks: u64) {
        succeeds(
            tandem()
                .args(["replay", "--engine", &self.url("engine", ""), "--jwtsecret"])
                .arg(self.data().join("jwt.hex"))
                .args(["--to", &blocks.to_string()])
                .arg(repository().join("corpora/demo")),
        );
    }

    fn metrics(&self) -> String {
        get(&self.addresses["metrics"], "/metrics")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn genesis() -> PathBuf {
    repository().join("corpora/demo/genesis.json.gz")
}

fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what} within {DEADLINE:?}");
        sleep(Duration::from_millis(50));
    }
}

/// Metrics in Prometheus' text format: their kinds by name, and all series.
struct Scrape<'a> {
    kinds: BTreeMap<&'a str, &'a str>,
    series: Vec<&'a str>,
}

impl<'a> Scrape<'a> {
    fn parse(text: &'a str) -> Self {
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Self { kinds: kinds.collect(), series: lines.collect() }
    }

    /// Returns whether there is a series with this name and these labels.
    fn has(&self, name: &str, labels: &[(String, String)]) -> bool {
        self.series.iter().any(|series| {
            let rest = series.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']));
            let carries = |rest: &str, (label, value): &(String, String)| {
                // Set by Prometheus itself.
                label == "job" || rest.contains(&format!("{label}=\"{value}\""))
            };
            rest.is_some_and(|rest| labels.iter().all(|label| carries(rest, label)))
        })
    }
}

/// Covers what a single process measures once it has done some work. Other metrics are between
/// processes.
#[test]
fn what_dashboards_ask_for_is_what_a_running_node_says() {
    let node = Node::start();
    node.replay(20);
    let ready = |text: &String| text.contains("tandem_process_cpu_milliseconds_total");
    let text = eventually("metrics of the process", || Some(node.metrics()).filter(ready));
    let scrape = Scrape::parse(&text);
    let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
    for (place, used) in all_uses() {
        let Some(metric) = metric_of(&used.name, |stem| scrape.kinds.contains_key(stem)) else {
            continue;
        };
        let histogram = scrape.kinds[metric.as_str()] == "histogram";
        if histogram == (metric == used.name) {
            wrong.push(format!("{place}: {} of a {}", used.name, scrape.kinds[metric.as_str()]));
        } else if !scrape.has(&used.name, &used.labels) {
            wrong.push(format!("{place}: no series {} {:?}", used.name, used.labels));
        }
        found.insert(metric);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Without a single session, their number is 0 and not absent.
    assert!(scrape.series.contains(&"tandem_peer_sessions_sessions 0"), "{:?}", scrape.series);
    assert!(found.len() > 50, "of the metrics of {} only these: {found:?}", scrape.kinds.len());
    for service in ["executor", "multiproof_workers", "storage_writer", "process"] {
        let prefix = format!("tandem_{service}_");
        assert!(found.iter().any(|metric| metric.starts_with(&prefix)), "{service}: {found:?}");
    }
}

#[test]
fn health_says_whether_a_service_answers() {
    let node = Node::start();
    let port = node.addresses["metrics"].rsplit_once(':').unwrap().1.to_owned();
    let said = succeeds(tandem().arg("health").env("TANDEM_METRICS_PORT", &port));
    assert!(said.contains("/readyz: ok"), "{said}");
    succeeds(tandem().args(["health", "--metrics.port", &port]));
    succeeds(tandem().arg("health").arg(node.url("metrics", "/livez")));
    let fails = |argument: &str| {
        let output = tandem().args(["health", argument]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{argument}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(&node.url("metrics", "/nothing"));
    assert!(said.contains("/nothing") && said.contains("404"), "{said}");
    let url = node.url("metrics", "/readyz");
    drop(node);
    let said = fails(&url);
    assert!(said.contains(&url), "{said}");
}

#[test]
fn health_asks_again_until_a_service_is_ready() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/readyz", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        for status in ["503 Service Unavailable", "200 OK"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok").unwrap();
        }
    });
    let said = succeeds(tandem().args(["health", &url, "--wait", "60"]));
    assert!(said.contains("/readyz: ok"), "{said}");
    server.join().unwrap();
}

#[test]
fn init_before_a_start_leaves_a_database_alone_that_is_in_use() {
    let node = Node::start();
    let init = |more: &[&str]| {
        let mut command = tandem();
        command.args(["init", "--genesis"]).arg(genesis()).arg("--datadir").arg(node.data());
        command.args(more);
        command
    };
    let output = init(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "without the flag it is an error");
    let said = succeeds(&mut init(&["--unless-in-use"]));
    assert!(said.contains("in use"), "{said}");
    let empty = TempDir::new().unwrap();
    let mut command = tandem();
    command.args(["init", "--unless-in-use", "--genesis"]).arg(genesis());
    let said = succeeds(command.arg("--datadir").arg(empty.path()));
    assert!(said.contains("written"), "{said}");
}
