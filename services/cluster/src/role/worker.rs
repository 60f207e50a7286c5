//! Runs multiproof-worker: tries in memory, over a storage-writer in another process.

use super::{Process, base::follow_base};
use crate::{Config, Error, follow_policies};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tandem_bus::MissingBucket;
use tandem_multiproof_workers::{
    Deps, MultiproofWorkers, grpc,
    membership::{Announcer, Identity, WorkerId},
};
use tandem_policy::LivePolicies;
use tandem_proto::access;
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::runtime::Handle;
use tracing::info;

/// Interval between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Identity under which executors know a worker that the bus announces.
#[derive(Clone, Debug)]
pub struct WorkerIdentity {
    /// Name of the worker; a worker that keeps its name over restarts keeps its shards. Defaults to
    /// the host's name and the port.
    pub id: Option<WorkerId>,
    /// Address at which executors reach it, such as `http://10.0.0.7:9601`. Defaults to its listen
    /// address, or to the host's name if it listens on all interfaces.
    pub advertise: Option<String>,
    /// Name of the host.
    pub host: String,
}

impl WorkerIdentity {
    fn at(self, address: SocketAddr, scheme: &str) -> Result<Identity, Error> {
        let Self { id, advertise, host } = self;
        let port = address.port();
        let id = match id {
            Some(id) => id,
            None => format!("{host}-{port}").parse()?,
        };
        let endpoint = advertise.unwrap_or_else(|| match address.ip().is_unspecified() {
            true => format!("{scheme}://{host}:{port}"),
            false => format!("{scheme}://{address}"),
        });
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let incarnation = started.as_millis() as u64;
        Ok(Identity { id, incarnation, endpoint, interval: HEARTBEAT })
    }
}

/// Starts a worker over that of `storage_writers` which leads, with its proof stream at `grpc`.
///
/// # Errors
/// [`Error::Listen`], [`Error::Endpoint`], [`Error::Threads`], [`Error::WorkerId`], [`Error::Tls`].
pub async fn multiproof_worker(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
    storage_writers: &[String],
    identity: WorkerIdentity,
) -> Result<(), Error> {
    let config = config.agreed();
    let runtime = Handle::current();
    let role = access::MULTIPROOF_WORKER;
    let (listener, proof) = process.listen_grpc("grpc", grpc, role, &config.tls).await?;
    let address = listener.local_addr().map_err(|error| Error::Listen { address: grpc, error })?;
    let identity = identity.at(address, if proof.is_proven() { "https" } else { "http" })?;
    info!(id = identity.id.as_str(), endpoint = identity.endpoint, "worker");
    let settings = ClientConfig { connection: proof.clone().into(), ..ClientConfig::default() };
    let storage = Client::connect_to_one_of(storage_writers, settings, &runtime)?;
    let policies = LivePolicies::new(config.policies);
    let bus = process.bus().clone();
    let deps = Deps {
        storage: storage.clone(),
        bus: bus.clone(),
        policies: policies.clone(),
        fatal: process.fatal().clone(),
    };
    let workers = MultiproofWorkers::start(config.multiproof_workers.remote(), deps)?;
    let server = grpc::Server::start(workers.clone(), process.fatal().clone())?.offered_as(proof);
    process.serve(server.serve(listener, process.stopping().clone()));
    process.beside(follow_base(storage.clone(), bus.clone(), Arc::default()));
    let settings = bus.clone();
    process.beside(async move {
        follow_policies(&settings, &policies, MissingBucket::Await).await;
    });
    let announcer = Announcer::start(bus, identity, &runtime);
    process.at_farewell(announcer.leave());
    let connected = storage.clone();
    process.readiness().require("storage-writer", move || connected.is_connected());
    process.at_end(move || {
        // First, because calls still waiting for storage-writer would outlast the runtime.
        storage.stop();
        workers.stop();
    });
    process.started();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_known_by_what_is_given_else_by_host_and_port() {
        let plain = WorkerIdentity { id: None, advertise: None, host: "pod-7".to_owned() };
        let identity = |address: &str| plain.clone().at(address.parse().unwrap(), "http").unwrap();
        let local = identity("127.0.0.1:9601");
        assert_eq!((local.id.as_str(), &*local.endpoint), ("pod-7-9601", "http://127.0.0.1:9601"));
        assert_eq!(identity("[::1]:9601").endpoint, "http://[::1]:9601");
        assert_eq!(identity("0.0.0.0:9601").endpoint, "http://pod-7:9601");
        let (id, advertise) = (Some("w".parse().unwrap()), Some("http://w:1".to_owned()));
        let named = WorkerIdentity { id, advertise, ..plain };
        let named = named.at("0.0.0.0:9601".parse().unwrap(), "https").unwrap();
        assert_eq!((named.id.as_str(), &*named.endpoint), ("w", "http://w:1"));
    }
}
