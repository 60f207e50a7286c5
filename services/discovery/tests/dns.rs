//! Nodes from a list in DNS, over a real resolver and a minimal name server on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::MemoryTable;
use data_encoding::BASE32_NOPAD;
use secp256k1::{Message, SECP256K1, SecretKey};
use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{sleep, spawn},
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_discovery::{Config, Deps, Discovery};
use tandem_primitives::keccak256;
use tandem_proto::discovery::DiscoveryApi;
use tokio_util::sync::CancellationToken;

/// TXT records by domain.
type Zone = BTreeMap<String, String>;

/// Adds a list of these records to the zone, and returns its URL.
fn list(zone: &mut Zone, domain: &str, enrs: &[String]) -> String {
    let secret = SecretKey::from_byte_array([5; 32]).unwrap();
    let mut put = |text: &str| {
        let name = BASE32_NOPAD.encode(&keccak256(text)[..16]);
        zone.insert(format!("{name}.{domain}").to_lowercase(), text.to_owned());
        name
    };
    let names: Vec<_> = enrs.iter().map(|enr| put(enr)).collect();
    let (nodes, links) =
        (put(&format!("enrtree-branch:{}", names.join(","))), put("enrtree-branch:"));
    let content = format!("enrtree-root:v1 e={nodes} l={links} seq=1");
    let digest = Message::from_digest(keccak256(&content).0);
    let (recovery, compact) = SECP256K1.sign_ecdsa_recoverable(digest, &secret).serialize_compact();
    let signature = [&compact[..], &[i32::from(recovery) as u8]].concat();
    let text = format!("{content} sig={}", URL_SAFE_NO_PAD.encode(signature));
    zone.insert(domain.to_lowercase(), text);
    let key = BASE32_NOPAD.encode(&secret.public_key(SECP256K1).serialize());
    format!("enrtree://{key}@{domain}")
}

/// Returns the requested domain in lower case, and the end of the question (RFC 1035, section
/// 4.1.2).
fn question(query: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at + 4));
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).to_lowercase());
        at += length;
    }
}

fn answer(query: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    let (domain, end) = question(query)?;
    let text = zone.get(&domain);
    let mut reply = query.get(..end)?.to_vec();
    // The reply is authoritative; if there is no text, the name does not exist.
    (reply[2], reply[3]) = (0x84, if text.is_some() { 0 } else { 3 });
    reply[4..12].copy_from_slice(&[0, 1, 0, u8::from(text.is_some()), 0, 0, 0, 0]);
    if let Some(text) = text {
        let mut data = Vec::new();
        for part in text.as_bytes().chunks(255) {
            data.push(part.len() as u8);
            data.extend_from_slice(part);
        }
        // Name as above, TXT, IN, valid for a minute.
        reply.extend_from_slice(&[0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60]);
        reply.extend_from_slice(&(data.len() as u16).to_be_bytes());
        reply.extend_from_slice(&data);
    }
    Some(reply)
}

/// Serves a zone for as long as the process lives. Returns the count of questions so far.
fn serve(zone: Zone) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            count.fetch_add(1, Ordering::SeqCst);
            if let Some(reply) = answer(&buffer[..length], &zone) {
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    (address, asked)
}

struct Running {
    discovery: Arc<Discovery>,
    table: Arc<MemoryTable>,
    _datadir: tempfile::TempDir,
}

fn start(config: Config) -> Running {
    let datadir = tempfile::tempdir().unwrap();
    let config = Config {
        datadir: datadir.path().to_owned(),
        addr: [127, 0, 0, 1].into(),
        port: 0,
        lookup_fast_ms: 50,
        dns_pause_ms: 50,
        ..config
    };
    let bus = Bus::default();
    let table = Arc::new(MemoryTable::on(&bus));
    let fatal = CancellationToken::new();
    let deps = Deps { table: table.clone(), bus, fork_id: None, fatal };
    Running { discovery: Discovery::start(config, deps).unwrap(), table, _datadir: datadir }
}

#[test]
fn nodes_of_a_list_in_dns_are_found_and_proven() {
    let listed: Vec<_> = (0..3).map(|_| start(Config::default())).collect();
    let enrs: Vec<_> = listed.iter().map(|running| running.discovery.status().enr).collect();
    let mut zone = Zone::new();
    let url = list(&mut zone, "all.test.example.org", &enrs);
    let (entries, (server, asked)) = (zone.len(), serve(zone));
    let config = Config { dns_server: Some(server), ..Config::default() };
    let seeker = start(Config { dns_lists: Some(vec![url]), ..config.clone() });
    let end = Instant::now() + Duration::from_secs(20);
    while seeker.table.proven() < 3 {
        assert!(Instant::now() < end, "three nodes within 20 s, {asked:?} questions so far");
        sleep(Duration::from_millis(20));
    }
    // Each entry is requested once, or twice if an answer was late.
    sleep(Duration::from_millis(200));
    let questions = asked.load(Ordering::SeqCst);
    assert!((entries..=2 * entries).contains(&questions), "{questions} for {entries} entries");

    // Without a list DNS is not asked, though the server is there and peers are scarce.
    let other = start(config);
    sleep(Duration::from_millis(300));
    assert_eq!(asked.load(Ordering::SeqCst), questions);
    for running in listed.iter().chain([&seeker, &other]) {
        running.discovery.stop();
    }
}

/// Checks that DNS without answers delays no one, least of all the stop.
#[test]
fn a_dead_name_server_holds_nothing_up() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut zone = Zone::new();
    let url = list(&mut zone, "a.org", &[]);
    let config = Config {
        dns_server: silent.local_addr().ok(),
        dns_lists: Some(vec![url]),
        ..Config::default()
    };
    let boot = start(Config::default());
    let bootnodes = vec![boot.discovery.status().enode];
    let seeker = start(Config { bootnodes, ..config });
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    silent.recv_from(&mut [0; 1500]).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while seeker.table.proven() < 1 {
        assert!(Instant::now() < end, "the bootnode within 20 s");
        sleep(Duration::from_millis(20));
    }
    let stopped = Instant::now();
    seeker.discovery.stop();
    assert!(stopped.elapsed() < Duration::from_secs(4), "five seconds are those of DNS");
    boot.discovery.stop();
}
