use crate::{
    config::{Config, Ports},
    forks::follow_forks,
    peer_methods::MaybeSessions,
    pool::start_pool,
    public::PublicReactor,
    role::{Access, Process, engine_router, http_router, require_storage},
    secret,
    sessions::{LOOK_EVERY, Sessions, Surroundings},
    sync::start_sync,
    tx_executors,
};
use std::{io, net::SocketAddr, sync::Arc};
use tandem_actor::Running;
use tandem_blob_validator::BlobValidator;
use tandem_bus::Bus;
use tandem_discovery::{Discovery, Network};
use tandem_executor::{Executor, Handle, rpc::ClientInfo};
use tandem_multiproof_workers::{MultiproofWorkers, grpc};
use tandem_peer_table::PeerTable;
use tandem_policy::LivePolicies;
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    access,
    blob_validator::BlobApi,
    discovery::{DiscoveryApi, Status},
    event::{CHAIN_PERSISTED, ChainEvent},
    peer_sessions::PeerSessionsApi,
    storage::{StateDownloads, StorageApi},
};
use tandem_rpc::TlsConfig;
use tandem_storage_writer::{OwnWorkers, Report, StorageWriter};
use tandem_sync::BlockSync;
use tandem_telemetry::Telemetry;
use tandem_tx_pool::TxPool;
use tokio::runtime;
use tracing::warn;

/// Reason why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data directory cannot be opened.
    #[error(transparent)]
    StorageWriter(#[from] tandem_storage_writer::Error),
    /// The executor cannot load the chain.
    #[error(transparent)]
    Executor(#[from] tandem_executor::Error),
    /// Discovery cannot listen, or cannot use its node key.
    #[error(transparent)]
    Discovery(#[from] tandem_discovery::Error),
    /// Sessions cannot listen, or their settings are invalid.
    #[error(transparent)]
    Sessions(#[from] tandem_peer_sessions::Error),
    /// The pool of transactions cannot start.
    #[error(transparent)]
    TxPool(#[from] tandem_tx_pool::StartError),
    /// A snapshot cannot be restored.
    #[error("snapshot: {0}")]
    Snapshot(String),
    /// The position of the chain cannot be read.
    #[error("read the chain: {0}")]
    Storage(#[from] tandem_proto::storage::Error),
    /// The chain's genesis cannot be understood.
    #[error(transparent)]
    Genesis(#[from] tandem_chain::GenesisError),
    /// The feed is to be published to NATS by a node in one process, which has no connection to it.
    #[error(
        "`storage_writer.feed.stream` needs NATS, which a node in one process does not use: run \
         storage-writer in a process of its own"
    )]
    FeedInNode,
    /// A follower is to read the stream, but has no NATS.
    #[error("the leader `jetstream` needs NATS: give its addresses with --nats")]
    NoNats,
    /// The address of a service to call is invalid.
    #[error(transparent)]
    Endpoint(#[from] tandem_rpc::EndpointError),
    /// The times of the lease of the lead are of no use.
    #[error("`storage_writer.lead`: {0}")]
    Lease(#[from] tandem_lease::SettingsError),
    /// The number of copies of the lease is invalid.
    #[error("invalid value {0} for `storage_writer.lead.replicas`; expected 1, 3 or 5")]
    LeaseReplicas(usize),
    /// A lease decides which storage-writer leads, and there is no NATS.
    #[error(
        "`storage_writer.lead.lease_ms` needs NATS: give its addresses with --nats, and run \
         storage-writer in a process of its own"
    )]
    LeaseWithoutNats,
    /// The executor has no worker.
    #[error("an executor needs a worker: the address of one, or an event bus to hear of them")]
    NoWorker,
    /// The executor has more tx-executors than it can have.
    #[error(
        "`executor.tx_executors` makes {count} tx-executors, a host name counts as {}, at most {max} are possible",
        tandem_tx_executor_client::PLACES
    )]
    TxExecutors {
        /// Number of tx-executors, where a host name counts as several.
        count: usize,
        /// Maximum number.
        max: usize,
    },
    /// The name of a worker is invalid.
    #[error(transparent)]
    WorkerId(#[from] tandem_membership::IdError),
    /// The certificates of gRPC cannot be used.
    #[error("tls: {0}")]
    Tls(#[from] tandem_rpc::TlsError),
    /// The secret of the Engine API cannot be used.
    #[error(transparent)]
    Secret(#[from] tandem_auth::Error),
    /// An address is in use, or cannot be listened on.
    #[error("listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error from the operating system.
        error: io::Error,
    },
    /// The requested network is not the network of the data directory.
    #[error("the data directory holds another chain than {0}")]
    Network(Network),
    /// The operating system cannot start a thread.
    #[error("start threads: {0}")]
    Threads(#[from] io::Error),
}

impl Error {
    /// Tells of a snapshot with all causes.
    pub(crate) fn snapshot(error: impl std::fmt::Display) -> Self {
        Self::Snapshot(format!("{error:#}"))
    }
}

/// Services running in this process.
pub struct Cluster {
    storage: Arc<StorageWriter>,
    workers: Arc<MultiproofWorkers>,
    executor: Arc<Executor>,
    blobs: Arc<BlobValidator>,
    pool: Arc<TxPool>,
    peers: Arc<PeerTable>,
    sessions: Option<Sessions>,
    /// Discovery, and the thread that tells it the fork.
    discovery: Option<(Arc<Discovery>, Running)>,
    /// Sync, if there are sessions with peers.
    sync: Option<Arc<BlockSync>>,
    sync_config: tandem_sync::Config,
    process: Process,
    engine_address: Option<SocketAddr>,
    http_address: Option<SocketAddr>,
    /// Address at which the proof stream is to be offered, then its bound address.
    proof_address: Option<SocketAddr>,
    /// Address of blob-validator, likewise, and the most bytes that may be in flight to it.
    blob_address: Option<SocketAddr>,
    blob_bytes_max: usize,
    /// Address of storage-writer for followers and operators, likewise.
    storage_address: Option<SocketAddr>,
    /// The certificates for all of them.
    tls: TlsConfig,
    /// Host names and origins from which HTTP calls are accepted.
    access: Access,
    metrics_port_moves: bool,
}

impl Cluster {
    /// Starts all services on a data directory that was initialised. No port is bound yet. Blocks
    /// on the database, so call it where blocking is allowed.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: Config) -> Result<Self, Error> {
        Self::start_over(config, StorageWriter::start)
    }

    /// Starts all services over a new database in memory, made from geth's genesis file (JSON, or
    /// JSON in gzip). With [`Config::small`], a cluster costs little more than its threads, so each
    /// test may have its own. No port is bound yet.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start_in_memory(config: Config, genesis: impl io::Read) -> Result<Self, Error> {
        Self::start_over(config, |config, deps| {
            StorageWriter::create_in_memory(genesis, config, deps)
        })
    }

    fn start_over(
        config: Config,
        open: impl FnOnce(
            tandem_storage_writer::Config,
            tandem_storage_writer::Deps,
        ) -> Result<Arc<StorageWriter>, tandem_storage_writer::Error>,
    ) -> Result<Self, Error> {
        let mut config = config.agreed();
        let proof_address = config.multiproof_workers.grpc_addr;
        let blob_address = config.blob_validator.grpc_addr;
        let storage_address = config.storage_writer.grpc_addr;
        let blob_bytes_max = config.blob_validator.waiting_bytes_max;
        let tls = config.tls;
        let access = Access::new(&config.executor);
        let metrics_port_moves = config.metrics_port_moves;
        let mut process = Process::unwatched(Bus::default());
        let (bus, fatal) = (process.bus().clone(), process.fatal().clone());
        let on_persisted = persisted(bus.clone());
        let policies = LivePolicies::new(config.policies);
        let deps = tandem_storage_writer::Deps { on_persisted, fatal: fatal.clone() };
        if config.storage_writer.feed.is_published() {
            return Err(Error::FeedInNode);
        }
        if config.storage_writer.lead.is_leased() {
            return Err(Error::LeaseWithoutNats);
        }
        let storage = open(config.storage_writer, deps)?;
        require_storage(&process, &storage);
        let api: Arc<dyn StorageApi> = storage.clone();
        // First of the services that need the KZG setup: the setup it loads serves the EVM's
        // precompile too.
        let blobs = BlobValidator::start(
            config.blob_validator,
            tandem_blob_validator::Deps { bus: bus.clone(), fatal: fatal.clone() },
        )?;
        let workers = MultiproofWorkers::start(
            config.multiproof_workers.clone(),
            tandem_multiproof_workers::Deps {
                storage: Arc::new(OwnWorkers(storage.clone())),
                bus: bus.clone(),
                policies: policies.clone(),
                fatal: fatal.clone(),
            },
        )?;
        let urls = &config.executor.tx_executors;
        let tx_executors = if urls.is_empty() {
            Vec::new()
        } else {
            let identity = process.identify(access::EXECUTOR, &tls)?;
            let runtime = runtime::Handle::try_current().map_err(io::Error::other)?;
            tx_executors::connect(urls, &identity, &runtime)?
        };
        let executor = Executor::start(
            config.executor,
            tandem_executor::Deps {
                storage: api,
                proof: workers.clone(),
                own_proof: workers.clone(),
                blobs: blobs.clone(),
                bus: bus.clone(),
                policies,
                tx_executors,
                fatal: fatal.clone(),
            },
        )?;
        let pool = start_pool(
            config.tx_pool,
            &executor.handle(),
            blobs.clone(),
            bus.clone(),
            fatal.clone(),
        )?;
        let peers = PeerTable::start(
            config.peer_table,
            tandem_peer_table::Deps { bus: bus.clone(), fatal: fatal.clone() },
        )?;
        let sessions = if config.with_sessions {
            let within = Surroundings {
                // The identity of discovery, which announces the sessions' port.
                key: tandem_discovery::load_or_create_node_key(&config.discovery.datadir)?,
                storage: storage.clone(),
                transactions: Some(pool.clone()),
                table: peers.clone(),
                bus: bus.clone(),
                look_every: LOOK_EVERY,
                fatal: fatal.clone(),
            };
            let port_moves = config.sessions_port_moves;
            Some(Sessions::start(config.peer_sessions, port_moves, within)?)
        } else {
            None
        };
        if config.discovery.tcp_port == 0 {
            let address = sessions.as_ref().and_then(Sessions::address);
            config.discovery.tcp_port = address.map_or(0, |address| address.port());
        }
        let discovery = if config.with_discovery {
            let chain = executor.handle().chain().clone();
            let network = config.discovery.network;
            if let Some(network) = network.filter(|it| it.genesis_hash() != chain.genesis().hash) {
                return Err(Error::Network(network));
            }
            let fork_id = Some(chain.fork_id()?);
            let discovery = start_discovery(config.discovery, config.discovery_port_moves, || {
                let (table, bus, fatal) = (peers.clone(), bus.clone(), fatal.clone());
                tandem_discovery::Deps { table, bus, fork_id, fatal }
            })?;
            let forks = follow_forks(&bus, chain, discovery.clone(), fatal.clone())?;
            Some((discovery, forks))
        } else {
            None
        };
        let sync = match &sessions {
            Some(sessions) => {
                let handle = executor.handle();
                let downloads: Arc<dyn StateDownloads> = storage.clone();
                Some(start_sync(config.sync.clone(), &handle, sessions.api(), downloads, fatal)?)
            }
            None => None,
        };
        Ok(Self {
            storage,
            workers,
            executor,
            blobs,
            pool,
            peers,
            sessions,
            discovery,
            sync,
            sync_config: config.sync,
            process,
            engine_address: None,
            http_address: None,
            proof_address,
            blob_address,
            blob_bytes_max,
            storage_address,
            tls,
            access,
            metrics_port_moves,
        })
    }

    /// Has sync use these sessions instead of the node's own. For tests, not part of the interface.
    ///
    /// # Errors
    /// [`Error::Threads`].
    #[doc(hidden)]
    pub fn sync_from(&mut self, sessions: Arc<dyn PeerSessionsApi>) -> Result<(), Error> {
        if let Some(before) = self.sync.take() {
            before.stop();
        }
        let fatal = self.process.fatal().clone();
        let config = self.sync_config.clone();
        let sync = start_sync(config, &self.handle(), sessions, self.downloads(), fatal)?;
        self.sync = Some(sync);
        Ok(())
    }

    /// Returns blob-validator, as the executor uses it.
    pub fn blobs(&self) -> Arc<dyn BlobApi> {
        self.blobs.clone()
    }

    /// Returns the handle of the executor.
    pub fn handle(&self) -> Handle {
        self.executor.handle()
    }

    /// Returns the status of discovery, or `None` if it does not run.
    pub fn discovery(&self) -> Option<Status> {
        self.discovery.as_ref().map(|(discovery, _)| discovery.status())
    }

    /// Returns the sessions with peers, or `None` if there are to be none.
    pub fn peer_sessions(&self) -> Option<Arc<dyn PeerSessionsApi>> {
        self.sessions.as_ref().map(Sessions::api)
    }

    /// Returns the address on which sessions are accepted, or `None` if none are.
    pub fn sessions_address(&self) -> Option<SocketAddr> {
        self.sessions.as_ref().and_then(Sessions::address)
    }

    /// Returns storage-writer, for callers that use it beside the executor.
    pub fn storage(&self) -> Arc<dyn StorageApi> {
        self.storage.clone()
    }

    /// Returns what takes a downloaded state in.
    pub fn downloads(&self) -> Arc<dyn StateDownloads> {
        self.storage.clone()
    }

    /// Drops pending blocks as a power cut would. For tests of the recovery, not part of the
    /// interface.
    #[doc(hidden)]
    pub fn lose(&self, blocks: &[B256]) -> tandem_proto::storage::Result<()> {
        self.storage.lose(blocks)
    }

    /// Recomputes the tries from the stored state and executes the pending blocks up to the head
    /// through them again, as `tandem verify` does.
    ///
    /// # Errors
    /// [`Error::StorageWriter`] if the database cannot be read. Faults in its content are in the
    /// report.
    pub fn verify(&self) -> Result<Report, Error> {
        Ok(self.storage.verify()?)
    }

    /// Starts to listen. All ports are bound before the first request is answered.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Secret`], [`Error::Tls`].
    pub async fn serve(
        &mut self,
        ports: &Ports,
        client: ClientInfo,
        telemetry: &Telemetry,
    ) -> Result<(), Error> {
        let secret = secret::load_or_create(&ports.jwt_secret)?;
        let process = &mut self.process;
        let engine = process.listen("engine", ports.engine).await?;
        let http = process.listen("http", ports.http).await?;
        let proof = match self.proof_address {
            Some(address) => {
                let role = access::MULTIPROOF_WORKER;
                Some(process.listen_grpc("proof", address, role, &self.tls).await?)
            }
            None => None,
        };
        let blobs = match self.blob_address {
            Some(address) => {
                let role = access::BLOB_VALIDATOR;
                Some(process.listen_grpc("blobs", address, role, &self.tls).await?)
            }
            None => None,
        };
        let storage = match self.storage_address {
            Some(address) => {
                let role = access::STORAGE_WRITER;
                Some(process.listen_grpc("storage", address, role, &self.tls).await?)
            }
            None => None,
        };
        if let Some(address) = ports.metrics {
            process.watch(address, self.metrics_port_moves, telemetry).await?;
        }
        let stopping = process.stopping().clone();
        self.engine_address = engine.local_addr().ok();
        self.http_address = http.local_addr().ok();
        let handle = self.executor.handle();
        let sessions: MaybeSessions = self.sessions.as_ref().map(Sessions::api);
        let router = engine_router(&handle, client.clone(), secret, &self.access, &sessions);
        process.serve(tandem_http::serve(engine, router, stopping.clone()));
        let public = PublicReactor::start()?;
        let leaving = process.leaving().clone();
        let router = http_router(&handle, client, &self.access, &sessions, &leaving);
        process.serve(public.serve(http, router, leaving, stopping.clone()));
        process.at_end(move || public.end());
        if let Some((listener, identity)) = proof {
            let server = grpc::Server::start(self.workers.clone(), process.fatal().clone())?;
            let server = server.offered_as(identity);
            self.proof_address = listener.local_addr().ok();
            process.serve(server.serve(listener, stopping.clone()));
        }
        if let Some((listener, identity)) = blobs {
            let blobs = self.blobs.clone();
            let server = tandem_blob_validator::grpc::Server::new(blobs, self.blob_bytes_max);
            let server = server.offered_as(identity);
            self.blob_address = listener.local_addr().ok();
            process.serve(server.serve(listener, stopping.clone()));
        }
        if let Some((listener, identity)) = storage {
            let storage = self.storage.clone();
            let server = tandem_storage_writer::grpc::Server::new(storage.clone())
                .feeding(storage.clone())
                .checkpointing(storage.clone())
                .led_by(storage)
                .without_writes()
                .offered_as(identity);
            self.storage_address = listener.local_addr().ok();
            process.serve(server.serve(listener, stopping));
        }
        process.started();
        Ok(())
    }

    /// Returns the address of the Engine API, or `None` before [`Cluster::serve`].
    pub fn engine_address(&self) -> Option<SocketAddr> {
        self.engine_address
    }

    /// Returns the address of the public JSON-RPC, or `None` before [`Cluster::serve`].
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Returns the address of the proof stream, or `None` if it is not offered.
    pub fn proof_address(&self) -> Option<SocketAddr> {
        self.proof_address
    }

    /// Returns the address of blob-validator, or `None` if it is not offered.
    pub fn blob_address(&self) -> Option<SocketAddr> {
        self.blob_address
    }

    /// Returns the address of storage-writer, or `None` if it is not offered.
    pub fn storage_address(&self) -> Option<SocketAddr> {
        self.storage_address
    }

    /// Returns the process of these services, which stops them in the order of their dependencies.
    pub fn into_process(self) -> Process {
        let Self {
            storage, workers, executor, blobs, pool, peers, sessions, discovery, sync, ..
        } = self;
        let mut process = self.process;
        if let Some(sync) = sync {
            process.at_end(move || sync.stop());
        }
        if let Some((discovery, forks)) = discovery {
            process.at_end(move || forks.stop(|| {}));
            process.at_end(move || discovery.stop());
        }
        if let Some(sessions) = sessions {
            process.at_end(move || sessions.stop());
        }
        process.at_end(move || peers.stop());
        process.at_end(move || pool.stop());
        process.at_end(move || blobs.stop());
        process.at_end(move || executor.stop());
        process.at_end(move || workers.stop());
        // Last handle: the database is flushed and marked as closed.
        process.at_end(move || storage.stop());
        process
    }

    /// Stops the cluster. New requests are refused, requests in progress are answered, the services
    /// end in the order of their dependencies, and the database is flushed.
    pub async fn stop(self) {
        self.into_process().stop().await;
    }
}

fn start_discovery(
    mut config: tandem_discovery::Config,
    port_moves: bool,
    deps: impl Fn() -> tandem_discovery::Deps,
) -> Result<Arc<Discovery>, tandem_discovery::Error> {
    match Discovery::start(config.clone(), deps()) {
        Err(error) if port_moves && error.is_port_taken() => {
            warn!(port = config.port, "discovery port is taken, using a free one");
            config.port = 0;
            Discovery::start(config, deps())
        }
        result => result,
    }
}

/// Returns a callback that publishes the position of the base on the bus.
pub(crate) fn persisted(bus: Bus) -> Box<dyn Fn(BlockId) + Send + Sync> {
    Box::new(move |block| bus.publish(CHAIN_PERSISTED, ChainEvent { block }.encode()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use tokio_util::sync::CancellationToken;

    #[test]
    fn a_taken_discovery_port_is_an_error_only_when_it_was_asked_for() {
        let (folder, taken) =
            (tempfile::tempdir().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let (bus, fatal) = (Bus::default(), CancellationToken::new());
        let deps = tandem_peer_table::Deps { bus: bus.clone(), fatal: fatal.clone() };
        let table = PeerTable::start(tandem_peer_table::Config::default(), deps).unwrap();
        let config = tandem_discovery::Config {
            datadir: folder.path().to_owned(),
            addr: Ipv4Addr::LOCALHOST.into(),
            port: taken.local_addr().unwrap().port(),
            ..tandem_discovery::Config::default()
        };
        let deps = || {
            let (table, bus, fatal) = (table.clone(), bus.clone(), fatal.clone());
            tandem_discovery::Deps { table, bus, fork_id: None, fatal }
        };
        let refused = start_discovery(config.clone(), false, deps);
        assert!(refused.is_err_and(|error| error.is_port_taken()));
        start_discovery(config, true, deps).unwrap().stop();
        table.stop();
    }
}
