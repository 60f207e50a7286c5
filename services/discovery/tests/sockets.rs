//! Whole services on real sockets, on loopback.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::MemoryTable;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    process::Command,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_bus::Bus;
use tandem_discovery::{Config, Deps, Discovery, Error};
use tandem_discv4::{Endpoint, Enr, ForkId, Message, NodeKey, Ping, decode, encode};
use tandem_proto::{
    discovery::DiscoveryApi,
    event::{ContactEvent, PEERS_TARGET, PeersTarget},
};
use tandem_testkit::geth::devp2p;
use tokio_util::sync::CancellationToken;

struct Running {
    discovery: Arc<Discovery>,
    table: Arc<MemoryTable>,
    bus: Bus,
    _datadir: tempfile::TempDir,
}

fn start(bootnodes: Vec<String>) -> Running {
    start_on([127, 0, 0, 1].into(), bootnodes).unwrap()
}

fn start_on(addr: IpAddr, bootnodes: Vec<String>) -> Result<Running, Error> {
    let datadir = tempfile::tempdir().unwrap();
    let config = Config {
        datadir: datadir.path().to_owned(),
        addr,
        port: 0,
        bootnodes,
        // All of loopback is one network, which has one vote.
        external_votes_min: 1,
        ..Config::default()
    };
    let bus = Bus::default();
    let table = Arc::new(MemoryTable::on(&bus));
    let deps = Deps {
        table: table.clone(),
        bus: bus.clone(),
        fork_id: None,
        fatal: CancellationToken::new(),
    };
    let discovery = Discovery::start(config.clone(), deps)?;
    Ok(Running { discovery, table, bus, _datadir: datadir })
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what} within 20 s");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn three_services_bond_find_each_other_and_exchange_records() {
    let first = start(vec![]);
    let boot = first.discovery.status();
    let (second, third) = (start(vec![boot.enode.clone()]), start(vec![boot.enr.clone()]));
    eventually("two proven nodes each", || {
        [&first, &second, &third].iter().all(|running| running.table.proven() == 2)
    });
    eventually("the records", || second.table.with_enr() == 2);
    let known = second.table.contacts();
    let ours = known.iter().find(|contact| contact.id == boot.id).unwrap();
    assert_eq!(SocketAddr::new(ours.ip, ours.udp_port), boot.bound);
    assert_eq!(ours.event, ContactEvent::Answered);

    // A new fork id makes a new record, which the others learn of and fetch.
    first.discovery.set_fork_id(ForkId { hash: [9; 4], next: 7 });
    eventually("a new record", || first.discovery.status().enr != boot.enr);
    second.bus.publish(PEERS_TARGET, PeersTarget { completion: 1.0 }.encode());
    eventually("the target", || second.discovery.status().completion_permille == 1000);
    for running in [&first, &second, &third] {
        running.discovery.stop();
    }
    let status = first.discovery.status();
    assert!(status.packets_received > 0 && status.packets_sent > 0);
}

#[test]
fn a_socket_for_ipv6_serves_ipv4_too_and_its_record_says_so() {
    let Ok(both) = start_on(Ipv6Addr::UNSPECIFIED.into(), vec![]) else {
        eprintln!("SKIPPED: no IPv6 here");
        return;
    };
    let (key, port) = (both.discovery.status().id, both.discovery.status().bound.port());
    let url = |ip: &str| format!("enode://{}@{ip}:{port}", const_hex::encode(key));
    let v4 = start(vec![url("127.0.0.1")]);
    let v6 = start_on(Ipv6Addr::LOCALHOST.into(), vec![url("[::1]")]).unwrap();
    let knows_both = |running: &Running| running.table.proven() >= 1;
    eventually("both are proven", || {
        [&v4, &v6].into_iter().all(knows_both) && both.table.proven() == 2
    });
    let known = both.table.contacts();
    assert!(known.iter().any(|contact| contact.ip == IpAddr::from([127, 0, 0, 1])));
    assert!(known.iter().any(|contact| contact.ip == Ipv6Addr::LOCALHOST));
    // Each of the two sees it under an address of its family.
    let record = || both.discovery.status().enr.parse::<Enr>().unwrap();
    eventually("a record with both addresses", || {
        record().ip4().is_some() && record().ip6().is_some()
    });
    let enr = record();
    assert_eq!((enr.ip4(), enr.udp4()), (Some(Ipv4Addr::LOCALHOST), Some(port)));
    assert_eq!((enr.ip6(), enr.udp6()), (Some(Ipv6Addr::LOCALHOST), Some(port)));
    assert!(enr.get("udp6").is_some());
    for running in [&both, &v4, &v6] {
        running.discovery.stop();
    }
}

#[test]
fn a_service_keeps_its_key_and_refuses_a_port_that_is_taken() {
    let running = start(vec![]);
    let status = running.discovery.status();
    let config = Config {
        datadir: running._datadir.path().to_owned(),
        addr: [127, 0, 0, 1].into(),
        port: status.bound.port(),
        ..Config::default()
    };
    let deps = || Deps {
        table: running.table.clone(),
        bus: Bus::default(),
        fork_id: None,
        fatal: CancellationToken::new(),
    };
    assert!(Discovery::start(config.clone(), deps()).is_err());
    running.discovery.stop();
    // Records are numbered by the millisecond: a restart within one would make an identical record.
    std::thread::sleep(std::time::Duration::from_millis(2));
    let again = Discovery::start(config.clone(), deps()).unwrap();
    assert_eq!(again.status().id, status.id);
    assert_ne!(again.status().enr, status.enr, "its record has a higher number");
    again.stop();
    let wrong = Config { bootnodes: vec!["enode://x".into()], ..config };
    assert!(Discovery::start(wrong.clone(), deps()).is_err());
}

#[test]
#[cfg(not(feature = "discv5"))]
fn a_build_without_discv5_says_so() {
    let config = Config { discv5: true, ..Config::default() };
    let (bus, fatal) = (Bus::default(), CancellationToken::new());
    let deps = Deps { table: Arc::new(MemoryTable::on(&bus)), bus, fork_id: None, fatal };
    let Err(error) = Discovery::start(config.clone(), deps) else { panic!("it started") };
    assert_eq!(error.to_string(), "this build has no discv5: build with --features discv5");
}

/// Floods with garbage and with valid packets of invented keys from one address. Pings from another
/// address are answered all the while.
#[test]
fn a_flood_from_one_address_does_not_keep_others_waiting() {
    let running = start(vec![]);
    let status = running.discovery.status();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let ping = |key: &NodeKey, from: SocketAddr| {
        let (from, to) = (Endpoint::new(from, 0), Endpoint::new(status.bound, 0));
        encode(key, &Ping { from, to, expiration: unix + 60, enr_seq: None }.into())
    };
    let noisy = UdpSocket::bind("127.0.0.2:0").unwrap();
    let quiet = UdpSocket::bind("127.0.0.3:0").unwrap();
    quiet.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let key = NodeKey::random(&mut rand::rng());
    let valid = ping(&key, noisy.local_addr().unwrap()).bytes;
    let stop = CancellationToken::new();
    let flood = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut sent = 0u64;
            while !stop.is_cancelled() {
                for _ in 0..50 {
                    let _ = noisy.send_to(&valid, status.bound);
                    let _ = noisy.send_to(&[7; 600], status.bound);
                }
                sent += 100;
                sleep(Duration::from_millis(2));
            }
            sent
        }
    });
    let mut waits = Vec::new();
    let mut buffer = [0; 1280];
    for _ in 0..40 {
        let ping = ping(&key, quiet.local_addr().unwrap());
        let asked = Instant::now();
        quiet.send_to(&ping.bytes, status.bound).unwrap();
        let answered = loop {
            let Ok((length, _)) = quiet.recv_from(&mut buffer) else { break false };
            let packet = decode(&buffer[..length]).unwrap();
            if matches!(&packet.message, Message::Pong(pong) if pong.ping_hash == ping.hash) {
                break true;
            }
        };
        waits.push(if answered { asked.elapsed() } else { Duration::MAX });
        sleep(Duration::from_millis(25));
    }
    stop.cancel();
    let sent = flood.join().unwrap();
    waits.sort();
    assert!(waits[36] < Duration::from_millis(200), "{sent} packets of flood, waits {waits:?}");
    running.discovery.stop();
    assert!(running.discovery.status().packets_dropped > sent / 4);
}

/// Runs geth's own suite, if it is installed.
#[test]
fn geths_suite_passes() {
    let Some(devp2p) = devp2p() else { return };
    let running = start(vec![]);
    let enode = running.discovery.status().enode;
    // The suite waits 300 ms for an answer, which may be too short on a machine busy with other
    // tests.
    const ATTEMPTS: usize = 3;
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        let suite = Command::new(&devp2p).args(["discv4", "test", "-remote", &enode]).output();
        text = String::from_utf8_lossy(&suite.unwrap().stdout).into_owned();
        if text.contains("15/15 tests passed") {
            running.discovery.stop();
            return;
        }
    }
    panic!("{text}");
}
