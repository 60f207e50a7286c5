//! A fresh node for one case, driven through the handlers that serve HTTP requests.

use crate::{Setting, http};
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use serde_json::{Value, value::RawValue};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::OnceLock,
};
use tandem_auth::Secret;
use tandem_chain::Block;
use tandem_cluster::{ClientInfo, Cluster, Config, Handle, Ports};
use tandem_executor::{PayloadStatus, Status, rpc::engine_methods};
use tandem_http::{Methods, Params};
use tandem_primitives::B256;
use tandem_telemetry::Telemetry;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A node with all services in this process, made from a genesis file and removed by
/// [`CaseNode::stop`].
///
/// Its calls block, so they must not run on the async reactor. Nor may they run on rayon's pool, on
/// which the node itself decodes payloads.
pub struct CaseNode {
    cluster: Cluster,
    methods: Methods,
    /// Address and secret of the Engine API, if calls go over HTTP.
    http: Option<(SocketAddr, Secret)>,
    /// The data directory, if there is one.
    _folder: Option<TempDir>,
}

/// The error object of a JSON-RPC answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, serde::Deserialize)]
#[error("error {code}: {message}")]
pub struct RpcFault {
    /// Error code of JSON-RPC or of the Engine API.
    pub code: i64,
    /// Message for people.
    pub message: String,
    /// Details for programs.
    #[serde(default)]
    pub data: Option<Value>,
}

impl RpcFault {
    /// Creates the fault of a call that got no answer. No JSON-RPC error code is positive, except
    /// 3.
    pub(crate) fn transport(error: &anyhow::Error) -> Self {
        Self { code: 0, message: format!("no answer: {error:#}"), data: None }
    }
}

impl CaseNode {
    /// Starts a node from geth's genesis format.
    ///
    /// # Errors
    /// If the genesis is invalid, or the machine has no more threads, disk or ports.
    pub fn start(genesis_json: &str, setting: Setting) -> anyhow::Result<Self> {
        Self::start_with(Config::small(), genesis_json, setting)
    }

    /// Like [`CaseNode::start`], but the states of all blocks can be read, not only those of the
    /// newest ones.
    ///
    /// # Errors
    /// As for [`CaseNode::start`].
    pub fn start_keeping_states(genesis_json: &str, setting: Setting) -> anyhow::Result<Self> {
        let mut config = Config::small();
        config.storage_writer.persist_depth = 1_000_000;
        Self::start_with(config, genesis_json, setting)
    }

    fn start_with(
        mut config: Config,
        genesis_json: &str,
        setting: Setting,
    ) -> anyhow::Result<Self> {
        config.policies = setting.policies;
        config.executor.testing_methods = true;
        if !setting.database {
            let cluster = Cluster::start_in_memory(config, genesis_json.as_bytes());
            return Self::open(cluster.context("start the cluster")?, None, setting);
        }
        let folder = TempDir::new().context("make a temporary directory")?;
        let genesis = folder.path().join("genesis.json");
        fs::write(&genesis, genesis_json).context("write the genesis file")?;
        let config = config.at(&folder.path().join("data"));
        tandem_storage_writer::init(&genesis, &config.storage_writer.datadir, |_| {})
            .context("read the genesis")?;
        let cluster = Cluster::start(config).context("start the cluster")?;
        Self::open(cluster, Some(folder), setting)
    }

    fn open(
        mut cluster: Cluster,
        folder: Option<TempDir>,
        setting: Setting,
    ) -> anyhow::Result<Self> {
        let methods = engine_methods(&cluster.handle(), client_info());
        let http = if setting.http { Some(serve(&mut cluster)?) } else { None };
        Ok(Self { cluster, methods, http, _folder: folder })
    }

    /// Calls a method with its parameters as JSON text.
    ///
    /// # Errors
    /// The error object of the answer; code 0 if there is no answer.
    pub fn call(&self, method: &str, params: &str) -> Result<Value, RpcFault> {
        let text = self.call_raw(method, params)?;
        serde_json::from_str(text.get()).map_err(|error| RpcFault::transport(&error.into()))
    }

    /// Like [`CaseNode::call`], but returns the result as the bytes sent over the wire.
    ///
    /// # Errors
    /// As for [`CaseNode::call`].
    pub fn call_raw(&self, method: &str, params: &str) -> Result<Box<RawValue>, RpcFault> {
        if let Some((address, secret)) = &self.http {
            let answer = http::call(*address, Some(secret), method, params);
            return answer.map_err(|error| RpcFault::transport(&error))?;
        }
        let params = Params::new(Bytes::copy_from_slice(params.as_bytes()));
        let answer = runtime().block_on(self.methods.call(method, params));
        answer.map_err(|error| RpcFault {
            code: error.code.into(),
            message: error.message.into_owned(),
            data: error.data.and_then(|data| serde_json::from_str(data.get()).ok()),
        })
    }

    /// Imports a block without making it the head. Proof-of-work blocks are accepted too.
    ///
    /// # Errors
    /// If the block is not found valid.
    pub fn import(&self, block: Block) -> anyhow::Result<()> {
        valid(runtime().block_on(self.handle().import(block))?)
    }

    /// Makes an imported block the head.
    ///
    /// # Errors
    /// If the block is not known, or not above the finalized block.
    pub fn make_head(&self, hash: B256) -> anyhow::Result<()> {
        valid(runtime().block_on(self.handle().make_head(hash))?)
    }

    /// Waits for a future of one of this node's handles.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        runtime().block_on(future)
    }

    /// Returns the executor's handle, for state that JSON-RPC does not show.
    pub fn handle(&self) -> Handle {
        self.cluster.handle()
    }

    /// Stops all services and removes their files.
    pub fn stop(self) {
        runtime().block_on(self.cluster.stop());
    }
}

fn valid(answer: PayloadStatus) -> anyhow::Result<()> {
    let reason = || answer.validation_error.clone().unwrap_or_default();
    ensure!(answer.status == Status::Valid, "{}: {}", answer.status.as_str(), reason());
    Ok(())
}

fn serve(cluster: &mut Cluster) -> anyhow::Result<(SocketAddr, Secret)> {
    let folder = TempDir::new().context("make a temporary directory")?;
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let jwt_secret = folder.path().join("jwt.hex");
    let ports = Ports { engine: free, http: free, metrics: None, jwt_secret: jwt_secret.clone() };
    runtime().block_on(cluster.serve(&ports, client_info(), telemetry()?))?;
    let address = cluster.engine_address().context("the Engine API does not listen")?;
    Ok((address, Secret::load(&jwt_secret)?))
}

fn client_info() -> ClientInfo {
    ClientInfo { version: env!("CARGO_PKG_VERSION").to_owned(), commit: [0; 4] }
}

/// Returns the reactor that all nodes of the process share.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => panic!("the operating system gives no threads: {error}"),
    })
}

/// Returns the telemetry that all nodes of the process share: it is not under test.
fn telemetry() -> anyhow::Result<&'static Telemetry> {
    static TELEMETRY: OnceLock<Telemetry> = OnceLock::new();
    if TELEMETRY.get().is_none() {
        let telemetry = Telemetry::detached(&tandem_telemetry::Config::default())?;
        let _ = TELEMETRY.set(telemetry);
    }
    TELEMETRY.get().context("telemetry was just set")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENESIS: &str = r#"{"config": {"chainId": 1, "londonBlock": 0, "terminalTotalDifficulty": 0,
        "shanghaiTime": 0}, "gasLimit": "0x1000000", "difficulty": "0x0", "alloc":
        {"0x0000000000000000000000000000000000000001": {"balance": "0x7"}}}"#;

    #[test]
    fn a_node_answers_alike_with_and_without_http() {
        for (http, database) in [(false, true), (true, false), (false, false)] {
            let node = CaseNode::start(GENESIS, Setting { http, database, ..Setting::default() });
            let node = node.unwrap();
            let params = r#"["0x0000000000000000000000000000000000000001","latest"]"#;
            assert_eq!(node.call("eth_getBalance", params).unwrap(), "0x7");
            assert_eq!(node.call("no_method", "[]").unwrap_err().code, -32601);
            let fault = node.call("engine_newPayloadV4", "[]").unwrap_err();
            assert_eq!(fault.code, -32602, "{fault}");
            node.stop();
        }
    }
}
