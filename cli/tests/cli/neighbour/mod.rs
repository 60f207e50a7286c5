//! Calls by other users of the machine to a cluster, and to a node that serves gRPC, with default
//! settings. No call gets through.

pub mod stranger;

use crate::binary;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};
use stranger::{Caller, all_are_refused, strangers};
use tandem_auth::{Secret, sign};
use tandem_bus_tests::nats_server;
use tandem_cluster_tests::{Corpus, Endpoints, Process, Running, Six, send_head, send_payload};
use tempfile::TempDir;
use tonic::Code;

/// Number of blocks sent before the strangers come, and again afterwards.
const BLOCKS: usize = 4;

const STORAGE: &str = "tandem.storage_writer.v1.StorageWriter";
const WORKERS: &str = "tandem.multiproof_workers.v1.MultiproofWorkers";
const BLOBS: &str = "tandem.blob_validator.v1.BlobValidator";
const PEERS: &str = "tandem.peer_table.v1.PeerTable";
const POOL: &str = "tandem.tx_pool.v1.TxPool";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_gets_no_call_through_to_a_cluster() {
    let (corpus, folder) = (Corpus::demo(), TempDir::new().unwrap());
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &[]);
    let mut engine = six.endpoints.engine();
    let mut blocks = corpus.payloads();
    for block in blocks.by_ref().take(BLOCKS) {
        send_payload(&mut engine, &block).await.unwrap();
        send_head(&mut engine, block.hash).await.unwrap();
    }
    let at = |name| SocketAddr::from((Ipv4Addr::LOCALHOST, six.port(name, "grpc")));
    let ports = BTreeMap::from([
        (STORAGE, at("storage-writer")),
        (WORKERS, at("multiproof-worker-1")),
        (BLOBS, at("blob-validator")),
        (PEERS, at("peer-table")),
        (POOL, at("tx-pool")),
    ]);
    all_are_refused(&strangers(folder.path()), &ports).await;

    // A certificate of the cluster's own authority allows what its role allows.
    let own = folder.path().join("data/certificates");
    let operator = Caller::with_certificate("operator", &own.join("operator"));
    let storage = ports[STORAGE];
    assert_eq!(operator.call(storage, STORAGE, "GetCheckpoint").await, Ok(Code::Ok));
    for method in ["AcquireEpoch", "Rewind"] {
        let answer = operator.call(storage, STORAGE, method).await;
        assert_eq!(answer, Ok(Code::PermissionDenied), "{method}");
    }

    // The chain goes on with the same executor.
    for block in blocks.take(BLOCKS) {
        send_payload(&mut engine, &block).await.unwrap();
        send_head(&mut engine, block.hash).await.unwrap();
    }
    let log = fs::read_to_string(folder.path().join("data/logs/executor.log")).unwrap();
    assert_eq!(log.matches("this executor has the right to ").count(), 1, "{log}");
    assert!(six.stop().0.success(), "{}", six.log());
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
    only_the_owner_reads(&folder.path().join("data"));
}

/// Checks all files and directories below a path.
fn only_the_owner_reads(path: &Path) {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mode = metadata.permissions().mode();
    assert_eq!(mode & 0o077, 0, "{}: mode {mode:o}", path.display());
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            only_the_owner_reads(&entry.unwrap().path());
        }
    }
}

/// Logs in to a NATS server with these words and publishes a message. Returns the server's answer
/// to that and to a ping.
fn nats_says(port: u16, login: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut info = String::new();
    reader.read_line(&mut info).unwrap();
    let said = "PUB workers.alive.worker-1 2\r\nhi\r\nPING\r\n";
    // The server may hang up before it has read everything.
    let _ = write!(stream, "CONNECT {{\"verbose\":false,\"pedantic\":false{login}}}\r\n{said}");
    let mut answer = Vec::new();
    let _ = reader.by_ref().take(256).read_until(b'\n', &mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns the lines of a log in which NATS refuses something.
fn refusals(log: &str) -> Vec<&str> {
    let signs = ["Violation", "NATS refuses", "[ERR]"];
    log.lines().filter(|line| signs.iter().any(|sign| line.contains(sign))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bus_of_a_cluster_takes_its_services_alone_and_refuses_them_nothing() {
    let Some(server) = nats_server() else { return };
    let (corpus, folder) = (Corpus::demo(), TempDir::new().unwrap());
    let more = ["--nats-server", server.to_str().unwrap(), "--workers", "2"];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    let mut engine = six.endpoints.engine();
    for block in corpus.payloads().take(BLOCKS) {
        send_payload(&mut engine, &block).await.unwrap();
        send_head(&mut engine, block.hash).await.unwrap();
    }
    let logs = folder.path().join("data/logs");
    let log = |name: &str| fs::read_to_string(logs.join(format!("{name}.log"))).unwrap();
    let has_bus = || log("executor").contains("connected to NATS").then_some(());
    tokio::task::block_in_place(|| tandem_bus_tests::eventually("the executor's bus", has_bus));
    engine.call("tandem_setPolicies", json!([{"chunking": "never"}])).await.unwrap();
    let workers = ["multiproof-worker-1", "multiproof-worker-2"];
    let told = || {
        let told = |name: &&str| log(name).contains("chunking: Never");
        workers.iter().all(told).then_some(())
    };
    tokio::task::block_in_place(|| tandem_bus_tests::eventually("workers are told", told));
    let services =
        ["storage-writer", "blob-validator", "peer-table", "tx-pool", "executor", "discovery"];
    for name in services.into_iter().chain(workers).chain(["nats-server"]) {
        let log = log(name);
        assert_eq!(refusals(&log), [""; 0], "{name}");
        let is_server = name == "nats-server";
        assert!(is_server || log.contains("connected to NATS"), "{name}: {log}");
    }

    let port = six.port("nats-server", "nats");
    let wrong = ",\"user\":\"executor\",\"pass\":\"guessed\"";
    for login in ["", wrong] {
        let answer = nats_says(port, login);
        assert!(answer.starts_with("-ERR 'Authorization Violation'"), "{login}: {answer:?}");
    }
    let password = folder.path().join("data/secrets/multiproof-workers/nats-password");
    let password = fs::read_to_string(password).unwrap();
    let right = format!(",\"user\":\"multiproof-workers\",\"pass\":\"{password}\"");
    assert_eq!(nats_says(port, &right), "PONG\r\n");
    assert!(six.stop().0.success(), "{}", six.log());
    only_the_owner_reads(&folder.path().join("data"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_gets_no_call_through_to_a_node_that_serves_grpc() {
    let (corpus, folder) = (Corpus::demo(), TempDir::new().unwrap());
    let config = folder.path().join("tandem.toml");
    let settings = "[multiproof_workers]\ngrpc_addr = \"127.0.0.1:0\"\n\
                    [blob_validator]\ngrpc_addr = \"127.0.0.1:0\"\n";
    fs::write(&config, settings).unwrap();
    let mut node = node(folder.path(), &corpus, &["--config", config.to_str().unwrap()]);
    let ports = grpc_ports(&mut node);
    all_are_refused(&strangers(folder.path()), &ports).await;
    let certificates = folder.path().join("data/certificates");
    let executor = Caller::with_certificate("executor", &certificates.join("executor"));
    for (service, port) in &ports {
        assert_eq!(executor.call(*port, service, "GetStatus").await, Ok(Code::Ok), "{service}");
    }
    let mut engine = endpoints(&mut node, folder.path()).engine();
    for block in corpus.payloads().take(BLOCKS) {
        send_payload(&mut engine, &block).await.unwrap();
    }
    assert!(node.terminate().0.success());
    only_the_owner_reads(&folder.path().join("data"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_wants_no_certificates_says_so() {
    let (corpus, folder) = (Corpus::demo(), TempDir::new().unwrap());
    let config = folder.path().join("tandem.toml");
    let settings = "[multiproof_workers]\ngrpc_addr = \"127.0.0.1:0\"\n\
                    [blob_validator]\ngrpc_addr = \"127.0.0.1:0\"\n";
    fs::write(&config, settings).unwrap();
    let flags = ["--insecure", "--config", config.to_str().unwrap()];
    let mut node = node(folder.path(), &corpus, &flags);
    for (service, port) in grpc_ports(&mut node) {
        let answer = Caller::plain().call(port, service, "GetStatus").await;
        assert_eq!(answer, Ok(Code::Ok), "{service}");
    }
    assert!(!folder.path().join("data/certificates").exists());
    assert!(node.terminate().0.success());
    // The flag contradicts certificates in the settings.
    let data = folder.path().join("data");
    for command in ["node", "cluster"] {
        let output = Command::new(binary())
            .args([command, "--insecure", "--datadir", data.to_str().unwrap()])
            .env("TANDEM__TLS__CA", "/etc/tandem/ca.crt")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("--insecure contradicts"), "{command}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jwt_secret_that_others_may_read_is_a_warning_and_one_that_is_no_file_an_error() {
    let (corpus, folder) = (Corpus::demo(), TempDir::new().unwrap());
    let secret = folder.path().join("jwt.hex");
    let warns = "others may read the JWT secret";
    for (mode, warned) in [(0o600, false), (0o644, true)] {
        fs::write(&secret, "ab".repeat(32)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
        let mut node = node(folder.path(), &corpus, &[]);
        node.says("listening port=\"http\" address=");
        assert!(node.terminate().0.success());
        assert_eq!(node.log().contains(warns), warned, "{mode:o}: {}", node.log());
    }
    fs::remove_file(&secret).unwrap();
    let made = Command::new("mkfifo").arg(&secret).status().unwrap();
    assert!(made.success());
    let mut node = node(folder.path(), &corpus, &[]);
    assert_eq!(node.ends().code(), Some(1), "{}", node.log());
    assert!(node.log().contains("expected a regular file, found a FIFO"), "{}", node.log());
}

/// Returns the status of the answer to a call with these lines in its head.
fn status(address: &str, lines: &str) -> String {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n{lines}");
    write!(stream, "POST / HTTP/1.1\r\nConnection: close\r\n{head}\r\n{body}").unwrap();
    let mut answer = Vec::new();
    // The server may hang up before it has read everything.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_requests_are_counted_by_reason_and_each_reason_is_logged_once() {
    let (corpus, folder) = (Corpus::demo(), TempDir::new().unwrap());
    let mut node = node(folder.path(), &corpus, &[]);
    let mut at = |port| node.says(&format!("listening port=\"{port}\" address="));
    let (engine, metrics) = (at("engine"), at("metrics"));
    let secret = Secret::load(&folder.path().join("jwt.hex")).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let token = |secret: &Secret, iat| format!("Authorization: Bearer {}\r\n", sign(secret, iat));
    let (good, stale) = (token(&secret, now), token(&secret, now - 120));
    let own = "Host: localhost\r\n";
    assert_eq!(status(&engine, &[own, &good].concat()), "200");
    let forged = token(&Secret::new([7; 32]), now);
    for wrong in [&forged, &stale, ""] {
        assert_eq!(status(&engine, &[own, wrong].concat()), "401", "{wrong}");
    }
    assert_eq!(status(&engine, &["Host: other.example\r\n", &good].concat()), "403");

    let mut stream = TcpStream::connect(&metrics).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for (reason, count) in [("token", 3), ("host", 1)] {
        let line = format!("tandem_http_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
        let log = node.log();
        let said =
            |line: &&str| line.contains(" WARN ") && line.contains(&format!("reason=\"{reason}\""));
        assert_eq!(log.lines().filter(said).count(), 1, "{reason}: {log}");
    }
    assert!(node.terminate().0.success());
}

fn node(folder: &Path, corpus: &Corpus, more: &[&str]) -> Running {
    let (data, secret, genesis) = (folder.join("data"), folder.join("jwt.hex"), corpus.genesis());
    let given = [
        ["--datadir", data.to_str().unwrap()],
        ["--genesis", genesis.to_str().unwrap()],
        ["--authrpc.jwtsecret", secret.to_str().unwrap()],
    ]
    .concat();
    let ports = ["--disable-discovery", "--authrpc.port=0", "--http.port=0", "--metrics.port=0"];
    Running::start(binary(), folder, "node", [&["node"][..], &given, &ports, more].concat())
}

fn endpoints(node: &mut Running, folder: &Path) -> Endpoints {
    let mut at = |port| node.says(&format!("listening port=\"{port}\" address=")).parse().unwrap();
    let (engine, http) = (at("engine"), at("http"));
    Endpoints::new(engine, http, folder.join("jwt.hex"))
}

/// Returns the gRPC ports of a node, by service.
fn grpc_ports(node: &mut Running) -> BTreeMap<&'static str, SocketAddr> {
    let mut port =
        |name: &str| node.says(&format!("listening port=\"{name}\" address=")).parse().unwrap();
    BTreeMap::from([(WORKERS, port("proof")), (BLOBS, port("blobs"))])
}
