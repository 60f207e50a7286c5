//! One node and what others may do to it.
#![allow(clippy::unwrap_used, missing_docs)]

use proptest::{collection::vec, prelude::*};
use rand::{SeedableRng, rngs::StdRng};
use std::{net::SocketAddr, time::Duration};
use tandem_discovery::{
    Config,
    state::{Dropped, Effect, Input, Now, Question, State},
};
use tandem_discv4::{
    Endpoint, EnrBuilder, EnrRequest, EnrResponse, FindNode, Message, Neighbors, Node, NodeKey,
    Packet, Ping, Pong, SignedPacket, decode, encode,
};
use tandem_primitives::{B256, B512, keccak256};
use tandem_proto::event::{Contact, ContactEvent};

const START: u64 = 1_700_000_000;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

struct Bench {
    state: State,
    elapsed: Duration,
    published: Vec<Contact>,
    asked: Vec<Question>,
    lists_asked: u32,
}

struct Peer {
    key: NodeKey,
    address: SocketAddr,
}

impl Bench {
    fn new() -> Self {
        // No lookup of its own disturbs.
        Self::with(&Config { lookup_fast_ms: 1 << 40, ..Config::default() })
    }

    fn with(config: &Config) -> Self {
        Self::bound(config, at("9.9.9.9:30303"))
    }

    fn bound(config: &Config, bound: SocketAddr) -> Self {
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let state = State::new(config, key, bound, vec![], None, 1, 1).unwrap();
        let mut bench = Self {
            state,
            elapsed: Duration::ZERO,
            published: Vec::new(),
            asked: Vec::new(),
            lists_asked: 0,
        };
        bench.step(Input::Timer);
        bench.asked.clear();
        bench
    }

    fn step(&mut self, input: Input<'_>) -> Vec<(SocketAddr, Vec<u8>)> {
        let now = Now { elapsed: self.elapsed, unix: START + self.elapsed.as_secs() };
        let (mut effects, mut sent) = (Vec::new(), Vec::new());
        self.state.step(now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send { to, bytes } => sent.push((to, bytes)),
                Effect::Ask(question) => self.asked.push(question),
                Effect::AskLists => self.lists_asked += 1,
                Effect::Publish(contact) => self.published.push(contact),
            }
        }
        sent
    }

    fn receive(&mut self, from: SocketAddr, bytes: &[u8]) -> Vec<Packet> {
        let sent = self.step(Input::Packet { from, bytes });
        assert!(sent.iter().all(|(to, _)| *to == from), "answers go where the packet came from");
        sent.iter().map(|(_, bytes)| decode(bytes).unwrap()).collect()
    }

    fn send(&mut self, peer: &Peer, message: impl Into<Message>) -> (Vec<Packet>, SignedPacket) {
        let packet = encode(&peer.key, &message.into());
        (self.receive(peer.address, &packet.bytes), packet)
    }

    fn expiration(&self) -> u64 {
        START + self.elapsed.as_secs() + 20
    }

    fn ping(&self, peer: &Peer) -> Ping {
        let (from, to) =
            (Endpoint::new(peer.address, 30303), Endpoint::new(at("9.9.9.9:30303"), 0));
        Ping { from, to, expiration: self.expiration(), enr_seq: Some(7) }
    }

    fn pong(&self, ping_hash: B256) -> Pong {
        let to = Endpoint::new(at("9.9.9.9:30303"), 0);
        Pong { to, ping_hash, expiration: self.expiration(), enr_seq: Some(7) }
    }

    fn find_node(&self) -> FindNode {
        FindNode { target: B512::repeat_byte(3), expiration: self.expiration() }
    }

    /// Makes the peer ping, and gives the hash of the ping that comes back.
    fn pinged(&mut self, peer: &Peer) -> B256 {
        let (answers, _) = self.send(peer, self.ping(peer));
        let ping = answers.iter().find(|packet| matches!(packet.message, Message::Ping(_)));
        ping.unwrap().hash
    }

    fn bond(&mut self, peer: &Peer) {
        let hash = self.pinged(peer);
        let (answers, _) = self.send(peer, self.pong(hash));
        assert!(matches!(answers[..], [Packet { message: Message::Pong(_), .. }]), "{answers:?}");
    }

    fn dropped(&self, reason: Dropped) -> u64 {
        self.state.counters().dropped[reason as usize]
    }
}

fn peer(index: u64) -> Peer {
    let key = NodeKey::random(&mut StdRng::seed_from_u64(index));
    Peer { key, address: SocketAddr::from(([5, 5, (index >> 8) as u8, index as u8], 30303)) }
}

fn contact(index: u64, event: ContactEvent) -> Contact {
    let Peer { key, address } = peer(index);
    let (id, ip) = (*key.public(), address.ip());
    Contact { id, ip, udp_port: 30303, tcp_port: 1, enr_seq: None, enr: None, event }
}

fn near(index: u64) -> Peer {
    Peer { address: SocketAddr::from(([127, 0, 0, 2], 30303)), ..peer(index) }
}

#[test]
fn a_ping_from_near_is_answered_with_a_pong_and_a_ping_until_the_endpoint_is_proven() {
    let (mut bench, peer) = (Bench::new(), near(1));
    let (answers, ping) = bench.send(&peer, bench.ping(&peer));
    let [pong, back] = &answers[..] else { panic!("{answers:?}") };
    let Message::Pong(pong) = &pong.message else { panic!() };
    assert_eq!(pong.ping_hash, ping.hash);
    assert_eq!(pong.to.udp(), peer.address);
    assert!(matches!(back.message, Message::Ping(_)));
    // One ping is enough while it is waited for.
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 1);
    assert!(bench.send(&peer, bench.pong(back.hash)).0.is_empty());
    let [answered] = &bench.published[..] else { panic!() };
    assert_eq!((answered.event, answered.enr_seq), (ContactEvent::Answered, Some(7)));
    assert_eq!((answered.udp_port, answered.tcp_port), (30303, 30303));
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 1);
    // A proof holds for twelve hours.
    bench.elapsed += Duration::from_secs(12 * 3600);
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 2);
}

/// A pong is longer than most pings, so a stranger from afar has to show first that he is there.
#[test]
fn a_ping_from_afar_is_answered_with_a_shorter_ping_and_after_its_pong_with_the_pong() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let sent = encode(&peer.key, &bench.ping(&peer).into());
    let answers = bench.step(Input::Packet { from: peer.address, bytes: &sent.bytes });
    let [(_, back)] = &answers[..] else { panic!("{answers:?}") };
    assert!(back.len() < sent.bytes.len());
    let back = decode(back).unwrap();
    assert!(matches!(back.message, Message::Ping(_)));
    // His next ping takes the place of the first.
    let later = Ping { expiration: bench.expiration() + 1, ..bench.ping(&peer) };
    let (answers, later) = bench.send(&peer, later);
    assert!(answers.is_empty(), "{answers:?}");
    let (answers, _) = bench.send(&peer, bench.pong(back.hash));
    let [Packet { message: Message::Pong(pong), .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((pong.ping_hash, pong.to.udp()), (later.hash, peer.address));
    assert_eq!(bench.published[0].event, ContactEvent::Answered);
    // Once there is a proof, a pong comes at once; when it has run out, the same again.
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 1);
    bench.elapsed += Duration::from_secs(12 * 3600);
    bench.bond(&peer);
}

#[test]
fn a_ping_that_is_long_enough_or_was_asked_for_gets_its_pong_at_once() {
    let (mut bench, first) = (Bench::new(), peer(1));
    // What follows the list is left alone (EIP-8), and counts.
    let mut padded = encode(&first.key, &bench.ping(&first).into()).bytes;
    padded.resize(400, 0);
    let answers = bench.receive(first.address, &signed_again(&first.key, &padded));
    assert!(matches!(answers[..], [_, _]), "{answers:?}");
    // Who is being asked for his proof himself may be waiting for ours.
    let sought = peer(2);
    let contacts = vec![Contact { ip: sought.address.ip(), ..contact(2, ContactEvent::Seen) }];
    let question = Question::Seeds { target: B512::repeat_byte(5) };
    let sent = bench.step(Input::Answer { question, contacts });
    assert_eq!(sent.len(), 1);
    let (answers, _) = bench.send(&sought, bench.ping(&sought));
    assert!(matches!(answers[..], [Packet { message: Message::Pong(_), .. }]), "{answers:?}");
    // A pong that never came leaves nothing behind that a later one would set free.
    let silent = peer(3);
    bench.pinged(&silent);
    bench.elapsed += Duration::from_secs(1);
    bench.step(Input::Timer);
    let contacts = vec![Contact { ip: silent.address.ip(), ..contact(3, ContactEvent::Seen) }];
    let sent = bench.step(Input::Answer { question: Question::EnrCandidates, contacts });
    let ping = decode(&sent[0].1).unwrap();
    assert!(bench.send(&silent, bench.pong(ping.hash)).0.is_empty());
}

/// Signs and frames type and data of a datagram anew.
fn signed_again(key: &NodeKey, datagram: &[u8]) -> Vec<u8> {
    let secret = secp256k1::SecretKey::from_byte_array(key.secret_bytes()).unwrap();
    let digest = secp256k1::Message::from_digest(keccak256(&datagram[97..]).0);
    let signed = secp256k1::SECP256K1.sign_ecdsa_recoverable(digest, &secret);
    let (recovery, signature) = signed.serialize_compact();
    let rest = [&signature[..], &[i32::from(recovery) as u8], &datagram[97..]].concat();
    [&keccak256(&rest)[..], &rest].concat()
}

/// A socket for both families is seen under an address of each, and the record says both.
#[test]
fn the_record_gets_an_address_of_each_family_from_those_who_see_it() {
    let config = Config { lookup_fast_ms: 1 << 40, external_votes_min: 3, ..Config::default() };
    let mut bench = Bench::bound(&config, at("[::]:30303"));
    let (four, six) = (at("9.9.9.9:30303"), at("[2001:db8:9::9]:40404"));
    let see = |bench: &mut Bench, index: u16, six: Option<SocketAddr>| {
        let key = peer(u64::from(index)).key;
        let address = match six {
            None => SocketAddr::from(([40, index as u8, 1, 1], 30303)),
            Some(_) => SocketAddr::from(([0x2001, 0xdb8, index, 0, 0, 0, 0, 1], 30303)),
        };
        let peer = Peer { key, address };
        let hash = bench.pinged(&peer);
        let to = Endpoint::new(six.unwrap_or(four), 0);
        let pong = Pong { to, ..bench.pong(hash) };
        bench.send(&peer, pong);
        let enr = bench.state.enr();
        (enr.ip4().zip(enr.udp4()), enr.ip6().zip(enr.udp6()))
    };
    // Two see IPv4, many more IPv6: too few for the one.
    for index in 1..=2 {
        assert_eq!(see(&mut bench, index, None), (None, None));
    }
    let mut known = (None, None);
    for index in 100..120 {
        known = see(&mut bench, index, Some(six));
    }
    assert_eq!(known, (None, Some(("2001:db8:9::9".parse().unwrap(), 40404))));
    let (both, _) = see(&mut bench, 3, None);
    assert_eq!(both, Some(([9; 4].into(), 30303)));
    assert_eq!(bench.state.enr().seq(), 3, "one change for each address");
    assert_eq!(bench.state.external(), Some(four));
    // The other address stays when one changes.
    let moved = at("[2001:db8:9::10]:40404");
    for index in 200..230 {
        known = see(&mut bench, index, Some(moved));
    }
    assert_eq!(
        known,
        (Some(([9; 4].into(), 30303)), Some(("2001:db8:9::10".parse().unwrap(), 40404)))
    );
}

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
    // Seen only, the asker itself, unreachable for the asker: not passed on.
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

    // The same key elsewhere, and another key here, have proven nothing.
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
    // Too late, too.
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
    // A packet that is kept and sent again later has expired by then.
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
    // With a right hash it is a packet of some other, unknown key, or of none.
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

/// Brings a bench to where it asks `peer` for its record; the hash of the request.
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
    bench.step(Input::Timer);
    assert_eq!(bench.published.last().unwrap().event, ContactEvent::Failed);
    let contact = Contact { ip: peer.address.ip(), ..contact(1, ContactEvent::Answered) };
    let question = Question::EnrCandidates;
    let sent = bench.step(Input::Answer { question, contacts: vec![contact] });
    assert!(matches!(decode(&sent[0].1).unwrap().message, Message::Ping(_)));
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
            // Nobody is known, so each lookup ends at once.
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

/// What a stranger may send, and how long he waits before.
#[derive(Clone, Debug)]
struct Sent {
    kind: u8,
    key: u64,
    port: u16,
    padding: usize,
    wait_ms: u64,
    /// Padding and all is signed.
    signed: bool,
}

fn sent() -> impl Strategy<Value = Sent> {
    let wait = prop_oneof![Just(0), 0u64..2_000, Just(13 * 3_600_000)];
    (0u8..6, 0u64..4, 0u16..3, prop_oneof![Just(0), 0usize..600], wait, any::<bool>()).prop_map(
        |(kind, key, port, padding, wait_ms, signed)| Sent {
            kind,
            key,
            port: 30303 + port,
            padding,
            wait_ms,
            signed,
        },
    )
}

proptest! {
    /// Whatever comes in the name of an address, at any moment fewer bytes went there than came
    /// from there. Not even a proof of one endpoint there changes that for the others.
    #[test]
    fn an_address_without_a_proof_gets_less_than_comes_from_it(
        packets in vec(sent(), 1..40), six: bool, proof: bool,
    ) {
        let ip = if six { "2001:db8::7" } else { "7.7.7.7" };
        let mut bench = Bench::bound(
            &Config { lookup_fast_ms: 1 << 40, ..Config::default() },
            at("[::]:30303"),
        );
        if proof {
            bench.bond(&Peer { address: SocketAddr::new(ip.parse().unwrap(), 1), ..peer(9) });
        }
        let (mut received, mut returned) = (0, 0);
        for packet in packets {
            bench.elapsed += Duration::from_millis(packet.wait_ms);
            bench.step(Input::Timer);
            let address = SocketAddr::new(ip.parse().unwrap(), packet.port);
            let peer = Peer { address, ..peer(packet.key) };
            let expiration = bench.expiration();
            let message: Message = match packet.kind {
                0 | 1 => bench.ping(&peer).into(),
                // The shortest there is.
                2 => {
                    let nowhere = Endpoint::new(at("0.0.0.0:0"), 0);
                    Ping { from: nowhere, to: nowhere, expiration, enr_seq: None }.into()
                }
                3 => bench.find_node().into(),
                4 => bench.pong(B256::ZERO).into(),
                _ => EnrRequest { expiration }.into(),
            };
            let mut bytes = encode(&peer.key, &message).bytes;
            bytes.resize(bytes.len() + packet.padding, 0);
            if packet.signed {
                bytes = signed_again(&peer.key, &bytes);
            }
            received += bytes.len();
            let sent = bench.step(Input::Packet { from: address, bytes: &bytes });
            returned += sent.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
            prop_assert!(returned == 0 || returned < received, "{returned} for {received}");
        }
    }

    #[test]
    fn random_datagrams_never_panic_and_get_no_answer(
        datagrams in vec(vec(any::<u8>(), 0..300), 1..20), port: u16,
    ) {
        let mut bench = Bench::new();
        for bytes in datagrams {
            let from = SocketAddr::from(([1, 2, 3, 4], port));
            let answers = bench.step(Input::Packet { from, bytes: &bytes });
            prop_assert!(answers.is_empty());
        }
        prop_assert_eq!(bench.state.counters().sent, 0);
    }
}
