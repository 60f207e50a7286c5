//! Chains in memory, services over them, and a peer that can be told to misbehave.

#![allow(dead_code, reason = "not every test uses all of it")]

use alloy_primitives::{B256, Bytes, keccak256};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tandem_discv4::{ForkId, NodeKey, fork_id};
use tandem_eth_wire::eth::{self, BlockRange, Status};
use tandem_peer_sessions::{BlockSource, ChainStatus, Config, Deps, Peer, PeerSessions};
use tandem_proto::{
    peer_sessions::TransactionExchange,
    peer_table::PeerTableApi,
    snap::{Leaf, StateItems, StateRequest},
};
use tandem_rlpx::{Message, PING, PONG};
pub use tandem_testkit::wire::Wire;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Time after which a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is there.
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Chain in memory.
#[derive(Default)]
pub struct Blocks {
    pub headers: Vec<Bytes>,
    pub numbers: HashMap<B256, u64>,
    pub bodies: Vec<Bytes>,
    pub receipts: Vec<Bytes>,
    pub lists: Vec<Option<Bytes>>,
    /// Number of bodies that have been read.
    pub bodies_read: AtomicU64,
}

impl Blocks {
    /// Makes a chain of items that only look like blocks.
    pub fn made_up(seed: u8, length: u64) -> Self {
        let mut blocks = Self::default();
        for number in 0..length {
            let item =
                |kind: u8| Bytes::from(alloy_rlp::encode(vec![seed.into(), number, kind.into()]));
            let list = (number % 2 == 0).then(|| item(3));
            blocks.push(item(0), item(1), item(2), list);
        }
        blocks
    }

    pub fn push(&mut self, header: Bytes, body: Bytes, receipts: Bytes, list: Option<Bytes>) {
        self.numbers.insert(keccak256(&header), self.headers.len() as u64);
        self.headers.push(header);
        self.bodies.push(body);
        self.receipts.push(receipts);
        self.lists.push(list);
    }

    pub fn hash(&self, number: usize) -> B256 {
        keccak256(&self.headers[number])
    }

    /// Returns the state of the chain, without forks.
    pub fn status(&self, network: u64) -> ChainStatus {
        let latest = self.headers.len() - 1;
        ChainStatus {
            network,
            genesis: self.hash(0),
            genesis_time: 0,
            block_forks: Vec::new(),
            time_forks: Vec::new(),
            latest_time: 1,
            range: BlockRange {
                earliest: 0,
                latest: latest as u64,
                latest_hash: self.hash(latest),
            },
        }
    }

    fn index(&self, hash: B256) -> Option<usize> {
        self.numbers.get(&hash).map(|number| *number as usize)
    }
}

impl BlockSource for Blocks {
    fn number(&self, hash: B256) -> Option<u64> {
        self.numbers.get(&hash).copied()
    }

    fn headers(&self, numbers: &[u64]) -> Vec<Bytes> {
        numbers.iter().map_while(|number| self.headers.get(*number as usize).cloned()).collect()
    }

    fn body(&self, hash: B256) -> Option<Bytes> {
        self.bodies_read.fetch_add(1, Ordering::SeqCst);
        self.index(hash).map(|index| self.bodies[index].clone())
    }

    fn receipts(&self, hash: B256) -> Option<Bytes> {
        self.index(hash).map(|index| self.receipts[index].clone())
    }

    fn access_list(&self, hash: B256) -> Option<Bytes> {
        self.lists[self.index(hash)?].clone()
    }

    fn state_items(&self, request: &StateRequest) -> StateItems {
        items_of(request)
    }
}

/// Returns an answer that depends on all of the request, and is no real part of a state.
pub fn items_of(request: &StateRequest) -> StateItems {
    let seed = keccak256(format!("{request:?}"));
    let item =
        |number: u8| Bytes::copy_from_slice(keccak256([&seed[..], &[number]].concat()).as_slice());
    let account = |code: B256| {
        let fields = [
            Bytes::from_static(&[3]),
            Bytes::new(),
            item(0),
            Bytes::copy_from_slice(code.as_slice()),
        ];
        Bytes::from(alloy_rlp::encode(fields.to_vec()))
    };
    let proof = vec![item(1), item(2)];
    let leaf = |key, value| Leaf { key, value };
    match request {
        StateRequest::Accounts { start, .. } => {
            let no_code = keccak256([]);
            let leaves = vec![leaf(*start, account(no_code)), leaf(seed, account(seed))];
            StateItems::Accounts { leaves, proof }
        }
        StateRequest::Slots { accounts, start, .. } => {
            let tries = accounts.iter().map(|key| vec![leaf(*start, item(3)), leaf(*key, item(4))]);
            StateItems::Slots { tries: tries.collect(), proof }
        }
        StateRequest::Codes { hashes, .. } => {
            StateItems::Codes((5..).map(item).take(hashes.len()).collect())
        }
        StateRequest::Nodes { paths, .. } => {
            let count = paths.iter().map(|set| set.paths.len()).sum();
            StateItems::Nodes((5..).map(item).take(count).collect())
        }
    }
}

/// Returns a request of each kind that both versions of snap have.
pub fn state_requests() -> Vec<StateRequest> {
    let (root, bytes) = (B256::repeat_byte(1), 70_000);
    let [first, second] = [2, 3].map(B256::repeat_byte);
    let (start, limit) = (B256::repeat_byte(4), B256::repeat_byte(0xf0));
    let accounts = vec![first, second];
    vec![
        StateRequest::Accounts { root, start, limit, bytes },
        StateRequest::Accounts { root, start: B256::ZERO, limit: B256::repeat_byte(0xff), bytes },
        StateRequest::Slots { root, accounts: accounts.clone(), start, limit, bytes },
        StateRequest::Slots {
            root,
            accounts: accounts.clone(),
            start: B256::ZERO,
            limit: B256::repeat_byte(0xff),
            bytes,
        },
        StateRequest::Codes { hashes: accounts, bytes },
    ]
}

pub fn key(byte: u8) -> NodeKey {
    NodeKey::from_bytes([byte; 32]).unwrap()
}

/// Settings of a service on a port of its own.
pub fn config() -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        // One key may misbehave more than once.
        ban_secs: 0,
        redial_secs: 1,
        dial_ms: 50,
        ..Config::default()
    }
}

/// Running service with its chain.
pub struct Node {
    pub sessions: Arc<PeerSessions>,
    pub chain: watch::Sender<ChainStatus>,
    pub key: NodeKey,
    pub fatal: CancellationToken,
}

/// Table of peers and pool of a node, if it has them.
type Beside = (Option<Arc<dyn PeerTableApi>>, Option<Arc<dyn TransactionExchange>>);

impl Node {
    pub fn start(config: Config, key: NodeKey, blocks: Arc<Blocks>, network: u64) -> Self {
        Self::start_with(config, key, blocks, network, None)
    }

    pub fn start_with(
        config: Config,
        key: NodeKey,
        blocks: Arc<Blocks>,
        network: u64,
        table: Option<Arc<dyn PeerTableApi>>,
    ) -> Self {
        Self::start_of(config, key, blocks, network, (table, None))
    }

    /// Starts a node that exchanges transactions with this pool.
    pub fn exchanging(
        key: NodeKey,
        blocks: Arc<Blocks>,
        pool: Arc<dyn TransactionExchange>,
    ) -> Self {
        Self::start_of(config(), key, blocks, 7, (None, Some(pool)))
    }

    fn start_of(
        config: Config,
        key: NodeKey,
        blocks: Arc<Blocks>,
        network: u64,
        (table, transactions): Beside,
    ) -> Self {
        let (chain, receiver) = watch::channel(blocks.status(network));
        let fatal = CancellationToken::new();
        let deps = Deps {
            key: key.clone(),
            client: "tandem/test".to_owned(),
            chain: receiver,
            source: blocks,
            transactions,
            table,
            fatal: fatal.clone(),
        };
        let sessions = PeerSessions::start(config, deps).unwrap();
        Self { sessions, chain, key, fatal }
    }

    pub fn address(&self) -> SocketAddr {
        self.sessions.address().unwrap()
    }

    pub fn peer(&self) -> Peer {
        wait("a session", || self.sessions.peers().pop())
    }

    pub fn sessions(&self, count: usize) {
        wait("sessions", || (self.sessions.peers().len() == count).then_some(()));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.sessions.stop();
        assert!(!self.fatal.is_cancelled(), "no thread of the service panicked");
    }
}

/// Waits for a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Connections of a peer to a node of these tests.
pub trait ToNode: Sized {
    /// Connects and exchanges Hello.
    fn greeted(to: &Node, key: NodeKey) -> Self;

    /// Connects and establishes a session.
    fn established(to: &Node, key: NodeKey) -> Self;

    /// Returns the Status that a node accepts.
    fn status(&self, node: &Node) -> Status;

    /// Reads until the node asks for bodies (message 5 of eth).
    fn receive_request(&mut self);
}

impl ToNode for Wire {
    fn greeted(to: &Node, key: NodeKey) -> Self {
        let mut wire = Self::connect(to.address(), *to.key.public(), key);
        wire.greet(&wire.hello());
        wire
    }

    fn established(to: &Node, key: NodeKey) -> Self {
        let mut wire = Self::greeted(to, key);
        let status = wire.status(to);
        wire.eth(&eth::Message::Status(status));
        assert_eq!(wire.receive().id, 16, "the node's Status");
        wire
    }

    fn status(&self, node: &Node) -> Status {
        let chain = node.chain.borrow().clone();
        let head = (chain.range.latest, chain.latest_time);
        let fork_id: ForkId = fork_id((chain.genesis, 0), &[], &[], head);
        let (network, genesis, range) = (chain.network, chain.genesis, chain.range);
        Status { version: 71, network, genesis, fork_id, range }
    }

    fn receive_request(&mut self) {
        loop {
            match self.receive() {
                Message { id: PING, .. } => self.send(PONG, &[0xc0]),
                Message { id, .. } if id == 16 + 5 => return,
                _ => {}
            }
        }
    }
}
