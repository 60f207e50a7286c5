//! A node on a temporary directory: the whole cluster in this process, driven over HTTP.

use crate::{
    builder::Built,
    client::{Client, PayloadStatus, RpcError, decode_status},
    world::World,
};
use alloy_primitives::{Address, B256, U256};
use serde_json::{Value, json};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};
use tandem_auth::Secret;
use tandem_cluster::{ClientInfo, Cluster, Config, Ports};
use tandem_proto::{
    peer_sessions::PeerSessionsApi,
    storage::{StateDownloads, StorageApi},
};
use tandem_telemetry::Telemetry;
use tempfile::TempDir;

/// Calls in one batch; the node accepts a hundred.
const BATCH: usize = 100;

/// A running node.
pub struct Node {
    folder: TempDir,
    cluster: Cluster,
    config: Config,
    /// Client of the Engine API, with a token on every call.
    pub engine: Client,
    /// Client of the port without tokens.
    pub http: Client,
}

impl Node {
    /// Writes this genesis to a new directory and starts a node on it.
    pub async fn start(genesis_json: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let genesis = folder.path().join("genesis.json");
        fs::write(&genesis, genesis_json).unwrap();
        Self::start_in(folder, &genesis).await
    }

    /// Starts a node on a new directory with the genesis of this file.
    pub async fn start_from(genesis: &Path) -> Self {
        Self::start_in(TempDir::new().unwrap(), genesis).await
    }

    /// Like [`Node::start_from`], with these settings instead of the defaults.
    pub async fn start_from_with(genesis: &Path, config: Config) -> Self {
        let folder = TempDir::new().unwrap();
        Self::init(&folder, genesis).await;
        Self::open_with(folder, config).await
    }

    /// Like [`Node::start`], with these settings instead of the defaults.
    pub async fn start_with(genesis_json: &str, config: Config) -> Self {
        let folder = TempDir::new().unwrap();
        let genesis = folder.path().join("genesis.json");
        fs::write(&genesis, genesis_json).unwrap();
        Self::init(&folder, &genesis).await;
        Self::open_with(folder, config).await
    }

    async fn start_in(folder: TempDir, genesis: &Path) -> Self {
        Self::init(&folder, genesis).await;
        Self::open(folder).await
    }

    async fn init(folder: &TempDir, genesis: &Path) {
        let (datadir, genesis) = (datadir(folder), genesis.to_owned());
        let init = move || {
            tandem_storage_writer::init(&genesis, &datadir, |_| {})
                .expect("the genesis is written");
        };
        tokio::task::spawn_blocking(init).await.unwrap();
    }

    async fn open(folder: TempDir) -> Self {
        Self::open_with(folder, Config::default()).await
    }

    async fn open_with(folder: TempDir, config: Config) -> Self {
        let config = config.at(&datadir(&folder));
        let given = config.clone();
        let start = move || Cluster::start(given).expect("the cluster starts");
        let mut cluster = tokio::task::spawn_blocking(start).await.unwrap();
        let jwt_secret = folder.path().join("jwt.hex");
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let ports =
            Ports { engine: free, http: free, metrics: None, jwt_secret: jwt_secret.clone() };
        let client = ClientInfo { version: "0.0.0".to_owned(), commit: [0; 4] };
        cluster.serve(&ports, client, telemetry()).await.expect("the cluster listens");
        let secret = Secret::load(&jwt_secret).expect("the node made a secret");
        let engine = cluster.engine_address().expect("it listens");
        let http = cluster.http_address().expect("it listens");
        Self {
            folder,
            cluster,
            config,
            engine: Client::new(engine, Some(secret)),
            http: Client::new(http, None),
        }
    }

    /// Returns another client of the Engine API, on a connection of its own.
    pub fn another_engine_client(&self) -> Client {
        let secret = Secret::load(&self.secret_file()).expect("the node made a secret");
        Client::new(self.engine_address(), Some(secret))
    }

    /// Stops the node and starts another one on the same directory, with the same settings.
    pub async fn restart(self) -> Self {
        let Self { folder, cluster, config, .. } = self;
        cluster.stop().await;
        Self::open_with(folder, config).await
    }

    /// Returns the node's storage-writer.
    pub fn storage(&self) -> Arc<dyn StorageApi> {
        self.cluster.storage()
    }

    /// Returns what takes a downloaded state in.
    pub fn downloads(&self) -> Arc<dyn StateDownloads> {
        self.cluster.downloads()
    }

    /// Has the node fetch the blocks that it lacks from the peers of these sessions.
    pub fn sync_from(&mut self, sessions: Arc<dyn PeerSessionsApi>) {
        self.cluster.sync_from(sessions).expect("sync starts");
    }

    /// Makes storage-writer forget these pending blocks, as a power cut would.
    pub fn lose(&self, blocks: &[B256]) {
        tokio::task::block_in_place(|| self.cluster.lose(blocks)).unwrap();
    }

    /// Stops the node and verifies everything that it has written.
    pub async fn stop_and_verify(self) {
        let Self { folder, cluster, .. } = self;
        cluster.stop().await;
        let path = datadir(&folder);
        let verify = move || {
            // A task that the stop cut off may hold the database for some moments longer.
            let until = Instant::now() + Duration::from_secs(10);
            loop {
                match tandem_storage_writer::verify(&path) {
                    Err(error) if error.is_in_use() && Instant::now() < until => {
                        thread::sleep(Duration::from_millis(20));
                    }
                    verified => break verified.expect("the data can be read"),
                }
            }
        };
        let report = tokio::task::spawn_blocking(verify).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        drop(folder);
    }

    /// Returns its data directory.
    pub fn datadir(&self) -> PathBuf {
        datadir(&self.folder)
    }

    /// Returns the path of the file with the Engine API's secret.
    pub fn secret_file(&self) -> PathBuf {
        self.folder.path().join("jwt.hex")
    }

    /// Returns the address of the Engine API.
    pub fn engine_address(&self) -> SocketAddr {
        self.cluster.engine_address().expect("it listens")
    }

    /// Returns the address of the port without tokens.
    pub fn http_address(&self) -> SocketAddr {
        self.cluster.http_address().expect("it listens")
    }

    /// Returns the address of the workers' proof stream, `None` if it is not offered.
    pub fn proof_address(&self) -> Option<SocketAddr> {
        self.cluster.proof_address()
    }

    /// Returns the address of blob-validator, `None` if it is not offered.
    pub fn blob_address(&self) -> Option<SocketAddr> {
        self.cluster.blob_address()
    }

    /// Returns the status of blob-validator.
    pub async fn blob_status(&self) -> tandem_proto::blob_validator::Status {
        self.cluster.blobs().status().await.expect("blob-validator runs in this process")
    }

    /// Returns the sessions with peers, `None` if there are to be none.
    pub fn peer_sessions(&self) -> Option<Arc<dyn PeerSessionsApi>> {
        self.cluster.peer_sessions()
    }

    /// Returns the status of discovery, `None` if it does not run.
    pub fn discovery(&self) -> Option<tandem_proto::discovery::Status> {
        self.cluster.discovery()
    }

    /// Sends a block.
    pub async fn new_payload(&mut self, built: &Built) -> PayloadStatus {
        let (method, params) = built.new_payload();
        let answer = self.engine.call(method, params).await;
        decode_status(answer.unwrap_or_else(|error| panic!("{}: {error:?}", built.header.number)))
    }

    /// Sends a block that must be valid.
    pub async fn import(&mut self, built: &Built) {
        let status = self.new_payload(built).await;
        let (number, fork) = (built.header.number, built.fork);
        assert_eq!(status.verdict(), ("VALID", Some(built.hash)), "{fork} {number}: {status:?}");
    }

    /// Sets head, safe and finalized block.
    pub async fn forkchoice(
        &mut self,
        head: B256,
        safe: B256,
        finalized: B256,
    ) -> Result<PayloadStatus, RpcError> {
        let state = json!({
            "headBlockHash": head, "safeBlockHash": safe, "finalizedBlockHash": finalized,
        });
        let answer = self.engine.call("engine_forkchoiceUpdatedV3", json!([state, null])).await?;
        assert_eq!(answer["payloadId"], Value::Null);
        Ok(decode_status(answer["payloadStatus"].clone()))
    }

    /// Makes a block the head; it must have been found valid.
    pub async fn set_head(&mut self, head: B256) {
        let status = self.forkchoice(head, B256::ZERO, B256::ZERO).await;
        let status = status.unwrap_or_else(|error| panic!("forkchoice {head}: {error:?}"));
        assert_eq!(status.verdict(), ("VALID", Some(head)), "{status:?}");
    }

    /// Sends a block that must be valid and makes it the head.
    pub async fn extend(&mut self, built: &Built) {
        self.import(built).await;
        self.set_head(built.hash).await;
    }

    /// Checks that the head is this block, and that JSON-RPC returns every account of its state as
    /// the oracle has it.
    pub async fn assert_head(&mut self, built: &Built) {
        let head = self.http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
        assert_eq!(head["hash"], json!(built.hash), "hash of the head");
        assert_eq!(head["stateRoot"], json!(built.header.state_root));
        assert_eq!(head["number"], json!(format!("{:#x}", built.header.number)));
        self.assert_state(&built.world, "latest").await;
    }

    /// Checks every account, slot and code of the state after a block.
    pub async fn assert_state(&mut self, world: &World, tag: &str) {
        let (mut calls, mut wants) = (Vec::new(), Vec::new());
        for (address, account) in &world.0 {
            let mut ask = |method, params, want| {
                calls.push((method, params));
                wants.push(want);
            };
            let params = json!([address, tag]);
            ask("eth_getBalance", params.clone(), quantity(account.balance));
            ask("eth_getTransactionCount", params.clone(), quantity(U256::from(account.nonce)));
            if !account.code.is_empty() {
                ask("eth_getCode", params, json!(account.code));
            }
            for (slot, value) in &account.storage {
                let params = json!([address, format!("{slot:#x}"), tag]);
                ask("eth_getStorageAt", params, json!(B256::from(*value)));
            }
        }
        for (calls, wants) in calls.chunks(BATCH).zip(wants.chunks(BATCH)) {
            let answers = self.http.batch(calls).await;
            for ((call, want), got) in calls.iter().zip(wants).zip(answers) {
                assert_eq!(&got, want, "{call:?}");
            }
        }
    }

    /// Checks that these accounts and their slots do not exist (slots 0 to 63 of each address).
    pub async fn assert_absent(&mut self, world: &World, addresses: &[Address]) {
        for address in addresses.iter().filter(|address| !world.0.contains_key(*address)) {
            let mut calls = vec![("eth_getCode", json!([address, "latest"]))];
            for slot in 0..64 {
                let params = json!([address, format!("{slot:#x}"), "latest"]);
                calls.push(("eth_getStorageAt", params));
            }
            let answers = self.http.batch(&calls).await;
            assert_eq!(answers[0], json!("0x"), "code of {address}");
            for (answer, call) in answers[1..].iter().zip(&calls[1..]) {
                assert_eq!(answer, &json!(B256::ZERO), "{call:?}");
            }
        }
    }
}

fn datadir(folder: &TempDir) -> PathBuf {
    folder.path().join("data")
}

fn quantity(value: U256) -> Value {
    json!(format!("{value:#x}"))
}

/// Returns the telemetry that all nodes of a test share: it is not under test.
fn telemetry() -> &'static Telemetry {
    static TELEMETRY: OnceLock<Telemetry> = OnceLock::new();
    TELEMETRY.get_or_init(|| {
        Telemetry::detached(&tandem_telemetry::Config::default()).expect("telemetry starts")
    })
}
