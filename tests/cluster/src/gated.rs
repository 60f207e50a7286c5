//! A node whose blocks, executed and handed to storage-writer, wait for their state roots until the
//! test releases them.

use crate::client::Client;
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use tandem_auth::Secret;
use tandem_blob_validator::BlobValidator;
use tandem_bus::Bus;
use tandem_cluster::ClientInfo;
use tandem_executor::{Executor, rpc::engine_methods};
use tandem_http::{Limits, engine_router, serve};
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    event::{CHAIN_PERSISTED, ChainEvent},
    storage::{BlockReads, BlockRef},
};
use tandem_storage_writer::StorageWriter;
use tandem_testkit::hooked::{Hooked, Hooks};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

/// Longest wait of a test for anything; a longer one fails the test.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Gate at which blocks wait.
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
    /// Number of blocks that have arrived here.
    arrived: watch::Sender<u64>,
}

impl Hooks for Gate {
    fn asked(&self) {
        self.arrived.send_modify(|count| *count += 1);
        let closed = self.is_open.lock().unwrap();
        let open = self.changed.wait_while(closed, |is_open| !*is_open);
        drop(open.unwrap());
    }
}

/// The services that a payload passes through, with the Engine API in front of them.
pub struct GatedNode {
    gate: Arc<Gate>,
    storage: Arc<StorageWriter>,
    workers: Arc<MultiproofWorkers>,
    executor: Arc<Executor>,
    shutdown: CancellationToken,
    server: JoinHandle<std::io::Result<()>>,
    address: SocketAddr,
    secret_file: std::path::PathBuf,
    _folder: TempDir,
}

impl GatedNode {
    /// Starts on this genesis with the gate closed. At most `mailbox_capacity` calls may wait for
    /// the engine.
    pub async fn start(genesis_json: &str, mailbox_capacity: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let genesis = folder.path().join("genesis.json");
        fs::write(&genesis, genesis_json).unwrap();
        let datadir = folder.path().join("data");
        let secret_file = folder.path().join("jwt.hex");
        let secret = Secret::load_or_create(&secret_file).unwrap();
        let arrived = watch::Sender::new(0);
        let gate = Arc::new(Gate { is_open: false.into(), changed: Condvar::new(), arrived });
        let start = {
            let gate = gate.clone();
            move || {
                tandem_storage_writer::init(&genesis, &datadir, |_| {}).unwrap();
                let config = tandem_storage_writer::Config { datadir, ..Default::default() };
                start_services(config, mailbox_capacity, gate)
            }
        };
        let (storage, workers, executor) = tokio::task::spawn_blocking(start).await.unwrap();
        let client = ClientInfo { version: "0.0.0".to_owned(), commit: [0; 4] };
        let methods = engine_methods(&executor.handle(), client);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let router = engine_router(methods, secret, Limits::engine());
        let server = tokio::spawn(serve(listener, router, shutdown.clone()));
        Self {
            gate,
            storage,
            workers,
            executor,
            shutdown,
            server,
            address,
            secret_file,
            _folder: folder,
        }
    }

    /// Returns a client of the Engine API, on a connection of its own.
    pub fn client(&self) -> Client {
        Client::new(self.address, Some(Secret::load(&self.secret_file).unwrap()))
    }

    /// Waits until `count` blocks have arrived at the gate since the start.
    pub async fn wait_for_arrivals(&self, count: u64) {
        let mut arrived = self.gate.arrived.subscribe();
        let enough = arrived.wait_for(|arrived| *arrived >= count);
        timeout(WAIT_MAX, enough).await.expect("a block comes to the gate").unwrap();
    }

    /// Returns the number of blocks that have arrived at the gate since the start.
    pub fn arrivals(&self) -> u64 {
        *self.gate.arrived.borrow()
    }

    /// Waits until storage-writer holds the record of a block.
    pub async fn wait_for_record(&self, hash: B256) {
        let held = async {
            while self.storage.block(BlockRef::Hash(hash)).unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(WAIT_MAX, held).await.expect("storage-writer gets the block");
    }

    /// Returns the head.
    pub fn head(&self) -> BlockId {
        self.executor.handle().chain().head()
    }

    /// Releases the blocks that wait, and all later ones.
    pub fn open(&self) {
        *self.gate.is_open.lock().unwrap() = true;
        self.gate.changed.notify_all();
    }

    /// Stops the services.
    pub async fn stop(self) {
        self.open();
        self.shutdown.cancel();
        self.server.await.unwrap().unwrap();
        let Self { storage, workers, executor, .. } = self;
        let stop = move || {
            executor.stop();
            drop(executor);
            workers.stop();
            drop((workers, storage));
        };
        tokio::task::spawn_blocking(stop).await.unwrap();
    }
}

fn start_services(
    config: tandem_storage_writer::Config,
    mailbox_capacity: usize,
    gate: Arc<Gate>,
) -> (Arc<StorageWriter>, Arc<MultiproofWorkers>, Arc<Executor>) {
    let (bus, fatal) = (Bus::default(), CancellationToken::new());
    let on_persisted = {
        let bus = bus.clone();
        Box::new(move |block| bus.publish(CHAIN_PERSISTED, ChainEvent { block }.encode()))
    };
    let deps = tandem_storage_writer::Deps { on_persisted, fatal: fatal.clone() };
    let storage = StorageWriter::start(config, deps).unwrap();
    let deps = tandem_multiproof_workers::Deps {
        storage: storage.clone(),
        bus: bus.clone(),
        policies: Default::default(),
        fatal: fatal.clone(),
    };
    let workers = MultiproofWorkers::start(Default::default(), deps).unwrap();
    let proof = Arc::new(Hooked::new(workers.clone(), gate));
    let config = tandem_blob_validator::Config { threads: 1, ..Default::default() };
    let deps = tandem_blob_validator::Deps { bus: bus.clone(), fatal: fatal.clone() };
    let blobs = BlobValidator::start(config, deps).unwrap();
    let config = tandem_executor::Config { mailbox_capacity, ..Default::default() };
    let policies = Default::default();
    let deps = tandem_executor::Deps {
        storage: storage.clone(),
        proof,
        own_proof: workers.clone(),
        tx_executors: Vec::new(),
        blobs,
        bus,
        policies,
        fatal,
    };
    let executor = Executor::start(config, deps).unwrap();
    (storage, workers, executor)
}
