//! Workers whose storage-writer is in another process.

use crate::{
    scripted::wait_until,
    support::{Chain, Random, prove, state_root},
};
use std::sync::Arc;
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_proto::{multiproof::Error, storage};
use tandem_storage_writer::grpc::Server;
use tandem_storage_writer_client::{Client, ClientConfig};
use tandem_testkit::network::{Network, Proxy};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;

/// Storage-writer of a chain behind a server, a network and a client.
struct Remote {
    network: Proxy,
    client: Arc<Client>,
    runtime: Runtime,
    stop: CancellationToken,
}

impl Remote {
    fn start(chain: &Chain) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        runtime.spawn(Server::new(chain.storage.clone()).serve(listener, stop.clone()));
        let network = Proxy::start(address, runtime.handle());
        let endpoint = format!("http://{}", network.address);
        // Long times, so that a busy machine causes no failure.
        let config = ClientConfig {
            reconnect_wait_ms: 60_000,
            read_ms_max: 60_000,
            ..ClientConfig::default()
        };
        let client = Client::connect(&endpoint, config, runtime.handle()).unwrap();
        Self { network, client, runtime, stop }
    }
}

/// Returns restarted workers, which have no tries and so read much.
fn restarted(chain: &Chain, remote: &Remote, old: &MultiproofWorkers) -> Arc<MultiproofWorkers> {
    old.stop();
    chain.workers(2, remote.client.clone())
}

/// Random blocks on branches, while the base moves, the connection is cut and workers restart. The
/// roots equal those of workers beside the storage-writer, and are right.
#[test]
fn workers_over_a_remote_storage_give_the_same_roots() {
    let mut chain = Chain::new();
    let remote = Remote::start(&chain);
    let local = chain.workers(2, chain.storage.clone());
    let mut workers = chain.workers(2, remote.client.clone());
    let mut random = Random(17);
    let (mut before, mut head) = (chain.genesis, chain.genesis);
    for number in 0..150 {
        if random.one_in(10) {
            workers = restarted(&chain, &remote, &workers);
        }
        if random.one_in(10) {
            remote.network.set(Network::Cut);
            wait_until(|| !remote.client.is_connected());
            remote.network.set(Network::Works);
        }
        let parent = if random.one_in(6) { before } else { head };
        let made = chain.make(parent, 1 + random.below(20) as usize, &mut random);
        let got = prove(&*workers, &made).unwrap();
        let want = prove(&*local, &made).unwrap();
        assert_eq!(got.roots, want.roots, "block {number}");
        assert_eq!(state_root(&got), made.root);
        chain.commit(&made);
        (before, head) = (parent, made.block.id);
        if random.one_in(3) {
            chain.make_head(head);
        }
    }
    workers.stop();
    local.stop();
}

/// Without a storage-writer a block fails with the client's error, and the next one does not fail.
#[test]
fn a_storage_that_is_away_fails_the_block_with_its_reason() {
    let mut chain = Chain::new();
    let remote = Remote::start(&chain);
    let endpoint = format!("http://{}", remote.network.address);
    let config = ClientConfig { reconnect_wait_ms: 50, ..ClientConfig::default() };
    let client = Client::connect(&endpoint, config, remote.runtime.handle()).unwrap();
    wait_until(|| client.is_connected());
    let workers = chain.workers(2, client.clone());
    let made = chain.make(chain.genesis, 12, &mut Random(3));
    remote.network.set(Network::Cut);
    wait_until(|| !client.is_connected());
    let error = prove(&*workers, &made).unwrap_err();
    let expected = storage::Error::Unavailable("no connection".to_owned());
    assert_eq!(error, Error::Storage(expected));
    remote.network.set(Network::Works);
    wait_until(|| client.is_connected());
    assert_eq!(state_root(&prove(&*workers, &made).unwrap()), made.root);
    chain.commit(&made);
    workers.stop();
    remote.stop.cancel();
}
