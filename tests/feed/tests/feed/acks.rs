//! Forkchoices that wait for the stream.

use crate::{
    leader::{Leader, acknowledged, bus, published},
    stored::contents,
};
use std::time::{Duration, Instant};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_proto::storage::BaseReads;
use tokio::runtime::Runtime;

/// Waits until a forkchoice is acknowledged: the publisher may have to connect first.
fn until_acknowledged(leader: &Leader) {
    eventually("an acknowledgement", || leader.choose().ok());
}

#[test]
fn an_acknowledged_head_is_in_the_stream_and_without_the_stream_there_is_an_error() {
    let Some(mut server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let bus = bus(&[&server], &runtime);
    let config = acknowledged(directory.path(), 1, 400);
    let mut leader = Leader::start(config, 10, &bus, &runtime);
    until_acknowledged(&leader);
    for _ in 0..10 {
        leader.try_grow().unwrap();
        assert_eq!(contents(&server, &runtime).at, leader.head());
    }
    server.kill();
    let begun = Instant::now();
    let error = leader.try_grow().unwrap_err().to_string();
    assert!(error.contains("the stream has not acknowledged it"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let head = leader.writer.checkpoint().unwrap().forkchoice.head;
    assert_eq!(head, leader.head(), "the own database has it");
    server.restart();
    // The consensus client sends the same forkchoice again.
    until_acknowledged(&leader);
    assert_eq!(contents(&server, &runtime).at, leader.head());
    leader.try_grow().unwrap();
}

#[test]
fn a_server_that_does_not_answer_holds_up_a_forkchoice_for_its_bound_only() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(acknowledged(directory.path(), 1, 300), 11, &bus, &runtime);
    until_acknowledged(&leader);
    server.pause();
    let begun = Instant::now();
    assert!(leader.try_grow().is_err());
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    server.resume();
    until_acknowledged(&leader);
}

#[test]
fn by_default_no_forkchoice_waits_for_the_stream() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(published(directory.path(), 1), 12, &bus, &runtime);
    server.pause();
    let begun = Instant::now();
    leader.grow(5);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    server.resume();
}

#[test]
fn a_leader_whose_publisher_is_fenced_acknowledges_nothing() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (bus(&[&server], &runtime), bus(&[&server], &runtime));
    let config = acknowledged(&directory.path().join("old"), 1, 20_000);
    let mut old = Leader::start(config, 13, &first, &runtime);
    until_acknowledged(&old);
    old.try_grow().unwrap();
    let config = published(&directory.path().join("new"), 1);
    let mut new = Leader::unpublished(config, 13);
    new.grow(1);
    new.publish(&second, &runtime);
    eventually("the turn of the new one", || {
        (contents(&server, &runtime).turns == 2).then_some(())
    });
    let begun = Instant::now();
    let error = old.try_grow().unwrap_err().to_string();
    assert!(error.contains("fenced"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(15), "it does not wait for its bound");
    assert_eq!(contents(&server, &runtime).at, new.head());
}

/// Time of forkchoices with and without the wait, for docs/cluster.md. Prints the median and the
/// 99th percentile in microseconds.
#[test]
#[ignore = "a measurement"]
fn cost_of_an_acknowledgement() {
    const BLOCKS: usize = 500;
    let measure = |name: &str, servers: &[&NatsServer], replicas: usize, waits: bool| {
        let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let bus = bus(servers, &runtime);
        let config = match waits {
            true => acknowledged(directory.path(), replicas, 10_000),
            false => published(directory.path(), replicas),
        };
        let mut leader = Leader::start(config, 14, &bus, &runtime);
        // Blocks of about 150 KB, as on mainnet.
        leader.transaction_bytes = 75_000;
        until_acknowledged(&leader);
        let mut times: Vec<u128> = (0..BLOCKS)
            .map(|_| {
                leader.extend();
                let begun = Instant::now();
                leader.choose().unwrap();
                begun.elapsed().as_micros()
            })
            .collect();
        times.sort_unstable();
        println!("{name}: median {} us, p99 {} us", times[BLOCKS / 2], times[BLOCKS * 99 / 100]);
    };
    let Some(server) = NatsServer::start() else { return };
    measure("acks = leader", &[&server], 1, false);
    drop(server);
    let server = NatsServer::start().unwrap();
    measure("acks = stream, replicas = 1", &[&server], 1, true);
    drop(server);
    let servers = NatsServer::start_cluster(3).unwrap();
    let all: Vec<&NatsServer> = servers.iter().collect();
    measure("acks = stream, replicas = 3", &all, 3, true);
}
