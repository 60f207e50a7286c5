//! A follower as a process of its own, beside the cluster that it follows.

use crate::{
    client::{self, Client},
    node::{CALL_TIME_MAX, Node, free_ports},
};
use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tandem_testkit::last_lines;
use tempfile::TempDir;

/// Longest wait for a follower to reach a block, and to end.
const WAIT_MAX: Duration = Duration::from_secs(180);

/// Length of a tick of the times in `/proc`: the kernel's interface has a hundred a second everywhere.
const TICK_SECONDS: f64 = 0.01;

/// A follower that runs or ran.
pub struct Copy {
    binary: PathBuf,
    leader: String,
    /// Whether it runs only where nothing else wants a processor.
    is_idle: bool,
    folder: TempDir,
    child: Option<Child>,
    http: SocketAddr,
    metrics: SocketAddr,
}

impl Copy {
    /// Starts a follower of a cluster, and waits until it is at the cluster's head.
    ///
    /// # Errors
    /// If it ends, or does not get there.
    pub fn start(binary: &Path, leader: &Node, is_idle: bool) -> anyhow::Result<Self> {
        let leader_port = leader.port_of("storage-writer", "grpc")?;
        let [http, metrics, _] = free_ports()?;
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        let mut copy = Self {
            binary: binary.to_owned(),
            leader: format!("http://127.0.0.1:{leader_port}"),
            is_idle,
            folder,
            child: None,
            http,
            metrics,
        };
        copy.run()?;
        copy.reach(&hash_of_head(&mut leader.engine()?)?)?;
        Ok(copy)
    }

    /// Starts the process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let log = File::create(self.folder.path().join("follower.log"))?;
        let mut command = if self.is_idle {
            // The scheduling class for what has all the time there is (sched(7)).
            let mut idle = Command::new("chrt");
            idle.args(["--idle", "0"]).arg(&self.binary);
            idle
        } else {
            Command::new(&self.binary)
        };
        command.args(["follower", "--leader", &self.leader]).arg("--datadir").arg(self.data());
        command.args(["--http.port", &self.http.port().to_string()]);
        command.args(["--metrics.port", &self.metrics.port().to_string()]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().context("start the follower")?);
        Ok(())
    }

    /// Returns the folder of its data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns the address of its JSON-RPC.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Returns a client of its JSON-RPC.
    pub fn public(&self) -> Client {
        Client::public(self.http, CALL_TIME_MAX)
    }

    /// Returns the metrics' text.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn metrics(&self) -> anyhow::Result<String> {
        let (status, text) = client::get(self.metrics, "/metrics", CALL_TIME_MAX)?;
        ensure!(status == 200, "/metrics: HTTP {status}");
        Ok(text)
    }

    /// Returns the processor time that it has used, in seconds.
    ///
    /// # Errors
    /// If it does not run.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        cpu_seconds(self.child.as_ref().context("the follower does not run")?.id())
    }

    /// Waits until the follower serves a block as its head. Returns the moment.
    ///
    /// # Errors
    /// If it ends, or takes too long.
    pub fn reach(&mut self, hash: &str) -> anyhow::Result<Instant> {
        let begun = Instant::now();
        let mut client = self.public();
        while begun.elapsed() < WAIT_MAX {
            // It does not answer while it starts.
            if hash_of_head(&mut client).is_ok_and(|head| head == hash) {
                return Ok(Instant::now());
            }
            let child = self.child.as_mut().context("the follower does not run")?;
            if let Some(status) = child.try_wait()? {
                bail!("the follower ended with {status}: {}", self.last_lines());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("the follower does not reach {hash}: {}", self.last_lines())
    }

    /// Ends the process by SIGTERM.
    ///
    /// # Errors
    /// If it does not run, or does not end.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("the follower does not run")?;
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        ensure!(sent.success(), "SIGTERM was not sent");
        let begun = Instant::now();
        while child.try_wait()?.is_none() {
            if begun.elapsed() > WAIT_MAX {
                child.kill()?;
                child.wait()?;
                bail!("the follower does not end: {}", self.last_lines());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn last_lines(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("follower.log")).unwrap_or_default();
        last_lines(&log, 8).join(" | ")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A follower that has ended already is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the hash of the head that a client serves.
pub fn hash_of_head(client: &mut Client) -> anyhow::Result<String> {
    let block: Value = client.call("eth_getBlockByNumber", &json!(["latest", false]))?;
    Ok(block["hash"].as_str().context("no hash")?.to_owned())
}

/// Returns the processor time that a process has used, in seconds.
///
/// # Errors
/// If it does not run.
pub fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may hold any character. Fields 14 and 15 are the times.
    let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat")?;
    let times = fields.split(' ').skip(11).take(2).map(str::parse::<f64>);
    let ticks: f64 = times.collect::<Result<Vec<_>, _>>()?.iter().sum();
    Ok(ticks * TICK_SECONDS)
}
