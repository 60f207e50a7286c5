//! Packets: every sent packet is read, and nothing else is.
#![allow(clippy::unwrap_used, missing_docs)]

use alloy_primitives::{B256, B512, b512, hex, keccak256};
use alloy_rlp::{Encodable, Header};
use proptest::{collection::vec, option, prelude::*, sample::Index};
use std::{
    alloc::System,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use tandem_discv4::{
    Endpoint, EnrBuilder, EnrRequest, EnrResponse, FindNode, ForkId, Message, NEIGHBORS_MAX,
    Neighbors, Node, NodeKey, PACKET_BYTES_MAX, PacketError, Ping, Pong, check_frame, decode,
    encode,
};
use tandem_heap::{Counting, thread::allocations};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

fn key() -> NodeKey {
    NodeKey::from_bytes([7; 32]).unwrap()
}

fn hash() -> impl Strategy<Value = B256> {
    any::<[u8; 32]>().prop_map(B256::from)
}

fn public() -> impl Strategy<Value = B512> {
    any::<[[u8; 32]; 2]>().prop_map(|halves| B512::from_slice(&halves.concat()))
}

fn ip() -> impl Strategy<Value = IpAddr> {
    let v6 = any::<[u8; 16]>().prop_map(|ip| Ipv6Addr::from(ip).to_canonical());
    prop_oneof![any::<[u8; 4]>().prop_map(|ip| Ipv4Addr::from(ip).into()), v6]
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (ip(), any::<u16>(), any::<u16>()).prop_map(|(ip, udp_port, tcp_port)| Endpoint {
        ip,
        udp_port,
        tcp_port,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let ping = (endpoint(), endpoint(), any::<u64>(), option::of(any::<u64>()))
        .prop_map(|(from, to, expiration, enr_seq)| Ping { from, to, expiration, enr_seq }.into());
    let pong = (endpoint(), hash(), any::<u64>(), option::of(any::<u64>())).prop_map(
        |(to, ping_hash, expiration, enr_seq)| Pong { to, ping_hash, expiration, enr_seq }.into(),
    );
    let find = (public(), any::<u64>())
        .prop_map(|(target, expiration)| FindNode { target, expiration }.into());
    let node = (public(), endpoint()).prop_map(|(key, endpoint)| Node { key, endpoint });
    let neighbors = (vec(node, 0..=NEIGHBORS_MAX), any::<u64>())
        .prop_map(|(nodes, expiration)| Neighbors { nodes, expiration }.into());
    let request = any::<u64>().prop_map(|expiration| EnrRequest { expiration }.into());
    let response = (hash(), any::<u64>(), endpoint()).prop_map(|(request_hash, seq, endpoint)| {
        let Endpoint { ip, udp_port, tcp_port } = endpoint;
        let enr = EnrBuilder::new(seq).endpoint(ip, udp_port, tcp_port).sign(&key()).unwrap();
        EnrResponse { request_hash, enr }.into()
    });
    prop_oneof![ping, pong, find, neighbors, request, response]
}

/// Returns a packet around any data, as a newer version might send it.
fn sealed(packet_type: u8, data: &[u8]) -> Vec<u8> {
    // Signs the data with the key of the tests, independently of the code under test.
    let secret = secp256k1::SecretKey::from_byte_array(key().secret_bytes()).unwrap();
    let signed = [&[packet_type], data].concat();
    let digest = secp256k1::Message::from_digest(keccak256(&signed).0);
    let (recovery, compact) =
        secp256k1::SECP256K1.sign_ecdsa_recoverable(digest, &secret).serialize_compact();
    let mut rest = compact.to_vec();
    rest.push(i32::from(recovery) as u8);
    rest.extend(signed);
    [keccak256(&rest).as_slice(), &rest].concat()
}

fn list(items: &[&dyn Encodable]) -> Vec<u8> {
    let mut payload = Vec::new();
    items.iter().for_each(|item| item.encode(&mut payload));
    let mut out = Vec::new();
    Header { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend(payload);
    out
}

proptest! {
    #[test]
    fn every_message_survives_and_fits(message in message()) {
        let packet = encode(&key(), &message);
        prop_assert!(packet.bytes.len() <= PACKET_BYTES_MAX);
        let received = decode(&packet.bytes).unwrap();
        prop_assert_eq!(received.sender, *key().public());
        prop_assert_eq!(received.hash, packet.hash);
        prop_assert_eq!(received.message, message);
    }

    #[test]
    fn a_changed_packet_is_refused(message in message(), place: Index, bit in 0..8u8, cut: Index) {
        let packet = encode(&key(), &message);
        let mut changed = packet.bytes.clone();
        let place = place.index(changed.len());
        changed[place] ^= 1 << bit;
        prop_assert!(decode(&changed).is_err());
        prop_assert!(decode(&packet.bytes[..cut.index(packet.bytes.len())]).is_err());
    }

    /// The hash alone protects nothing, because anyone can compute it.
    #[test]
    fn a_changed_packet_with_a_right_hash_is_not_the_senders(
        message in message(), place: Index, bit in 0..8u8,
    ) {
        let mut changed = encode(&key(), &message).bytes;
        let place = 32 + place.index(changed.len() - 32);
        changed[place] ^= 1 << bit;
        let hash = keccak256(&changed[32..]);
        changed[..32].copy_from_slice(hash.as_slice());
        if let Ok(packet) = decode(&changed) {
            prop_assert_ne!(packet.sender, *key().public());
        }
    }

    #[test]
    fn random_data_in_a_signed_packet_never_panics(packet_type in 0..8u8, data in vec(any::<u8>(), 1..600)) {
        let _ = decode(&sealed(packet_type, &data));
        let mut inner = Vec::new();
        Header { list: true, payload_length: data.len() }.encode(&mut inner);
        inner.extend(data);
        let _ = decode(&sealed(packet_type, &inner));
    }

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..1500)) {
        prop_assert!(decode(&bytes).is_err());
    }

    /// EIP-8: elements beyond the known ones and bytes beyond the list are ignored.
    #[test]
    fn what_a_newer_version_adds_is_ignored(
        message in message(), extra in vec(any::<u8>(), 0..40), after in vec(any::<u8>(), 0..40),
    ) {
        let packet = encode(&key(), &message);
        let (packet_type, mut data) = (packet.bytes[97], &packet.bytes[98..]);
        let mut payload = Header::decode_bytes(&mut data, true).unwrap().to_vec();
        // Adds an element for each absent optional field, so that no extra element is taken for it.
        if matches!(&message, Message::Ping(Ping { enr_seq: None, .. }) | Message::Pong(Pong { enr_seq: None, .. })) {
            payload.push(0xc0);
        }
        extra[..].encode(&mut payload);
        payload.push(0xc0);
        let mut newer = Vec::new();
        Header { list: true, payload_length: payload.len() }.encode(&mut newer);
        newer.extend(payload);
        newer.extend(after);
        let bytes = sealed(packet_type, &newer);
        if bytes.len() <= PACKET_BYTES_MAX {
            prop_assert_eq!(decode(&bytes).unwrap().message, message);
        }
    }
}

#[test]
fn what_is_no_packet_is_dropped_without_an_allocation() {
    let ping = Ping { from: local(), to: local(), expiration: 1, enr_seq: None };
    let good = encode(&key(), &ping.into()).bytes;
    let with = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let cases = [
        (Vec::new(), PacketError::Size),
        (with(|bytes| bytes.truncate(98)), PacketError::Size),
        (with(|bytes| bytes.resize(1281, 0)), PacketError::Size),
        (with(|bytes| bytes[97] = 0), PacketError::Type),
        (with(|bytes| bytes[97] = 7), PacketError::Type),
        (with(|bytes| bytes[0] ^= 1), PacketError::Hash),
        (with(|bytes| bytes[100] ^= 1), PacketError::Hash),
    ];
    for (bytes, error) in cases {
        let (taken, (frame, packet)) = allocations(|| (check_frame(&bytes), decode(&bytes)));
        assert_eq!(taken, 0);
        assert_eq!(frame, Err(error));
        assert_eq!(packet, Err(error));
    }
    assert!(check_frame(&good).is_ok());
}

fn local() -> Endpoint {
    Endpoint { ip: [127, 0, 0, 1].into(), udp_port: 30303, tcp_port: 30303 }
}

#[test]
fn any_version_of_a_ping_will_do() {
    let bytes = |version: &dyn Encodable| sealed(1, &list(&[version, &local(), &local(), &9u64]));
    for version in [&4u8 as &dyn Encodable, &5u8, &u64::MAX, &"a very long version", &vec![1u8, 2]]
    {
        let Message::Ping(ping) = decode(&bytes(version)).unwrap().message else { panic!() };
        assert_eq!((ping.expiration, ping.enr_seq), (9, None));
    }
}

/// This side does not rely on the sender's claim about itself: an empty address reads as
/// unspecified.
#[test]
fn an_endpoint_without_an_address_is_unspecified() {
    struct Nowhere;
    impl Encodable for Nowhere {
        fn encode(&self, out: &mut dyn alloy_rlp::BufMut) {
            out.put_slice(&[0xc3, 0x80, 0x80, 0x80]);
        }
    }
    let bytes = sealed(1, &list(&[&4u8, &Nowhere, &Nowhere, &9u64]));
    let Message::Ping(ping) = decode(&bytes).unwrap().message else { panic!() };
    assert!(ping.from.ip.is_unspecified());
}

#[test]
fn the_largest_neighbors_packet_fits() {
    let endpoint =
        Endpoint { ip: Ipv6Addr::from([0xff; 16]).into(), udp_port: u16::MAX, tcp_port: u16::MAX };
    let nodes = vec![Node { key: B512::repeat_byte(0xff), endpoint }; NEIGHBORS_MAX];
    let packet = encode(&key(), &Neighbors { nodes, expiration: u64::MAX }.into());
    assert_eq!(NEIGHBORS_MAX, 12);
    assert!(packet.bytes.len() <= PACKET_BYTES_MAX);
}

#[test]
fn a_record_with_everything_fits_into_its_packet() {
    let enr = EnrBuilder::new(u64::MAX)
        .endpoint(Ipv6Addr::from([0xff; 16]).into(), u16::MAX, u16::MAX)
        .endpoint([255; 4].into(), u16::MAX, u16::MAX)
        .eth(ForkId { hash: [0xff; 4], next: u64::MAX })
        .sign(&key())
        .unwrap();
    let packet = encode(&key(), &EnrResponse { request_hash: B256::ZERO, enr }.into());
    assert!(decode(&packet.bytes).is_ok());
}

/// Packets of EIP-8: each has unknown elements and, except the first, trailing bytes.
#[test]
fn the_packets_of_eip_8_are_read() {
    let read = |text: &str| {
        let packet = decode(&hex::decode(text.replace(['\n', ' '], "")).unwrap()).unwrap();
        assert_eq!(packet.sender, EIP_8_SENDER);
        assert_eq!(packet.message.expiration(), Some(1_136_239_445));
        packet.message
    };
    let Message::Ping(ping) = read(PING) else { panic!() };
    let (from, to) = ("127.0.0.1:3322".parse().unwrap(), "[::1]:2222".parse().unwrap());
    assert_eq!((ping.from, ping.to), (Endpoint::new(from, 5544), Endpoint::new(to, 3333)));
    assert!(matches!(read(PING_555), Message::Ping(_)));
    assert!(matches!(read(PONG), Message::Pong(_)));
    let Message::FindNode(find) = read(FIND_NODE) else { panic!() };
    assert_eq!(find.target, EIP_8_SENDER);
    let Message::Neighbors(neighbors) = read(NEIGHBORS) else { panic!() };
    let places: Vec<_> = neighbors.nodes.iter().map(|n| n.endpoint.udp().to_string()).collect();
    let expect = [
        "99.33.22.55:4444",
        "1.2.3.4:1",
        "[2001:db8:3c4d:15::abcd:ef12]:3333",
        "[2001:db8:85a3:8d3:1319:8a2e:370:7348]:999",
    ];
    assert_eq!(places, expect);
}

const EIP_8_SENDER: B512 = b512!(
    "0xca634cae0d49acb401d8a4c6b6fe8c55b70d115bf400769cc1400f3258cd31387574077f301b421bc84df7266c44e9e6d569fc56be00812904767bf5ccd1fc7f"
);

const PING: &str = "
    e9614ccfd9fc3e74360018522d30e1419a143407ffcce748de3e22116b7e8dc92ff74788c0b6663a
    aa3d67d641936511c8f8d6ad8698b820a7cf9e1be7155e9a241f556658c55428ec0563514365799a
    4be2be5a685a80971ddcfa80cb422cdd0101ec04cb847f000001820cfa8215a8d790000000000000
    000000000000000000018208ae820d058443b9a3550102";

const PING_555: &str = "
    577be4349c4dd26768081f58de4c6f375a7a22f3f7adda654d1428637412c3d7fe917cadc56d4e5e
    7ffae1dbe3efffb9849feb71b262de37977e7c7a44e677295680e9e38ab26bee2fcbae207fba3ff3
    d74069a50b902a82c9903ed37cc993c50001f83e82022bd79020010db83c4d001500000000abcdef
    12820cfa8215a8d79020010db885a308d313198a2e037073488208ae82823a8443b9a355c5010203
    040531b9019afde696e582a78fa8d95ea13ce3297d4afb8ba6433e4154caa5ac6431af1b80ba7602
    3fa4090c408f6b4bc3701562c031041d4702971d102c9ab7fa5eed4cd6bab8f7af956f7d565ee191
    7084a95398b6a21eac920fe3dd1345ec0a7ef39367ee69ddf092cbfe5b93e5e568ebc491983c09c7
    6d922dc3";

const PONG: &str = "
    09b2428d83348d27cdf7064ad9024f526cebc19e4958f0fdad87c15eb598dd61d08423e0bf66b206
    9869e1724125f820d851c136684082774f870e614d95a2855d000f05d1648b2d5945470bc187c2d2
    216fbe870f43ed0909009882e176a46b0102f846d79020010db885a308d313198a2e037073488208
    ae82823aa0fbc914b16819237dcd8801d7e53f69e9719adecb3cc0e790c57e91ca4461c9548443b9
    a355c6010203c2040506a0c969a58f6f9095004c0177a6b47f451530cab38966a25cca5cb58f0555
    42124e";

const FIND_NODE: &str = "
    c7c44041b9f7c7e41934417ebac9a8e1a4c6298f74553f2fcfdcae6ed6fe53163eb3d2b52e39fe91
    831b8a927bf4fc222c3902202027e5e9eb812195f95d20061ef5cd31d502e47ecb61183f74a504fe
    04c51e73df81f25c4d506b26db4517490103f84eb840ca634cae0d49acb401d8a4c6b6fe8c55b70d
    115bf400769cc1400f3258cd31387574077f301b421bc84df7266c44e9e6d569fc56be0081290476
    7bf5ccd1fc7f8443b9a35582999983999999280dc62cc8255c73471e0a61da0c89acdc0e035e260a
    dd7fc0c04ad9ebf3919644c91cb247affc82b69bd2ca235c71eab8e49737c937a2c396";

const NEIGHBORS: &str = "
    c679fc8fe0b8b12f06577f2e802d34f6fa257e6137a995f6f4cbfc9ee50ed3710faf6e66f932c4c8
    d81d64343f429651328758b47d3dbc02c4042f0fff6946a50f4a49037a72bb550f3a7872363a83e1
    b9ee6469856c24eb4ef80b7535bcf99c0004f9015bf90150f84d846321163782115c82115db84031
    55e1427f85f10a5c9a7755877748041af1bcd8d474ec065eb33df57a97babf54bfd2103575fa8291
    15d224c523596b401065a97f74010610fce76382c0bf32f84984010203040101b840312c55512422
    cf9b8a4097e9a6ad79402e87a15ae909a4bfefa22398f03d20951933beea1e4dfa6f968212385e82
    9f04c2d314fc2d4e255e0d3bc08792b069dbf8599020010db83c4d001500000000abcdef12820d05
    820d05b84038643200b172dcfef857492156971f0e6aa2c538d8b74010f8e140811d53b98c765dd2
    d96126051913f44582e8c199ad7c6d6819e9a56483f637feaac9448aacf8599020010db885a308d3
    13198a2e037073488203e78203e8b8408dcab8618c3253b558d459da53bd8fa68935a719aff8b811
    197101a4b2b47dd2d47295286fc00cc081bb542d760717d1bdd6bec2c37cd72eca367d6dd3b9df73
    8443b9a355010203b525a138aa34383fec3d2719a0";
