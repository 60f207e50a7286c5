//! Runs of `tandem`: states, payloads, and a node that replays them.

use super::{Plan, limit::Group};
use crate::{
    client::{self, Client, series},
    node::{CALL_TIME_MAX, enode_in},
};
use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::{self, sleep},
    time::{Duration, Instant},
};

/// Longest wait for a node to listen.
const START_TIME_MAX: Duration = Duration::from_secs(300);
/// Longest wait for metrics.
const METRICS_TIME_MAX: Duration = Duration::from_secs(60);
/// Blocks that are left out of the times: caches of code and of the top of the tries fill up.
const WARMUP: usize = 3;

/// The program under test.
pub struct Tandem(pub PathBuf);

impl Tandem {
    fn answer(&self, command: &mut Command) -> anyhow::Result<Vec<u8>> {
        let output = command.stdin(Stdio::null()).output().context("start tandem")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    }

    /// Runs a command on a data directory, and returns its answer in JSON.
    ///
    /// # Errors
    /// If it fails.
    pub fn json(&self, arguments: &[&str], datadir: &Path) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.0);
        command.args(arguments).arg("--datadir").arg(datadir);
        Ok(serde_json::from_slice(&self.answer(&mut command)?)?)
    }

    /// Returns the bytes of all files of a database.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn file_bytes(&self, datadir: &Path) -> anyhow::Result<f64> {
        self.json(&["db", "stats", "--json"], datadir)?["file_bytes"].as_f64().context("file_bytes")
    }

    /// Makes a state, and its genesis file if a path is given, with further flags.
    ///
    /// # Errors
    /// If it fails.
    pub fn state(
        &self,
        datadir: &Path,
        plan: Plan,
        genesis_out: Option<&Path>,
        flags: &[&str],
    ) -> anyhow::Result<()> {
        let mut command = Command::new(&self.0);
        command.args(["bloat", "state", "--datadir"]).arg(datadir);
        for (flag, value) in
            [("--accounts", plan.accounts), ("--slots", plan.slots), ("--seed", plan.seed)]
        {
            command.arg(flag).arg(value.to_string());
        }
        if let Some(path) = genesis_out {
            command.arg("--genesis-out").arg(path);
        }
        command.args(flags);
        // Progress of the longest step goes to the terminal.
        command.stderr(Stdio::inherit());
        self.answer(&mut command).map(drop)
    }

    /// Copies a database to a data directory.
    ///
    /// # Errors
    /// If it fails.
    pub fn copy(&self, datadir: &Path, to: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(&self.0);
        command.args(["db", "copy", "--datadir"]).arg(datadir).arg("--to").arg(to);
        self.answer(&mut command).map(drop)
    }

    /// Makes payloads on a state.
    ///
    /// # Errors
    /// If it fails.
    pub fn payloads(
        &self,
        datadir: &Path,
        out: &Path,
        seed: u64,
        workload: &[(&str, u64)],
    ) -> anyhow::Result<()> {
        let mut command = Command::new(&self.0);
        command.args(["bloat", "payloads", "--datadir"]).arg(datadir).arg("--out").arg(out);
        command.args(["--seed", &seed.to_string()]);
        for (flag, value) in workload {
            command.arg(flag).arg(value.to_string());
        }
        self.answer(&mut command).map(drop)
    }
}

/// Time in which a node looks at its database and publishes the counters: it does so after five seconds, or
/// after five more where a block came meanwhile.
const LOOK_TIME: Duration = Duration::from_secs(11);

/// Result of a replay.
pub struct Replayed {
    /// Milliseconds of newPayload.
    pub p50: f64,
    pub p99: f64,
    /// Milliseconds of newPayload, of each block after the first ones.
    pub times: Vec<f64>,
    /// Blocks of the database that were read from files.
    pub misses: [f64; KINDS.len()],
    /// Mean of the calls for reads of a block that waited for one another.
    pub rounds: f64,
    /// Transactions of all blocks.
    pub transactions: u64,
    /// Milliseconds for which flushes or compactions held up writes.
    pub stalled: f64,
}

/// Flags of a node without peers.
pub const ALONE: [&str; 2] = ["--disable-discovery", "--disable-sessions"];

/// Flags of a node with peers on loopback.
pub const AMONG: [&str; 8] = [
    "--discovery.addr",
    "127.0.0.1",
    "--discovery.port",
    "0",
    "--sessions.addr",
    "127.0.0.1",
    "--sessions.port",
    "0",
];

/// A node on a data directory.
pub struct Node {
    child: Child,
    engine: SocketAddr,
    metrics: SocketAddr,
    secret: PathBuf,
    log: PathBuf,
}

impl Node {
    /// Starts a node on a data directory by a command that ends in `tandem`, and waits until it listens.
    /// Its log and its secret are in `folder`.
    ///
    /// # Errors
    /// If it ends or does not listen; the error has its log.
    pub fn start(
        mut command: Command,
        data: &Path,
        folder: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let (engine, metrics) = (free_port()?, free_port()?);
        let (secret, log) = (folder.join("jwt.hex"), folder.join("node.log"));
        let file = File::create(&log)?;
        command.args(["node", "--http.port", "0"]);
        command.args(["--authrpc.port", &engine.port().to_string()]);
        command.args(["--metrics.port", &metrics.port().to_string()]);
        command.arg("--datadir").arg(data).arg("--authrpc.jwtsecret").arg(&secret).args(flags);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().context("start the node")?;
        let mut node = Self { child, engine, metrics, secret, log };
        let begin = Instant::now();
        while TcpStream::connect(engine).is_err() {
            if let Some(status) = node.child.try_wait()? {
                bail!("the node ended with {status}: {}", node.log());
            }
            ensure!(begin.elapsed() < START_TIME_MAX, "the node does not listen");
            sleep(Duration::from_millis(50));
        }
        Ok(node)
    }

    /// Returns a client of its Engine API.
    ///
    /// # Errors
    /// If there is no secret.
    pub fn engine(&self) -> anyhow::Result<Client> {
        Client::engine(self.engine, &self.secret, CALL_TIME_MAX)
    }

    /// Returns its URL for sessions.
    ///
    /// # Errors
    /// If it holds none.
    pub fn enode(&self) -> anyhow::Result<String> {
        enode_in(&self.log()).context("no node URL in the log")
    }

    /// Returns the traces that it holds, as OTLP/JSON.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn traces(&self) -> anyhow::Result<String> {
        let (status, text) = client::get(self.metrics, "/debug/traces?n=10000", CALL_TIME_MAX)?;
        ensure!(status == 200, "/debug/traces: HTTP {status}");
        Ok(text)
    }

    /// Ends the node as an operator does.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status()?;
        ensure!(sent.success(), "SIGTERM was not sent");
        let status = self.child.wait()?;
        ensure!(status.success(), "the node ended with {status}: {}", self.log());
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A node that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Work beside a replay: it gets the node's data directory, and goes on until the flag is set.
pub type Beside<'a> = dyn Fn(&Path, &AtomicBool) -> anyhow::Result<()> + Sync + 'a;

/// Replay of a corpus on a copy of a state, with a fresh node.
pub struct Replay<'a> {
    pub tandem: &'a Tandem,
    pub datadir: &'a Path,
    pub corpus: &'a Path,
    /// Limits of the node.
    pub limit: Option<&'a Group>,
    /// Directories over which the state is spread.
    pub directories: &'a [PathBuf],
    /// Settings of the node.
    pub config: Option<&'a Path>,
    /// Work beside it.
    pub beside: Option<&'a Beside<'a>>,
}

impl<'a> Replay<'a> {
    /// Returns a replay with nothing beside it.
    pub fn of(tandem: &'a Tandem, datadir: &'a Path, corpus: &'a Path) -> Self {
        Self { tandem, datadir, corpus, limit: None, directories: &[], config: None, beside: None }
    }

    /// Runs it.
    ///
    /// # Errors
    /// If the node does not start, an answer is not VALID, or the work beside it fails.
    pub fn run(self) -> anyhow::Result<Replayed> {
        let Self { tandem, datadir, corpus, limit, directories, config, beside: work } = self;
        let beside = corpus.parent().context("the corpus has no folder")?;
        let folder = tempfile::Builder::new().prefix("node-").tempdir_in(beside)?;
        let data = folder.path().join("data");
        tandem.copy(datadir, &data)?;
        if !directories.is_empty() {
            let mut spread = Command::new(&tandem.0);
            spread.args(["db", "spread", "--datadir"]).arg(&data);
            for directory in directories {
                spread.arg("--directory").arg(directory);
            }
            tandem.answer(&mut spread)?;
        }
        if limit.is_some() {
            forget_pages(&data)?;
        }
        let config = config.map(|config| config.to_string_lossy());
        let mut flags = ALONE.to_vec();
        if let Some(config) = &config {
            flags.extend(["--insecure", "--config", config]);
        }
        let command = command_of(tandem, limit);
        let node = Node::start(command, &data, folder.path(), &flags)?;
        let before = misses(&node)?;
        let report = folder.path().join("report.json");
        let mut replay = Command::new(&tandem.0);
        replay
            .args(["replay", "--engine", &format!("http://{}", node.engine), "--jwtsecret"])
            .arg(&node.secret);
        replay.args(["--warmup", &WARMUP.to_string(), "--gap-ms", "50", "--json"]);
        replay.arg(&report).arg(corpus);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let working = work.map(|work| scope.spawn(|| work(&data, &ended)));
            let replayed = tandem.answer(&mut replay);
            ended.store(true, Relaxed);
            let worked =
                working.map(|it| it.join().expect("the work beside a replay does not panic"));
            replayed?;
            worked.unwrap_or(Ok(()))
        })?;
        let report: Value = serde_json::from_slice(&fs::read(&report)?)?;
        let calls = report["calls"].as_array().context("no calls")?;
        let call =
            calls.iter().find(|call| call["call"] == "newPayload").context("no newPayload")?;
        let blocks = report["blocks"].as_array().context("no blocks")?;
        let misses = since(before, misses(&node)?);
        let text = metrics_of(&node)?;
        let count = series(&text, "tandem_executor_read_rounds_count").max(1.0);
        Ok(Replayed {
            p50: call["p50_ms"].as_f64().context("p50")?,
            p99: call["p99_ms"].as_f64().context("p99")?,
            times: blocks
                .iter()
                .filter(|block| block["warmup"] == false)
                .filter_map(|block| block["new_payload_ms"].as_f64())
                .collect(),
            misses,
            rounds: series(&text, "tandem_executor_read_rounds_sum") / count,
            transactions: blocks.iter().filter_map(|block| block["transactions"].as_u64()).sum(),
            stalled: series(&text, "tandem_storage_writer_database_stalled_milliseconds_total"),
        })
    }
}

/// Returns a command that starts the program, under limits if there are some.
pub fn command_of(tandem: &Tandem, limit: Option<&Group>) -> Command {
    match limit {
        Some(limit) => limit.command(&tandem.0),
        None => Command::new(&tandem.0),
    }
}

fn metrics_of(node: &Node) -> anyhow::Result<String> {
    let (status, text) = client::get(node.metrics, "/metrics", METRICS_TIME_MAX)?;
    ensure!(status == 200, "/metrics: HTTP {status}");
    Ok(text)
}

/// Kinds of blocks of files.
pub const KINDS: [&str; 3] = ["data", "index", "filter"];

/// Returns the blocks of files that a node has read so far, after its next look at its database.
fn misses(node: &Node) -> anyhow::Result<[f64; KINDS.len()]> {
    sleep(LOOK_TIME);
    let text = metrics_of(node)?;
    let name = "tandem_storage_writer_database_cache_blocks_total";
    Ok(KINDS.map(|kind| series(&text, &format!("{name}{{outcome=\"miss\",kind=\"{kind}\"}}"))))
}

/// Returns the differences.
fn since(before: [f64; KINDS.len()], after: [f64; KINDS.len()]) -> [f64; KINDS.len()] {
    std::array::from_fn(|kind| after[kind] - before[kind])
}

/// Lets the page cache forget the files of a folder, which other processes read before: pages of a file
/// are charged to the group that reads them first.
pub fn forget_pages(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            forget_pages(&path)?;
        } else {
            let mut dd = Command::new("dd");
            dd.arg(format!("if={}", path.display())).args(["iflag=nocache", "count=0"]);
            let status = dd.stderr(Stdio::null()).status().context("start dd")?;
            ensure!(status.success(), "dd on {}: {status}", path.display());
        }
    }
    Ok(())
}

/// Returns a free loopback port.
///
/// # Errors
/// If there is none.
pub fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
