//! discv5 and discv4 on one socket: `just discv5`.
#![cfg(feature = "discv5")]
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::MemoryTable;
use discv5::{ConfigBuilder, Discv5, Enr, ListenConfig};
use enr::{CombinedKey, NodeId};
use std::{
    net::{Ipv4Addr, UdpSocket},
    process::Command,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_discovery::{Config, Deps, Discovery};
use tandem_discv4::ForkId;
use tandem_primitives::B512;
use tandem_proto::{discovery::DiscoveryApi, event::ContactEvent};
use tandem_testkit::geth::devp2p;
use tokio_util::sync::CancellationToken;

struct Running {
    discovery: Arc<Discovery>,
    table: Arc<MemoryTable>,
    _datadir: tempfile::TempDir,
}

impl Running {
    fn start(bootnodes: Vec<String>) -> Self {
        let datadir = tempfile::tempdir().unwrap();
        let config = Config {
            datadir: datadir.path().to_owned(),
            addr: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            discv5: true,
            bootnodes,
            ..Config::default()
        };
        let bus = Bus::default();
        let table = Arc::new(MemoryTable::on(&bus));
        let fatal = CancellationToken::new();
        let deps = Deps { table: table.clone(), bus, fork_id: None, fatal };
        Self { discovery: Discovery::start(config, deps).unwrap(), table, _datadir: datadir }
    }

    fn enr(&self) -> String {
        self.discovery.status().enr
    }
}

fn eventually<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(Instant::now() < end, "{what} within 60 s");
        sleep(Duration::from_millis(20));
    }
}

/// Starts a node that speaks only discv5; its record names the consensus layer if `consensus` is
/// set.
async fn stranger(consensus: bool) -> Discv5 {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let key = CombinedKey::generate_secp256k1();
    let mut record = Enr::builder();
    record.ip4(Ipv4Addr::LOCALHOST).udp4(port);
    if consensus {
        record.add_value("eth2", &[0u8; 16]);
    }
    let record = record.build(&key).unwrap();
    let listen = ListenConfig::from_ip(Ipv4Addr::LOCALHOST.into(), port);
    let mut discv5 = Discv5::new(record, key, ConfigBuilder::new(listen).build()).unwrap();
    discv5.start().await.unwrap();
    discv5
}

fn id(enr: &Enr) -> B512 {
    *enr.to_base64().parse::<tandem_discv4::Enr>().unwrap().key()
}

#[test]
fn who_is_met_over_discv5_becomes_a_candidate_and_gets_the_record_of_discv4() {
    let running = Running::start(vec![]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let record: Enr = running.enr().parse().unwrap();
    let (peer, consensus) = runtime.block_on(async {
        let (peer, consensus) = (stranger(false).await, stranger(true).await);
        for stranger in [&peer, &consensus] {
            stranger.add_enr(record.clone()).unwrap();
            let found = stranger.find_node(NodeId::random()).await.unwrap();
            assert!(found.iter().any(|enr| enr.node_id() == record.node_id()), "{found:?}");
        }
        (peer, consensus)
    });
    let known = |discv5: &Discv5| {
        let id = id(&discv5.local_enr());
        running.table.contacts().into_iter().find(|contact| contact.id == id)
    };
    let contact = eventually("a candidate", || known(&peer));
    assert_eq!(contact.event, ContactEvent::Seen, "nobody has proven it to discv4");
    assert_eq!(Some(contact.udp_port), peer.local_enr().udp4());
    assert!(known(&consensus).is_none(), "no peer of the execution layer");

    // discv5 announces a change of v4's record.
    running.discovery.set_fork_id(ForkId { hash: [9; 4], next: 7 });
    let changed = eventually("another record", || {
        Some(running.enr()).filter(|enr| *enr != record.to_base64())
    });
    eventually("the same over discv5", || {
        let asked = peer.find_node_designated_peer(record.clone(), vec![0]);
        let answer = runtime.block_on(asked).unwrap_or_default();
        answer.into_iter().find(|enr| enr.to_base64() == changed)
    });

    let bound = running.discovery.status().bound;
    running.discovery.stop();
    UdpSocket::bind(bound).expect("the port is free again");
}

#[test]
fn nodes_that_speak_both_prove_each_other() {
    let first = Running::start(vec![]);
    let second = Running::start(vec![first.enr()]);
    let third = Running::start(vec![first.enr()]);
    eventually("two proven nodes each", || {
        [&first, &second, &third].iter().all(|node| node.table.proven() == 2).then_some(())
    });
    for running in [first, second, third] {
        running.discovery.stop();
    }
}

/// Runs both of geth's suites against one port.
#[test]
fn geths_suites_for_both_versions_pass() {
    let Some(devp2p) = devp2p() else { return };
    // The suites wait less than a second for an answer, which may be too short on a busy machine.
    const ATTEMPTS: usize = 3;
    for (version, all) in [("discv5", "10/10 tests passed"), ("discv4", "15/15 tests passed")] {
        let mut text = String::new();
        let passed = (0..ATTEMPTS).any(|_| {
            // Each attempt starts without the nodes of an earlier run.
            let running = Running::start(vec![]);
            let mut suite = Command::new(&devp2p);
            match version {
                "discv5" => suite.args(["discv5", "test", &running.enr()]),
                _ => suite.args(["discv4", "test", "-remote", &running.discovery.status().enode]),
            };
            text = String::from_utf8_lossy(&suite.output().unwrap().stdout).into_owned();
            running.discovery.stop();
            text.contains(all)
        });
        assert!(passed, "{text}");
    }
}
