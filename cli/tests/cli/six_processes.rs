//! Tests the services as separate processes, with gRPC and NATS between them.

use crate::binary;
use serde_json::json;
use std::{fs, path::Path, process::Command, time::Instant};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_cluster_tests::{
    Corpus, Process, Service, Six, init, repository, send_forkchoice, send_head, send_payload,
};
use tempfile::TempDir;

/// Returns the sum of a counter over its labels.
fn counter(metrics: &str, name: &str) -> f64 {
    let values = metrics.lines().filter(|line| line.starts_with(name));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Asserts that docs/metrics.md has every metric of a process, with its type.
fn assert_catalogued(process: &str, metrics: &str) {
    let catalogue = include_str!("../../../docs/metrics.md");
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

/// Sends every payload of a corpus with the head after each, then checks reads and the database.
async fn replay(corpus: &Corpus) {
    let folder = TempDir::new().unwrap();
    // Without a server, a line says so, and the test runs without a bus.
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
    // JSON-RPC calls read over the wire too.
    let logs = json!([{"fromBlock": "latest", "toBlock": "latest"}]);
    assert!(http.call("eth_getLogs", logs).await.unwrap().is_array());

    // The base follows finality, and so do the executor's layers.
    send_forkchoice(&mut engine, corpus.head_hash, corpus.head_hash).await.unwrap();
    let layers = || {
        let metrics = six.metrics("executor");
        (counter(&metrics, "tandem_executor_layers") < 40.0).then_some(())
    };
    eventually("the executor lets go of what is in the base", layers);
    let services = [
        "discovery",
        "peer-table",
        "blob-validator",
        "multiproof-worker-1",
        "storage-writer",
        "tx-pool",
    ];
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

/// Returns the bytes from one service to another in the metrics of `name`.
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
    // They share a machine, so values and paths are read without HTTP/2.
    for name in ["executor", "multiproof-worker"] {
        let calls = counter(&six.metrics(name), "tandem_rpc_direct_calls_total");
        assert!(calls > 0.0, "{name} makes no direct calls");
    }
    // Each block's body goes to storage-writer, and its changes go to the workers.
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
    // The certificate of one service is of no use to another.
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
    // Executing them took processor time and memory.
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

/// Some corpora are too large for the repository. They lie beside it on some machines, or in the
/// folders of `TANDEM_CORPORA` (folder:folder):
///
/// ```text
/// cargo test --release --locked --workspace --test cli -- --ignored --nocapture six_processes::
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

/// Returns the number of dispatches, and of the jobs that the workers cut them into.
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
    // So that chunks of a few keys are made here too.
    fs::write(&file, "[multiproof_workers]\nchunk_targets_min = 1\n").unwrap();
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

    // A restarted worker learns of it.
    six.kill("multiproof-worker");
    let told_again = || WORKERS.iter().any(|worker| told(worker) == 2).then_some(());
    eventually("one that comes back is told", told_again);
    // A policy that the workers cannot be told is not applied here either.
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
    // The directory exists, but the database does not: the log of the service that noticed is
    // shown.
    let error = start(folder.path());
    assert!(error.contains("storage-writer ended") && error.contains("tandem init"), "{error}");
}

#[test]
fn a_second_storage_writer_on_the_same_directory_is_refused() {
    let folder = TempDir::new().unwrap();
    init(binary(), folder.path());
    let mut first = Service::storage_writer(binary(), folder.path(), "first", 0);
    first.becomes_ready();
    let mut second = Service::storage_writer(binary(), folder.path(), "second", 0);
    assert!(!second.running.ends().success());
    let log = second.running.log();
    assert!(log.contains("is in use by another process"), "{log}");
    assert!(first.running.terminate().0.success());
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
    // The printed text is a file that gives the same output.
    let again = folder.path().join("again.toml");
    fs::write(&again, &text).unwrap();
    let (good, same) = print(&["executor", "--config", again.to_str().unwrap()], &[]);
    assert!(good && same == text, "{same}");
    let wrong = [("TANDEM__EXECUTOR__PREWARM", "2")];
    let (good, text) = print(&["executor"], &wrong);
    assert!(!good && text.contains("TANDEM__EXECUTOR__PREWARM: unknown field"), "{text}");
}
