//! The table over gRPC, as discovery in another process sees it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_bus::{Bus, Subscription};
use tandem_peer_table::{Config, Deps, PeerTable, grpc::Server};
use tandem_peer_table_client::{Client, ClientConfig};
use tandem_primitives::{B256, B512, Bytes};
use tandem_proto::{
    event::{Contact, ContactEvent, PEERS_DISCOVERED, PEERS_TARGET, PeersDiscovered, PeersTarget},
    limits::{DISCOVERED_CONTACTS_MAX, PEERS_MESSAGE_BYTES_MAX},
    peer_table::{Error, PeerTableApi},
    wire::peer_table::v1::{self, peer_table_client::PeerTableClient},
};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Table that is offered at an address.
struct Offered {
    table: Arc<PeerTable>,
    address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<std::io::Result<()>>,
}

fn offer(runtime: &Runtime, config: Config, address: SocketAddr) -> Offered {
    let bus = Bus::default();
    let deps = Deps { bus: bus.clone(), fatal: CancellationToken::new() };
    let table = PeerTable::start(config, deps).unwrap();
    let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = Server::new(table.clone(), bus).serve(listener, stop.clone());
    Offered { table, address, server: runtime.spawn(server), stop }
}

impl Offered {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends server and table; returns the address.
    fn end(self, runtime: &Runtime) -> SocketAddr {
        self.stop.cancel();
        runtime.block_on(self.server).unwrap().unwrap();
        self.table.stop();
        self.address
    }
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn config(datadir: &Path) -> Config {
    Config { datadir: PathBuf::from(datadir), target_peers: 4, ..Config::default() }
}

fn connect(runtime: &Runtime, url: &str) -> (Arc<Client>, Bus) {
    let bus = Bus::default();
    // The wait is long, so that a busy machine does not fail the test.
    let config = ClientConfig { answer_ms_max: 20_000, ..ClientConfig::default() };
    let client = Client::connect(url, config, bus.clone(), runtime.handle()).unwrap();
    (client, bus)
}

fn eventually<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = what() {
            return value;
        }
        assert!(Instant::now() < deadline, "it did not happen in 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn answered(n: u16) -> Contact {
    let [high, low] = n.to_be_bytes();
    let mut id = B512::ZERO;
    id[..2].copy_from_slice(&[high, low]);
    Contact {
        id,
        ip: IpAddr::from([20 + high, low, 1, 1]),
        udp_port: 30303,
        tcp_port: 30303,
        enr_seq: Some(1),
        enr: Some(Bytes::from(vec![low; 300])).filter(|_| !n.is_multiple_of(3)),
        event: ContactEvent::Answered,
    }
}

/// Returns the last of the completions published so far.
fn last(target: &mut Subscription) -> Option<f64> {
    let payloads = std::iter::from_fn(|| target.try_next());
    payloads.last().and_then(|payload| Some(PeersTarget::decode(&payload)?.completion))
}

#[test]
fn every_call_is_answered_as_by_the_table_itself() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let offered = offer(&runtime, config(folder.path()), anywhere());
    let (client, _) = connect(&runtime, &offered.url());
    eventually(|| client.is_connected().then_some(()));
    assert_eq!(client.sample_for_lookup(), Ok(None));
    assert_eq!(client.sample_for_enr(), Ok(None));
    // This is the largest batch there is.
    let contacts: Vec<_> = (0..DISCOVERED_CONTACTS_MAX as u16).map(answered).collect();
    client.apply_batch(contacts).unwrap();
    assert_eq!(client.stats().unwrap().proven, DISCOVERED_CONTACTS_MAX as u64);
    assert_eq!(client.stats(), offered.table.stats());
    for count in [1, 16, 256, 1000] {
        let target = B256::repeat_byte(count as u8);
        assert_eq!(client.closest(target, count), offered.table.closest(target, count));
    }
    assert_eq!(client.closest(B256::ZERO, 0), Ok(Vec::new()));
    assert!(client.sample_for_lookup().unwrap().is_some());
    let wanted = client.sample_for_enr().unwrap().unwrap();
    assert!(wanted.enr.is_none());
    client.set_connected(3).unwrap();
    assert_eq!(client.stats().unwrap().connected, 3);

    offered.table.stop();
    assert_eq!(client.stats(), Err(Error::Unavailable("peer-table has stopped".to_owned())));
    offered.end(&runtime);
}

#[test]
fn the_buses_of_both_processes_are_joined() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let offered = offer(&runtime, config(folder.path()), anywhere());
    offered.table.set_connected(1).unwrap();
    let (client, bus) = connect(&runtime, &offered.url());
    let mut target = bus.subscribe(PEERS_TARGET);
    // This was published before there was a listener.
    assert_eq!(eventually(|| last(&mut target)), 0.25);
    for n in 0..600 {
        let event = PeersDiscovered { contacts: vec![answered(n)] };
        bus.publish(PEERS_DISCOVERED, Bytes::from_static(b"\xff nonsense").0);
        bus.publish(PEERS_DISCOVERED, event.encode());
        // The lag stays below what the bus keeps for a subscriber.
        eventually(|| (offered.table.stats().unwrap().proven + 50 >= u64::from(n)).then_some(()));
    }
    eventually(|| (client.stats().unwrap().proven == 600).then_some(()));
    client.set_connected(4).unwrap();
    assert_eq!(eventually(|| last(&mut target)), 1.0);
    client.set_connected(2).unwrap();
    assert_eq!(eventually(|| last(&mut target)), 0.5);
    offered.end(&runtime);
}

#[test]
fn without_a_connection_calls_fail_at_once_and_batches_wait_for_the_next() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let offered = offer(&runtime, config(folder.path()), anywhere());
    let (client, bus) = connect(&runtime, &offered.url());
    let mut target = bus.subscribe(PEERS_TARGET);
    eventually(|| client.is_connected().then_some(()));
    client.apply_batch((0..20).map(answered).collect()).unwrap();
    client.set_connected(4).unwrap();
    assert_eq!(eventually(|| last(&mut target).filter(|target| *target == 1.0)), 1.0);
    let address = offered.end(&runtime);

    eventually(|| (!client.is_connected()).then_some(()));
    let gone = Err(Error::Unavailable("no connection to peer-table".to_owned()));
    assert_eq!(client.stats(), gone);
    for n in 20..50 {
        bus.publish(PEERS_DISCOVERED, PeersDiscovered { contacts: vec![answered(n)] }.encode());
    }
    assert_eq!(last(&mut target), None, "nobody says that the target is no longer reached");

    let offered = offer(&runtime, config(folder.path()), address);
    eventually(|| client.is_connected().then_some(()));
    // The contacts are those of the snapshot, and those found meanwhile.
    eventually(|| {
        let stats = client.stats().unwrap();
        ((stats.contacts, stats.proven) == (50, 30)).then_some(())
    });
    // No session was reported to the new table, so the 30 nodes that answered it stand in.
    assert_eq!(eventually(|| last(&mut target).filter(|target| *target == 1.0)), 1.0);
    client.set_connected(0).unwrap();
    assert_eq!(eventually(|| last(&mut target)), 0.0);
    offered.end(&runtime);
}

#[test]
fn health_says_when_it_serves() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let offered = offer(&runtime, config(folder.path()), anywhere());
    let mut watched = runtime.block_on(async {
        let channel = Endpoint::from_shared(offered.url()).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel);
        let service = "tandem.peer_table.v1.PeerTable".to_owned();
        let request = HealthCheckRequest { service };
        let status = health.check(request.clone()).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving);
        let nobody = HealthCheckRequest { service: "tandem.nobody.v1.Nobody".to_owned() };
        assert_eq!(health.check(nobody).await.unwrap_err().code(), Code::NotFound);
        let mut watched = health.watch(request).await.unwrap().into_inner();
        let first = watched.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        watched
    });
    offered.end(&runtime);
    // The watcher is told that the server stops, or the connection is cut first.
    let last = runtime.block_on(watched.message());
    let told = last.as_ref().ok().and_then(Option::as_ref);
    assert!(told.is_none_or(|told| told.status() == ServingStatus::NotServing), "{last:?}");
}

#[test]
fn malformed_and_oversized_requests_are_refused_with_a_reason() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let offered = offer(&runtime, config(folder.path()), anywhere());
    runtime.block_on(async {
        let to = Endpoint::from_shared(offered.url()).unwrap();
        let mut calls = PeerTableClient::connect(to).await.unwrap();
        let refused =
            |target: usize, count| v1::ClosestRequest { target: vec![0; target].into(), count };
        for (request, reason) in [
            (refused(31, 1), "closest.target: expected 32 bytes, got 31"),
            (refused(32, 0), "closest.count: 0 is not in 1..=256"),
            (refused(32, u32::MAX), "closest.count: 4294967295 is not in 1..=256"),
        ] {
            let status = calls.closest(request).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, reason));
        }
        let too_many = (0..=DISCOVERED_CONTACTS_MAX as u16).map(answered).collect::<Vec<_>>();
        let status = calls.apply_batch(v1::ApplyBatchRequest::from(too_many)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let huge = v1::ClosestRequest { target: vec![0; PEERS_MESSAGE_BYTES_MAX].into(), count: 1 };
        let status = calls.closest(huge).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        // The number of watchers, which callers control, is bounded.
        let mut watching = Vec::new();
        let status = loop {
            match calls.watch_target(v1::WatchTargetRequest {}).await {
                Ok(stream) => watching.push(stream),
                Err(status) => break status,
            }
            if watching.len() == 48 {
                // Another connection has room for more calls.
                let to = Endpoint::from_shared(offered.url()).unwrap();
                calls = PeerTableClient::connect(to).await.unwrap();
            }
        };
        assert_eq!((watching.len(), status.code()), (64, Code::ResourceExhausted));
    });
    assert_eq!(offered.table.stats().unwrap().contacts, 0);
    offered.end(&runtime);
}
