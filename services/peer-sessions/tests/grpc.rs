//! Sessions over gRPC, as sync in another process sees them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Blocks, Node, PATIENCE, ToNode, Wire, config, items_of, key, state_requests, wait};
use std::{future::pending, net::SocketAddr, sync::Arc};
use tandem_peer_sessions::{Config, PeerAddress, grpc::Server};
use tandem_peer_sessions_client::{Client, ClientConfig};
use tandem_primitives::{B256, B512, Bytes};
use tandem_proto::{
    limits::SESSIONS_MESSAGE_BYTES_MAX,
    peer_sessions::{
        BlockRange, Direction, Error, Fetch, Fetched, Misconduct, PeerSessionsApi, Result, Session,
    },
    snap::StateRequest,
    storage::BlockRef,
    wire::peer_sessions::v1::{self, peer_sessions_client::PeerSessionsClient},
};
use tandem_rlpx::DisconnectReason;
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Endpoint};

/// Sessions that are offered at an address, on a runtime that can end as a process does.
struct Offered {
    address: SocketAddr,
    runtime: Runtime,
}

fn offer(node: &Node, address: SocketAddr) -> Offered {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
    let address = listener.local_addr().unwrap();
    // Calls are answered before the health says that the service does its work.
    let server = Server::new(node.sessions.clone());
    runtime.spawn(server.serve(listener, pending(), CancellationToken::new()));
    Offered { address, runtime }
}

impl Offered {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the server with all its connections; returns the address.
    fn end(self) -> SocketAddr {
        drop(self.runtime);
        self.address
    }
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn connect(runtime: &Runtime, url: &str) -> Arc<Client> {
    // The waits are long, so that a busy machine does not fail the test.
    let patience = PATIENCE.as_millis() as u64;
    let config = ClientConfig { answer_ms_max: patience, fetch_ms_max: patience, ..<_>::default() };
    let client = Client::connect(url, config, runtime.handle()).unwrap();
    wait("a connection", || client.is_connected().then_some(()));
    client
}

fn all_of(blocks: &Blocks) -> Vec<(Fetch, Fetched)> {
    let numbers = [3, 5, 8];
    let hashes: Vec<_> = numbers.map(|number| blocks.hash(number)).to_vec();
    let items = |of: &[Bytes]| numbers.map(|number| of[number].clone()).to_vec();
    let lists = numbers.map(|number| blocks.lists[number].clone()).to_vec();
    let (start, limit) = (BlockRef::Hash(blocks.hash(90)), 3);
    let headers = [90, 88, 86].map(|number| blocks.headers[number].clone()).to_vec();
    let mut all = vec![
        (Fetch::Headers { start, limit, skip: 1, reverse: true }, Fetched::Headers(headers)),
        (Fetch::Bodies(hashes.clone()), Fetched::Bodies(items(&blocks.bodies))),
        (
            Fetch::Receipts { first: 0, hashes: hashes.clone() },
            Fetched::Receipts { incomplete: false, blocks: items(&blocks.receipts) },
        ),
        (Fetch::AccessLists(hashes), Fetched::AccessLists(lists)),
    ];
    let state =
        |request: StateRequest| (Fetch::State(request.clone()), Fetched::State(items_of(&request)));
    all.extend(state_requests().into_iter().map(state));
    all
}

#[test]
fn every_call_is_answered_as_by_the_sessions_themselves() {
    let runtime = Runtime::new().unwrap();
    let blocks = Arc::new(Blocks::made_up(1, 100));
    let a = Node::start(config(), key(1), blocks.clone(), 7);
    let b = Node::start(config(), key(2), blocks.clone(), 7);
    let offered = offer(&b, anywhere());
    let client = connect(&runtime, &offered.url());
    assert_eq!(runtime.block_on(client.sessions()), Ok(Vec::new()));

    b.sessions.dial(PeerAddress { id: *a.key.public(), address: a.address() });
    b.sessions(1);
    let id = *a.key.public();
    let expected = Session {
        id,
        client: "tandem/test".to_owned(),
        address: a.address(),
        direction: Direction::Outbound,
        eth_version: 72,
        snap_version: Some(2),
        range: BlockRange { earliest: 0, latest: 99, latest_hash: blocks.hash(99) },
    };
    assert_eq!(runtime.block_on(client.sessions()), Ok(vec![expected]));
    for (fetch, fetched) in all_of(&blocks) {
        assert_eq!(runtime.block_on(client.fetch(id, fetch)), Ok(fetched));
    }
    let bodies = Fetch::Bodies(vec![B256::ZERO]);
    assert_eq!(runtime.block_on(client.fetch(B512::ZERO, bodies.clone())), Err(Error::Gone));
    for items in [0, 1025] {
        let fetch = Fetch::Bodies(vec![B256::ZERO; items]);
        let refused = Err(Error::Refused(format!("{items} items; expected 1 to 1024")));
        assert_eq!(runtime.block_on(b.sessions.fetch(id, fetch.clone())), refused);
        assert_eq!(runtime.block_on(client.fetch(id, fetch)), refused);
    }

    assert_eq!(runtime.block_on(client.report(id, Misconduct::Useless)), Ok(()));
    b.sessions(0);
    assert_eq!(runtime.block_on(client.fetch(id, bodies)), Err(Error::Gone));
    assert_eq!(runtime.block_on(client.report(id, Misconduct::Useless)), Ok(()));
    offered.end();
}

#[test]
fn a_peer_is_told_of_the_reported_misconduct_and_slow_ones_lose_their_session() {
    let runtime = Runtime::new().unwrap();
    let blocks = Arc::new(Blocks::made_up(1, 100));
    let settings = Config { request_ms: 300, requests_max: 1, ..config() };
    let node = Node::start(settings, key(1), blocks, 7);
    let offered = offer(&node, anywhere());
    let client = connect(&runtime, &offered.url());

    let mut liar = Wire::established(&node, key(3));
    node.sessions(1);
    let id = *liar.key.public();
    runtime.block_on(client.report(id, Misconduct::Invalid)).unwrap();
    assert_eq!(liar.reason(), Some(DisconnectReason::Protocol));
    node.sessions(0);

    let mut silent = Wire::established(&node, key(4));
    node.sessions(1);
    let (id, bodies) = (*silent.key.public(), Fetch::Bodies(vec![B256::ZERO]));
    assert_eq!(runtime.block_on(client.fetch(id, bodies)), Err(Error::Timeout));
    assert_eq!(silent.reason(), Some(DisconnectReason::Timeout));
    node.sessions(0);
    offered.end();
}

#[test]
fn without_a_connection_calls_fail_at_once_until_there_is_the_next() {
    let runtime = Runtime::new().unwrap();
    let blocks = Arc::new(Blocks::made_up(1, 100));
    let node = Node::start(config(), key(1), blocks, 7);
    let offered = offer(&node, anywhere());
    let client = connect(&runtime, &offered.url());
    assert_eq!(runtime.block_on(client.sessions()), Ok(Vec::new()));
    let mut silent = Wire::established(&node, key(4));
    node.sessions(1);
    let id = *silent.key.public();
    // The server ends while a peer is asked.
    let asked = runtime.spawn(client.fetch(id, Fetch::Bodies(vec![B256::ZERO])));
    silent.receive_request();
    let address = offered.end();
    let lost: Result<Fetched> = runtime.block_on(asked).unwrap();
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");

    wait("the loss", || (!client.is_connected()).then_some(()));
    let gone = Error::Unavailable("no connection to it".to_owned());
    assert_eq!(gone.to_string(), "peer-sessions is not available: no connection to it");
    assert_eq!(runtime.block_on(client.sessions()), Err(gone.clone()));
    let bodies = Fetch::Bodies(vec![B256::ZERO]);
    assert_eq!(runtime.block_on(client.fetch(id, bodies)), Err(gone.clone()));
    assert_eq!(runtime.block_on(client.report(id, Misconduct::Slow)), Err(gone));

    let offered = offer(&node, address);
    wait("a connection", || client.is_connected().then_some(()));
    assert_eq!(runtime.block_on(client.sessions()).unwrap().len(), 1);
    offered.end();
}

#[test]
fn malformed_and_oversized_requests_are_refused_with_a_reason() {
    let runtime = Runtime::new().unwrap();
    let node = Node::start(config(), key(1), Arc::new(Blocks::made_up(1, 2)), 7);
    let offered = offer(&node, anywhere());
    runtime.block_on(async {
        use v1::fetch_request::{Headers, What};
        let to = Endpoint::from_shared(offered.url()).unwrap();
        let mut calls = PeerSessionsClient::connect(to).await.unwrap();
        let peer = Bytes::from(vec![1; 64]).0;
        let headers =
            |limit| What::Headers(Headers { start: None, limit, skip: 0, reverse: false });
        for (peer, what, reason) in [
            (peer.slice(1..), None, "fetch.peer: expected 64 bytes, got 63"),
            (peer.clone(), None, "fetch.what: is missing"),
            (peer.clone(), Some(headers(1)), "fetch.headers.start: is missing"),
            (
                peer.clone(),
                Some(What::Bodies(vec![0; 31].into())),
                "fetch.bodies: 31 bytes are not a multiple of 32",
            ),
        ] {
            let status = calls.fetch(v1::FetchRequest { peer, what }).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, reason));
        }
        let request = v1::ReportRequest { peer: peer.clone(), misconduct: 4 };
        let status = calls.report(request).await.unwrap_err();
        let reason = "report.misconduct: 4 is not in 1..=3";
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, reason));
        let what = Some(What::Bodies(vec![0; SESSIONS_MESSAGE_BYTES_MAX].into()));
        let status = calls.fetch(v1::FetchRequest { peer, what }).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    });
    offered.end();
}
