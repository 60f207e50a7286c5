//! The execution clients of a test network: processes with data of their own, on loopback ports.

use crate::{
    child_process::{ChildProcess, free_ports},
    rpc::Rpc,
};
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::{
    path::Path,
    process::Command,
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
    process: ChildProcess,
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
        let log = folder.join("geth.log");
        let geth = ChildProcess::start(binary, None, log, |geth| {
            geth.arg("--datadir").arg(&data).arg("--authrpc.jwtsecret").arg(&secret);
            geth.args(["--authrpc.port", &engine.to_string(), "--port", &peers.to_string()]);
            geth.args(["--http", "--http.port", &http.to_string()]);
            geth.args(["--http.api", "admin,eth,txpool", "--ipcdisable", "--syncmode", "full"]);
            geth.args(["--nodiscover", "--nat", "extip:127.0.0.1"]);
        })?;
        Self::answering("geth", geth, [engine, http], &secret).await
    }

    /// Starts Tandem on a genesis file, with a session with this peer.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not answer.
    pub async fn tandem(folder: &Path, genesis: &Path, peer: &str) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("find this program")?;
        let data = folder.join("tandem");
        let [engine, http, metrics] = free_ports()?;
        let log = folder.join("tandem.log");
        let tandem = ChildProcess::start(&binary, None, log, |tandem| {
            tandem.arg("node").arg("--datadir").arg(&data).arg("--genesis").arg(genesis);
            tandem.args(["--authrpc.port", &engine.to_string()]);
            tandem.args(["--http.port", &http.to_string()]);
            tandem.args(["--metrics.port", &metrics.to_string(), "--disable-discovery"]);
            tandem.args(["--sessions.addr", "127.0.0.1", "--sessions.port", "0"]);
            tandem.args(["--sessions.peers", peer]);
        })?;
        Self::answering("tandem", tandem, [engine, http], &data.join("jwt.hex")).await
    }

    /// Waits until a process answers.
    async fn answering(
        name: &'static str,
        mut process: ChildProcess,
        [engine, http]: [u16; 2],
        secret: &Path,
    ) -> anyhow::Result<Self> {
        let (begin, url) = (Instant::now(), format!("http://127.0.0.1:{http}"));
        loop {
            if process.ended()?.is_some() || begin.elapsed() > START_TIME_MAX {
                bail!("{name} does not answer; its log ends with: {}", process.log());
            }
            // The client may make its secret at the start.
            if let Ok(secret) = Secret::load(secret) {
                let mut engine = Rpc::new(&format!("http://127.0.0.1:{engine}"), Some(secret))?;
                if engine.call("eth_chainId", json!([])).await.is_ok() {
                    let rpc = Rpc::new(&url, None)?;
                    return Ok(Self { name, url, engine, rpc, process });
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
        self.process.log()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // As an operator does, so that a database that is kept is complete.
        self.process.end(STOP_TIME_MAX);
    }
}
