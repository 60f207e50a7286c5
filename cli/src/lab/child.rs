//! Processes of this very program: one writes the genesis, and one node runs per configuration.

use super::experiment::Setup;
use super::load;
use crate::http_client::{self, HttpClient};
use crate::replay::{Finality, Session};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tandem_auth::Secret;
use tokio::time::sleep;

/// Longest time for writing a genesis.
const INIT_TIME_MAX: Duration = Duration::from_secs(600);
/// Longest time from the start of a node until it listens.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the end of a node that broke off a call.
const END_TIME_MAX: Duration = Duration::from_millis(500);
/// Pause between two looks at a process.
const POLL: Duration = Duration::from_millis(10);
/// Number of log lines that an error shows.
const LOG_LINES: usize = 15;

/// A process that does not outlive this value.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts this program with the command that `arguments` adds. Its output goes to `log`.
    fn start(log: PathBuf, arguments: impl FnOnce(&mut Command)) -> anyhow::Result<Self> {
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        arguments(&mut command);
        // Variables of this process are not meant for the nodes: the experiment has their settings.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "RUST_LOG" || text.starts_with("OTEL_") || text.starts_with("TANDEM_") {
                command.env_remove(&name);
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("start a process")?;
        Ok(Self { child, log })
    }

    /// Returns the exit status once the process has ended.
    fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("wait for a process")
    }

    /// Returns the end of the log.
    fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that the process has ended. Its data directory is removed too, so it need not
        // tidy up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a genesis into `datadir`, as `tandem init` does.
pub async fn init(genesis: &Path, datadir: &Path, log: PathBuf) -> anyhow::Result<()> {
    let mut process = Process::start(log, |command| {
        command.arg("init").arg("--genesis").arg(genesis).arg("--datadir").arg(datadir);
    })?;
    let started = Instant::now();
    loop {
        match process.ended()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("tandem init ended with {status}:\n{}", process.log()),
            None if started.elapsed() > INIT_TIME_MAX => {
                bail!("tandem init takes longer than {} s", INIT_TIME_MAX.as_secs())
            }
            None => sleep(POLL).await,
        }
    }
}

/// A running node.
pub struct Node {
    /// Its name in the results.
    pub name: String,
    /// Caller of its Engine API.
    pub session: Session,
    process: Process,
    metrics: String,
}

/// Addresses on which a node listens, from its log.
#[derive(Default)]
struct Addresses {
    engine: Option<String>,
    metrics: Option<String>,
}

impl Node {
    /// Starts a node in `folder`, with its data directory `data` there, on free ports of the
    /// loopback interface. Waits until it listens.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not.
    pub async fn start(
        setup: &Setup,
        folder: &Path,
        call_time_max: Duration,
    ) -> anyhow::Result<Self> {
        let (config, secret) = (folder.join("config.toml"), folder.join("jwt.hex"));
        let text = toml::to_string(&setup.config).context("write the configuration")?;
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let mut process = Process::start(folder.join("node.log"), |command| {
            command.args(["node", "--disable-discovery"]);
            for port in ["--authrpc.port", "--http.port", "--metrics.port"] {
                command.args([port, "0"]);
            }
            command.args(["--log.format", "json"]);
            command.args(["--log.filter", "warn,tandem_cluster=info"]);
            command.arg("--datadir").arg(folder.join("data"));
            command.arg("--config").arg(config);
            command.arg("--authrpc.jwtsecret").arg(&secret);
        })?;
        let addresses = listening(&mut process).await?;
        let missing = |port: &str| format!("the node does not say where its {port} port is");
        let secret = Secret::load(&secret)?;
        let engine = addresses.engine.with_context(|| missing("engine"))?;
        let client = HttpClient::new(&format!("http://{engine}"), Some(secret), call_time_max)?;
        let finality = Finality { safe: 32, finalized: 64 };
        let mut session = Session::new(client, Some(finality));
        session.client_name().await?;
        Ok(Self {
            name: setup.name.clone(),
            session,
            process,
            metrics: format!("http://{}", addresses.metrics.with_context(|| missing("metrics"))?),
        })
    }

    /// Returns its newest traces, as OTLP/JSON.
    pub async fn traces(&self, count: usize) -> anyhow::Result<bytes::Bytes> {
        http_client::get(&format!("{}/debug/traces?n={count}", self.metrics)).await
    }

    /// Returns its metrics, in Prometheus' text format.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let body = http_client::get(&format!("{}/metrics", self.metrics)).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Returns the CPU seconds that it has used.
    pub fn cpu_seconds(&self) -> Option<f64> {
        load::process_cpu_seconds(self.process.child.id())
    }

    /// Returns its peak memory, in bytes.
    pub fn memory_peak_bytes(&self) -> Option<u64> {
        load::process_memory_peak_bytes(self.process.child.id())
    }

    /// Adds to an error how this node ended, if it has ended.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let name = &self.name;
        let started = Instant::now();
        // Its connections break a moment before its exit status is available.
        while started.elapsed() < END_TIME_MAX {
            if let Ok(Some(status)) = self.process.ended() {
                let log = self.process.log();
                return error.context(format!("node {name:?} ended with {status}:\n{log}"));
            }
            sleep(POLL).await;
        }
        error.context(format!("node {name:?}"))
    }
}

/// Waits until the log of a node names all its addresses.
async fn listening(process: &mut Process) -> anyhow::Result<Addresses> {
    let started = Instant::now();
    loop {
        // Read first: the log of a process that has ended is complete.
        let ended = process.ended()?;
        let addresses = addresses(&fs::read_to_string(&process.log).unwrap_or_default());
        if let Addresses { engine: Some(_), metrics: Some(_) } = &addresses {
            return Ok(addresses);
        }
        if let Some(status) = ended {
            bail!("it ended with {status}:\n{}", process.log());
        }
        if started.elapsed() > START_TIME_MAX {
            bail!("it does not listen after {} s:\n{}", START_TIME_MAX.as_secs(), process.log());
        }
        sleep(POLL).await;
    }
}

/// Returns the addresses in a log so far. The last line may be incomplete.
fn addresses(log: &str) -> Addresses {
    #[derive(Deserialize)]
    struct Line {
        message: String,
        port: String,
        address: String,
    }
    let mut addresses = Addresses::default();
    for line in log.lines() {
        let Ok(Line { message, port, address }) = serde_json::from_str(line) else { continue };
        match (message.as_str(), port.as_str()) {
            ("listening", "engine") => addresses.engine = Some(address),
            ("listening", "metrics") => addresses.metrics = Some(address),
            _ => {}
        }
    }
    addresses
}

/// Copies a folder with its contents. Links and devices are not expected there.
pub fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("copy {}", source.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_from_whole_lines_of_the_log() {
        let line = |port: &str, address: &str| {
            format!(
                r#"{{"level":"INFO","message":"listening","port":"{port}","address":"{address}"}}"#
            )
        };
        let log = [
            "no json".to_owned(),
            r#"{"level":"INFO","message":"stopping"}"#.to_owned(),
            line("engine", "127.0.0.1:1"),
            line("other", "127.0.0.1:2"),
            line("http", "127.0.0.1:3"),
            line("metrics", "127.0.0.1:4")[..40].to_owned(),
        ];
        let found = addresses(&log.join("\n"));
        assert_eq!(found.engine.as_deref(), Some("127.0.0.1:1"));
        assert_eq!(found.metrics, None);
    }

    #[test]
    fn folders_are_copied_with_all_that_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("a/to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/file"), "text").unwrap();
        copy_folder(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("inner/file")).unwrap(), "text");
        let error = copy_folder(&from.join("missing"), &to).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }
}
