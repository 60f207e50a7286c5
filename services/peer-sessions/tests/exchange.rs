//! Transactions between peers and a pool in another process.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Blocks, Node, PATIENCE, key, wait};
use std::{
    collections::HashMap,
    future::pending,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tandem_peer_sessions::{
    PeerAddress,
    grpc::{RemotePool, Server},
};
use tandem_peer_sessions_client::{Client, ClientConfig, Exchange};
use tandem_primitives::{B256, Bytes};
use tandem_proto::{
    blob_validator::{CELL_BYTES, CellSet},
    peer_sessions::{
        AnnouncedBlobs, Announcement, Error, Found, Gossip, Misconduct, Part, PeerId,
        TransactionCells, TransactionExchange, TransactionPeer, Wanted,
    },
    wire::peer_sessions::v1::{self, peer_sessions_client::PeerSessionsClient},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

/// Pool that remembers what it hears, and has some transactions.
#[derive(Default)]
struct Pool {
    has: HashMap<B256, Bytes>,
    peers: Mutex<HashMap<PeerId, Arc<dyn TransactionPeer>>>,
    heard: Mutex<Vec<Gossip>>,
}

impl Pool {
    fn with(hash: B256, raw: &Bytes) -> Arc<Self> {
        Arc::new(Self { has: [(hash, raw.clone())].into(), ..Self::default() })
    }

    fn peer(&self) -> Arc<dyn TransactionPeer> {
        wait("a session", || self.peers.lock().unwrap().values().next().cloned())
    }

    fn is_alone(&self) -> bool {
        self.peers.lock().unwrap().is_empty()
    }

    fn hears(&self, gossip: &Gossip) {
        wait("news", || self.heard.lock().unwrap().contains(gossip).then_some(()));
    }
}

impl TransactionExchange for Pool {
    fn joined(&self, peer: Arc<dyn TransactionPeer>) {
        self.peers.lock().unwrap().insert(peer.id(), peer);
    }

    fn left(&self, peer: &PeerId) {
        self.peers.lock().unwrap().remove(peer);
    }

    fn announced(&self, peer: &PeerId, announcements: Vec<Announcement>) {
        assert!(self.peers.lock().unwrap().contains_key(peer));
        self.heard.lock().unwrap().push(Gossip::Announcements(announcements));
    }

    fn received(&self, peer: &PeerId, transactions: Vec<Bytes>) {
        assert!(self.peers.lock().unwrap().contains_key(peer));
        self.heard.lock().unwrap().push(Gossip::Transactions(transactions));
    }

    fn pooled(&self, wanted: &Wanted, _: usize) -> Found {
        let all = wanted.hashes.iter().filter(|hash| self.has.contains_key(*hash));
        match wanted.part {
            Part::Cells(cells) => {
                let cell = |index| Bytes::from(vec![index as u8; CELL_BYTES]);
                let cells: Vec<_> = cells.iter().map(cell).collect();
                let of_one = |hash: &B256| TransactionCells { hash: *hash, cells: cells.clone() };
                Found::Cells(all.map(of_one).collect())
            }
            // The sessions here have eth/72.
            part => {
                assert_eq!(part, Part::WithoutBlobs);
                Found::Transactions(all.map(|hash| self.has[hash].clone()).collect())
            }
        }
    }
}

/// Node whose pool is elsewhere, and the address at which it is offered.
struct Apart {
    node: Node,
    pool: Arc<RemotePool>,
}

impl Apart {
    fn start(blocks: &Arc<Blocks>) -> Self {
        let pool = Arc::<RemotePool>::default();
        Self { node: Node::exchanging(key(1), blocks.clone(), pool.clone()), pool }
    }

    fn offer(&self, address: SocketAddr) -> (SocketAddr, Runtime) {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::new(self.node.sessions.clone()).exchanging(self.pool.clone());
        runtime.spawn(server.serve(listener, pending(), CancellationToken::new()));
        (address, runtime)
    }
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn attach(runtime: &Runtime, address: SocketAddr, pool: Arc<Pool>) -> (Arc<Client>, Exchange) {
    let settings = ClientConfig { answer_ms_max: PATIENCE.as_millis() as u64, ..<_>::default() };
    let client = Client::connect(&format!("http://{address}"), settings, runtime.handle()).unwrap();
    let exchange = client.exchange(pool, runtime.handle());
    (client, exchange)
}

fn raw(index: u8) -> Bytes {
    Bytes::from(vec![2, index, index])
}

fn news(index: u8) -> [Gossip; 2] {
    let (hash, blobs) = (B256::repeat_byte(index), AnnouncedBlobs::Inside(131_000));
    let announcement = Announcement { kind: 3, bytes: 131_072, hash, blobs };
    [Gossip::Transactions(vec![raw(index), raw(9)]), Gossip::Announcements(vec![announcement])]
}

/// Returns news as they arrive: announced blobs are apart, and all their cells there.
fn arrived(gossip: Gossip) -> Gossip {
    let Gossip::Announcements(mut all) = gossip else { return gossip };
    for it in &mut all {
        (it.bytes, it.blobs) = (72, AnnouncedBlobs::Apart(CellSet::ALL));
    }
    Gossip::Announcements(all)
}

fn asks(hashes: Vec<B256>) -> Wanted {
    Wanted { hashes, part: Part::WithBlobs }
}

fn found(all: &[Bytes]) -> Result<Found, Error> {
    Ok(Found::Transactions(all.to_vec()))
}

#[test]
fn a_pool_elsewhere_meets_peers_as_one_in_the_process_does() {
    let runtime = Runtime::new().unwrap();
    let blocks = Arc::new(Blocks::made_up(1, 10));
    let apart = Apart::start(&blocks);
    let (here, there) = (B256::repeat_byte(0xaa), B256::repeat_byte(0xbb));
    let local = Pool::with(here, &raw(1));
    let other = Node::exchanging(key(2), blocks, local.clone());
    let address = PeerAddress { id: *apart.node.key.public(), address: apart.node.address() };
    other.sessions.dial(address);
    other.sessions(1);
    // Without a pool, the peer is heard and gets nothing.
    assert_eq!(runtime.block_on(local.peer().request(asks(vec![there]))), found(&[]));

    let (at, offered) = apart.offer(anywhere());
    let remote = Pool::with(there, &raw(2));
    let (_client, exchange) = attach(&runtime, at, remote.clone());
    // The session is older than the exchange.
    assert_eq!(remote.peer().id(), *other.key.public());
    for gossip in news(3) {
        remote.peer().send(gossip.clone()).unwrap();
        local.hears(&arrived(gossip));
    }
    for gossip in news(4) {
        local.peer().send(gossip.clone()).unwrap();
        remote.hears(&arrived(gossip));
    }
    let both = vec![here, there];
    assert_eq!(runtime.block_on(remote.peer().request(asks(both.clone()))), found(&[raw(1)]));
    assert_eq!(runtime.block_on(local.peer().request(asks(both.clone()))), found(&[raw(2)]));
    let mut two = CellSet::default();
    (two.0[0], two.0[15]) = (2, 128);
    for (asker, has) in [(&remote, here), (&local, there)] {
        let wanted = Wanted { hashes: both.clone(), part: Part::Cells(two) };
        let cells = [1, 127].map(|index| Bytes::from(vec![index; CELL_BYTES])).to_vec();
        let of_one = Found::Cells(vec![TransactionCells { hash: has, cells }]);
        assert_eq!(runtime.block_on(asker.peer().request(wanted)), Ok(of_one));
    }
    for items in [0, 257] {
        let refused = Error::Refused(format!("{items} items; expected 1 to 256"));
        let asked = remote.peer().request(asks(vec![here; items]));
        assert_eq!(runtime.block_on(asked), Err(refused));
    }

    // A lost connection ends all sessions for the pool, and the next one brings them back.
    let before = remote.peer();
    offered.shutdown_background();
    wait("the loss", || remote.is_alone().then_some(()));
    assert_eq!(before.send(news(5)[0].clone()), Err(Error::Gone));
    assert_eq!(runtime.block_on(before.request(asks(vec![here]))), Err(Error::Gone));
    let (_, offered) = apart.offer(at);
    assert_eq!(runtime.block_on(remote.peer().request(asks(vec![here]))), found(&[raw(1)]));

    // Reported misconduct ends the session for both.
    remote.peer().report(Misconduct::Invalid);
    wait("the end", || (remote.is_alone() && local.is_alone()).then_some(()));
    drop(exchange);
    drop(offered);
}

#[test]
fn the_next_pool_replaces_the_one_before() {
    let runtime = Runtime::new().unwrap();
    let blocks = Arc::new(Blocks::made_up(1, 10));
    let apart = Apart::start(&blocks);
    let local = Arc::<Pool>::default();
    let other = Node::exchanging(key(2), blocks, local.clone());
    let (at, _offered) = apart.offer(anywhere());
    let (one, two) = (Arc::<Pool>::default(), Arc::<Pool>::default());
    let (_client, first) = attach(&runtime, at, one.clone());
    let address = PeerAddress { id: *apart.node.key.public(), address: apart.node.address() };
    other.sessions.dial(address);
    one.peer();
    // The first one gives up, or it would take the peers back.
    drop(first);
    wait("the end of the first", || one.is_alone().then_some(()));
    let (_client, _second) = attach(&runtime, at, two.clone());
    two.peer();
    for gossip in news(1) {
        local.peer().send(gossip.clone()).unwrap();
        two.hears(&arrived(gossip));
    }
    assert!(one.heard.lock().unwrap().is_empty());
}

#[test]
fn a_malformed_message_ends_the_stream() {
    let runtime = Runtime::new().unwrap();
    let apart = Apart::start(&Arc::new(Blocks::made_up(1, 10)));
    let (at, _offered) = apart.offer(anywhere());
    runtime.block_on(async {
        let to = Endpoint::from_shared(format!("http://{at}")).unwrap();
        let mut calls = PeerSessionsClient::connect(to).await.unwrap();
        let empty = v1::ExchangeTransactionsRequest::default();
        let answer = calls.exchange_transactions(tokio_stream::iter([empty])).await.unwrap();
        let end = answer.into_inner().message().await;
        assert!(matches!(end, Ok(None)), "{end:?}");
    });
}
