//! The execution clients of a test network: processes with data of their own, on loopback ports.

use crate::rpc::Rpc;
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tandem_auth::Secret;
use tokio::time::sleep;

/// Longest wait for a client to answer after its start.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Time that a client gets to close its database.
const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// A client that runs.
pub struct Client {
    /// Name in the report.
    pub name: &'static str,
    /// URL of its JSON-RPC.
    pub url: String,
    /// Engine API.
    pub engine: Rpc,
    /// JSON-RPC.
    pub rpc: Rpc,
    process: Child,
    log: PathBuf,
}

impl Client {
    /// Starts geth on a genesis file. It takes sessions with peers.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not answer.
    pub async fn geth(binary: &Path, folder: &Path, genesis: &Path) -> anyhow::Result<Self> {
        let data = folder.join("geth");
        let mut init = Command::new(binary);
        init.args(["init", "--datadir"]).arg(&data).arg(genesis);
        let output = init.output().with_context(|| format!("start {}", binary.display()))?;
        let said = || String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "geth init: {}", said());
        let secret = folder.join("geth.jwt");
        Secret::load_or_create(&secret)?;
        let [engine, http, peers] = free_ports()?;
        let mut geth = Command::new(binary);
        geth.arg("--datadir").arg(&data).arg("--authrpc.jwtsecret").arg(&secret);
        geth.args(["--authrpc.port", &engine.to_string(), "--port", &peers.to_string()]);
        geth.args(["--http", "--http.port", &http.to_string(), "--http.api", "admin,eth,txpool"]);
        geth.args([
            "--nodiscover",
            "--nat",
            "extip:127.0.0.1",
            "--ipcdisable",
            "--syncmode",
            "full",
        ]);
        Self::start("geth", geth, folder, [engine, http], &secret).await
    }

    /// Starts Tandem on a genesis file, with a session with this peer.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not answer.
    pub async fn tandem(folder: &Path, genesis: &Path, peer: &str) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("find this program")?;
        let data = folder.join("tandem");
        let [engine, http, metrics] = free_ports()?;
        let mut tandem = Command::new(binary);
        tandem.arg("node").arg("--datadir").arg(&data).arg("--genesis").arg(genesis);
        tandem.args(["--authrpc.port", &engine.to_string(), "--http.port", &http.to_string()]);
        tandem.args(["--metrics.port", &metrics.to_string(), "--disable-discovery"]);
        tandem.args(["--sessions.addr", "127.0.0.1", "--sessions.port", "0"]);
        tandem.args(["--sessions.peers", peer]);
        Self::start("tandem", tandem, folder, [engine, http], &data.join("jwt.hex")).await
    }

    async fn start(
        name: &'static str,
        mut command: Command,
        folder: &Path,
        [engine, http]: [u16; 2],
        secret: &Path,
    ) -> anyhow::Result<Self> {
        let log = folder.join(name).with_extension("log");
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut process = command.spawn().with_context(|| format!("start {name}"))?;
        let (begin, url) = (Instant::now(), format!("http://127.0.0.1:{http}"));
        loop {
            let ended = process.try_wait()?;
            if ended.is_some() || begin.elapsed() > START_TIME_MAX {
                let _ = process.kill();
                bail!("{name} does not answer; its log ends with: {}", last_lines(&log));
            }
            // The client may make its secret at the start.
            if let Ok(secret) = Secret::load(secret) {
                let mut engine = Rpc::new(&format!("http://127.0.0.1:{engine}"), Some(secret))?;
                if engine.call("eth_chainId", json!([])).await.is_ok() {
                    let rpc = Rpc::new(&url, None)?;
                    return Ok(Self { name, url, engine, rpc, process, log });
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the URL under which peers find this geth.
    ///
    /// # Errors
    /// Returns an error if it does not say.
    pub async fn enode(&mut self) -> anyhow::Result<String> {
        let info = self.rpc.call("admin_nodeInfo", json!([])).await?;
        let url = info["enode"].as_str().context("geth does not say its enode")?;
        Ok(url.split('?').next().unwrap_or(url).to_owned())
    }

    /// Returns hash and state root of the newest block.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn head(&mut self) -> anyhow::Result<(Value, Value)> {
        let mut block = self.rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
        Ok((block["hash"].take(), block["stateRoot"].take()))
    }

    /// Returns the last lines of its log.
    pub fn last_lines(&self) -> String {
        last_lines(&self.log)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let begin = Instant::now();
        while begin.elapsed() < STOP_TIME_MAX {
            if matches!(self.process.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Returns ports that were free a moment ago.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        let listener =
            listener.as_ref().map_err(|error| anyhow::anyhow!("find a port: {error}"))?;
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
