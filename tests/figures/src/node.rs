//! A client under test in a folder of its own, on free loopback ports: `tandem node`, `tandem cluster`
//! or geth.

use crate::client::{self, Client};
use anyhow::{Context as _, bail, ensure};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tandem_testkit::last_lines;
use tempfile::TempDir;

/// Longest wait for the trusted setup of blobs.
const SETUP_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a node to answer after its start.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest wait for an answer of the Engine API.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest wait for the processes of a cluster to end.
const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `tandem node`: one process.
    One,
    /// `tandem cluster`: a process for each service.
    Six,
    /// geth.
    Geth,
}

/// A node that runs or ran.
pub struct Node {
    kind: Kind,
    binary: PathBuf,
    genesis: PathBuf,
    /// TOML of the node's own configuration; flags for geth.
    config: String,
    /// Processors that it may use, as `taskset` wants them. `None` for all.
    processors: Option<String>,
    folder: TempDir,
    ports: [SocketAddr; 3],
    child: Option<Child>,
    starts: usize,
    /// Whether it looks for peers.
    has_peers: bool,
    /// Further flags of `tandem`.
    flags: Vec<String>,
}

impl Node {
    /// Starts a node on a genesis file, with settings as TOML, and waits until it answers.
    ///
    /// # Errors
    /// If the node ends or does not answer; the error has the end of its log.
    pub fn start(binary: &Path, genesis: &Path, config: &str) -> anyhow::Result<Self> {
        Self::start_kind(Kind::One, binary, genesis, config)
    }

    /// Starts a node that may use these processors alone, such as `0` or `0,1`.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn start_on(
        processors: Option<&str>,
        binary: &Path,
        genesis: &Path,
        config: &str,
    ) -> anyhow::Result<Self> {
        let mut node = Self::new(binary, genesis, config)?;
        node.processors = processors.map(str::to_owned);
        node.start_and_settle()
    }

    /// Starts a node of any kind. The settings of geth are flags, with spaces between them.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn start_kind(
        kind: Kind,
        binary: &Path,
        genesis: &Path,
        config: &str,
    ) -> anyhow::Result<Self> {
        let mut node = Self::new(binary, genesis, config)?;
        node.kind = kind;
        node.start_and_settle()
    }

    /// Starts a node of any kind with further flags.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn start_with_flags(
        kind: Kind,
        binary: &Path,
        genesis: &Path,
        flags: Vec<String>,
    ) -> anyhow::Result<Self> {
        Self::start_configured(kind, binary, genesis, "", flags)
    }

    /// Starts a node of any kind with settings and further flags.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn start_configured(
        kind: Kind,
        binary: &Path,
        genesis: &Path,
        config: &str,
        flags: Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut node = Self::new(binary, genesis, config)?;
        (node.kind, node.flags) = (kind, flags);
        node.start_and_settle()
    }

    /// Starts a node that finds others on loopback and holds sessions with them, with further flags.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn start_among(
        binary: &Path,
        genesis: &Path,
        config: &str,
        flags: Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut node = Self::new(binary, genesis, config)?;
        node.has_peers = true;
        node.flags = flags;
        node.restart()?;
        Ok(node)
    }

    /// Returns a node that is not started yet.
    ///
    /// # Errors
    /// If its folder cannot be created.
    pub fn new(binary: &Path, genesis: &Path, config: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        Ok(Self {
            kind: Kind::One,
            binary: binary.to_owned(),
            genesis: genesis.to_owned(),
            config: config.to_owned(),
            processors: None,
            folder,
            ports: [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); 3],
            child: None,
            starts: 0,
            has_peers: false,
            flags: Vec::new(),
        })
    }

    /// Returns the folder of the node's data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Starts the process again on the same data.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        self.ports = free_ports()?;
        self.starts += 1;
        let log = File::create(self.log_path())?;
        let mut command = match self.kind {
            Kind::One => self.tandem("node")?,
            Kind::Six => self.tandem("cluster")?,
            Kind::Geth => self.geth()?,
        };
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().context("start the node")?);
        let started = Instant::now();
        while started.elapsed() < START_TIME_MAX {
            if let Some(status) = self.ended()? {
                bail!("the node ended with {status}: {}", self.last_lines());
            }
            if self.engine().is_ok_and(|mut engine| engine.call("eth_chainId", &json!([])).is_ok())
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the node does not answer: {}", self.last_lines())
    }

    /// Starts the process for the first time. Waits until a Tandem has loaded the trusted setup of
    /// blobs, which keeps a processor busy; some time, if it does not log this.
    fn start_and_settle(mut self) -> anyhow::Result<Self> {
        self.restart()?;
        let started = Instant::now();
        let log = match self.kind {
            Kind::One => self.log_path(),
            Kind::Six => self.data().join("logs/blob-validator.log"),
            Kind::Geth => return Ok(self),
        };
        let is_loaded =
            || fs::read_to_string(&log).is_ok_and(|text| text.contains("trusted setup loaded"));
        while started.elapsed() < SETUP_TIME_MAX && !is_loaded() {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(self)
    }

    fn tandem(&self, subcommand: &str) -> anyhow::Result<Command> {
        let mut command = match &self.processors {
            Some(processors) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["-c", processors]).arg(&self.binary);
                pinned
            }
            None => Command::new(&self.binary),
        };
        let [engine, http, metrics] = self.ports.map(|port| port.port().to_string());
        command.args([subcommand, "--authrpc.port", &engine]);
        if self.has_peers {
            command.args(["--discovery.addr", "127.0.0.1", "--discovery.port", "0"]);
            command.args(["--sessions.addr", "127.0.0.1", "--sessions.port", "0"]);
        } else {
            command.arg("--disable-discovery");
            // Not by the flag, which earlier versions do not know.
            command.env("TANDEM_DISABLE_SESSIONS", "true");
        }
        command.args(&self.flags).args(["--http.port", &http, "--metrics.port", &metrics]);
        command.arg("--datadir").arg(self.data()).arg("--genesis").arg(&self.genesis);
        if !self.config.is_empty() {
            let file = self.folder.path().join("config.toml");
            fs::write(&file, &self.config)?;
            command.arg("--config").arg(file);
        }
        Ok(command)
    }

    fn geth(&self) -> anyhow::Result<Command> {
        let (data, secret) = (self.data(), self.data().join("jwt.hex"));
        let genesis = unpacked(&self.genesis, self.folder.path())?;
        let mut init = Command::new(&self.binary);
        init.arg("init").arg("--datadir").arg(&data).arg(genesis);
        let output = init.output().context("start geth init")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The secret only keeps others on this machine from calling by mistake.
        fs::write(&secret, "5e".repeat(32))?;
        let mut command = Command::new(&self.binary);
        let [engine, http, ..] = self.ports.map(|port| port.port().to_string());
        command.arg("--datadir").arg(data).arg("--authrpc.jwtsecret").arg(secret);
        command.args(["--http", "--http.addr", "127.0.0.1", "--http.port", &http]);
        command.args(["--syncmode", "full", "--authrpc.addr", "127.0.0.1"]);
        command.args(["--authrpc.port", &engine, "--port", "0", "--nodiscover", "--maxpeers", "0"]);
        command.args(["--nat", "none", "--ipcdisable"]).args(self.config.split_whitespace());
        Ok(command)
    }

    /// Returns a client of the Engine API.
    ///
    /// # Errors
    /// If there is no secret.
    pub fn engine(&self) -> anyhow::Result<Client> {
        Client::engine(self.ports[0], &self.data().join("jwt.hex"), CALL_TIME_MAX)
    }

    /// Returns a client of the public port that waits at most `time_max` for an answer.
    pub fn public(&self, time_max: Duration) -> Client {
        Client::public(self.ports[1], time_max)
    }

    /// Returns the ports: Engine API, JSON-RPC, metrics.
    pub fn ports(&self) -> [SocketAddr; 3] {
        self.ports
    }

    /// Returns the process ids: that of the node, or of each process of a cluster with its name.
    ///
    /// # Errors
    /// If the node does not run.
    pub fn processes(&self) -> anyhow::Result<Vec<(String, u32)>> {
        let child = self.child.as_ref().context("the node does not run")?;
        if self.kind != Kind::Six {
            return Ok(vec![("node".to_owned(), child.id())]);
        }
        let log = self.log();
        let rows = log.lines().skip_while(|line| !line.starts_with("process "));
        let rows = rows.skip(1).map_while(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        });
        Ok(rows.collect())
    }

    /// Returns a port of a process of a cluster, such as `grpc` of `storage-writer`.
    ///
    /// # Errors
    /// If the node is no cluster with such a process.
    pub fn port_of(&self, process: &str, port: &str) -> anyhow::Result<u16> {
        let log = self.log();
        let row = log.lines().find(|line| line.split_whitespace().next() == Some(process));
        let mut words = row.context("no such process")?.split([' ', ',']);
        words.find(|word| *word == port).context("no such port")?;
        Ok(words.next().context("no number")?.parse()?)
    }

    /// Returns the resident memory, in bytes.
    ///
    /// # Errors
    /// If the node does not run.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        self.memory("VmRSS:")
    }

    /// Returns the largest resident memory since the start, in bytes.
    ///
    /// # Errors
    /// If the node does not run.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &'static str) -> anyhow::Result<u64> {
        let child = self.child.as_ref().context("the node does not run")?;
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.split_whitespace().next()).context(field)?;
        Ok(kib.parse::<u64>()? * 1024)
    }

    /// Returns the sum of a metric over all its labels.
    ///
    /// # Errors
    /// If the node does not answer, or has no such metric.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        client::sum_of(&self.metrics()?, name).with_context(|| format!("no metric {name}"))
    }

    /// Returns the metrics' text.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn metrics(&self) -> anyhow::Result<String> {
        let (status, text) = client::get(self.ports[2], "/metrics", CALL_TIME_MAX)?;
        ensure!(status == 200, "/metrics: HTTP {status}");
        Ok(text)
    }

    /// Returns a metric over its processes, by its labels.
    ///
    /// # Errors
    /// If a process does not answer.
    pub fn sums_by_labels(&self, name: &str) -> anyhow::Result<BTreeMap<String, f64>> {
        let mut sums = BTreeMap::new();
        for port in self.metrics_ports() {
            let (status, text) = client::get(port, "/metrics", CALL_TIME_MAX)?;
            ensure!(status == 200, "/metrics: HTTP {status}");
            for (labels, value) in client::samples_of(&text, name) {
                *sums.entry(labels.to_owned()).or_default() += value;
            }
        }
        Ok(sums)
    }

    /// Returns the traces that its processes keep, one answer for each process.
    ///
    /// # Errors
    /// If a process does not answer.
    pub fn traces(&self) -> anyhow::Result<Vec<String>> {
        let get = |port: SocketAddr| {
            let (status, text) = client::get(port, "/debug/traces?n=10000", CALL_TIME_MAX)?;
            ensure!(status == 200, "/debug/traces: HTTP {status}");
            Ok(text)
        };
        self.metrics_ports().into_iter().map(get).collect()
    }

    /// Returns the metrics ports of its processes. A cluster prints them.
    fn metrics_ports(&self) -> Vec<SocketAddr> {
        if !matches!(self.kind, Kind::Six) {
            return vec![self.ports[2]];
        }
        let port = |line: &str| {
            let rest = &line[line.find(" metrics ")? + " metrics ".len()..];
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            Some(SocketAddr::from((Ipv4Addr::LOCALHOST, rest[..digits].parse().ok()?)))
        };
        self.log().lines().filter_map(port).collect()
    }

    /// Kills the node with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A node that has ended already is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the node with SIGTERM, waits for its end and returns the time it took. After
    /// `time_max` it is killed.
    ///
    /// # Errors
    /// If the node does not run.
    pub fn stop(&mut self, time_max: Duration) -> anyhow::Result<Duration> {
        let id = self.child.as_ref().context("the node does not run")?.id();
        let started = Instant::now();
        let sent = Command::new("kill").args(["-TERM", &id.to_string()]).status()?;
        anyhow::ensure!(sent.success(), "SIGTERM was not sent");
        while started.elapsed() < time_max && self.ended()?.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let took = started.elapsed();
        self.kill();
        Ok(took)
    }

    /// Returns the node's log since its last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Returns the URL under which discovery finds the node.
    ///
    /// # Errors
    /// If the node does not look for peers.
    pub fn enode(&self) -> anyhow::Result<String> {
        enode_in(&self.log()).context("no node URL in the log")
    }

    /// Returns the number and hash of the head.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn head(&self) -> anyhow::Result<Value> {
        let block = self.engine()?.call("eth_getBlockByNumber", &json!(["latest", false]))?;
        Ok(json!([block["number"], block["hash"]]))
    }

    fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.as_mut().map(Child::try_wait).transpose()?.flatten())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join(format!("node-{}.log", self.starts))
    }

    fn last_lines(&self) -> String {
        last_lines(&self.log(), 8).join(" | ")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A killed cluster would leave its processes.
        match self.kind {
            Kind::Six if self.child.is_some() => drop(self.stop(STOP_TIME_MAX)),
            _ => self.kill(),
        }
    }
}

/// Returns the first node URL in a log, without the surrounding text.
pub fn enode_in(log: &str) -> Option<String> {
    let rest = &log[log.find("enode://")?..];
    let end = rest.find(|c: char| c.is_whitespace() || c == '"' || c == '\u{1b}');
    Some(rest[..end?].to_owned())
}

/// Returns a genesis file that is not compressed, in this folder if it has to be written.
fn unpacked(genesis: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    if genesis.extension().is_none_or(|extension| extension != "gz") {
        return Ok(genesis.to_owned());
    }
    let plain = folder.join("genesis.json");
    let mut packed = GzDecoder::new(File::open(genesis)?);
    io::copy(&mut packed, &mut File::create(&plain)?)?;
    Ok(plain)
}

/// Returns three ports that no process listens on now.
pub fn free_ports() -> anyhow::Result<[SocketAddr; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = [bind()?, bind()?, bind()?];
    let [first, second, third] = &listeners;
    Ok([first.local_addr()?, second.local_addr()?, third.local_addr()?])
}
