//! The six services as processes of their own, with gRPC and NATS between them.

#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use serde_json::json;
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_cluster_tests::{
    Corpus, Process, Running, Six, repository, send_forkchoice, send_head, send_payload, signal,
};
use tempfile::TempDir;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tandem"))
}

/// The sum of a counter over its labels.
fn counter(metrics: &str, name: &str) -> f64 {
    let values = metrics.lines().filter(|line| line.starts_with(name));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Every metric of a process stands in docs/metrics.md, as what it is.
fn assert_catalogued(process: &str, metrics: &str) {
    let catalogue = include_str!("../../docs/metrics.md");
    let kinds = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let missing: Vec<_> = kinds
        .filter(|kind| {
            let (name, kind) = kind.split_once(' ').unwrap();
            !catalogue.contains(&format!("| `{name}` | {kind} |"))
        })
        .collect();
    assert!(missing.is_empty(), "of {process}, docs/metrics.md lacks {missing:?}");
    assert!(metrics.contains("# TYPE tandem_"), "{process} has no metrics");
}

/// Every payload of a corpus, the head after each; what is read, and what is written, is right then.
async fn replay(corpus: &Corpus) {
    let folder = TempDir::new().unwrap();
    // Without a server there is a line that says so, and everything goes without.
    let nats = NatsServer::start();
    let url = nats.as_ref().map_or("none".to_owned(), NatsServer::url);
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &["--nats", &url]);
    let (mut engine, mut http) = (six.endpoints.engine(), six.endpoints.http());
    for (index, block) in corpus.payloads().enumerate() {
        let sent = send_payload(&mut engine, &block).await;
        sent.unwrap_or_else(|error| panic!("payload {}: {error}\n{}", index + 1, six.log()));
        send_head(&mut engine, block.hash).await.unwrap();
    }
    let head = http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(head["hash"], json!(corpus.head_hash));
    assert_eq!(head["stateRoot"], json!(corpus.head_state_root));
    // Calls of the JSON-RPC read over the wire too.
    let logs = json!([{"fromBlock": "latest", "toBlock": "latest"}]);
    assert!(http.call("eth_getLogs", logs).await.unwrap().is_array());

    // The base follows finality, and so do the executor's layers.
    send_forkchoice(&mut engine, corpus.head_hash, corpus.head_hash).await.unwrap();
    let layers = || {
        let metrics = six.metrics("executor");
        (counter(&metrics, "tandem_executor_layers") < 40.0).then_some(())
    };
    eventually("the executor lets go of what is in the base", layers);
    let services =
        ["discovery", "peer-table", "blob-validator", "multiproof-worker-1", "storage-writer"];
    for name in services.into_iter().chain(["executor"]) {
        assert_catalogued(name, &six.metrics(name));
    }
    if nats.is_some() {
        for name in ["executor", "multiproof-worker-1"] {
            let received = counter(&six.metrics(name), "tandem_bus_received_total");
            assert!(received > 0.0, "{name} hears the others");
        }
    }
    let (status, took) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
    eprintln!("six processes stopped in {took:?}");
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

/// Bytes that `name` says went from one service to another.
fn bytes(six: &Six, name: &str, from: &str, to: &str) -> f64 {
    let labels = format!("{{from=\"{from}\",to=\"{to}\"}}");
    counter(&six.metrics(name), &format!("tandem_rpc_bytes_total{labels}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_corpus_is_valid_where_services_know_each_other_by_certificates() {
    let corpus = Corpus::demo();
    let folder = TempDir::new().unwrap();
    let more = ["--nats", "none"];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    let mut engine = six.endpoints.engine();
    let mut transactions = 0;
    for (index, block) in corpus.payloads().enumerate() {
        let sent = send_payload(&mut engine, &block).await;
        sent.unwrap_or_else(|error| panic!("payload {}: {error}\n{}", index + 1, six.log()));
        send_head(&mut engine, block.hash).await.unwrap();
        let list = block.params[0]["transactions"].as_array().unwrap();
        transactions += list.iter().map(|hex| hex.as_str().unwrap().len() / 2 - 1).sum::<usize>();
    }
    // Each block's body goes to storage-writer, and its changes to the workers.
    let sent = bytes(&six, "executor", "executor", "storage-writer");
    assert!(sent > transactions as f64, "{sent} bytes, {transactions} of transactions");
    for (name, to) in [
        ("executor", "multiproof-worker"),
        ("executor", "blob-validator"),
        ("multiproof-worker", "storage-writer"),
        ("discovery", "peer-table"),
    ] {
        assert!(bytes(&six, name, name, to) > 0.0, "{name} to {to}");
        assert!(bytes(&six, name, to, name) > 0.0, "{to} to {name}");
    }
    // What one service has is no use to another.
    let files = folder.path().join("data/certificates");
    let mut worker = Command::new(binary());
    worker.args(["multiproof-worker", "--grpc.port", "0"]);
    for (flag, file) in
        [("--tls.ca", "ca.crt"), ("--tls.cert", "tls.crt"), ("--tls.key", "tls.key")]
    {
        worker.arg(flag).arg(files.join("executor").join(file));
    }
    let output = worker.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    let want = "is the certificate of executor, this process is multiproof-worker";
    assert!(text.contains(want), "{text}");

    let (status, _) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
    let log = six.log();
    let is_row = |line: &&str| line.split_whitespace().take(2).eq(["executor", "storage-writer"]);
    let row = log.lines().find(is_row);
    let row = row.unwrap_or_else(|| panic!("bytes a block in\n{log}"));
    let a_block: f64 = row.split_whitespace().last().unwrap().parse().unwrap();
    assert!(a_block * corpus.payloads().count() as f64 > transactions as f64, "{row}");
    // Executing them took processor time, and memory.
    let (_, used) = log.split_once("CPU ms a block").expect("what the processes used");
    let mut rows = used.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&"executor")).expect("the executor");
    assert!(row.iter().skip(1).all(|number| number.parse::<f64>().unwrap() > 0.0), "{row:?}");
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_corpus_is_valid_through_six_processes() {
    replay(&Corpus::demo()).await;
}

/// Those that are too large for the repository lie beside it on some machines, or where `TANDEM_CORPORA`
/// says (folder:folder):
///
/// ```text
/// cargo test --release --locked --workspace --test six_processes -- --ignored --nocapture
/// ```
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and corpora that are not in the repository"]
async fn all_corpora_are_valid_through_six_processes() {
    let beside =
        ["mixed-30m", "erc20-30m"].map(|name| repository().join("../shared/corpora").join(name));
    let folders: Vec<_> = match std::env::var_os("TANDEM_CORPORA") {
        Some(folders) => std::env::split_paths(&folders).collect(),
        None => beside.into(),
    };
    for folder in folders {
        let Some(corpus) = Corpus::open(folder.clone()) else {
            eprintln!("SKIPPED: no corpus at {}", folder.display());
            continue;
        };
        let begun = Instant::now();
        replay(&corpus).await;
        let (blocks, took) = (corpus.blocks, begun.elapsed());
        eprintln!("{}: {blocks} payloads VALID, verify clean, in {took:.1?}", folder.display());
    }
}

/// How many jobs the workers cut so many dispatches into: dispatches, jobs.
fn dispatches(six: &Six, workers: [&str; 2]) -> [f64; 2] {
    let metrics = workers.map(|worker| six.metrics(worker));
    ["count", "sum"].map(|of| {
        let name = format!("tandem_multiproof_workers_dispatch_chunks_{of}");
        metrics.iter().map(|metrics| counter(metrics, &name)).sum()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_set_at_the_executor_hold_in_the_workers_processes() {
    const WORKERS: [&str; 2] = ["multiproof-worker-1", "multiproof-worker-2"];
    let Some(mut nats) = NatsServer::start() else { return };
    let (corpus, folder, url) = (Corpus::demo(), TempDir::new().unwrap(), nats.url());
    let file = folder.path().join("tandem.toml");
    // So that chunks of a few keys are made here, too.
    fs::write(&file, "[multiproof_workers]\nremote_chunk_targets_min = 1\n").unwrap();
    let more = ["--nats", &url, "--workers", "2", "--config", file.to_str().unwrap()];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    let mut engine = six.endpoints.engine();
    let mut blocks = corpus.payloads();
    for block in blocks.by_ref().take(6) {
        send_payload(&mut engine, &block).await.unwrap();
    }
    let [whole, cut] = dispatches(&six, WORKERS);
    assert!(cut > whole && whole > 0.0, "{whole} dispatches are cut into {cut}");

    let never = json!([{"chunking": "never"}]);
    let all = engine.call("tandem_setPolicies", never).await.unwrap();
    assert_eq!(all["chunking"], "never");
    let told = |worker: &str| {
        let log = folder.path().join(format!("data/logs/{worker}.log"));
        let log = fs::read_to_string(&log).unwrap();
        let lines = log.lines().filter(|line| line.contains("policies set by the live settings"));
        lines.filter(|line| line.contains("chunking: Never")).count()
    };
    let all_told = || WORKERS.iter().all(|worker| told(worker) == 1).then_some(());
    eventually("both workers are told", all_told);
    // A block that began before may still have been cut.
    for block in blocks.by_ref().take(2) {
        send_payload(&mut engine, &block).await.unwrap();
    }
    let [whole, cut] = dispatches(&six, WORKERS);
    for block in blocks.by_ref().take(6) {
        send_payload(&mut engine, &block).await.unwrap();
    }
    let [more_whole, more_cut] = dispatches(&six, WORKERS);
    assert!(more_whole > whole, "no dispatches");
    assert_eq!(more_cut - cut, more_whole - whole, "none of them is cut");

    // One that comes back learns of it.
    six.kill("multiproof-worker");
    let told_again = || WORKERS.iter().any(|worker| told(worker) == 2).then_some(());
    eventually("one that comes back is told", told_again);
    // What the workers cannot be told does not hold here either.
    nats.kill();
    let unheard = || {
        let metrics = six.metrics("executor");
        (counter(&metrics, "tandem_bus_connected") == 0.0).then_some(())
    };
    eventually("the executor misses NATS", unheard);
    let always = json!([{"chunking": "always"}]);
    let error = engine.call("tandem_setPolicies", always).await.unwrap_err();
    assert_eq!(error.code, -32000);
    assert!(error.message.starts_with("policies stay as they are: "), "{}", error.message);
    assert_eq!(engine.call("tandem_policies", json!([])).await.unwrap(), all);
    for block in blocks {
        send_payload(&mut engine, &block).await.unwrap();
    }
    assert!(six.stop().0.success(), "{}", six.log());
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_end_with_the_one_that_watches_them() {
    let corpus = Corpus::demo();
    let folder = TempDir::new().unwrap();
    let more = ["--nats", "none", "--disable-discovery", "--workers", "2"];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    assert!(six.pid("discovery").is_none() && six.pid("nats-server").is_none());
    six.kill_all();
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

#[test]
fn a_cluster_without_a_database_says_what_is_missing() {
    let folder = TempDir::new().unwrap();
    let start = |datadir: &Path| {
        let output = Command::new(binary())
            .args(["cluster", "--nats", "none", "--disable-discovery", "--datadir"])
            .arg(datadir)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = start(&folder.path().join("nowhere"));
    assert!(error.contains("run `tandem init` first"), "{error}");
    // The directory is there, the database is not: the log of who noticed is shown.
    let error = start(folder.path());
    assert!(error.contains("storage-writer ended") && error.contains("tandem init"), "{error}");
}

/// A storage-writer, with where it takes calls.
fn storage_writer(folder: &Path, name: &str) -> (Running, String) {
    let datadir = folder.join("data");
    let datadir = datadir.to_str().unwrap();
    let arguments = ["storage-writer", "--datadir", datadir, "--grpc.port", "0"];
    let mut running = Running::start(binary(), folder, name, arguments);
    let address = running.says("listening port=\"grpc\" address=");
    (running, address)
}

fn init(folder: &Path) {
    let status = Command::new(binary())
        .args(["init", "--genesis"])
        .arg(Corpus::demo().genesis())
        .arg("--datadir")
        .arg(folder.join("data"))
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_second_storage_writer_on_the_same_directory_is_refused() {
    let folder = TempDir::new().unwrap();
    init(folder.path());
    let (mut first, _) = storage_writer(folder.path(), "first");
    first.says("database opened");
    let (mut second, _) = storage_writer(folder.path(), "second");
    assert!(!second.ends().success());
    let log = second.log();
    assert!(log.contains("is in use by another process"), "{log}");
    assert!(first.terminate().0.success());
}

/// An executor with its status as the metrics port says it.
struct Executor {
    running: Running,
    metrics: String,
}

impl Executor {
    fn start(folder: &Path, name: &str, storage_writer: &str) -> Self {
        let secret = folder.join("jwt.hex");
        let secret = secret.to_str().unwrap();
        let url = format!("http://{storage_writer}");
        let arguments = [
            ["executor", "--storage-writer", &url, "--authrpc.jwtsecret", secret],
            [
                "--authrpc.port=0",
                "--http.port=0",
                "--metrics.port=0",
                "--metrics.addr=127.0.0.1",
                // Nobody is there, and nothing is asked.
                "--worker=http://127.0.0.1:9601",
            ],
        ];
        let mut running = Running::start(binary(), folder, name, arguments.concat());
        let metrics = running.says("listening port=\"metrics\" address=");
        Self { running, metrics }
    }

    /// What `/readyz` or `/livez` says: the status line's code, and the text.
    fn get(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&self.metrics).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer.split_once("\r\n\r\n").unwrap().1.trim().to_owned())
    }

    fn becomes_ready(&self) {
        eventually("the executor is ready", || (self.get("/readyz").0 == 200).then_some(()));
    }
}

#[test]
fn an_executor_that_stands_by_takes_over_when_the_first_is_gone() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    init(folder);
    let (mut storage, address) = storage_writer(folder, "storage");
    let mut first = Executor::start(folder, "first", &address);
    first.becomes_ready();
    let second = Executor::start(folder, "second", &address);
    let waits = || {
        let (code, text) = second.get("/readyz");
        (code == 503 && text == "waiting for: the right to write").then_some(())
    };
    eventually("the second stands by", waits);
    assert_eq!(second.get("/livez").0, 200);
    // For longer than a lease: the first says that it is there.
    std::thread::sleep(Duration::from_secs(3));
    assert!(first.get("/readyz").0 == 200 && second.get("/readyz").0 == 503);

    let gone = Instant::now();
    first.running.kill();
    second.becomes_ready();
    eprintln!("took over {:?} after SIGKILL", gone.elapsed());

    let third = Executor::start(folder, "third", &address);
    let mut second = second;
    let gone = Instant::now();
    assert!(second.running.terminate().0.success());
    third.becomes_ready();
    eprintln!("took over {:?} after SIGTERM", gone.elapsed());

    // Whoever is not heard for longer than a lease while somebody waits is fenced off, and ends.
    let fourth = Executor::start(folder, "fourth", &address);
    let mut third = third;
    signal(third.running.pid(), Signal::STOP);
    fourth.becomes_ready();
    signal(third.running.pid(), Signal::CONT);
    assert!(!third.running.ends().success());
    let log = third.running.log();
    assert!(log.contains("another executor has taken over"), "{log}");
    assert_eq!(fourth.get("/readyz").0, 200);

    // A storage-writer that comes back finds its executor again.
    let port = address.rsplit(':').next().unwrap();
    storage.kill();
    eventually("the loss is noticed", || (fourth.get("/readyz").0 == 503).then_some(()));
    let datadir = folder.join("data");
    let arguments = ["storage-writer", "--datadir", datadir.to_str().unwrap(), "--grpc.port", port];
    let _again = Running::start(binary(), folder, "again", arguments);
    fourth.becomes_ready();
}

#[test]
fn an_executor_that_stands_by_ends_in_the_midst_of_a_question() {
    let folder = TempDir::new().unwrap();
    // Where nobody listens: it waits for a connection when it is told to end.
    let mut lonely = Executor::start(folder.path(), "lonely", "127.0.0.1:1");
    let waits = || {
        let (code, text) = lonely.get("/readyz");
        (code == 503 && text == "waiting for: storage-writer").then_some(())
    };
    eventually("the executor waits", waits);
    assert!(lonely.running.terminate().0.success());
    let log = lonely.running.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn settings_come_from_flag_environment_file_and_default_in_that_order() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tandem.toml");
    fs::write(&file, "[executor]\nprewarm_threads = 3\ncache_codes = 7\n").unwrap();
    let print = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = Command::new(binary())
            .args(arguments)
            .arg("--print-config")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let config = file.to_str().unwrap();
    let variables = [
        ("TANDEM_CONFIG", config),
        ("TANDEM__EXECUTOR__PREWARM_THREADS", "2"),
        ("TANDEM__PEER_TABLE__TARGET_PEERS", "10"),
        ("TANDEM_PEERS_TARGET", "20"),
        ("TANDEM_DATADIR", "/nowhere"),
    ];
    let (good, text) = print(&["executor", "--policy", "chunking=never"], &variables);
    assert!(good, "{text}");
    for line in ["prewarm_threads = 2", "cache_codes = 7", "chunking = \"never\""] {
        assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
    }
    let (_, text) = print(&["peer-table"], &variables);
    assert!(text.contains("target_peers = 20\n"), "{text}");
    let (_, text) = print(&["peer-table", "--peers.target", "30"], &variables);
    assert!(text.contains("target_peers = 30\n"), "{text}");
    // What was printed is a file that gives the same.
    let again = folder.path().join("again.toml");
    fs::write(&again, &text).unwrap();
    let (good, same) = print(&["executor", "--config", again.to_str().unwrap()], &[]);
    assert!(good && same == text, "{same}");
    let wrong = [("TANDEM__EXECUTOR__PREWARM", "2")];
    let (good, text) = print(&["executor"], &wrong);
    assert!(!good && text.contains("TANDEM__EXECUTOR__PREWARM: unknown field"), "{text}");
}
