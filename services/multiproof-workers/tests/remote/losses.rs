//! Connections that are cut, hosts that vanish, servers that restart.

use crate::scripted::{Event, Host, Scripted, begin, roots, update, wait_until};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_multiproof_workers_client::{Client, ClientConfig};
use tandem_proto::multiproof::{Error, ProofApi};
use tandem_testkit::network::{Network, Proxy};
use tokio::runtime::Runtime;

/// Well below the longest wait of the default settings.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn a_cut_fails_the_open_block_and_the_next_one_finds_a_connection() {
    let workers = Arc::new(Scripted::default());
    let host = Host::start(workers.clone());
    let network = Proxy::start(host.address, host.runtime.handle());
    let client = host.client_at(network.address, ClientConfig::default());
    for number in 1..6 {
        let started = Instant::now();
        let mut session = client.begin(begin(number)).unwrap();
        session.update(update(number, 1));
        workers.wait_for(|events| matches!(events.last(), Some(Event::Update(_))));
        network.set(Network::Cut);
        wait_until(|| !client.is_connected());
        session.update(update(number, 1));
        session.finish();
        assert_eq!(session.roots(), Err(Error::Unavailable));
        workers.wait_for(|events| events.last() == Some(&Event::Cancel));
        network.set(Network::Works);
        // As the executor does: once more, at once.
        let session = client.begin(begin(number)).unwrap();
        assert_eq!(session.roots(), Ok(roots(number)));
        assert!(started.elapsed() < SOON);
    }
}

#[test]
fn a_cut_while_roots_are_awaited_ends_the_wait() {
    let workers = Arc::new(Scripted::default());
    let host = Host::start(workers.clone());
    let network = Proxy::start(host.address, host.runtime.handle());
    let client = host.client_at(network.address, ClientConfig::default());
    let started = Instant::now();
    let session = client.begin(begin(1)).unwrap();
    workers.wait_for(|events| events.len() == 1);
    workers.gate.set_closed(true);
    let waiting = std::thread::spawn(move || session.roots());
    workers.wait_for(|events| events.last() == Some(&Event::Finish));
    network.set(Network::Cut);
    assert_eq!(waiting.join().unwrap(), Err(Error::Unavailable));
    assert!(started.elapsed() < SOON);
    workers.gate.set_closed(false);
}

#[test]
fn a_host_that_vanished_is_noticed_by_its_silence() {
    let workers = Arc::new(Scripted::default());
    let host = Host::start(workers.clone());
    let network = Proxy::start(host.address, host.runtime.handle());
    let mut config = ClientConfig::default();
    config.connection.keep_alive_ms = 100;
    let client = host.client_at(network.address, config);
    let session = client.begin(begin(1)).unwrap();
    workers.wait_for(|events| events.len() == 1);
    network.set(Network::Silent);
    let started = Instant::now();
    assert_eq!(session.roots(), Err(Error::Unavailable));
    assert!(started.elapsed() < SOON);
    network.set(Network::Works);
    wait_until(|| client.begin(begin(2)).is_ok_and(|session| session.roots() == Ok(roots(2))));
}

#[test]
fn a_server_that_stops_gives_up_the_open_block_and_serves_again_after_its_start() {
    let workers = Arc::new(Scripted::default());
    let mut host = Host::start(workers.clone());
    let other = Runtime::new().unwrap();
    let endpoint = format!("http://{}", host.address);
    let config = ClientConfig { reconnect_wait_ms: 300, ..ClientConfig::default() };
    let client = Client::connect(&endpoint, config, other.handle()).unwrap();
    for number in 1..4 {
        wait_until(|| client.is_connected());
        let session = client.begin(begin(number)).unwrap();
        workers.wait_for(|events| events.last() == Some(&Event::Begin(begin(number))));
        host.stop();
        assert_eq!(session.roots(), Err(Error::Unavailable));
        assert_eq!(workers.events().last(), Some(&Event::Cancel));
        let started = Instant::now();
        assert!(matches!(client.begin(begin(number)), Err(Error::Unavailable)));
        assert!(started.elapsed() >= Duration::from_millis(250), "it waited for a connection");
        client.discard(begin(number).block.hash);
        assert_eq!(client.status(), Err(Error::Unavailable));
        host.start_again(workers.clone());
    }
    wait_until(|| client.is_connected());
    assert_eq!(client.begin(begin(9)).unwrap().roots(), Ok(roots(9)));
}

#[test]
fn what_is_no_endpoint_is_an_error_that_names_it() {
    let runtime = Runtime::new().unwrap();
    let result = Client::connect("not an address", ClientConfig::default(), runtime.handle());
    let error = result.err().unwrap().to_string();
    assert!(error.contains("not an address"), "{error}");
}

#[test]
fn a_dropped_client_leaves_nothing_open() {
    let workers = Arc::new(Scripted::default());
    let host = Host::start(workers.clone());
    let client = host.client(ClientConfig::default());
    let session = client.begin(begin(1)).unwrap();
    workers.wait_for(|events| events.len() == 1);
    drop(client);
    workers.wait_for(|events| events.last() == Some(&Event::Cancel));
    assert_eq!(session.roots(), Err(Error::Unavailable));
}
