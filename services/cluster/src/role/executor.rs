//! The executor over storage-writer, workers and blob-validator in other processes.

use super::{Process, base::follow_base};
use crate::{Config, Error, Ports, follow_policies, public::PublicReactor, secret};
use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tandem_auth::Secret;
use tandem_blob_validator::grpc as blobs;
use tandem_bus::MissingBucket;
use tandem_executor::{
    Deps, Executor, Handle,
    rpc::{self, ClientInfo, Hosts, Limits, Origins},
};
use tandem_kzg::Setup;
use tandem_multiproof_workers::{
    MultiproofWorkers,
    fleet::{self, Fleet},
    membership::Listener,
};
use tandem_policy::LivePolicies;
use tandem_proto::{access, multiproof::ProofApi, storage};
use tandem_rpc::Identity;
use tandem_storage_writer::grpc as storage_writer;
use tokio::{runtime, task::spawn_blocking, time::sleep};
use tower::ServiceExt;
use tracing::{error, info};

/// For how long storage-writer keeps the right to write for an executor that is silent.
const LEASE: Duration = Duration::from_secs(2);

/// How often an executor that stands by asks for the right to write.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Whom the executor calls.
#[derive(Clone, Debug)]
pub struct ExecutorLinks {
    /// storage-writer, such as `http://10.0.0.7:9600`.
    pub storage_writer: String,
    /// Workers that are there whether or not the bus tells of them.
    pub workers: Vec<String>,
    /// Names of blob-validators; one may lead to several.
    pub blob_validators: Vec<String>,
}

/// An executor. Its ports are bound at once and answer HTTP 503 until storage-writer has granted it the
/// right to write; one that stands by waits for that as long as another one is there. It ends when
/// another one has taken over.
///
/// # Errors
/// [`Error::Listen`], [`Error::Secret`], [`Error::Endpoint`], [`Error::Tls`].
pub async fn executor(
    process: &mut Process,
    config: Config,
    ports: &Ports,
    links: &ExecutorLinks,
    client: ClientInfo,
) -> Result<(), Error> {
    let config = config.agreed();
    let identity = process.identify(access::EXECUTOR, &config.tls)?;
    let secret = secret::load_or_create(&ports.jwt_secret)?;
    let (engine, http) = (Gate::default(), Gate::default());
    let stopping = process.stopping().clone();
    let listener = process.listen("engine", ports.engine).await?;
    process.serve(rpc::serve(listener, engine.router(), stopping.clone()));
    let (listener, public) = (process.listen("http", ports.http).await?, PublicReactor::start()?);
    process.serve(public.serve(listener, http.router(), stopping));
    process.at_end(move || public.end());
    let services = Services::connect(process, &config, links, identity)?;
    // What it loads serves the EVM's precompile, which should not have to in the midst of a block.
    spawn_blocking(Setup::load);
    let settings = config.executor.remote();
    let running = Arc::<OnceLock<Executor>>::default();
    let (seen, deps) = (running.clone(), services.deps.clone());
    let access = Access::new(&config.executor);
    process.beside(async move {
        let Some(executor) = take_over(settings, deps).await else { return };
        let handle = executor.handle();
        let _ = seen.set(executor);
        engine.open(engine_router(&handle, client.clone(), secret, &access));
        http.open(http_router(&handle, client, &access));
        info!("this executor has the right to write");
    });
    services.follow(process);
    services.end(process, running);
    process.started();
    Ok(())
}

/// The other services as the executor calls them.
struct Services {
    storage: Arc<storage_writer::Client>,
    /// The workers of this process, which compute what nobody else answers for.
    local: Arc<MultiproofWorkers>,
    /// What the executor itself is given of them.
    deps: Deps,
}

impl Services {
    /// Connects in the background: whether anybody is there is another question.
    fn connect(
        process: &Process,
        config: &Config,
        links: &ExecutorLinks,
        identity: Identity,
    ) -> Result<Self, Error> {
        let runtime = runtime::Handle::current();
        let (lease_ms, known) = (LEASE.as_millis() as u64, identity.clone());
        let settings =
            storage_writer::ClientConfig { lease_ms, identity: known, ..Default::default() };
        let storage = storage_writer::Client::connect(&links.storage_writer, settings, &runtime)?;
        let settings = blobs::ClientConfig { identity: identity.clone(), ..Default::default() };
        let blobs = blobs::Several::connect(&links.blob_validators, settings, &runtime)?;
        let policies = LivePolicies::new(config.policies);
        let (proof, local) = fleet(process, config, links, identity, &storage, &policies)?;
        let deps = Deps {
            storage: storage.clone(),
            proof,
            own_proof: local.clone(),
            blobs,
            bus: process.bus().clone(),
            policies,
            fatal: process.fatal().clone(),
        };
        Ok(Self { storage, local, deps })
    }

    /// What goes on beside the executor as long as the process does.
    fn follow(&self, process: &mut Process) {
        let (bus, policies) = (self.deps.bus.clone(), self.deps.policies.clone());
        process.beside(follow_base(self.storage.clone(), bus.clone()));
        process.beside(async move {
            follow_policies(&bus, &policies, MissingBucket::Make).await;
        });
        let (watched, fatal) = (self.storage.clone(), self.deps.fatal.clone());
        process.beside(async move {
            watched.fenced().await;
            error!("another executor has taken over");
            fatal.cancel();
        });
    }

    /// When the process is ready, and what happens at its end.
    fn end(self, process: &mut Process, running: Arc<OnceLock<Executor>>) {
        let Self { storage, local, deps: _ } = self;
        let (connected, granted) = (storage.clone(), running.clone());
        process.readiness().require("storage-writer", move || connected.is_connected());
        process.readiness().require("the right to write", move || granted.get().is_some());
        process.at_end(move || {
            // First, as what still waits for storage-writer would wait beyond the end of the runtime.
            storage.stop();
            if let Some(executor) = running.get() {
                executor.stop();
            }
            local.stop();
        });
    }
}

/// The workers elsewhere as one, and those of this process that compute what nobody else answers for.
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
    let local = MultiproofWorkers::start(&config.multiproof_workers.remote(), &deps)?;
    let listener =
        bus.is_shared().then(|| Listener::start(bus.clone(), settings.heard(), &runtime));
    let deps = fleet::Deps { runtime, listener, local: local.clone(), identity };
    Ok((Fleet::start(&settings, deps)?, local))
}

/// Starts the executor as soon as storage-writer is there and lets it. `None` when it cannot start for
/// another reason, which is fatal.
async fn take_over(config: tandem_executor::Config, deps: Deps) -> Option<Executor> {
    let fatal = deps.fatal.clone();
    let mut told = String::new();
    loop {
        let (config, deps) = (config.clone(), deps.clone());
        match spawn_blocking(move || Executor::start(config, deps)).await {
            Ok(Ok(executor)) => return Some(executor),
            Ok(Err(tandem_executor::Error::Storage(storage::Error::Unavailable(reason)))) => {
                if reason != told {
                    info!(reason, "standing by");
                    told = reason;
                }
            }
            Ok(Err(error)) => {
                error!(%error, "the executor cannot start");
                fatal.cancel();
                return None;
            }
            Err(error) => {
                error!(%error, "the executor failed while it started");
                fatal.cancel();
                return None;
            }
        }
        sleep(ASK_EVERY).await;
    }
}

/// Under which names the two ports may be called, and which web pages may.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    engine: Hosts,
    http: Hosts,
    origins: Origins,
}

impl Access {
    pub(crate) fn new(config: &tandem_executor::Config) -> Self {
        Self {
            engine: Hosts::new(&config.authrpc_vhosts),
            http: Hosts::new(&config.http_vhosts),
            origins: Origins::new(&config.http_corsdomain),
        }
    }
}

/// The routes of the Engine API.
pub(crate) fn engine_router(
    handle: &Handle,
    client: ClientInfo,
    secret: Secret,
    access: &Access,
) -> Router {
    let limits = Limits::engine().with_hosts(access.engine.clone());
    rpc::engine_router(rpc::engine_methods(handle, client), secret, limits)
}

/// The routes of the public port.
pub(crate) fn http_router(handle: &Handle, client: ClientInfo, access: &Access) -> Router {
    let limits = Limits::public()
        .with_blobs(handle.spec())
        .with_hosts(access.http.clone())
        .with_origins(access.origins.clone());
    rpc::public_router(rpc::eth_methods(handle, client), limits)
}

/// A port whose service comes later: 503 until then.
#[derive(Clone, Default)]
struct Gate(Arc<OnceLock<Router>>);

impl Gate {
    fn router(&self) -> Router {
        let gate = self.clone();
        Router::new().fallback(move |request| gate.clone().pass(request))
    }

    async fn pass(self, request: Request) -> Response {
        match self.0.get() {
            Some(router) => {
                let Ok(response) = router.clone().oneshot(request).await;
                response
            }
            None => {
                let reason = "this executor has no right to write yet\n";
                (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
            }
        }
    }

    fn open(&self, router: Router) {
        // Once only.
        let _ = self.0.set(router);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, routing::get};

    #[tokio::test]
    async fn a_port_answers_that_it_is_not_ready_until_its_service_is_there() {
        let gate = Gate::default();
        let status = async || {
            let request = Request::get("/here").body(Body::empty()).unwrap();
            let Ok(response) = gate.router().oneshot(request).await;
            response.status()
        };
        assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE);
        gate.open(Router::new().route("/here", get(|| async { "ok" })));
        assert_eq!(status().await, StatusCode::OK);
    }
}
