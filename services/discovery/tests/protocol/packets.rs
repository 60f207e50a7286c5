//! Questions, answers, and invalid packets.

use crate::bench::{Bench, Peer, START, at, contact, peer};
use std::time::Duration;
use tandem_discovery::{
    Config,
    state::{Dropped, Input, Question},
};
use tandem_discv4::{
    Endpoint, EnrBuilder, EnrRequest, EnrResponse, FindNode, Message, Neighbors, Node, NodeKey,
    Ping, decode, encode,
};
use tandem_primitives::{B256, B512};
use tandem_proto::event::{Contact, ContactEvent};

#[test]
fn questions_are_answered_only_after_the_proof_and_only_there() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let request = EnrRequest { expiration: bench.expiration() };
    assert!(bench.send(&peer, bench.find_node()).0.is_empty());
    assert!(bench.send(&peer, request.clone()).0.is_empty());
    assert!(bench.asked.is_empty());
    assert_eq!(bench.dropped(Dropped::Unproven), 2);

    bench.bond(&peer);
    let (answers, packet) = bench.send(&peer, request.clone());
    let Message::EnrResponse(response) = &answers[0].message else { panic!() };
    assert_eq!(response.request_hash, packet.hash);
    assert_eq!(&response.enr, bench.state.enr());
    bench.send(&peer, bench.find_node());
    let question = bench.asked.pop().unwrap();
    // A node only seen, the asker itself, and a node that the asker cannot reach are not passed on.
    let mut contacts = vec![contact(900, ContactEvent::Seen), contact(1, ContactEvent::Answered)];
    let local = Contact { ip: [192, 168, 1, 1].into(), ..contact(901, ContactEvent::Answered) };
    contacts.push(local);
    contacts.extend((100..140).map(|index| contact(index, ContactEvent::Answered)));
    let sent = bench.step(Input::Answer { question, contacts });
    let mut nodes = Vec::new();
    for (to, bytes) in &sent {
        assert_eq!(*to, peer.address);
        assert!(bytes.len() <= 1280);
        let Message::Neighbors(neighbors) = decode(bytes).unwrap().message else { panic!() };
        nodes.extend(neighbors.nodes.iter().map(|node| node.key));
    }
    let expect: Vec<_> = (100..116).map(|index| contact(index, ContactEvent::Seen).id).collect();
    assert_eq!(nodes, expect);

    // The key at another address, and another key at this address, have proven nothing.
    for address in ["5.5.0.2:30303", "5.5.0.1:30304"] {
        let elsewhere = Peer { key: peer.key.clone(), address: at(address) };
        assert!(bench.send(&elsewhere, bench.find_node()).0.is_empty());
    }
    let other = Peer { key: NodeKey::from_bytes([9; 32]).unwrap(), address: peer.address };
    assert!(bench.send(&other, bench.find_node()).0.is_empty());
    assert!(bench.asked.is_empty());
    bench.elapsed += Duration::from_secs(12 * 3600);
    assert!(bench.send(&peer, bench.find_node()).0.is_empty());
    assert!(bench.asked.is_empty());
}

#[test]
fn nobody_knows_an_answer_either() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    bench.bond(&peer);
    bench.send(&peer, bench.find_node());
    let question = bench.asked.pop().unwrap();
    let sent = bench.step(Input::Answer { question: question.clone(), contacts: vec![] });
    let Message::Neighbors(neighbors) = decode(&sent[0].1).unwrap().message else { panic!() };
    assert!(neighbors.nodes.is_empty());
    assert!(bench.step(Input::Refused(question)).is_empty());
    assert_eq!(bench.dropped(Dropped::Overloaded), 1);
}

#[test]
fn a_proof_is_the_pong_to_our_last_ping_from_where_it_went() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let hash = bench.pinged(&peer);
    bench.send(&peer, bench.pong(B256::ZERO));
    let elsewhere = Peer { key: peer.key.clone(), address: at("6.6.6.6:30303") };
    bench.send(&elsewhere, bench.pong(hash));
    let other = Peer { key: NodeKey::from_bytes([9; 32]).unwrap(), address: peer.address };
    bench.send(&other, bench.pong(hash));
    assert_eq!(bench.dropped(Dropped::Unsolicited), 3);
    assert!(bench.send(&peer, bench.find_node()).0.is_empty());
    // A late pong is dropped too.
    bench.elapsed += Duration::from_secs(1);
    bench.step(Input::Timer);
    bench.send(&peer, bench.pong(hash));
    assert_eq!(bench.dropped(Dropped::Unsolicited), 4);
    let events: Vec<_> = bench.published.iter().map(|contact| contact.event).collect();
    assert_eq!(events, [ContactEvent::Failed]);
}

#[test]
fn replayed_pongs_prove_nothing_again() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let hash = bench.pinged(&peer);
    let pong = encode(&peer.key, &bench.pong(hash).into());
    bench.receive(peer.address, &pong.bytes);
    bench.receive(peer.address, &pong.bytes);
    assert_eq!(bench.dropped(Dropped::Unsolicited), 1);
    assert_eq!(bench.published.len(), 1);
}

#[test]
fn expired_packets_are_dropped_and_so_are_those_that_never_expire() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    bench.bond(&peer);
    for expiration in [0, START - 1, u64::MAX, START.wrapping_neg()] {
        let ping = Ping { expiration, ..bench.ping(&peer) };
        assert!(bench.send(&peer, ping).0.is_empty());
        assert!(bench.send(&peer, FindNode { expiration, ..bench.find_node() }).0.is_empty());
        assert!(bench.send(&peer, EnrRequest { expiration }).0.is_empty());
    }
    assert_eq!(bench.dropped(Dropped::Expired), 12);
    assert!(bench.asked.is_empty());
    // A packet that is captured and replayed later has expired by then.
    let old = encode(&peer.key, &bench.ping(&peer).into());
    bench.elapsed += Duration::from_secs(21);
    assert!(bench.receive(peer.address, &old.bytes).is_empty());
}

#[test]
fn a_packet_with_a_wrong_signature_is_not_from_its_sender() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    bench.bond(&peer);
    let mut bytes = encode(&peer.key, &bench.find_node().into()).bytes;
    bytes[40] ^= 1;
    assert!(bench.receive(peer.address, &bytes).is_empty());
    assert_eq!(bench.dropped(Dropped::Malformed), 1);
    // With a right hash, it is a packet of some unknown key, or of none.
    let hash = tandem_primitives::keccak256(&bytes[32..]);
    bytes[..32].copy_from_slice(hash.as_slice());
    assert!(bench.receive(peer.address, &bytes).is_empty());
    assert!(bench.asked.is_empty());
}

#[test]
fn own_packets_that_come_back_are_dropped() {
    let mut bench = Bench::new();
    let own = Peer { key: NodeKey::from_bytes([1; 32]).unwrap(), address: at("9.9.9.9:30303") };
    assert!(bench.send(&own, bench.ping(&own)).0.is_empty());
    assert_eq!(bench.dropped(Dropped::Unsolicited), 1);
}

#[test]
fn an_address_beyond_its_rate_is_not_listened_to_while_others_are() {
    let config = Config { lookup_fast_ms: 1 << 40, ..Config::default() };
    let (mut bench, noisy, quiet) = (Bench::with(&config), peer(1), peer(2));
    bench.bond(&noisy);
    for _ in 0..1_000 {
        bench.receive(noisy.address, &[0; 200]);
    }
    assert!(bench.dropped(Dropped::RateLimited) >= 800);
    assert!(bench.send(&noisy, bench.ping(&noisy)).0.is_empty());
    bench.bond(&quiet);
    bench.elapsed += Duration::from_secs(1);
    assert_eq!(bench.send(&noisy, bench.ping(&noisy)).0.len(), 1);
}

#[test]
fn neighbors_and_records_that_nobody_asked_for_are_ignored() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    bench.bond(&peer);
    bench.published.clear();
    let node =
        Node { key: *self::peer(3).key.public(), endpoint: Endpoint::new(at("8.8.8.8:1"), 1) };
    let expiration = bench.expiration();
    bench.send(&peer, Neighbors { nodes: vec![node], expiration });
    let enr = EnrBuilder::new(1).sign(&peer.key).unwrap();
    bench.send(&peer, EnrResponse { request_hash: B256::ZERO, enr });
    assert!(bench.published.is_empty());
    assert_eq!(bench.dropped(Dropped::Unsolicited), 2);
}

/// Brings a bench to the point where it asks `peer` for its record. Returns the hash of the
/// request.
fn until_enr_request(bench: &mut Bench, peer: &Peer) -> B256 {
    bench.bond(peer);
    let contact = Contact { ip: peer.address.ip(), ..contact(1, ContactEvent::Answered) };
    let question = Question::EnrCandidates;
    let sent = bench.step(Input::Answer { question, contacts: vec![contact] });
    let packet = decode(&sent[0].1).unwrap();
    assert!(matches!(packet.message, Message::EnrRequest(_)), "{packet:?}");
    packet.hash
}

#[test]
fn a_record_is_taken_from_its_owner_alone() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let request_hash = until_enr_request(&mut bench, &peer);
    bench.published.clear();
    let foreign = EnrBuilder::new(9).sign(&NodeKey::from_bytes([8; 32]).unwrap()).unwrap();
    bench.send(&peer, EnrResponse { request_hash, enr: foreign });
    let own = EnrBuilder::new(9).sign(&peer.key).unwrap();
    bench.send(&peer, EnrResponse { request_hash: B256::ZERO, enr: own.clone() });
    assert!(bench.published.is_empty());
    bench.send(&peer, EnrResponse { request_hash, enr: own.clone() });
    let [contact] = &bench.published[..] else { panic!() };
    assert_eq!((contact.event, contact.enr_seq), (ContactEvent::EnrReceived, Some(9)));
    assert_eq!(contact.enr.as_ref(), Some(own.rlp()));
}

#[test]
fn a_node_that_does_not_answer_failed_and_is_asked_for_a_proof_before_the_next_question() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    until_enr_request(&mut bench, &peer);
    bench.elapsed += Duration::from_secs(1);
    // A packet may have been lost, so the node is pinged at once.
    let sent = bench.step(Input::Timer);
    assert_eq!(bench.published.last().unwrap().event, ContactEvent::Failed);
    let [(to, ping)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(*to, peer.address);
    assert!(matches!(decode(ping).unwrap().message, Message::Ping(_)));
    // It is pinged once, until something else asks it.
    bench.published.clear();
    bench.elapsed += Duration::from_secs(1);
    assert!(bench.step(Input::Timer).is_empty());
    assert_eq!(bench.published.last().unwrap().event, ContactEvent::Failed);
    let contact = Contact { ip: peer.address.ip(), ..contact(1, ContactEvent::Answered) };
    let question = Question::EnrCandidates;
    let sent = bench.step(Input::Answer { question, contacts: vec![contact] });
    assert!(matches!(decode(&sent[0].1).unwrap().message, Message::Ping(_)));
}

/// Checks that a node in a neighbors answer is not asked if its address is not on the internet.
#[test]
fn neighbors_make_it_send_to_no_network_of_its_own() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    bench.bond(&peer);
    let special = [
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.20.0.1",
        "192.0.0.1",
        "198.18.0.1",
        "203.0.113.1",
        "240.0.0.1",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a00:1::1]",
        "[2001:db8::1]",
        "[fd00::1]",
    ];
    let seed = Contact { ip: peer.address.ip(), ..contact(1, ContactEvent::Answered) };
    for (index, ip) in (0..).zip(special) {
        let question = Question::Seeds { target: B512::repeat_byte(index) };
        let sent = bench.step(Input::Answer { question, contacts: vec![seed.clone()] });
        assert!(matches!(decode(&sent[0].1).unwrap().message, Message::FindNode(_)));
        bench.published.clear();
        let endpoint = Endpoint::new(at(&format!("{ip}:30303")), 1);
        let node = Node { key: *self::peer(50).key.public(), endpoint };
        let expiration = bench.expiration();
        let packet = encode(&peer.key, &Neighbors { nodes: vec![node], expiration }.into());
        let sent = bench.step(Input::Packet { from: peer.address, bytes: &packet.bytes });
        assert!(sent.is_empty(), "{ip}: {sent:?}");
        assert!(bench.published.iter().all(|contact| contact.id == seed.id), "{ip}");
        bench.elapsed += Duration::from_secs(1);
        bench.step(Input::Timer);
    }
}

#[test]
fn a_lookup_proves_asks_and_passes_on_what_it_hears() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let target = B512::repeat_byte(5);
    let seed = Contact { ip: peer.address.ip(), ..contact(1, ContactEvent::Seen) };
    let sent =
        bench.step(Input::Answer { question: Question::Seeds { target }, contacts: vec![seed] });
    let ping = decode(&sent[0].1).unwrap();
    let (answers, _) = bench.send(&peer, bench.pong(ping.hash));
    assert!(answers.is_empty(), "it may want our proof first");
    let (answers, _) = bench.send(&peer, bench.ping(&peer));
    let [_, find] = &answers[..] else { panic!("{answers:?}") };
    let Message::FindNode(find) = &find.message else { panic!() };
    assert_eq!(find.target, target);
    bench.published.clear();
    let near = |index| {
        let Peer { key, address } = self::peer(index);
        Node { key: *key.public(), endpoint: Endpoint::new(address, 1) }
    };
    let far = Node { endpoint: Endpoint::new(at("127.0.0.1:1"), 1), ..near(60) };
    let nodes = vec![near(50), near(51), near(52), near(53), far];
    let expiration = bench.expiration();
    let packet = encode(&peer.key, &Neighbors { nodes, expiration }.into());
    let sent = bench.step(Input::Packet { from: peer.address, bytes: &packet.bytes });
    assert_eq!(sent.len(), 3, "three at a time are asked for their proofs");
    let seen: Vec<_> = bench.published.iter().map(|contact| (contact.id, contact.event)).collect();
    let mut expect: Vec<_> = (50..54).map(|index| (near(index).key, ContactEvent::Seen)).collect();
    expect.push((*peer.key.public(), ContactEvent::Answered));
    assert_eq!(seen, expect);
}

#[test]
fn without_peer_table_those_who_answered_lately_are_asked() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    bench.bond(&peer);
    let target = B512::repeat_byte(5);
    let sent = bench.step(Input::Refused(Question::Seeds { target }));
    let [(to, bytes)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(*to, peer.address);
    assert!(matches!(decode(bytes).unwrap().message, Message::FindNode(_)));
}

#[test]
fn node_lists_are_asked_only_while_peers_are_scarce() {
    let mut bench = Bench::with(&Config::default());
    let minute = |bench: &mut Bench, completion| {
        bench.step(Input::Target(completion));
        let before = bench.lists_asked;
        for _ in 0..600 {
            bench.elapsed += Duration::from_millis(100);
            bench.step(Input::Timer);
            // No node is known, so each lookup ends at once.
            while let Some(question) = bench.asked.pop() {
                bench.step(Input::Refused(question));
            }
        }
        bench.lists_asked - before
    };
    assert_eq!(bench.lists_asked, 1, "at once");
    assert!((5..=6).contains(&minute(&mut bench, 0.1)), "every ten seconds");
    assert_eq!([0.5, 0.9, 1.0].map(|completion| minute(&mut bench, completion)), [0; 3]);
    assert!(minute(&mut bench, 0.2) >= 5);
    bench.published.clear();
    let node = Node { key: *peer(3).key.public(), endpoint: Endpoint::new(peer(3).address, 1) };
    let own = Node { key: *bench.state.enr().key(), ..node };
    bench.step(Input::Listed(vec![node, own]));
    let heard: Vec<_> = bench.published.iter().map(|contact| (contact.id, contact.event)).collect();
    assert_eq!(heard, [(node.key, ContactEvent::Seen)]);
}
