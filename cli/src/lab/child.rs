//! Processes of an experiment: one writes the genesis, and one node runs per configuration.

use super::experiment::Setup;
use super::load::{self, Usage};
use super::program::{Client, CpuSet, Places, Program};
use crate::child_process::{ChildProcess, free_ports};
use crate::http_client::{self, HttpClient};
use crate::replay::{Finality, Session};
use crate::rpc::Rpc;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tandem_auth::Secret;
use tandem_storage_writer::copy_database;
use tokio::time::sleep;
use toml::Table;

/// Longest time for writing a genesis.
const INIT_TIME_MAX: Duration = Duration::from_secs(600);
/// Longest time from the start of a node until it listens.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest time for a call of a node that builds blocks.
const CALL_TIME_MAX: Duration = Duration::from_secs(600);
/// Longest wait for the end of a node that broke off a call.
const END_TIME_MAX: Duration = Duration::from_millis(500);
/// Pause between two looks at a process.
const POLL: Duration = Duration::from_millis(10);
/// Pause between two calls of a client that does not answer yet.
const CALL_POLL: Duration = Duration::from_millis(100);
/// Largest genesis that is unpacked for another client.
const GENESIS_BYTES_MAX: u64 = 4 << 30;

/// Writes a genesis into `datadir`, as `tandem init` does.
pub async fn init(genesis: &Path, datadir: &Path, log: PathBuf) -> anyhow::Result<()> {
    init_by(&Program::Own.tandem()?, genesis, datadir, log).await
}

async fn init_by(
    program: &Path,
    genesis: &Path,
    datadir: &Path,
    log: PathBuf,
) -> anyhow::Result<()> {
    let process = ChildProcess::start(program, None, log, |command| {
        command.arg("init").arg("--genesis").arg(genesis).arg("--datadir").arg(datadir);
    })?;
    run_to_end(process, "tandem init").await
}

async fn run_to_end(mut process: ChildProcess, name: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        match process.ended()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{name} ended with {status}:\n{}", process.log()),
            None if started.elapsed() > INIT_TIME_MAX => {
                bail!("{name} takes longer than {} s", INIT_TIME_MAX.as_secs())
            }
            None => sleep(POLL).await,
        }
    }
}

/// Genesis of the nodes of a round.
#[derive(Clone, Copy)]
pub struct Genesis<'a> {
    /// File of the corpus; `None` if it has a data directory alone.
    pub file: Option<&'a Path>,
    /// Data directory of the corpus, or the one that this program made of the file, to be copied.
    pub datadir: &'a Path,
}

/// A running node.
pub struct Node {
    /// Its name in the results.
    pub name: String,
    /// Name and version that it gives itself, if any.
    pub version: Option<String>,
    /// Caller of its Engine API.
    pub session: Session,
    /// None for a client that was there already.
    process: Option<ChildProcess>,
    /// URL of its metrics and traces; none for another client.
    metrics: Option<String>,
}

/// Addresses on which a node listens, from its log.
#[derive(Default)]
struct Addresses {
    engine: Option<String>,
    metrics: Option<String>,
}

impl<'a> Genesis<'a> {
    /// Returns the file, for a program that makes its own data directory.
    fn file(&self) -> anyhow::Result<&'a Path> {
        self.file.context(
            "another program needs a genesis file beside the payloads, not a data directory alone",
        )
    }
}

impl Node {
    /// Starts a node in `folder`, with its data directory `data` there, on free ports of the
    /// loopback interface, or attaches to one. Waits until it listens.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not.
    pub async fn start(
        setup: &Setup,
        genesis: Genesis<'_>,
        folder: &Path,
        call_time_max: Duration,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let data = folder.join("data");
        match &setup.program {
            Program::Client(client) => {
                return Self::start_client(setup, client, genesis, folder, call_time_max).await;
            }
            Program::Binary(binary) => {
                init_by(binary, genesis.file()?, &data, folder.join("init.log")).await?;
            }
            Program::Own => {
                let from = genesis.datadir.to_owned();
                tokio::task::spawn_blocking(move || copy_database(&from, &data)).await??;
            }
        }
        Self::start_tandem(setup, folder, call_time_max).await
    }

    async fn start_tandem(
        setup: &Setup,
        folder: &Path,
        call_time_max: Duration,
    ) -> anyhow::Result<Self> {
        let program = setup.program.tandem()?;
        let launched = launch_by(&program, setup.cpus.as_ref(), folder, &setup.config).await?;
        let mut session = launched.session_within(call_time_max)?;
        Ok(Self {
            name: setup.name.clone(),
            version: session.client_name().await?,
            session,
            process: Some(launched.process),
            metrics: Some(launched.metrics),
        })
    }

    async fn start_client(
        setup: &Setup,
        client: &Client,
        genesis: Genesis<'_>,
        folder: &Path,
        call_time_max: Duration,
    ) -> anyhow::Result<Self> {
        let places = Places {
            genesis: folder.join("genesis.json"),
            datadir: folder.join("data"),
            jwt: folder.join("jwt.hex"),
            name: setup.name.clone(),
            ports: free_ports()?,
        };
        let command = |process: &[String]| {
            let arguments = places.fill_all(process)?;
            let variables = client.env.iter().map(|(name, value)| Ok((name, places.fill(value)?)));
            let variables: Vec<_> = variables.collect::<anyhow::Result<_>>()?;
            Ok::<_, anyhow::Error>((arguments, variables))
        };
        let start = |process: &[String], log: &str| {
            let (arguments, variables) = command(process)?;
            let [program, arguments @ ..] = &arguments[..] else { bail!("a command is empty") };
            let (program, log) = (Path::new(program), folder.join(log));
            ChildProcess::start(program, setup.cpus.as_ref(), log, |command| {
                command.args(arguments).envs(variables);
            })
        };
        if client.start.is_some() {
            fs::create_dir_all(&places.datadir).context("create a data directory")?;
            fs::write(&places.jwt, random_secret()?).context("write a JWT secret")?;
            let (from, to) = (genesis.file()?.to_owned(), places.genesis.clone());
            tokio::task::spawn_blocking(move || unpack(&from, &to)).await??;
        }
        if let Some(init) = &client.init {
            run_to_end(start(init, "init.log")?, "the init command").await?;
        }
        let mut process = match &client.start {
            Some(command) => Some(start(command, "node.log")?),
            None => None,
        };
        let own = "http://127.0.0.1:{engine_port}".to_owned();
        let url = places.fill(client.engine_url.as_ref().unwrap_or(&own))?;
        let jwt = client.jwt.as_deref().unwrap_or(Path::new("{jwt}"));
        let jwt = PathBuf::from(places.fill(&jwt.display().to_string())?);
        let mut session = session(&url, &jwt, call_time_max)?;
        let version = answering(&mut session, process.as_mut()).await?;
        Ok(Self { name: setup.name.clone(), version, session, process, metrics: None })
    }

    /// Returns its newest traces, as OTLP/JSON; none for another client.
    pub async fn traces(&self, count: usize) -> anyhow::Result<Option<bytes::Bytes>> {
        let Some(url) = &self.metrics else { return Ok(None) };
        Ok(Some(http_client::get(&format!("{url}/debug/traces?n={count}")).await?))
    }

    /// Returns its metrics, in Prometheus' text format; empty for another client.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let Some(url) = &self.metrics else { return Ok(String::new()) };
        let body = http_client::get(&format!("{url}/metrics")).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Returns what its process has used so far; none for a client that was there already.
    pub fn usage(&self) -> Option<Usage> {
        load::process_usage(self.process.as_ref()?.id())
    }

    /// Adds to an error how this node ended, if it has ended.
    pub async fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let name = &self.name;
        let started = Instant::now();
        // Its connections break a moment before its exit status is available.
        while started.elapsed() < END_TIME_MAX {
            let Some(process) = &mut self.process else { break };
            if let Ok(Some(status)) = process.ended() {
                let log = process.log();
                return error.context(format!("node {name:?} ended with {status}:\n{log}"));
            }
            sleep(POLL).await;
        }
        error.context(format!("node {name:?}"))
    }
}

/// A node of this program that listens on free ports of the loopback interface.
pub struct Launched {
    process: ChildProcess,
    /// URL of the Engine API.
    engine: String,
    /// URL of metrics and traces.
    metrics: String,
    /// File of the secret.
    secret: PathBuf,
}

impl Launched {
    /// Returns a caller of its Engine API that makes every block the head.
    ///
    /// # Errors
    /// Returns an error if the secret cannot be read.
    pub fn session(&self) -> anyhow::Result<Session> {
        self.session_within(CALL_TIME_MAX)
    }

    fn session_within(&self, call_time_max: Duration) -> anyhow::Result<Session> {
        session(&self.engine, &self.secret, call_time_max)
    }

    /// Returns a caller of the methods on its engine port, by name.
    ///
    /// # Errors
    /// Returns an error if the secret cannot be read.
    pub fn rpc(&self) -> anyhow::Result<Rpc> {
        Rpc::new(&self.engine, Some(Secret::load(&self.secret)?))
    }

    /// Adds the end of its log to an error.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        error.context(self.process.log())
    }
}

/// Starts a node of this program in `folder`, with its data directory `data` there and these settings.
/// Waits until it listens.
///
/// # Errors
/// Returns an error with the end of its log if it does not.
pub async fn launch(folder: &Path, config: &Table) -> anyhow::Result<Launched> {
    launch_by(&Program::Own.tandem()?, None, folder, config).await
}

async fn launch_by(
    program: &Path,
    cpus: Option<&CpuSet>,
    folder: &Path,
    settings: &Table,
) -> anyhow::Result<Launched> {
    let (config, secret) = (folder.join("config.toml"), folder.join("jwt.hex"));
    let text = toml::to_string(settings).context("write the configuration")?;
    fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
    let log = folder.join("node.log");
    let mut process = ChildProcess::start(program, cpus, log, |command| {
        command.args(["node", "--disable-discovery"]);
        // Not by the flag, which earlier versions do not know.
        command.env("TANDEM_DISABLE_SESSIONS", "true");
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
    let engine = addresses.engine.with_context(|| missing("engine"))?;
    let metrics = addresses.metrics.with_context(|| missing("metrics"))?;
    let (engine, metrics) = (format!("http://{engine}"), format!("http://{metrics}"));
    Ok(Launched { process, engine, metrics, secret })
}

fn session(url: &str, secret: &Path, call_time_max: Duration) -> anyhow::Result<Session> {
    let client = HttpClient::new(url, Some(Secret::load(secret)?), call_time_max)?;
    Ok(Session::new(client, Some(Finality { safe: 32, finalized: 64 })))
}

/// Waits until a client answers. Returns its name and version.
async fn answering(
    session: &mut Session,
    mut process: Option<&mut ChildProcess>,
) -> anyhow::Result<Option<String>> {
    let started = Instant::now();
    loop {
        let error = match session.client_name().await {
            Ok(version) => return Ok(version),
            Err(error) => error,
        };
        let Some(process) = &mut process else { return Err(error) };
        if let Some(status) = process.ended()? {
            bail!("it ended with {status}:\n{}", process.log());
        }
        if started.elapsed() > START_TIME_MAX {
            let seconds = START_TIME_MAX.as_secs();
            return Err(error.context(format!("no answer for {seconds} s:\n{}", process.log())));
        }
        sleep(CALL_POLL).await;
    }
}

/// Returns a fresh JWT secret in hex.
fn random_secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a genesis as plain JSON, which is what other clients read.
fn unpack(from: &Path, to: &Path) -> anyhow::Result<()> {
    let file = File::open(from).with_context(|| format!("open {}", from.display()))?;
    let mut reader: Box<dyn Read> = match from.extension().is_some_and(|name| name == "gz") {
        true => Box::new(flate2::read::MultiGzDecoder::new(file).take(GENESIS_BYTES_MAX + 1)),
        false => Box::new(file),
    };
    let mut output = File::create(to).with_context(|| format!("create {}", to.display()))?;
    let bytes = std::io::copy(&mut reader, &mut output)
        .with_context(|| format!("unpack {}", from.display()))?;
    if bytes > GENESIS_BYTES_MAX {
        bail!("{} is larger than {GENESIS_BYTES_MAX} bytes", from.display());
    }
    output.flush().context("write the genesis")
}

/// Waits until the log of a node names all its addresses.
async fn listening(process: &mut ChildProcess) -> anyhow::Result<Addresses> {
    let started = Instant::now();
    loop {
        // Read first: the log of a process that has ended is complete.
        let ended = process.ended()?;
        let addresses = addresses(&process.whole_log());
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
    fn a_genesis_is_unpacked_and_ports_differ() {
        let folder = tempfile::tempdir().unwrap();
        let [packed, plain, to] = ["g.json.gz", "g.json", "to.json"].map(|n| folder.path().join(n));
        let file = File::create(&packed).unwrap();
        let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        encoder.write_all(b"{}").unwrap();
        encoder.finish().unwrap();
        fs::write(&plain, "{}").unwrap();
        for from in [&packed, &plain] {
            unpack(from, &to).unwrap();
            assert_eq!(fs::read_to_string(&to).unwrap(), "{}");
        }
        let [a, b, c, d] = free_ports().unwrap();
        assert!(a != b && a != c && a != d && b != c && b != d && c != d);
        assert_ne!(random_secret().unwrap(), random_secret().unwrap());
    }
}
