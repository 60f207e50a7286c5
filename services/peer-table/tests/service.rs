//! The service as its callers see it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_peer_table::{Config, Deps, PeerTable};
use tandem_primitives::{B256, B512, Bytes};
use tandem_proto::{
    event::{Contact, ContactEvent, PEERS_DISCOVERED, PEERS_TARGET, PeersDiscovered, PeersTarget},
    peer_table::{Error, PeerTableApi},
};
use tokio_util::sync::CancellationToken;

fn start(datadir: &Path, bus: &Bus) -> Arc<PeerTable> {
    let config = Config { datadir: datadir.to_owned(), target_peers: 4, ..Config::default() };
    PeerTable::start(config, Deps { bus: bus.clone(), fatal: CancellationToken::new() }).unwrap()
}

fn answered(n: u8) -> Contact {
    Contact {
        id: B512::repeat_byte(n),
        ip: IpAddr::from([20, n, 1, 1]),
        udp_port: 30303,
        tcp_port: 30303,
        enr_seq: Some(1),
        enr: Some(Bytes::from(vec![n; 100])),
        event: ContactEvent::Answered,
    }
}

/// Waits until the table, which works on its own thread, has reached a state.
fn eventually(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < deadline, "it did not happen in 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn calls_are_answered_and_events_are_heard() {
    let (folder, bus) = (tempfile::tempdir().unwrap(), Bus::default());
    let table = start(folder.path(), &bus);
    assert_eq!(table.sample_for_lookup(), Ok(None));
    table.apply_batch((1..=3).map(answered).collect()).unwrap();
    let event = PeersDiscovered { contacts: (4..=20).map(answered).collect() };
    bus.publish(PEERS_DISCOVERED, Bytes::from_static(b"\xff nonsense").0);
    bus.publish(PEERS_DISCOVERED, event.encode());
    eventually(|| table.stats().unwrap().proven == 20);

    assert_eq!(table.closest(B256::ZERO, 16).unwrap().len(), 16);
    assert!(table.sample_for_lookup().unwrap().is_some());
    assert_eq!(table.sample_for_enr(), Ok(None), "all sent theirs");
    table.stop();
    assert!(matches!(table.stats(), Err(Error::Unavailable(_))));
}

#[test]
fn completion_is_published_when_it_changes() {
    let (folder, bus) = (tempfile::tempdir().unwrap(), Bus::default());
    let table = start(folder.path(), &bus);
    let mut target = bus.subscribe(PEERS_TARGET);
    for count in [0, 1, 1, 4, 5, 2] {
        table.set_connected(count).unwrap();
    }
    assert_eq!(table.stats().unwrap().connected, 2);
    let published: Vec<_> = std::iter::from_fn(|| target.try_next())
        .map(|payload| PeersTarget::decode(&payload).unwrap().completion)
        .collect();
    assert_eq!(published, [0.0, 0.25, 1.0, 0.5]);
    table.stop();
}

#[test]
fn nodes_that_answer_stand_in_for_sessions_until_these_are_reported() {
    let (folder, bus) = (tempfile::tempdir().unwrap(), Bus::default());
    let table = start(folder.path(), &bus);
    let mut target = bus.subscribe(PEERS_TARGET);
    let failed = |n| Contact { event: ContactEvent::Failed, ..answered(n) };
    table.apply_batch((1..=3).map(answered).collect()).unwrap();
    // One question without an answer may be a lost packet; two are not.
    table.apply_batch(vec![failed(1), failed(2), failed(2)]).unwrap();
    table.apply_batch(vec![answered(2)]).unwrap();
    assert_eq!(table.stats().unwrap().connected, 0, "they are no sessions");
    table.set_connected(1).unwrap();
    table.apply_batch((4..=20).map(answered).collect()).unwrap();
    assert_eq!(table.stats().unwrap().connected, 1);
    let published: Vec<_> = std::iter::from_fn(|| target.try_next())
        .map(|payload| PeersTarget::decode(&payload).unwrap().completion)
        .collect();
    assert_eq!(published, [0.75, 0.5, 0.75, 0.25]);
    table.stop();
}

#[test]
fn the_snapshot_survives_a_restart_and_a_damaged_one_is_no_reason_not_to_start() {
    let (folder, bus) = (tempfile::tempdir().unwrap(), Bus::default());
    let table = start(folder.path(), &bus);
    table.apply_batch((1..=20).map(answered).collect()).unwrap();
    table.stop();

    let begin = Instant::now();
    let table = start(folder.path(), &bus);
    let stats = table.stats().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!((stats.contacts, stats.proven, stats.lookup_candidates), (20, 0, 20));
    let closest = table.closest(B256::ZERO, 20).unwrap();
    assert!(
        closest.iter().all(|c| *c == Contact { event: ContactEvent::Seen, ..answered(c.id[0]) })
    );
    table.stop();

    let path = folder.path().join("peers.bin");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let table = start(folder.path(), &bus);
    assert_eq!(table.stats().unwrap().contacts, 0);
    table.apply_batch(vec![answered(1)]).unwrap();
    table.stop();
    let table = start(folder.path(), &bus);
    assert_eq!(table.stats().unwrap().contacts, 1);
    table.stop();
}
