//! Packets that strangers send over UDP, and node records and URLs that people paste.

use crate::{Reader, Target, heap, structures};
use alloy_primitives::keccak256;
use alloy_rlp::{BufMut, Encodable};
use secp256k1::{Message as Digest, SECP256K1, SecretKey};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tandem_discv4::{
    Endpoint, Enr, EnrBuilder, EnrRequest, EnrResponse, FindNode, ForkId, HEADER_BYTES, Message,
    Neighbors, Node, NodeKey, NodeUrl, PACKET_BYTES_MAX, Ping, Pong, check_frame, decode, encode,
};

/// Target for datagrams. The first byte says whether the rest is the whole datagram, or type and
/// data that are signed and framed first: no mutation would find the hash.
pub const PACKET: Target = Target {
    name: "discv4_packet",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 4 << 10,
    input_len_max: 1400,
    mutations: 15_000,
    seeds: packet_seeds,
    dictionary: &[
        b"\xc0",
        b"\x80",
        b"\x84\x7f\x00\x00\x01",
        b"\x90",
        b"\x82\x76\x5f",
        b"\xf8\x4d",
        b"\xb8\x40",
        b"\x88\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    run: read_packet,
};

/// Target for records: as RLP, as text, and signed from names and values.
pub const RECORD: Target = Target {
    name: "node_record",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 2 << 10,
    input_len_max: 1400,
    mutations: 15_000,
    seeds: record_seeds,
    dictionary: &[
        b"enr:",
        b"enode://",
        b"\x82id\x82v4",
        b"\x89secp256k1",
        b"\x83udp",
        b"\x82ip",
        b"\x83ip6",
        b"\x83eth",
        b"\xc0",
        b"\x80",
        b"?discport=",
        b"@127.0.0.1:30303",
        b"[::1]:",
    ],
    run: read_record,
};

const SECRET: [u8; 32] = [7; 32];

fn key() -> NodeKey {
    NodeKey::from_bytes(SECRET).unwrap()
}

fn record() -> Enr {
    let eth = ForkId { hash: [1, 2, 3, 4], next: 9 };
    EnrBuilder::new(3)
        .endpoint(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 30303, 30304)
        .endpoint(IpAddr::V6(Ipv6Addr::LOCALHOST), 30303, 0)
        .eth(eth)
        .sign(&key())
        .unwrap()
}

/// Signs type and data, and prepends the hash.
fn frame(data: &[u8]) -> Vec<u8> {
    let secret = SecretKey::from_byte_array(SECRET).unwrap();
    let digest = Digest::from_digest(keccak256(data).0);
    let (recovery, signature) =
        SECP256K1.sign_ecdsa_recoverable(digest, &secret).serialize_compact();
    let mut bytes = vec![0; 32];
    bytes.extend(signature);
    bytes.push(i32::from(recovery) as u8);
    bytes.extend(data);
    let hash = keccak256(&bytes[32..]);
    bytes[..32].copy_from_slice(hash.as_slice());
    bytes
}

fn messages() -> Vec<Message> {
    let key = key();
    let four = Endpoint::new((Ipv4Addr::LOCALHOST, 30303).into(), 30304);
    let six = Endpoint::new((Ipv6Addr::LOCALHOST, 1).into(), 0);
    let node = |endpoint| Node { endpoint, key: *key.public() };
    let hash = keccak256(b"x");
    vec![
        Ping { from: four, to: six, expiration: 9, enr_seq: Some(1) }.into(),
        Ping { from: six, to: four, expiration: u64::MAX, enr_seq: None }.into(),
        Pong { to: four, ping_hash: hash, expiration: 9, enr_seq: Some(1) }.into(),
        FindNode { target: *key.public(), expiration: 9 }.into(),
        Neighbors { nodes: vec![node(four), node(six)], expiration: 9 }.into(),
        Neighbors { nodes: vec![], expiration: 9 }.into(),
        EnrRequest { expiration: 9 }.into(),
        EnrResponse { request_hash: hash, enr: record() }.into(),
    ]
}

fn packet_seeds() -> Vec<Vec<u8>> {
    let key = key();
    let mut seeds = Vec::new();
    for message in messages() {
        let packet = encode(&key, &message).bytes;
        assert!(decode(&packet).is_ok());
        seeds.push([&[1], &packet[HEADER_BYTES - 1..]].concat());
        seeds.push([&[0], &packet[..]].concat());
    }
    seeds
}

fn read_packet(input: &[u8]) {
    let mut reader = Reader(input);
    let framed = reader.byte() & 1 != 0;
    let bytes = if framed { frame(reader.0) } else { reader.0.to_vec() };
    let Ok(packet) = heap::measured(|| decode(&bytes)) else { return };
    assert!(bytes.len() <= PACKET_BYTES_MAX);
    assert_eq!(check_frame(&bytes), Ok(packet.hash));
    assert!(!framed || packet.sender == *key().public());
    let again = encode(&key(), &packet.message);
    if again.bytes.len() <= PACKET_BYTES_MAX {
        assert_eq!(decode(&again.bytes).map(|packet| packet.message), Ok(packet.message));
    }
}

fn record_seeds() -> Vec<Vec<u8>> {
    let record = record();
    let url =
        format!("enode://{}@127.0.0.1:30303?discport=30301", const_hex(key().public().as_slice()));
    assert!(url.parse::<NodeUrl>().is_ok());
    let pairs = b"\x03\x05\x00hello\x02\x00\x81\x80\x02\x00ip\x05\x00\x84\x0a\x00\x00\x01";
    vec![
        [&[0], &record.rlp()[..]].concat(),
        [&[1], record.to_string().as_bytes()].concat(),
        [&[1], url.as_bytes()].concat(),
        [&[2], &pairs[..]].concat(),
    ]
}

fn const_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// RLP that is put into a record unchanged.
struct Raw<'a>(&'a [u8]);

impl Encodable for Raw<'_> {
    fn encode(&self, out: &mut dyn BufMut) {
        out.put_slice(self.0);
    }
}

fn read_record(input: &[u8]) {
    let mut reader = Reader(input);
    match reader.byte() % 3 {
        0 => {
            let rlp = reader.0;
            if let Ok(record) = heap::measured(|| Enr::decode(rlp)) {
                assert_eq!(record.rlp(), rlp);
                check_record(&record);
            }
        }
        1 => {
            let text = String::from_utf8_lossy(reader.0);
            if let Ok(record) = heap::measured(|| text.parse::<Enr>()) {
                check_record(&record);
            }
            if let Ok(url) = text.parse::<NodeUrl>() {
                assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
        _ => {
            let mut builder = EnrBuilder::new(reader.number());
            while !reader.is_empty() {
                let name = String::from_utf8_lossy(reader.bytes()).into_owned();
                builder = builder.set(&name, &Raw(reader.bytes()));
            }
            if let Ok(record) = builder.sign(&key())
                && let Ok(record) = Enr::decode(record.rlp())
            {
                check_record(&record);
            }
        }
    }
}

fn check_record(record: &Enr) {
    for (name, value) in record.pairs() {
        if let Ok(name) = std::str::from_utf8(name) {
            assert_eq!(record.get(name), Some(value));
        }
    }
    let _ = (record.ip4(), record.ip6(), record.udp4(), record.udp6(), record.tcp4(), record.eth());
    assert_eq!(record.to_string().parse().as_ref(), Ok(record));
    let _ = format!("{record:?}");
}
