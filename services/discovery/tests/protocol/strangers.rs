//! Packets sent to an address before it has proven its endpoint.

use crate::bench::{Bench, Peer, at, contact, near, peer};
use proptest::{collection::vec, prelude::*};
use std::{net::SocketAddr, time::Duration};
use tandem_discovery::{
    Config,
    state::{Input, Question},
};
use tandem_discv4::{Endpoint, EnrRequest, Message, NodeKey, Packet, Ping, decode, encode};
use tandem_primitives::{B256, B512, keccak256};
use tandem_proto::event::{Contact, ContactEvent};

#[test]
fn a_ping_from_near_is_answered_with_a_pong_and_a_ping_until_the_endpoint_is_proven() {
    let (mut bench, peer) = (Bench::new(), near(1));
    let (answers, ping) = bench.send(&peer, bench.ping(&peer));
    let [pong, back] = &answers[..] else { panic!("{answers:?}") };
    let Message::Pong(pong) = &pong.message else { panic!() };
    assert_eq!(pong.ping_hash, ping.hash);
    assert_eq!(pong.to.udp(), peer.address);
    assert!(matches!(back.message, Message::Ping(_)));
    // No second ping is sent while the first is pending.
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 1);
    assert!(bench.send(&peer, bench.pong(back.hash)).0.is_empty());
    let [answered] = &bench.published[..] else { panic!() };
    assert_eq!((answered.event, answered.enr_seq), (ContactEvent::Answered, Some(7)));
    assert_eq!((answered.udp_port, answered.tcp_port), (30303, 30303));
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 1);
    // A proof is valid for twelve hours.
    bench.elapsed += Duration::from_secs(12 * 3600);
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 2);
}

/// A pong is longer than most pings, so a distant stranger must first show that its address is
/// real.
#[test]
fn a_ping_from_afar_is_answered_with_a_shorter_ping_and_after_its_pong_with_the_pong() {
    let (mut bench, peer) = (Bench::new(), peer(1));
    let sent = encode(&peer.key, &bench.ping(&peer).into());
    let answers = bench.step(Input::Packet { from: peer.address, bytes: &sent.bytes });
    let [(_, back)] = &answers[..] else { panic!("{answers:?}") };
    assert!(back.len() < sent.bytes.len());
    let back = decode(back).unwrap();
    assert!(matches!(back.message, Message::Ping(_)));
    // The stranger's next ping replaces the first.
    let later = Ping { expiration: bench.expiration() + 1, ..bench.ping(&peer) };
    let (answers, later) = bench.send(&peer, later);
    assert!(answers.is_empty(), "{answers:?}");
    let (answers, _) = bench.send(&peer, bench.pong(back.hash));
    let [Packet { message: Message::Pong(pong), .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((pong.ping_hash, pong.to.udp()), (later.hash, peer.address));
    assert_eq!(bench.published[0].event, ContactEvent::Answered);
    // With a proof, a pong comes at once; after the proof expired, the node must prove itself
    // again.
    assert_eq!(bench.send(&peer, bench.ping(&peer)).0.len(), 1);
    bench.elapsed += Duration::from_secs(12 * 3600);
    bench.bond(&peer);
}

#[test]
fn a_ping_that_is_long_enough_or_was_asked_for_gets_its_pong_at_once() {
    let (mut bench, first) = (Bench::new(), peer(1));
    // Bytes after the list are ignored (EIP-8), but they count.
    let mut padded = encode(&first.key, &bench.ping(&first).into()).bytes;
    padded.resize(400, 0);
    let answers = bench.receive(first.address, &signed_again(&first.key, &padded));
    assert!(matches!(answers[..], [_, _]), "{answers:?}");
    // A node that is asked for its own proof may be waiting for ours.
    let sought = peer(2);
    let contacts = vec![Contact { ip: sought.address.ip(), ..contact(2, ContactEvent::Seen) }];
    let question = Question::Seeds { target: B512::repeat_byte(5) };
    let sent = bench.step(Input::Answer { question, contacts });
    assert_eq!(sent.len(), 1);
    let (answers, _) = bench.send(&sought, bench.ping(&sought));
    assert!(matches!(answers[..], [Packet { message: Message::Pong(_), .. }]), "{answers:?}");
    // A missing pong leaves nothing behind that a later one would release.
    let silent = peer(3);
    bench.pinged(&silent);
    bench.elapsed += Duration::from_secs(1);
    bench.step(Input::Timer);
    let contacts = vec![Contact { ip: silent.address.ip(), ..contact(3, ContactEvent::Seen) }];
    let sent = bench.step(Input::Answer { question: Question::EnrCandidates, contacts });
    let ping = decode(&sent[0].1).unwrap();
    assert!(bench.send(&silent, bench.pong(ping.hash)).0.is_empty());
}

/// Signs and frames type and data of a datagram again.
fn signed_again(key: &NodeKey, datagram: &[u8]) -> Vec<u8> {
    let secret = secp256k1::SecretKey::from_byte_array(key.secret_bytes()).unwrap();
    let digest = secp256k1::Message::from_digest(keccak256(&datagram[97..]).0);
    let signed = secp256k1::SECP256K1.sign_ecdsa_recoverable(digest, &secret);
    let (recovery, signature) = signed.serialize_compact();
    let rest = [&signature[..], &[i32::from(recovery) as u8], &datagram[97..]].concat();
    [&keccak256(&rest)[..], &rest].concat()
}

/// Packet that a stranger may send, and the pause before it.
#[derive(Clone, Debug)]
struct Sent {
    kind: u8,
    key: u64,
    port: u16,
    padding: usize,
    wait_ms: u64,
    /// Whether the padding and everything else is signed.
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
    /// Whatever packets carry an address, at any moment fewer bytes went there than came from
    /// there. A proof of one endpoint there does not change that for the others.
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
                // This is the shortest ping there is.
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
