//! The `tandem` binary as a process of its own, for tests that kill it.

use crate::{client::Client, corpus::repository};
use serde_json::json;
use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tandem_auth::Secret;

/// Longest wait for a node to answer after it was started.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// A `tandem node` that runs.
pub struct Process {
    child: Child,
    engine: SocketAddr,
    secret: PathBuf,
    log: PathBuf,
}

impl Process {
    /// The binary beside this test's own executable; built when it is not there or older than the
    /// test.
    pub fn binary() -> PathBuf {
        let test = std::env::current_exe().expect("the test's own path");
        // target/release/deps/test-hash
        let release = test.ancestors().nth(2).expect("a test lies in target/PROFILE/deps");
        let target = release.parent().expect("a profile lies in the target directory");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--release", "-p", "tandem", "--locked", "--target-dir"])
            .arg(target)
            .current_dir(repository())
            .status()
            .expect("cargo runs");
        assert!(status.success(), "cargo build -p tandem: {status}");
        target.join("release/tandem")
    }

    /// Starts a node on free ports; its log goes to a file in `folder`.
    pub async fn start(binary: &Path, folder: &Path, genesis: &Path) -> Self {
        let (engine, http) = (free_port(), free_port());
        let (secret, log) = (folder.join("jwt.hex"), folder.join("node.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(binary)
            .args(["node", "--authrpc.port", &engine.port().to_string()])
            .args(["--http.port", &http.port().to_string()])
            .arg("--datadir")
            .arg(folder.join("data"))
            .arg("--genesis")
            .arg(genesis)
            .arg("--authrpc.jwtsecret")
            .arg(&secret)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .expect("the node starts");
        let mut process = Self { child, engine, secret, log };
        process.wait_until_it_answers().await;
        process
    }

    async fn wait_until_it_answers(&mut self) {
        let started = Instant::now();
        while started.elapsed() < START_TIME_MAX {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the node ended with {status}\n{}", self.log());
            }
            if self.secret.exists()
                && self.client().try_call("eth_chainId", json!([])).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the node does not answer\n{}", self.log());
    }

    /// A new caller of its Engine API.
    pub fn client(&self) -> Client {
        let secret = Secret::load(&self.secret).expect("the node made a secret");
        Client::new(self.engine, Some(secret))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("the node is there to be killed");
        self.child.wait().expect("it ends");
    }

    /// What it wrote so far, from its last lines.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Runs `tandem verify` on a directory: its exit status and what it wrote.
    pub fn verify(binary: &Path, folder: &Path) -> (ExitStatus, String) {
        let output = Command::new(binary)
            .args(["verify", "--datadir"])
            .arg(folder.join("data"))
            .output()
            .expect("tandem verify runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status, String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that fails leaves nothing running; one that has killed the node finds it gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound port has an address")
}
