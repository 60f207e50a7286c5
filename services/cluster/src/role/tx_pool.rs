//! Runs tx-pool over storage-writer, blob-validator and peer-sessions in other processes.
//!
//! ```text
//!  chain.head ─► follow ──► storage-writer: forkchoice, recent blocks, state ◄── accounts ──┐
//!                   └─ chain.head, once the chain is read ──► tx-pool ◄─► blob-validator    │
//!                                        peers: peer-sessions ◄──┘└─────────────────────────┘
//! ```

use super::Process;
use crate::{
    Config, Error,
    pool::{ChainOfPool, FollowedChain},
};
use std::{
    future::ready,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tandem_blob_validator_client as blobs;
use tandem_bus::{Bus, Subscription};
use tandem_executor::{Chain, Error::Record};
use tandem_peer_sessions_client as peer_sessions;
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::{
    access,
    event::{CHAIN_HEAD, ChainEvent},
    storage::StorageApi,
    tx_pool::{
        Added, Arrivals, BestPage, BestQuery, Content, Counts, Error as CallError, Pending,
        PooledTransaction, TxPoolApi,
    },
};
use tandem_storage_writer_client as storage_writer;
use tandem_tx_pool::{
    Deps, StartError, TxPool,
    grpc::{Server, SyncNote},
};
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{debug, error, info};

/// Interval at which storage-writer is asked for the head. `chain.head` comes over NATS sooner, but
/// may be lost, or there may be no NATS.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Time until storage-writer is asked again for a chain that it could not give.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Addresses that tx-pool calls.
#[derive(Clone, Debug)]
pub struct PoolLinks {
    /// storage-writers, such as `http://10.0.0.7:9600`, of which one leads at a time and has the chain.
    pub storage_writers: Vec<String>,
    /// Names of blob-validators; a name may resolve to several.
    pub blob_validators: Vec<String>,
    /// peer-sessions, with whose peers transactions are exchanged; none if there are to be no peers.
    pub peer_sessions: Option<String>,
}

/// Starts tx-pool, with its calls at `grpc`. The pool begins once storage-writer has given the chain;
/// until then calls are answered with [`CallError::Unavailable`].
///
/// # Errors
/// [`Error::Listen`], [`Error::Endpoint`], [`Error::Tls`].
pub async fn tx_pool(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
    links: &PoolLinks,
) -> Result<(), Error> {
    let (listener, identity) =
        process.listen_grpc("grpc", grpc, access::TX_POOL, &config.tls).await?;
    let runtime = Handle::current();
    let connection = identity.clone().into();
    let settings = storage_writer::ClientConfig { connection, ..Default::default() };
    let storage =
        storage_writer::Client::connect_to_one_of(&links.storage_writers, settings, &runtime)?;
    let connection = identity.clone().into();
    let settings = blobs::ClientConfig { connection, ..Default::default() };
    let blobs = blobs::ValidatorPool::connect(&links.blob_validators, settings, &runtime)?;
    let config = config.agreed();
    let sessions = match &links.peer_sessions {
        Some(url) => {
            let connection = identity.clone().into();
            let settings = peer_sessions::ClientConfig { connection, ..Default::default() };
            Some(peer_sessions::Client::connect(url, settings, &runtime)?)
        }
        None => None,
    };
    let (slot, sync) = (Arc::<Slot>::default(), Arc::<SyncNote>::default());
    let server = Server::new(slot.clone(), sync.clone()).offered_as(identity);
    let beginning = Beginning {
        config,
        storage: storage.clone(),
        blobs,
        sessions,
        sync,
        // The pool hears of a head once it is read, so that of its own bus only.
        heads: Bus::default(),
        fatal: process.fatal().clone(),
    };
    process.beside(run(beginning, process.bus().clone(), slot.clone()));
    let (begun, stopping) = (slot.clone(), process.stopping().clone());
    process.serve(server.serve(listener, async move { begun.begun().await }, stopping));
    let (connected, begun) = (storage.clone(), slot.clone());
    process.readiness().require("storage-writer", move || connected.is_connected());
    process.readiness().require("the chain", move || begun.pool.get().is_some());
    process.at_end(move || {
        // First, because calls still waiting for storage-writer would outlast the runtime.
        storage.stop();
        if let Some(pool) = slot.pool.get() {
            pool.stop();
        }
    });
    process.started();
    Ok(())
}

/// Parts of a pool that has not begun.
#[derive(Clone)]
struct Beginning {
    config: Config,
    storage: Arc<storage_writer::Client>,
    blobs: Arc<blobs::ValidatorPool>,
    sessions: Option<Arc<peer_sessions::Client>>,
    sync: Arc<SyncNote>,
    heads: Bus,
    fatal: tokio_util::sync::CancellationToken,
}

impl Beginning {
    /// Reads the chain and starts the pool. Blocks.
    fn begin(self) -> Result<(Arc<FollowedChain>, Arc<TxPool>), Error> {
        let Self { config, storage, blobs, sync, heads, fatal, .. } = self;
        std::fs::create_dir_all(&config.tx_pool.datadir)?;
        let storage: Arc<dyn StorageApi> = storage;
        let chain = Arc::new(Chain::attach_accounts(&config.executor, storage)?);
        let chain = Arc::new(FollowedChain::new(ChainOfPool(chain), sync));
        let deps = Deps { chain: chain.clone(), blobs, bus: heads, fatal };
        Ok((chain, TxPool::start(config.tx_pool, deps)?))
    }
}

/// Starts the pool as soon as storage-writer gives the chain, and follows the chain. Another failure
/// is fatal.
async fn run(beginning: Beginning, bus: Bus, slot: Arc<Slot>) {
    // Heads are heard from before the first look on, so none is missed.
    let heads = bus.subscribe(CHAIN_HEAD);
    let mut told = String::new();
    let (chain, pool) = loop {
        let begun = beginning.clone();
        let reason = match spawn_blocking(move || begun.begin()).await {
            Ok(Ok(begun)) => break begun,
            Ok(Err(Error::Executor(error))) if !matches!(error, Record { .. }) => error.to_string(),
            Ok(Err(Error::TxPool(StartError::Chain(error)))) => error.to_string(),
            Ok(Err(error)) => {
                error!(%error, "the pool of transactions cannot start");
                return beginning.fatal.cancel();
            }
            Err(error) => {
                error!(%error, "the pool of transactions failed while it started");
                return beginning.fatal.cancel();
            }
        };
        if reason != told {
            info!(reason, "waiting for the chain");
            told = reason;
        }
        sleep(ASK_EVERY).await;
    };
    let exchange =
        |sessions: &Arc<peer_sessions::Client>| sessions.exchange(pool.clone(), &Handle::current());
    let _exchange = beginning.sessions.as_ref().map(exchange);
    slot.fill(pool.clone());
    follow(chain, heads, &beginning.heads).await;
}

/// Reads the chain when its head moves, and tells the pool. Never ends.
async fn follow(chain: Arc<FollowedChain>, mut heads: Subscription, pool: &Bus) {
    let mut known = None;
    loop {
        // Only the newest of the waiting heads counts, and it is read from the chain.
        let _ = timeout(LOOK_EVERY, heads.next()).await;
        while heads.try_next().is_some() {}
        let read = chain.clone();
        match spawn_blocking(move || read.refresh()).await {
            Ok(Ok(head)) if known == Some(head) => {}
            Ok(Ok(head)) => {
                known = Some(head);
                pool.publish_here(CHAIN_HEAD, ChainEvent { block: head }.encode());
            }
            Ok(Err(error)) => debug!(%error, "head not known, the pool stays on the last one"),
            // The process ends.
            Err(_) => return,
        }
    }
}

/// Pool that begins later than calls to it.
#[derive(Default)]
struct Slot {
    pool: OnceLock<Arc<TxPool>>,
    filled: Notify,
}

impl Slot {
    fn fill(&self, pool: Arc<TxPool>) {
        let _ = self.pool.set(pool);
        self.filled.notify_one();
    }

    /// Waits until the pool has begun. For one waiter.
    async fn begun(&self) {
        self.filled.notified().await;
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn TxPoolApi) -> Pending<T>,
    ) -> Pending<T> {
        match self.pool() {
            Ok(pool) => call(&**pool),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn pool(&self) -> Result<&Arc<TxPool>, CallError> {
        let reason = || "it waits for the chain of storage-writer".to_owned();
        self.pool.get().ok_or_else(|| CallError::Unavailable(reason()))
    }
}

impl TxPoolApi for Slot {
    fn add(&self, raw: Vec<Bytes>) -> Added {
        match self.pool() {
            Ok(pool) => pool.add(raw),
            Err(error) => Box::pin(ready(vec![Err(error); raw.len()])),
        }
    }

    fn get(&self, hash: B256) -> Pending<Option<PooledTransaction>> {
        self.call(|pool| pool.get(hash))
    }

    fn next_nonce(&self, sender: Address) -> Pending<Option<u64>> {
        self.call(|pool| pool.next_nonce(sender))
    }

    fn counts(&self) -> Pending<Counts> {
        self.call(|pool| pool.counts())
    }

    fn best(&self, query: BestQuery) -> Pending<BestPage> {
        self.call(|pool| pool.best(query))
    }

    fn arrivals(&self, after: Option<u64>) -> Pending<Arrivals> {
        self.call(|pool| pool.arrivals(after))
    }

    fn content(&self, sender: Option<Address>) -> Pending<Content> {
        self.call(|pool| pool.content(sender))
    }
}
