//! Tests of the steps before a service starts: a genesis from an address, and the check of
//! settings.
use crate::binary;
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{BufRead, BufReader, Write, stderr},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::repository;
use tempfile::TempDir;

fn tandem(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("TANDEM_CONFIG").output().unwrap()
}

/// Returns the output of a command, which must succeed, or fail with status 1.
fn said(output: &Output, succeeds: bool) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(i32::from(!succeeds)), "{text}");
    text
}

fn genesis() -> PathBuf {
    repository().join("helm/tandem/files/dev/genesis.json")
}

fn digest() -> String {
    const_hex::encode(Sha256::digest(fs::read(genesis()).unwrap()))
}

/// A server of the genesis that counts its requests.
struct Server {
    address: String,
    asked: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/genesis.json", listener.local_addr().unwrap());
        let asked = Arc::<AtomicUsize>::default();
        let count = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Relaxed);
                answer(stream.unwrap());
            }
        });
        Self { address, asked }
    }
}

fn answer(stream: TcpStream) {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 2 {
        line.clear();
    }
    let body = fs::read(genesis()).unwrap();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    // The client may have stopped reading.
    let _ = lines.get_mut().write_all(&[head.as_bytes(), &body].concat());
}

fn init(datadir: &Path, more: &[&str]) -> Output {
    tandem(&[&["init", "--datadir", datadir.to_str().unwrap()][..], more].concat())
}

#[test]
fn a_genesis_is_fetched_into_an_empty_directory_alone() {
    let folder = TempDir::new().unwrap();
    let datadir = folder.path().join("data");
    let (server, digest) = (Server::start(), digest());
    let url = ["--genesis-url", &server.address, "--sha256", &digest];
    let text = said(&init(&datadir, &url), true);
    assert!(text.contains("written"), "{text}");
    assert_eq!(server.asked.load(Relaxed), 1);
    let left: Vec<_> = fs::read_dir(&datadir).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["db"], "the download is gone");

    // The server is not needed now: nothing listens on this port.
    let gone = ["--genesis-url", "http://127.0.0.1:1/genesis.json", "--sha256", &digest];
    let text = said(&init(&datadir, &gone), true);
    assert!(text.contains("is there already"), "{text}");
    said(&init(&datadir, &url), true);
    assert_eq!(server.asked.load(Relaxed), 1);
    // The file makes the same database.
    let text = said(&init(&datadir, &["--genesis", genesis().to_str().unwrap()]), true);
    assert!(text.contains("is there already"), "{text}");
}

#[test]
fn a_genesis_that_is_another_one_or_too_large_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let server = Server::start();
    let url = ["--genesis-url", &server.address];
    let other = "00".repeat(32);
    for (name, more, want) in [
        ("other", ["--sha256", other.as_str()], "its SHA-256 is"),
        ("large", ["--genesis-bytes-max", "100"], "more than 100 bytes"),
    ] {
        let datadir = folder.path().join(name);
        let text = said(&init(&datadir, &[&url[..], &more].concat()), false);
        assert!(text.contains(want) && text.contains(&server.address), "{text}");
        assert_eq!(fs::read_dir(&datadir).unwrap().count(), 0, "{name}");
    }
    let both = ["--genesis", "a.json", "--genesis-url", "http://127.0.0.1:1/a.json"];
    assert_eq!(init(folder.path(), &both).status.code(), Some(2));
    assert_eq!(init(folder.path(), &[]).status.code(), Some(2));
}

/// A server with a certificate, which is stopped when this is dropped.
struct Secure(Child);

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes an authority, and its certificate for this machine, in files of a folder.
fn certificates(folder: &Path) {
    fs::write(folder.join("extensions"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for line in [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=authority \
         -days 1 -keyout ca.key -out ca.crt",
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server \
         -keyout tls.key -out request",
        "x509 -req -in request -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile extensions \
         -out tls.crt",
    ] {
        let mut command = Command::new("openssl");
        let output = command.args(line.split_whitespace()).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_genesis_comes_over_https_from_a_server_that_an_authority_vouches_for() {
    if Command::new("openssl").arg("version").output().is_err() {
        let _ = stderr().write_all(b"skipped: openssl is not installed\n");
        return;
    }
    let folder = TempDir::new().unwrap();
    certificates(folder.path());
    fs::copy(genesis(), folder.path().join("genesis.json")).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut command = Command::new("openssl");
    command
        .args(["s_server", "-WWW", "-cert", "tls.crt", "-key", "tls.key", "-accept"])
        .arg(address.to_string())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _server = Secure(command.spawn().unwrap());
    eventually("the server", || TcpStream::connect(address).ok().map(drop));
    let url = format!("https://{address}/genesis.json");
    let datadir = folder.path().join("data");
    // Without that authority, the public ones count.
    let text = said(&init(&datadir, &["--genesis-url", &url]), false);
    assert!(text.contains(&url), "{text}");
    assert!(!datadir.join("db").exists());
    let ca = folder.path().join("ca.crt");
    let digest = digest();
    let flags = ["--genesis-url", &url, "--sha256", &digest, "--genesis-ca"];
    said(&init(&datadir, &[&flags[..], &[ca.to_str().unwrap()]].concat()), true);
    assert!(datadir.join("db").exists());
}

/// Commands that run services, with their required flags.
const SERVICES: [&[&str]; 7] = [
    &["storage-writer", "--datadir", "/nowhere"],
    &["multiproof-worker"],
    &["blob-validator"],
    &["peer-table", "--datadir", "/nowhere"],
    &["discovery", "--datadir", "/nowhere"],
    &["tx-pool", "--datadir", "/nowhere"],
    &["executor", "--authrpc.jwtsecret", "/nowhere/jwt.hex"],
];

#[test]
fn a_check_touches_nothing() {
    let tls = ["--tls.ca", "/nowhere", "--tls.cert", "/nowhere", "--tls.key", "/nowhere"];
    let nats = ["--nats", "nats://127.0.0.1:1", "--nats.password-file", "/nowhere"];
    // A port in use would be an error of a start.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for service in SERVICES {
        let more = [&["--check", "--metrics.port", &port][..], &tls, &nats].concat();
        let text = said(&tandem(&[service, &more].concat()), true);
        assert!(text.contains("settings and flags are good"), "{service:?}: {text}");
    }
    assert!(!Path::new("/nowhere").exists());
}

#[test]
fn what_a_start_would_refuse_the_check_refuses() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "[executor]\nprewarm_thread = 2\n").unwrap();
    let file = file.path().to_str().unwrap();
    for service in SERVICES {
        let text = said(&tandem(&[service, &["--check", "--config", file]].concat()), false);
        assert!(text.contains("prewarm_thread"), "{service:?}: {text}");
        let text = said(&tandem(&[service, &["--check", "--nats", "nats://a b"]].concat()), false);
        assert!(text.contains("--nats"), "{service:?}: {text}");
        let text = said(&tandem(&[service, &["--check", "--tls.ca", "/nowhere"]].concat()), false);
        assert!(text.contains("`tls.ca` needs `tls.cert`"), "{service:?}: {text}");
    }
    let cases: [(&[&str], &str); 4] = [
        (&["executor", "--storage-writer", "https://a:9600"], "https://a:9600 is encrypted"),
        (&["executor", "--worker", "http://a b"], "http://a b"),
        (&["multiproof-worker", "--storage-writer", "x y"], "invalid endpoint `x y`"),
        (&["discovery", "--datadir", "/nowhere", "--bootnodes", "enode://x"], "enode://x"),
    ];
    for (flags, want) in cases {
        let text = said(&tandem(&[flags, &["--check"]].concat()), false);
        assert!(text.contains(want), "{flags:?}: {text}");
    }
}

#[test]
fn the_demo_heeds_settings_of_the_environment() {
    let corpus = repository().join("corpora/demo");
    let mut command = Command::new(binary());
    command.arg("demo").arg("--corpus").arg(corpus).env("TANDEM__EXECUTOR__NO_SUCH_SETTING", "1");
    let text = said(&command.output().unwrap(), false);
    assert!(text.contains("TANDEM__EXECUTOR__NO_SUCH_SETTING"), "{text}");
}
