//! Runs peer-sessions over storage-writer and peer-table in other processes.

use super::Process;
use crate::{
    Config, Error,
    sessions::{Sessions, Surroundings},
};
use std::{
    future::ready,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tandem_bus::Bus;
use tandem_discovery::load_or_create_node_key;
use tandem_peer_sessions::grpc::{RemotePool, Server};
use tandem_peer_table_client as peer_table;
use tandem_proto::{
    access,
    peer_sessions::{
        Error as CallError, Fetch, Fetched, Misconduct, PeerId, PeerSessionsApi, Pending, Session,
    },
};
use tandem_rpc::Identity;
use tandem_storage_writer_client as storage_writer;
use tokio::{runtime::Handle, sync::Notify, task::spawn_blocking, time::sleep};
use tracing::{error, info};

/// Interval at which storage-writer is asked for the head. `chain.head` comes over NATS sooner, but
/// may be lost, or there may be no NATS.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time until storage-writer is asked again for a chain that it could not give.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Addresses that peer-sessions calls.
#[derive(Clone, Debug)]
pub struct SessionsLinks {
    /// storage-writers, such as `http://10.0.0.7:9600`, of which one leads at a time and has the chain.
    pub storage_writers: Vec<String>,
    /// peer-table, such as `http://10.0.0.7:9602`, which gives candidates.
    pub peer_table: String,
}

/// Starts peer-sessions, with its calls at `grpc`. Its identity is the node key in discovery's data
/// directory. Sessions begin once storage-writer has given the chain; until then calls are answered
/// with [`CallError::Unavailable`].
///
/// # Errors
/// [`Error::Listen`], [`Error::Endpoint`], [`Error::Discovery`] for the node key, [`Error::Sessions`]
/// for invalid settings, [`Error::Tls`].
pub async fn peer_sessions(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
    links: &SessionsLinks,
) -> Result<(), Error> {
    tandem_peer_sessions::check(&config.peer_sessions)?;
    let role = access::PEER_SESSIONS;
    let (listener, identity) = process.listen_grpc("grpc", grpc, role, &config.tls).await?;
    let key = load_or_create_node_key(&config.discovery.datadir)?;
    let runtime = Handle::current();
    let (storage, table) = connect(links, &identity, &runtime)?;
    let slot = Arc::<Slot>::default();
    let pool = Arc::<RemotePool>::default();
    let exchange = pool.clone();
    let within = {
        let (storage, bus) = (storage.clone(), process.bus().clone());
        let fatal = process.fatal().clone();
        move || Surroundings {
            key: key.clone(),
            storage: storage.clone(),
            transactions: Some(exchange.clone()),
            table: table.clone(),
            bus: bus.clone(),
            look_every: LOOK_EVERY,
            fatal: fatal.clone(),
        }
    };
    process.beside(begin(config.peer_sessions, within, slot.clone()));
    let server = Server::new(slot.clone()).exchanging(pool).offered_as(identity);
    let (begun, stopping) = (slot.clone(), process.stopping().clone());
    process.serve(server.serve(listener, async move { begun.begun().await }, stopping));
    let (connected, begun) = (storage.clone(), slot.clone());
    process.readiness().require("storage-writer", move || connected.is_connected());
    process.readiness().require("the chain", move || begun.sessions.get().is_some());
    process.at_end(move || {
        // First, because calls still waiting for storage-writer would outlast the runtime.
        storage.stop();
        if let Some(sessions) = slot.sessions.get() {
            sessions.stop();
        }
    });
    process.started();
    Ok(())
}

type Clients = (Arc<storage_writer::Client>, Arc<peer_table::Client>);

/// Connects in the background, whether or not the services are reachable.
fn connect(links: &SessionsLinks, identity: &Identity, runtime: &Handle) -> Result<Clients, Error> {
    let connection = identity.clone().into();
    let settings = storage_writer::ClientConfig { connection, ..Default::default() };
    let storage =
        storage_writer::Client::connect_to_one_of(&links.storage_writers, settings, runtime)?;
    let connection = identity.clone().into();
    let settings = peer_table::ClientConfig { connection, ..Default::default() };
    // A bus of its own: nothing that this process publishes is for peer-table.
    let bus = Bus::default();
    let table = peer_table::Client::connect(&links.peer_table, settings, bus, runtime)?;
    Ok((storage, table))
}

/// Starts the sessions as soon as storage-writer gives the chain. Another failure is fatal.
async fn begin(
    config: tandem_peer_sessions::Config,
    within: impl Fn() -> Surroundings,
    slot: Arc<Slot>,
) {
    let mut told = String::new();
    loop {
        let (config, within, slot) = (config.clone(), within(), slot.clone());
        let fatal = within.fatal.clone();
        let start = move || Sessions::start(config, false, within).map(|begun| slot.fill(begun));
        let reason = match spawn_blocking(start).await {
            Ok(Ok(())) => return,
            Ok(Err(Error::Storage(error))) if error.is_retryable() => error.to_string(),
            Ok(Err(error)) => {
                error!(%error, "sessions cannot start");
                return fatal.cancel();
            }
            Err(error) => {
                error!(%error, "sessions failed while they started");
                return fatal.cancel();
            }
        };
        if reason != told {
            info!(reason, "waiting for the chain");
            told = reason;
        }
        sleep(ASK_EVERY).await;
    }
}

/// Sessions that begin later than calls to them.
#[derive(Default)]
struct Slot {
    sessions: OnceLock<Sessions>,
    filled: Notify,
}

impl Slot {
    fn fill(&self, sessions: Sessions) {
        let _ = self.sessions.set(sessions);
        self.filled.notify_one();
    }

    /// Waits until the sessions have begun. For one waiter.
    async fn begun(&self) {
        self.filled.notified().await;
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn PeerSessionsApi) -> Pending<T>,
    ) -> Pending<T> {
        match self.sessions.get() {
            Some(sessions) => call(&*sessions.api()),
            None => {
                let reason = "it waits for the chain of storage-writer".to_owned();
                Box::pin(ready(Err(CallError::Unavailable(reason))))
            }
        }
    }
}

impl PeerSessionsApi for Slot {
    fn sessions(&self) -> Pending<Vec<Session>> {
        self.call(|sessions| sessions.sessions())
    }

    fn fetch(&self, peer: PeerId, fetch: Fetch) -> Pending<Fetched> {
        self.call(|sessions| sessions.fetch(peer, fetch))
    }

    fn report(&self, peer: PeerId, misconduct: Misconduct) -> Pending<()> {
        self.call(|sessions| sessions.report(peer, misconduct))
    }
}
