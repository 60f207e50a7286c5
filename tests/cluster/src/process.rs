//! The `tandem` binary as a process of its own, for tests that kill it.

use crate::client::{Client, decode_status};
use serde_json::json;
use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tandem_auth::Secret;
use tandem_primitives::B256;
use tandem_testkit::last_lines;

/// Longest wait for a node to answer after its start.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// A running `tandem node`.
pub struct Process {
    child: Child,
    engine: SocketAddr,
    public: SocketAddr,
    secret: PathBuf,
    log: PathBuf,
}

impl Process {
    /// Starts a node without peers on free ports; its log goes to a file in `folder`.
    pub async fn start(binary: &Path, folder: &Path, genesis: &Path) -> Self {
        Self::start_with(binary, folder, genesis, &["--disable-sessions"]).await
    }

    /// Starts a node with further arguments.
    pub async fn start_with(binary: &Path, folder: &Path, genesis: &Path, args: &[&str]) -> Self {
        let (secret, log) = (folder.join("jwt.hex"), folder.join("node.log"));
        let file = File::create(&log).unwrap();
        let child = Command::new(binary)
            .args(["node", "--authrpc.port", "0", "--http.port", "0", "--log.filter", "info"])
            .arg("--disable-discovery")
            .args(args)
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
        let unknown = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut process = Self { child, engine: unknown, public: unknown, secret, log };
        process.wait_until_it_listens().await;
        process
    }

    /// Reads from the log which ports the node took.
    async fn wait_until_it_listens(&mut self) {
        let started = Instant::now();
        while started.elapsed() < START_TIME_MAX {
            if let (Some(engine), Some(public)) = (self.address("engine"), self.address("http")) {
                (self.engine, self.public) = (engine, public);
                return;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the node ended with {status}\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the node does not listen\n{}", self.log());
    }

    /// Returns the address of a port of this name, `None` while the log does not name it.
    pub fn address(&self, port: &str) -> Option<SocketAddr> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        // Only whole lines: the last one may still be incomplete.
        let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let port = format!("listening port=\"{port}\"");
        let line = lines.rev().find(|line| line.contains(&port))?;
        let address = line.split_once("address=")?.1.trim();
        Some(address.parse().expect("the log names an address"))
    }

    /// Returns the largest resident memory of the process so far, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|text| text.split_whitespace().next()).expect("a peak");
        kib.parse::<u64>().unwrap() << 10
    }

    /// Returns whether a line of the log has this text.
    pub fn has_logged(&self, text: &str) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|log| log.contains(text))
    }

    /// Returns the lines of the log with this text.
    pub fn logged(&self, text: &str) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Returns a new client of its Engine API.
    pub fn client(&self) -> Client {
        let secret = Secret::load(&self.secret).expect("the node made a secret");
        Client::new(self.engine, Some(secret))
    }

    /// Names a head as a consensus client does. Returns whether the node has it.
    pub async fn choose(&self, head: B256) -> bool {
        let state = json!({
            "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
        });
        let answer = self.client().call("engine_forkchoiceUpdatedV3", json!([state, null])).await;
        let status = decode_status(answer.unwrap()["payloadStatus"].clone());
        let is_there = status.verdict() == ("VALID", Some(head));
        assert!(is_there || status.verdict().0 == "SYNCING", "{status:?}\n{}", self.log());
        is_there
    }

    /// Returns a new client of its public port.
    pub fn public_client(&self) -> Client {
        Client::new(self.public, None)
    }

    /// Kills the node with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("the node is there to be killed");
        self.child.wait().expect("it ends");
    }

    /// Returns the last lines of its log so far.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        last_lines(&text, 40).join("\n")
    }

    /// Runs `tandem verify` on the data directory in `folder`. Returns its exit status and its output.
    pub fn verify(binary: &Path, folder: &Path) -> (ExitStatus, String) {
        Self::verify_datadir(binary, &folder.join("data"))
    }

    /// Runs `tandem verify` on a data directory. Returns its exit status and its output.
    pub fn verify_datadir(binary: &Path, datadir: &Path) -> (ExitStatus, String) {
        let output = Command::new(binary)
            .args(["verify", "--datadir"])
            .arg(datadir)
            .output()
            .expect("tandem verify runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status, String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A failing test leaves no process running; a test that has killed the node finds it gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
