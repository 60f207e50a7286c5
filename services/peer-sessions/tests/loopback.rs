//! Sessions between two services of this crate.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Blocks, Node, block_on, config, items_of, key, state_requests, wait};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};
use tandem_eth_wire::eth::Version;
use tandem_peer_sessions::{Config, Peer, PeerAddress};
use tandem_primitives::{B256, Bytes};
use tandem_proto::{
    event::{Contact, ContactEvent},
    peer_sessions::{Direction, Error, Fetch, Fetched},
    peer_table::{PeerTableApi, Result, Stats},
    storage::BlockRef,
};

fn blocks() -> Arc<Blocks> {
    Arc::new(Blocks::made_up(1, 100))
}

fn address(node: &Node) -> PeerAddress {
    PeerAddress { id: *node.key.public(), address: node.address() }
}

fn check_requests(peer: &Peer, blocks: &Blocks) {
    let ask = |request| block_on(peer.fetch(request));
    let request =
        Fetch::Headers { start: BlockRef::Number(90), limit: 50, skip: 0, reverse: false };
    let headers = blocks.headers[90..].to_vec();
    assert_eq!(ask(request), Ok(Fetched::Headers(headers)));
    let hashes: Vec<_> = [3, 5, 8].map(|number| blocks.hash(number)).to_vec();
    let bodies = [3, 5, 8].map(|number| blocks.bodies[number].clone()).to_vec();
    assert_eq!(ask(Fetch::Bodies(hashes.clone())), Ok(Fetched::Bodies(bodies)));
    let receipts = [3, 5, 8].map(|number| blocks.receipts[number].clone()).to_vec();
    let request = Fetch::Receipts { first: 0, hashes: hashes.clone() };
    assert_eq!(ask(request), Ok(Fetched::Receipts { incomplete: false, blocks: receipts }));
    let lists = [3, 5, 8].map(|number| blocks.lists[number].clone()).to_vec();
    assert_eq!(ask(Fetch::AccessLists(hashes)), Ok(Fetched::AccessLists(lists)));
    for request in state_requests() {
        let items = items_of(&request);
        assert_eq!(ask(Fetch::State(request)), Ok(Fetched::State(items)));
    }
    let request = Fetch::Bodies(vec![B256::ZERO; 1025]);
    let refused = Error::Refused("1025 items; expected 1 to 1024".to_owned());
    assert_eq!(ask(request), Err(refused));
}

#[test]
fn two_nodes_hold_one_session_and_answer_each_other() {
    let blocks = blocks();
    let a = Node::start(config(), key(1), blocks.clone(), 7);
    let b = Node::start(config(), key(2), blocks.clone(), 7);
    b.sessions.dial(address(&a));
    let (at_a, at_b) = (a.peer(), b.peer());
    assert_eq!(at_a.info().direction, Direction::Inbound);
    assert_eq!(at_b.info().direction, Direction::Outbound);
    assert_eq!((at_a.info().id, at_b.info().id), (*b.key.public(), *a.key.public()));
    assert_eq!((at_b.info().version, at_b.info().client.as_str()), (Version::Eth72, "tandem/test"));
    assert_eq!(at_b.range().latest, 99);
    check_requests(&at_b, &blocks);
    check_requests(&at_a, &blocks);
    // The other direction finds the session that is there.
    a.sessions.dial(address(&b));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!((a.sessions.peers().len(), b.sessions.peers().len()), (1, 1));
    drop(a);
    b.sessions(0);
    assert_eq!(block_on(at_b.fetch(Fetch::Bodies(vec![B256::ZERO]))), Err(Error::Gone));
}

#[test]
fn nodes_that_dial_each_other_at_once_keep_one_session() {
    for round in 0..5 {
        // No second attempt would come in time.
        let settings = Config { redial_secs: 3600, dial_ms: 10, ..config() };
        let a = Node::start(settings.clone(), key(10 + round), blocks(), 7);
        let b = Node::start(settings, key(20 - round), blocks(), 7);
        a.sessions.dial(address(&b));
        b.sessions.dial(address(&a));
        let peer = b.peer();
        a.sessions(1);
        check_requests(&peer, &blocks());
        assert_eq!((a.sessions.peers().len(), b.sessions.peers().len()), (1, 1));
    }
}

#[test]
fn a_peer_that_comes_back_is_dialled_again() {
    let a = Node::start(config(), key(1), blocks(), 7);
    let b = Node::start(config(), key(2), blocks(), 7);
    let peer = address(&a);
    b.sessions.dial(peer);
    b.sessions(1);
    drop(a);
    b.sessions(0);
    let again = Config { listen: peer.address, ..config() };
    let a = Node::start(again, key(1), blocks(), 7);
    b.sessions(1);
    a.sessions(1);
}

#[test]
fn a_new_head_reaches_peers() {
    let settings = Config { range_update_secs: 1, ..config() };
    let a = Node::start(settings, key(1), blocks(), 7);
    let b = Node::start(config(), key(2), blocks(), 7);
    b.sessions.dial(address(&a));
    let peer = b.peer();
    a.chain.send_modify(|chain| chain.range.latest = 1234);
    wait("the new range", || (peer.range().latest == 1234).then_some(()));
}

#[test]
fn many_requests_at_once_are_answered_or_refused() {
    let blocks = blocks();
    let a = Node::start(config(), key(1), blocks.clone(), 7);
    let b = Node::start(config(), key(2), blocks.clone(), 7);
    b.sessions.dial(address(&a));
    let peer = b.peer();
    let hash = blocks.hash(4);
    let answers = block_on(async {
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let peer = peer.clone();
            asking.spawn(async move { peer.fetch(Fetch::Bodies(vec![hash])).await });
        }
        asking.join_all().await
    });
    let body = Ok(Fetched::Bodies(vec![blocks.bodies[4].clone()]));
    let answered = answers.iter().filter(|answer| **answer == body).count();
    let refused = answers.iter().filter(|it| **it == Err(Error::Busy)).count();
    assert!(answered >= 8, "{answered}");
    assert_eq!(answered + refused, 200);
    assert_eq!(b.sessions.peers().len(), 1);
}

/// A second message of the answers' size would have to wait for a minute.
#[test]
fn answers_arrive_faster_than_a_peer_may_send_of_its_own_accord() {
    let mut blocks = Blocks::made_up(1, 10);
    let body = Bytes::from(alloy_rlp::encode(vec![0_u8; 1 << 20]));
    blocks.push(Bytes::from_static(&[0xc1, 1]), body.clone(), Bytes::from_static(&[0xc0]), None);
    let (hash, blocks) = (blocks.hash(10), Arc::new(blocks));
    let settings = Config { messages_per_second_max: 1, request_ms: 10_000, ..config() };
    let a = Node::start(config(), key(1), blocks.clone(), 7);
    let b = Node::start(settings, key(2), blocks, 7);
    b.sessions.dial(address(&a));
    let peer = b.peer();
    for _ in 0..10 {
        let answer = block_on(peer.fetch(Fetch::Bodies(vec![hash])));
        assert_eq!(answer, Ok(Fetched::Bodies(vec![body.clone()])));
    }
}

/// peer-table that knows one node.
struct Table {
    connected: AtomicU32,
    node: Mutex<Option<(PeerAddress, SocketAddr)>>,
}

impl PeerTableApi for Table {
    fn apply_batch(&self, _contacts: Vec<Contact>) -> Result<()> {
        Ok(())
    }

    fn sample_for_lookup(&self) -> Result<Option<Contact>> {
        Ok(None)
    }

    fn sample_for_enr(&self) -> Result<Option<Contact>> {
        Ok(None)
    }

    fn closest(&self, _target: B256, _count: usize) -> Result<Vec<Contact>> {
        let contact = |(peer, _): (PeerAddress, SocketAddr)| Contact {
            id: peer.id,
            ip: peer.address.ip(),
            udp_port: 1,
            tcp_port: peer.address.port(),
            enr_seq: None,
            enr: None,
            event: ContactEvent::Answered,
        };
        Ok(self.node.lock().unwrap().map(contact).into_iter().collect())
    }

    fn stats(&self) -> Result<Stats> {
        Ok(Stats::default())
    }

    fn set_connected(&self, count: u32) -> Result<()> {
        self.connected.store(count, SeqCst);
        Ok(())
    }
}

#[test]
fn candidates_of_peer_table_become_sessions_that_it_hears_of() {
    let a = Node::start(config(), key(1), blocks(), 7);
    let node = Mutex::new(Some((address(&a), a.address())));
    let table = Arc::new(Table { connected: AtomicU32::new(99), node });
    let b = Node::start_with(config(), key(2), blocks(), 7, Some(table.clone()));
    let connected = |count| {
        let same = || (table.connected.load(SeqCst) == count).then_some(());
        wait("a report", same);
    };
    connected(1);
    b.sessions(1);
    drop(a);
    connected(0);
    let a = Node::start(config(), key(3), blocks(), 7);
    a.sessions.dial(address(&b));
    connected(1);
    drop(b);
    assert_eq!(table.connected.load(SeqCst), 0, "no session outlives the service");
}
