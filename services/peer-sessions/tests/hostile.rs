//! Peers that break the protocol, lie, flood or stay silent: each loses its session with the right
//! reason, and others are served meanwhile.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Blocks, Node, PATIENCE, ToNode, Wire, block_on, config, key};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_eth_wire::eth::{Announcement, BlockStart, HeadersRequest, Message};
use tandem_peer_sessions::Config;
use tandem_primitives::{B128, B256, Bytes};
use tandem_proto::peer_sessions::{Error, Fetch, Misconduct, PeerSessionsApi};
use tandem_rlpx::{
    Capability, DISCONNECT, DisconnectReason as Reason, HELLO, Initiator, PING, PONG,
    encode_disconnect,
};

fn node_with(config: Config) -> Node {
    Node::start(config, key(1), Arc::new(Blocks::made_up(1, 50)), 7)
}

fn node() -> Node {
    node_with(config())
}

/// Checks that an honest peer is served.
fn serves(node: &Node, own: u8) {
    let mut honest = Wire::established(node, key(own));
    honest.send(PING, &[0xc0]);
    loop {
        let message = honest.try_receive().expect("the session stays");
        if message.id == PONG {
            break;
        }
    }
}

#[test]
fn another_chain_ends_the_session_before_it_begins() {
    let node = node();
    let changes: [fn(&mut tandem_eth_wire::eth::Status); 4] = [
        |status| status.genesis = B256::repeat_byte(9),
        |status| status.network = 8,
        |status| status.fork_id.hash = [1, 2, 3, 4],
        |status| status.version = 70,
    ];
    for change in changes {
        let mut wire = Wire::greeted(&node, key(2));
        let mut status = wire.status(&node);
        change(&mut status);
        wire.eth(&Message::Status(status));
        assert_eq!(wire.reason(), Some(Reason::Subprotocol), "{status:?}");
    }
    assert!(node.sessions.peers().is_empty());
    serves(&node, 2);
}

#[test]
fn a_hello_that_does_not_fit_is_refused_with_its_reason() {
    let node = node();
    let send = |change: fn(&mut tandem_rlpx::Hello), own: u8| {
        let mut wire = Wire::connect(node.address(), *node.key.public(), key(own));
        let mut hello = wire.hello();
        change(&mut hello);
        wire.send(HELLO, &hello.encode());
        assert_eq!(wire.receive().id, HELLO);
        if hello.version >= 5 {
            wire.compress();
        }
        wire.reason()
    };
    let other = |hello: &mut tandem_rlpx::Hello| hello.id = *key(5).public();
    assert_eq!(send(|hello| hello.capabilities.clear(), 2), Some(Reason::Useless));
    let old = |hello: &mut tandem_rlpx::Hello| {
        hello.capabilities = vec![Capability { name: "eth".to_owned(), version: 68 }];
    };
    assert_eq!(send(old, 2), Some(Reason::Useless));
    assert_eq!(send(|hello| hello.version = 4, 2), Some(Reason::Version));
    assert_eq!(send(other, 2), Some(Reason::UnexpectedIdentity));
    assert_eq!(send(|_| {}, 1), Some(Reason::Own), "the node's own key");
    let _session = Wire::established(&node, key(3));
    assert_eq!(send(|_| {}, 3), Some(Reason::AlreadyConnected));
}

#[test]
fn a_full_node_says_so() {
    let node = node_with(Config { inbound_max: 1, ..config() });
    let first = Wire::established(&node, key(2));
    let mut second = Wire::greeted(&node, key(3));
    assert_eq!(second.reason(), Some(Reason::TooManyPeers));
    drop(first);
    node.sessions(0);
    serves(&node, 3);
}

#[test]
fn a_node_that_stops_says_goodbye() {
    let node = node();
    let mut wire = Wire::established(&node, key(2));
    node.sessions(1);
    drop(node);
    assert_eq!(wire.reason(), Some(Reason::Quitting));
}

#[test]
fn a_giant_frame_is_refused_before_its_body_is_there() {
    let node = node();
    let mut wire = Wire::established(&node, key(2));
    // Random bytes are not compressed.
    let mut content = vec![0; 5 << 20];
    rand::fill(&mut content[..]);
    let frame = wire.frame(18, &content);
    assert!(frame.len() > 2 << 20);
    wire.socket.write_all(&frame[..32]).unwrap();
    assert_eq!(wire.reason(), Some(Reason::Protocol));
    serves(&node, 3);
}

#[test]
fn a_snappy_bomb_is_refused() {
    let node = node();
    for bomb in [
        // 10 MiB, and 3.9 GB, of nothing.
        &[0x80, 0x80, 0x80, 0x05, 0, 0][..],
        &[0xff, 0xff, 0xff, 0xff, 0x0e, 0, 0],
        &[0xff; 12],
    ] {
        let mut wire = Wire::connect(node.address(), *node.key.public(), key(2));
        let hello = wire.hello();
        wire.send(HELLO, &hello.encode());
        assert_eq!(wire.receive().id, HELLO);
        // The bomb is sent as it is, where compressed content is expected.
        wire.compress();
        let frame = wire.frame_as_is(16, bomb);
        wire.socket.write_all(&frame).unwrap();
        assert_eq!(wire.reason(), Some(Reason::Protocol), "{bomb:?}");
    }
    // Zeros compress well: 2 MiB are in 100 KiB.
    let mut wire = Wire::established(&node, key(2));
    wire.send(18, &vec![0; 2 << 20]);
    assert_eq!(wire.reason(), Some(Reason::Protocol));
}

#[test]
fn messages_out_of_turn_end_the_session() {
    let node = node();
    let range = node.chain.borrow().range;
    let bad_range = tandem_eth_wire::eth::BlockRange { earliest: range.latest + 1, ..range };
    let status = Wire::greeted(&node, key(9)).status(&node);
    for message in [
        Message::Status(status),
        Message::BlockBodies { id: 1, bodies: Vec::new() },
        Message::PooledTransactions { id: 1, transactions: Vec::new() },
        Message::BlockRangeUpdate(bad_range),
        Message::BlockHeaders { id: 1, headers: vec![Bytes::from_static(&[0xc0]); 1025] },
    ] {
        let mut wire = Wire::established(&node, key(2));
        wire.eth(&message);
        assert_eq!(wire.reason(), Some(Reason::Protocol), "{}", message.number());
        node.sessions(0);
    }
    for (id, content) in [(17, &[0xc0][..]), (23, &[0xc0]), (36, &[0xc0]), (4, &[0xc0]), (19, &[1])]
    {
        let mut wire = Wire::established(&node, key(2));
        wire.send(id, content);
        assert_eq!(wire.reason(), Some(Reason::Protocol), "{id}");
        node.sessions(0);
    }
    // A request comes before the Status.
    let mut wire = Wire::greeted(&node, key(2));
    wire.eth(&Message::GetBlockBodies { id: 1, hashes: Vec::new() });
    assert_eq!(wire.reason(), Some(Reason::Protocol));
}

/// Clients differ in the content of pings and of their answers, which has no meaning.
#[test]
fn a_ping_or_pong_of_any_content_keeps_the_session() {
    let node = node();
    let mut wire = Wire::established(&node, key(2));
    for content in [&[0xc0][..], &[0x80], &[], &[0xc1, 7]] {
        wire.send(PONG, content);
        wire.send(PING, content);
        while wire.try_receive().expect("the session stays").id != PONG {}
    }
}

#[test]
fn a_damaged_frame_ends_the_session() {
    let node = node();
    let mut wire = Wire::established(&node, key(2));
    let mut frame = wire.frame(PING, &[0xc0]);
    frame[40] ^= 1;
    wire.socket.write_all(&frame).unwrap();
    assert_eq!(wire.reason(), Some(Reason::Protocol));
}

#[test]
fn a_peer_that_does_not_answer_loses_its_session() {
    let node = node_with(Config { request_ms: 300, ..config() });
    let mut wire = Wire::established(&node, key(2));
    let peer = node.peer();
    let request = Fetch::Bodies(vec![B256::ZERO]);
    assert_eq!(block_on(peer.fetch(request)), Err(Error::Timeout));
    assert_eq!(wire.reason(), Some(Reason::Timeout));
}

#[test]
fn a_peer_that_answers_something_else_loses_its_session() {
    let node = node();
    let item = Bytes::from_static(&[0xc0]);
    for answer in [
        Message::BlockBodies { id: 1, bodies: vec![item.clone(); 2] },
        Message::BlockHeaders { id: 1, headers: vec![item.clone()] },
        Message::BlockBodies { id: 2, bodies: vec![item.clone()] },
    ] {
        let mut wire = Wire::established(&node, key(2));
        let peer = node.peer();
        let asking =
            std::thread::spawn(move || block_on(peer.fetch(Fetch::Bodies(vec![B256::ZERO]))));
        loop {
            if wire.receive().id == 16 + 5 {
                break;
            }
        }
        wire.eth(&answer);
        assert_eq!(wire.reason(), Some(Reason::Protocol));
        assert_eq!(asking.join().unwrap(), Err(Error::Gone));
        node.sessions(0);
    }
}

#[test]
fn silence_and_single_bytes_end_at_the_deadline() {
    let node = node_with(Config { handshake_ms: 1000, read_ms: 1000, ping_ms: 100, ..config() });
    // No byte at all, and a byte now and then: no keys, so no reason can be told.
    let silent = TcpStream::connect(node.address()).unwrap();
    let slow = TcpStream::connect(node.address()).unwrap();
    let key_of_slow = key(4);
    let auth = Initiator::start(&key_of_slow, *node.key.public(), &mut rand::rng()).unwrap();
    for (mut socket, bytes) in [(silent, &[][..]), (slow, auth.auth())] {
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (begin, mut bytes) = (Instant::now(), bytes.iter());
        loop {
            assert!(begin.elapsed() < PATIENCE);
            if let Some(byte) = bytes.next()
                && socket.write_all(&[*byte]).is_err()
            {
                break;
            }
            match socket.read(&mut [0; 8]) {
                Ok(0) => break,
                Ok(_) => panic!("no answer to an incomplete handshake"),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
    // Keys but no Hello, and no Status.
    let mut wire = Wire::connect(node.address(), *node.key.public(), key(2));
    assert_eq!(wire.receive().id, HELLO);
    assert_eq!(wire.reason(), Some(Reason::Timeout));
    let mut wire = Wire::greeted(&node, key(2));
    assert_eq!(wire.reason(), Some(Reason::Timeout));
    // An established peer that falls silent, and does not answer pings.
    let mut wire = Wire::established(&node, key(2));
    let reason = loop {
        let message = wire.receive();
        if message.id == tandem_rlpx::DISCONNECT {
            break tandem_rlpx::decode_disconnect(&message.content).unwrap();
        }
    };
    assert_eq!(reason, Reason::Timeout);
}

#[test]
fn a_flood_of_handshakes_leaves_honest_sessions_alone() {
    let node = node_with(Config {
        handshakes_max: 5,
        handshakes_per_second_max: 20,
        handshake_ms: 2000,
        ..config()
    });
    let mut honest = Wire::established(&node, key(2));
    node.sessions(1);
    let flood: Vec<_> = (0..300).map(|_| TcpStream::connect(node.address()).unwrap()).collect();
    // Most are closed without a byte, although their handshakes have time left.
    let mut closed = 0;
    for mut socket in flood.iter() {
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let read = socket.read(&mut [0; 8]);
        closed += usize::from(
            !matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        );
    }
    assert!(closed >= 290, "{closed}");
    honest.send(PING, &[0xc0]);
    loop {
        if honest.receive().id == PONG {
            break;
        }
    }
    drop(flood);
    // Another honest one gets in once the rate allows it.
    common::wait("room", || {
        let mut socket = TcpStream::connect(node.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let open = matches!(socket.read(&mut [0; 8]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        open.then_some(())
    });
}

#[test]
fn floods_of_messages_are_answered_at_the_nodes_pace() {
    let node = node_with(Config { messages_per_second_max: 500, ..config() });
    let mut wire = Wire::established(&node, key(2));
    let announced = Announcement { kind: 2, bytes: 100, hash: B256::ZERO };
    let request =
        HeadersRequest { start: BlockStart::Number(0), limit: 1024, skip: 0, reverse: false };
    let mut writer = wire.socket.try_clone().unwrap();
    let mut frames = Vec::new();
    for id in 0..100 {
        for message in [
            Message::Announcements { transactions: vec![announced; 100], cells: B128::ZERO },
            Message::Transactions(vec![Bytes::from_static(&[0xc0]); 10]),
            Message::GetBlockHeaders { id, request },
        ] {
            let content = message.encode(tandem_eth_wire::eth::Version::Eth71);
            frames.extend(wire.frame(16 + message.number(), &content));
        }
    }
    let sending = std::thread::spawn(move || writer.write_all(&frames));
    let mut answered = [false; 100];
    while answered.contains(&false) {
        let message = wire.receive();
        if message.id == 16 + 4 {
            let content = Bytes::from(message.content);
            let version = tandem_eth_wire::eth::Version::Eth71;
            let Ok(Message::BlockHeaders { id, headers }) = Message::decode(version, 4, &content)
            else {
                panic!("headers");
            };
            assert_eq!(headers.len(), 50);
            answered[id as usize] = true;
        }
    }
    sending.join().unwrap().unwrap();
    assert_eq!(node.sessions.peers().len(), 1);
}

/// Answers that a peer does not read must not pile up: 60 of them would take 60 MiB.
#[test]
fn a_peer_that_asks_without_reading_costs_few_answers() {
    const ASKED: u64 = 60;
    let mut blocks = Blocks::made_up(1, 50);
    // Random bytes, which are not compressed: a list with a string of 2 MiB.
    let mut body = vec![0; 2 << 20];
    rand::fill(&mut body[..]);
    let body = Bytes::from(alloy_rlp::encode(vec![Bytes::from(body)]));
    blocks.bodies[1] = body.clone();
    let blocks = Arc::new(blocks);
    let node = Node::start(config(), key(1), blocks.clone(), 7);
    let mut wire = Wire::established(&node, key(2));
    let hash = blocks.hash(1);
    for id in 0..ASKED {
        wire.eth(&Message::GetBlockBodies { id, hashes: vec![hash] });
    }
    // The number of answers rises until the buffers of the connection are full.
    let read = || blocks.bodies_read.load(std::sync::atomic::Ordering::SeqCst);
    let (mut before, mut same) = (0, 0);
    while same < 20 {
        std::thread::sleep(Duration::from_millis(50));
        same = if read() == before && before > 0 { same + 1 } else { 0 };
        before = read();
    }
    assert!(before < 30, "{before} of {ASKED} answers were made");
    let mut answers = 0;
    while answers < ASKED {
        let message = wire.receive();
        if message.id == 16 + 6 {
            let content = Bytes::from(message.content);
            let version = tandem_eth_wire::eth::Version::Eth71;
            let answer = Message::decode(version, 6, &content).unwrap();
            let Message::BlockBodies { bodies, .. } = answer else { panic!("bodies") };
            assert_eq!(bodies, vec![body.clone()]);
            answers += 1;
        }
    }
    assert_eq!(node.sessions.peers().len(), 1);
}

/// A peer that gives up before it has read this node's Hello does not compress its reason. It is not
/// taken for one that breaks the protocol, and may come back.
#[test]
fn a_peer_that_gives_up_early_is_not_banned() {
    let node = node_with(Config { ban_secs: 3600, ..config() });
    let mut wire = Wire::connect(node.address(), *node.key.public(), key(2));
    let hello = wire.hello().encode();
    let mut frames = wire.frame_as_is(HELLO, &hello);
    frames.extend(wire.frame_as_is(DISCONNECT, &encode_disconnect(Reason::Timeout)));
    wire.write(&frames);
    // The node closes the connection once it has read the reason.
    while wire.try_receive().is_some() {}
    serves(&node, 2);
}

#[test]
fn a_reported_peer_is_told_and_gets_no_session_for_a_while() {
    let node = node_with(Config { ban_secs: 3600, ..config() });
    for (index, (misconduct, reason)) in [
        (Misconduct::Invalid, Reason::Protocol),
        (Misconduct::Useless, Reason::Useless),
        (Misconduct::Slow, Reason::Timeout),
    ]
    .into_iter()
    .enumerate()
    {
        let peer = || key(10 + index as u8);
        let mut wire = Wire::established(&node, peer());
        // The peer has the node's Status before the node has the peer's.
        node.sessions(1);
        let session = block_on(node.sessions.sessions()).unwrap().pop().unwrap();
        assert_eq!((session.id, session.eth_version), (*peer().public(), 71));
        assert_eq!(block_on(node.sessions.report(session.id, misconduct)), Ok(()));
        assert_eq!(wire.reason(), Some(reason));
        node.sessions(0);
        assert_eq!(Wire::greeted(&node, peer()).reason(), Some(Reason::Useless), "it is banned");
        let gone = block_on(node.sessions.fetch(session.id, Fetch::Bodies(vec![B256::ZERO])));
        assert_eq!(gone, Err(Error::Gone));
    }
    Wire::established(&node, key(20));
}

#[test]
fn a_peer_that_broke_the_protocol_is_banned_unless_it_is_trusted() {
    let trusted = format!("enode://{:x}@127.0.0.1:1", key(3).public());
    let config = Config { ban_secs: 3600, trusted_peers: vec![trusted], ..config() };
    let node = node_with(config);
    for peer in [2, 3] {
        let mut wire = Wire::established(&node, key(peer));
        wire.eth(&Message::BlockBodies { id: 1, bodies: Vec::new() });
        assert_eq!(wire.reason(), Some(Reason::Protocol));
        node.sessions(0);
    }
    assert_eq!(Wire::greeted(&node, key(2)).reason(), Some(Reason::Useless));
    Wire::established(&node, key(3));
}
