//! Runs the executor and sync over storage-writer, workers, blob-validator and peer-sessions in other
//! processes.

use super::{
    Process,
    base::follow_base,
    standby::{Gates, Standby},
};
use crate::{
    Config, Error, Ports, follow_policies,
    peer_methods::{MaybeSessions, admin_methods, net_methods},
    pool::start_pool,
    public::PublicReactor,
    secret,
    sync::start_sync,
    tx_executors,
};
use axum::Router;
use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_admission::{any_network_form_bytes_max, network_form_bytes_max};
use tandem_auth::Secret;
use tandem_blob_validator_client as blobs;
use tandem_bus::MissingBucket;
use tandem_executor::{
    Chain, ChainReads, Deps, Executor, Handle,
    rpc::{self, ClientInfo},
};
use tandem_http::{Gate, Hosts, Limits, Methods, Origins, WebSockets};
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_multiproof_workers_client::{
    Listener,
    fleet::{self, Fleet},
};
use tandem_peer_sessions_client as peer_sessions;
use tandem_policy::LivePolicies;
use tandem_proto::{
    access,
    limits::BLOBS_PER_BUNDLE_MAX,
    multiproof::ProofApi,
    storage::{ExecutorAddress, is_host},
};
use tandem_rpc::Identity;
use tandem_storage_writer_client as storage_writer;
use tandem_sync::BlockSync;
use tandem_tx_pool::TxPool;
use tandem_tx_pool_client as tx_pool;
use tokio::{
    net::TcpListener,
    runtime,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

/// Time for which storage-writer holds the right to write for a silent executor.
const LEASE: Duration = Duration::from_secs(2);

/// Time between two notes to tx-pool on whether the head is behind.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Longest time for which ports stay open at the end.
const LINGER_SECONDS_MAX: u64 = 60;

/// Addresses that the executor calls.
#[derive(Clone, Debug)]
pub struct ExecutorLinks {
    /// storage-writers, such as `http://10.0.0.7:9600`, of which one leads at a time.
    pub storage_writers: Vec<String>,
    /// Workers that are used whether or not the bus announces them.
    pub workers: Vec<String>,
    /// Names of blob-validators; a name may resolve to several.
    pub blob_validators: Vec<String>,
    /// peer-sessions, from whose peers blocks are fetched; none if there are to be no peers.
    pub peer_sessions: Option<String>,
    /// tx-pool, from whose transactions blocks are built; none for a pool in this process.
    pub tx_pool: Option<String>,
}

/// Identity under which other processes know an executor.
#[derive(Clone, Debug)]
pub struct ExecutorIdentity {
    /// Name of the executor; defaults to the host's name.
    pub id: Option<String>,
    /// IP address or name at which other executors reach it. Defaults to the address of its Engine
    /// API, or to the host's name if that listens on all interfaces.
    pub advertise: Option<String>,
    /// Name of the host.
    pub host: String,
}

impl ExecutorIdentity {
    /// Returns the name and the addresses at which the executor serves.
    fn at(self, engine: SocketAddr, http: SocketAddr) -> (String, ExecutorAddress) {
        let Self { id, advertise, host } = self;
        let own = || match engine.ip().is_unspecified() {
            true if is_host(&host) => host.clone(),
            true => "localhost".to_owned(),
            false => engine.ip().to_string(),
        };
        let address = ExecutorAddress {
            host: advertise.unwrap_or_else(own),
            engine_port: engine.port(),
            http_port: http.port(),
        };
        (id.unwrap_or(host), address)
    }
}

/// Starts an executor and binds its ports at once. While another executor has the right to write,
/// this one forwards calls to it and asks for the right until it gets it. The process ends when
/// another executor has taken over. When told to end, the executor gives the right back and keeps
/// its ports open for a while.
///
/// # Errors
/// [`Error::Listen`], [`Error::Secret`], [`Error::Endpoint`], [`Error::Tls`].
pub async fn executor(
    process: &mut Process,
    config: Config,
    ports: &Ports,
    links: &ExecutorLinks,
    identity: ExecutorIdentity,
    client: ClientInfo,
) -> Result<(), Error> {
    let mut config = config.agreed();
    let proof = process.identify(access::EXECUTOR, &config.tls)?;
    let secret = secret::load_or_create(&ports.jwt_secret)?;
    let engine = process.listen("engine", ports.engine).await?;
    let http = process.listen("http", ports.http).await?;
    let bound = |listener: &TcpListener, address| {
        listener.local_addr().map_err(|error| Error::Listen { address, error })
    };
    let (name, address) = identity.at(bound(&engine, ports.engine)?, bound(&http, ports.http)?);
    info!(name, host = address.host, "executor");
    config.executor.name.clone_from(&name);
    let access = Access::new(&config.executor);
    let gates = access.gates(&name, secret.clone());
    serve(process, &gates, engine, http)?;
    let services = Services::connect(process, &config, links, proof, address.clone())?;
    let standby = Standby::new(gates, services.storage.clone(), address);
    let settings = config.executor.clone();
    let running = Arc::<Running>::default();
    let (seen, deps, taking) = (running.clone(), services.deps.clone(), standby.clone());
    let (sessions, sync, pool) = (services.sessions.clone(), config.sync, config.tx_pool);
    let elsewhere = services.pool.clone();
    let downloads = services.storage.clone();
    let leaving = process.leaving().clone();
    process.beside(async move {
        let (fatal, blobs, bus) = (deps.fatal.clone(), deps.blobs.clone(), deps.bus.clone());
        let Some(executor) = taking.take_over(settings, deps).await else { return };
        let handle = executor.handle();
        let _ = seen.executor.set(executor);
        match &elsewhere {
            Some(pool) => handle.use_pool(pool.clone()),
            None => {
                let (chain, stop) = (handle.clone(), fatal.clone());
                let starting = spawn_blocking(move || start_pool(pool, &chain, blobs, bus, stop));
                match starting.await {
                    Ok(Ok(pool)) => drop(seen.pool.set(pool)),
                    Ok(Err(error)) => {
                        error!(%error, "the pool of transactions cannot start");
                        return fatal.cancel();
                    }
                    // The process ends.
                    Err(_) => return,
                }
            }
        }
        if let Some(sessions) = sessions.clone() {
            match start_sync(sync, &handle, sessions, downloads, fatal.clone()) {
                Ok(sync) => drop(seen.sync.set(sync)),
                Err(error) => {
                    error!(%error, "sync cannot start");
                    return fatal.cancel();
                }
            }
        }
        let engine = engine_router(&handle, client.clone(), secret, &access, &sessions);
        taking.serve(engine, http_router(&handle, client, &access, &sessions, &leaving));
        info!("this executor has the right to write");
        if let Some(pool) = elsewhere {
            note_sync(handle.chain(), &pool).await;
        }
    });
    standby.follow(process);
    let linger = config.executor.linger_seconds.min(LINGER_SECONDS_MAX);
    standby.linger(process, Duration::from_secs(linger));
    services.follow(process);
    services.end(process, running, &standby);
    process.started();
    Ok(())
}

/// Tells tx-pool at intervals that the head is behind, and once that it has caught up. Never ends.
async fn note_sync(chain: &Chain, pool: &tx_pool::Client) {
    let mut ticks = interval(NOTE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = false;
    loop {
        ticks.tick().await;
        let is_syncing = chain.is_syncing();
        if !is_syncing && !told {
            continue;
        }
        match pool.note_sync(is_syncing).await {
            Ok(()) => told = is_syncing,
            Err(error) => debug!(%error, "tx-pool not told of the sync"),
        }
    }
}

/// Serves the two ports.
fn serve(
    process: &mut Process,
    gates: &Gates,
    engine: TcpListener,
    http: TcpListener,
) -> Result<(), Error> {
    let (leaving, stopping) = (process.leaving().clone(), process.stopping().clone());
    let router = gates.engine.router();
    process.serve(tandem_http::serve_lingering(engine, router, leaving.clone(), stopping.clone()));
    let public = PublicReactor::start()?;
    process.serve(public.serve(http, gates.http.router(), leaving, stopping));
    process.at_end(move || public.end());
    Ok(())
}

/// Services that run once this executor has the right to write.
#[derive(Default)]
struct Running {
    executor: OnceLock<Arc<Executor>>,
    /// Pool of this process, unless there is a tx-pool.
    pool: OnceLock<Arc<TxPool>>,
    /// Sync, if there is a peer-sessions.
    sync: OnceLock<Arc<BlockSync>>,
}

/// Clients of the other services.
struct Services {
    storage: Arc<storage_writer::Client>,
    /// Workers of this process, which compute what no other worker answers.
    local: Arc<MultiproofWorkers>,
    sessions: MaybeSessions,
    /// tx-pool, if there is one.
    pool: Option<Arc<tx_pool::Client>>,
    /// Dependencies that the executor receives.
    deps: Deps,
}

impl Services {
    /// Connects in the background, whether or not the services are reachable.
    fn connect(
        process: &Process,
        config: &Config,
        links: &ExecutorLinks,
        identity: Identity,
        address: ExecutorAddress,
    ) -> Result<Self, Error> {
        let runtime = runtime::Handle::current();
        let settings = storage_writer::ClientConfig {
            connection: identity.clone().into(),
            lease_ms: LEASE.as_millis() as u64,
            address: Some(address),
            ..Default::default()
        };
        let storage =
            storage_writer::Client::connect_to_one_of(&links.storage_writers, settings, &runtime)?;
        let connection = identity.clone().into();
        let settings = blobs::ClientConfig { connection, ..Default::default() };
        let blobs = blobs::ValidatorPool::connect(&links.blob_validators, settings, &runtime)?;
        let sessions: MaybeSessions = match &links.peer_sessions {
            Some(url) => {
                let connection = identity.clone().into();
                let settings = peer_sessions::ClientConfig { connection, ..Default::default() };
                Some(peer_sessions::Client::connect(url, settings, &runtime)?)
            }
            None => None,
        };
        let pool = match &links.tx_pool {
            Some(url) => {
                let connection = identity.clone().into();
                let settings = tx_pool::ClientConfig { connection, ..Default::default() };
                Some(tx_pool::Client::connect(url, settings, &runtime)?)
            }
            None => None,
        };
        let urls = &config.executor.tx_executors;
        let tx_executors = tx_executors::connect(urls, &identity, &runtime)?;
        let policies = LivePolicies::new(config.policies);
        let (proof, local) = fleet(process, config, links, identity, &storage, &policies)?;
        let deps = Deps {
            storage: storage.clone(),
            proof,
            own_proof: local.clone(),
            blobs,
            bus: process.bus().clone(),
            policies,
            tx_executors,
            fatal: process.fatal().clone(),
        };
        Ok(Self { storage, local, sessions, pool, deps })
    }

    /// Starts the tasks that run beside the executor until the process stops.
    fn follow(&self, process: &mut Process) {
        let (bus, policies) = (self.deps.bus.clone(), self.deps.policies.clone());
        let fails = Arc::<AtomicBool>::default();
        process.beside(follow_base(self.storage.clone(), bus.clone(), fails.clone()));
        process
            .readiness()
            .require("storage-writer to be able to write", move || !fails.load(Relaxed));
        process.beside(async move {
            follow_policies(&bus, &policies, MissingBucket::Make).await;
        });
    }

    /// Sets when the process is ready, and the order in which it stops.
    fn end(self, process: &mut Process, running: Arc<Running>, standby: &Standby) {
        let Self { storage, local, .. } = self;
        let (connected, granted, reaches) = (storage.clone(), running.clone(), standby.reaches());
        process.readiness().require("storage-writer", move || connected.is_connected());
        process.readiness().require("the right to write, or the executor that has it", move || {
            granted.executor.get().is_some() || reaches.load(Relaxed)
        });
        process.at_end(move || {
            // First, because calls still waiting for storage-writer would outlast the runtime.
            storage.stop();
            if let Some(sync) = running.sync.get() {
                sync.stop();
            }
            if let Some(pool) = running.pool.get() {
                pool.stop();
            }
            if let Some(executor) = running.executor.get() {
                executor.stop();
            }
            local.stop();
        });
    }
}

/// Returns all workers as one, and the workers of this process, which compute what no other worker
/// answers.
fn fleet(
    process: &Process,
    config: &Config,
    links: &ExecutorLinks,
    identity: Identity,
    storage: &Arc<storage_writer::Client>,
    policies: &LivePolicies,
) -> Result<(Arc<dyn ProofApi>, Arc<MultiproofWorkers>), Error> {
    let (bus, runtime) = (process.bus(), runtime::Handle::current());
    let mut settings = config.fleet.clone();
    settings.endpoints.extend(links.workers.iter().cloned());
    if settings.endpoints.is_empty() && !bus.is_shared() {
        return Err(Error::NoWorker);
    }
    let deps = tandem_multiproof_workers::Deps {
        storage: storage.clone(),
        bus: bus.clone(),
        policies: policies.clone(),
        fatal: process.fatal().clone(),
    };
    let local = MultiproofWorkers::start(config.multiproof_workers.remote(), deps)?;
    let listener =
        bus.is_shared().then(|| Listener::start(bus.clone(), settings.heard(), &runtime));
    let deps = fleet::Deps { runtime, listener, local: local.clone(), identity };
    Ok((Fleet::start(&settings, deps)?, local))
}

/// Host names under which the two ports may be called, and web origins that may call.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    engine: Hosts,
    http: Hosts,
    origins: Origins,
    websockets_max: usize,
}

impl Access {
    pub(crate) fn new(config: &tandem_executor::Config) -> Self {
        Self {
            engine: Hosts::new(&config.authrpc_vhosts),
            http: Hosts::new(&config.http_vhosts),
            origins: Origins::new(&config.http_corsdomain),
            websockets_max: config.websockets_max,
        }
    }

    /// Returns the gates of the executor with this name, for the time it stands by.
    fn gates(&self, name: &str, secret: Secret) -> Gates {
        let engine = Limits::engine().with_hosts(self.engine.clone());
        let http = Limits::public()
            .with_room_for(any_network_form_bytes_max(BLOBS_PER_BUNDLE_MAX))
            .with_hosts(self.http.clone())
            .with_origins(self.origins.clone());
        Gates { engine: Gate::engine(name, secret, engine), http: Gate::public(name, http) }
    }
}

/// Returns the routes of the Engine API.
pub(crate) fn engine_router(
    handle: &Handle,
    client: ClientInfo,
    secret: Secret,
    access: &Access,
    sessions: &MaybeSessions,
) -> Router {
    let limits = Limits::engine().with_hosts(access.engine.clone());
    let mut methods = rpc::engine_methods(handle, client);
    methods.extend(admin_methods(sessions));
    tandem_http::engine_router(methods, secret, limits)
}

/// Returns the routes of the public port. Its WebSockets end when `leaving` is cancelled.
pub(crate) fn http_router(
    handle: &Handle,
    client: ClientInfo,
    access: &Access,
    sessions: &MaybeSessions,
    leaving: &CancellationToken,
) -> Router {
    let testing = rpc::testing_methods(handle);
    http_router_of(&handle.reads(), client, access, sessions, testing, leaving)
}

/// Returns the routes of the public port over a view of the chain, with further methods.
pub(super) fn http_router_of(
    reads: &ChainReads,
    client: ClientInfo,
    access: &Access,
    sessions: &MaybeSessions,
    more: Methods,
    leaving: &CancellationToken,
) -> Router {
    let limits = Limits::public()
        .with_room_for(network_form_bytes_max(reads.spec(), BLOBS_PER_BUNDLE_MAX))
        .with_hosts(access.http.clone())
        .with_origins(access.origins.clone());
    let mut methods = rpc::eth_methods(reads, client);
    methods.extend(net_methods(sessions));
    methods.extend(more);
    if access.websockets_max == 0 {
        return tandem_http::public_router(methods, limits);
    }
    let subscriptions = rpc::subscriptions(reads);
    let sockets = WebSockets::new(subscriptions, access.websockets_max, leaving.clone());
    tandem_http::public_router_with(methods, limits, sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_reached_at_what_is_given_else_where_it_listens_else_at_its_host() {
        let plain = ExecutorIdentity { id: None, advertise: None, host: "pod-7".to_owned() };
        let at = |identity: &ExecutorIdentity, engine: &str| {
            let (engine, http) = (engine.parse().unwrap(), "127.0.0.1:8545".parse().unwrap());
            let (name, address) = identity.clone().at(engine, http);
            assert_eq!((address.engine_port, address.http_port), (8551, 8545));
            (name, address.host)
        };
        let told = |name: &str, host: &str| (name.to_owned(), host.to_owned());
        assert_eq!(at(&plain, "127.0.0.1:8551"), told("pod-7", "127.0.0.1"));
        assert_eq!(at(&plain, "[::]:8551"), told("pod-7", "pod-7"));
        assert_eq!(at(&plain, "[fd00::7]:8551"), told("pod-7", "fd00::7"));
        let odd = ExecutorIdentity { host: "(none)".to_owned(), ..plain.clone() };
        assert_eq!(at(&odd, "0.0.0.0:8551"), told("(none)", "localhost"));
        let (id, advertise) = (Some("one".to_owned()), Some("10.0.0.7".to_owned()));
        let named = ExecutorIdentity { id, advertise, ..plain };
        assert_eq!(at(&named, "0.0.0.0:8551"), told("one", "10.0.0.7"));
    }
}
