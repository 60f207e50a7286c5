//! Sessions with peers over the chain of storage-writer, here or in another process.
//!
//! ```text
//!  chain.head ─► chain-status ── ChainStatus ──► peer-sessions ◄─► peers
//!                    │                               │    └─► connected peers, candidates: peer-table
//!                    └────────► storage-writer ◄─────┘ blocks that peers ask for
//! ```

use crate::Error;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tandem_actor::Running;
use tandem_bus::{Bus, Subscription};
use tandem_chain::{ChainSpec, network_receipts};
use tandem_discv4::NodeKey;
use tandem_executor::rpc::ClientInfo;
use tandem_peer_sessions::{BlockSource, ChainStatus, Config, Deps, PeerSessions};
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::{
    event::CHAIN_HEAD,
    peer_sessions::{PeerSessionsApi, TransactionExchange},
    peer_table::PeerTableApi,
    snap::{StateItems, StateRequest},
    storage::{self, BlockRecord, BlockRef, StorageApi},
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Longest time until a new head is noticed whose event was lost, in the process of the executor.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Resources that sessions share with their process.
pub(crate) struct Surroundings {
    /// Identity of this node, the one that discovery announces.
    pub(crate) key: NodeKey,
    /// Chain that peers see, and its blocks.
    pub(crate) storage: Arc<dyn StorageApi>,
    /// Pool of transactions, if this process has one.
    pub(crate) transactions: Option<Arc<dyn TransactionExchange>>,
    /// Gets the number of connected peers, and gives candidates.
    pub(crate) table: Arc<dyn PeerTableApi>,
    /// Bus with the events of the chain.
    pub(crate) bus: Bus,
    /// Longest time until a new head is noticed whose event was lost.
    pub(crate) look_every: Duration,
    /// Cancelled when a thread panics.
    pub(crate) fatal: CancellationToken,
}

/// Running sessions, and the thread that tells them where the chain stands.
pub(crate) struct Sessions {
    service: Arc<PeerSessions>,
    chain_status: Running,
}

impl Sessions {
    /// Starts sessions. With `port_moves`, they take a free port if theirs is taken.
    pub(crate) fn start(
        mut config: Config,
        port_moves: bool,
        within: Surroundings,
    ) -> Result<Self, Error> {
        let Surroundings { key, storage, transactions, table, bus, look_every, fatal } = within;
        // Heads are heard from before the first look on, so none is missed.
        let heads = bus.subscribe(CHAIN_HEAD);
        let chain = ChainReader::open(storage.clone())?;
        let (sender, receiver) = watch::channel(chain.status()?);
        let deps = || Deps {
            key: key.clone(),
            client: format!("{}/v{}", ClientInfo::NAME, env!("CARGO_PKG_VERSION")),
            chain: receiver.clone(),
            source: Arc::new(StoredBlocks(storage.clone())),
            transactions: transactions.clone(),
            table: Some(table.clone()),
            fatal: fatal.clone(),
        };
        let service = match PeerSessions::start(config.clone(), deps()) {
            Err(error) if port_moves && error.is_port_taken() => {
                warn!(port = config.listen.port(), "port of sessions is taken, using a free one");
                config.listen.set_port(0);
                PeerSessions::start(config, deps())?
            }
            started => started?,
        };
        if let Some(address) = service.address() {
            info!(port = "sessions", %address, "listening");
        }
        let running = Running::new(fatal);
        match follow(chain, heads, look_every, sender, &running) {
            Ok(()) => Ok(Self { service, chain_status: running }),
            Err(error) => {
                service.stop();
                Err(error.into())
            }
        }
    }

    /// Returns the address on which sessions are accepted, if any are.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.service.address()
    }

    /// Returns the sessions, as their callers use them.
    pub(crate) fn api(&self) -> Arc<dyn PeerSessionsApi> {
        self.service.clone()
    }

    /// Ends all sessions and stops the threads.
    pub(crate) fn stop(&self) {
        self.service.stop();
        self.chain_status.stop(|| {});
    }
}

/// Starts the thread that looks at each new head.
fn follow(
    chain: ChainReader,
    mut heads: Subscription,
    look_every: Duration,
    status: watch::Sender<ChainStatus>,
    running: &Running,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let stopping = running.stopping().clone();
    running.spawn("chain-status", move || {
        // The look itself blocks, so it stays outside of the runtime.
        while runtime.block_on(has_news(&mut heads, look_every, &stopping)) {
            match chain.status() {
                Ok(now) => {
                    status.send_if_modified(|before| {
                        let is_new = *before != now;
                        *before = now;
                        is_new
                    });
                }
                Err(error) => debug!(%error, "head not known, peers are told the last one"),
            }
        }
    })
}

/// Waits until it is time for a look. Returns `false` when there is to be none.
async fn has_news(
    heads: &mut Subscription,
    look_every: Duration,
    stopping: &CancellationToken,
) -> bool {
    tokio::select! {
        () = stopping.cancelled() => false,
        head = timeout(look_every, heads.next()) => {
            // Only the newest of the waiting heads counts, and it is read from the chain.
            while heads.try_next().is_some() {}
            !matches!(head, Ok(None))
        }
    }
}

/// Reader of the chain's state.
struct ChainReader {
    storage: Arc<dyn StorageApi>,
    spec: ChainSpec,
    genesis: BlockId,
}

impl ChainReader {
    fn open(storage: Arc<dyn StorageApi>) -> Result<Self, Error> {
        let checkpoint = storage.checkpoint()?;
        let spec = ChainSpec::from_genesis_json(&checkpoint.genesis_json)?;
        Ok(Self { storage, spec, genesis: checkpoint.genesis })
    }

    fn status(&self) -> storage::Result<ChainStatus> {
        let checkpoint = self.storage.checkpoint()?;
        let head = checkpoint.forkchoice.head;
        let unknown = storage::Error::UnknownBlock(head.hash);
        let (_, rlp) = self.storage.header(BlockRef::Hash(head.hash))?.ok_or(unknown)?;
        let header = tandem_chain::decode_header(&rlp);
        let header = header.map_err(|error| storage::Error::Store(error.to_string()))?;
        let points = self.spec.fork_points();
        Ok(ChainStatus {
            network: self.spec.chain_id(),
            genesis: self.genesis.hash,
            genesis_time: self.spec.genesis_header(B256::ZERO).timestamp,
            block_forks: points.blocks,
            time_forks: points.times,
            latest_time: header.timestamp,
            range: tandem_peer_sessions::BlockRange {
                earliest: checkpoint.oldest_block.min(head.number),
                latest: head.number,
                latest_hash: head.hash,
            },
        })
    }
}

/// Blocks of the canonical chain, for peers.
struct StoredBlocks(Arc<dyn StorageApi>);

impl StoredBlocks {
    /// Returns a block of the canonical chain. Others are not for peers: their state root may be
    /// unchecked.
    fn canonical(
        &self,
        hash: B256,
        read: impl FnOnce(BlockRef) -> storage::Result<Option<BlockRecord>>,
    ) -> Option<BlockRecord> {
        let number = known(self.0.header(BlockRef::Hash(hash)))?.0.number;
        known(read(BlockRef::Number(number))).filter(|record| record.id.hash == hash)
    }
}

impl BlockSource for StoredBlocks {
    fn number(&self, hash: B256) -> Option<u64> {
        let number = known(self.0.header(BlockRef::Hash(hash)))?.0.number;
        let canonical = known(self.0.header(BlockRef::Number(number)))?.0;
        (canonical.hash == hash).then_some(number)
    }

    fn headers(&self, numbers: &[u64]) -> Vec<Bytes> {
        let read = |number: &u64| known(self.0.header(BlockRef::Number(*number)));
        numbers.iter().map_while(read).map(|(_, header)| header).collect()
    }

    fn body(&self, hash: B256) -> Option<Bytes> {
        let record = self.canonical(hash, |block| self.0.block_without_receipts(block))?;
        Some(record.body)
    }

    fn receipts(&self, hash: B256) -> Option<Bytes> {
        let record = self.canonical(hash, |block| self.0.block(block))?;
        let receipts = network_receipts(&record.receipts);
        receipts.inspect_err(|error| warn!(%hash, %error, "receipts cannot be read")).ok()
    }

    fn access_list(&self, hash: B256) -> Option<Bytes> {
        self.number(hash)?;
        known(self.0.access_list(BlockRef::Hash(hash)))
    }

    fn state_items(&self, request: &StateRequest) -> StateItems {
        known(self.0.state_items(request).map(Some)).unwrap_or(StateItems::none(request))
    }
}

/// Returns what storage-writer has. A failed read is an absent block to a peer.
fn known<T>(read: storage::Result<Option<T>>) -> Option<T> {
    read.unwrap_or_else(|error| {
        debug!(%error, "a peer's request cannot be read");
        None
    })
}
