//! A lease in NATS decides which storage-writer leads: its holder is cut off from NATS.

use crate::binary;
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_cluster_tests::{
    Client as HttpClient, Corpus, Recorded, Service, SingleExecutor, init, send_head, send_payload,
};
use tandem_proto::storage::{BaseReads, BlockWrites, Epoch, Forkchoice, WriteLease};
use tandem_storage_writer_client::{Client, ClientConfig};
use tandem_testkit::network::{Network, Proxy};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Time of the lease.
const LEASE: Duration = Duration::from_millis(1_500);

/// Time by which the holder stops earlier, and others wait longer.
const MARGIN: Duration = Duration::from_millis(200);

/// Blocks of the chain that [`grow`] makes.
pub const BLOCKS: usize = 4;

fn settings(folder: &Path) -> PathBuf {
    let file = folder.join("lease.toml");
    let (lease, margin) = (LEASE.as_millis(), MARGIN.as_millis());
    let text = format!("[storage_writer.lead]\nlease_ms = {lease}\nmargin_ms = {margin}\n");
    fs::write(&file, text).unwrap();
    file
}

/// Gives a storage-writer some blocks, and returns the last.
pub async fn grow(storage: &str, folder: &Path) -> Recorded {
    let own = ["multiproof-worker", "--storage-writer", storage];
    let worker = Service::start(binary(), folder, "worker", 0, &own);
    let worker_url = format!("http://{}", worker.address);
    let more = ["--storage-writer", storage, "--worker", &worker_url];
    let mut executor = SingleExecutor::start(binary(), folder, "executor", &more);
    executor.service.becomes_ready();
    let mut engine = executor.endpoints.engine();
    let mut last = None;
    for block in Corpus::demo().payloads().take(BLOCKS) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let sent = match send_payload(&mut engine, &block).await {
                Ok(()) => send_head(&mut engine, block.hash).await,
                Err(error) => Err(error),
            };
            let Err(error) = sent else { break };
            assert!(Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        last = Some(block);
    }
    executor.service.running.terminate();
    last.unwrap()
}

/// Writes the same forkchoice repeatedly until `stop` is set. Returns the time of the last write that
/// succeeded.
fn write_until(
    stop: &Arc<AtomicBool>,
    client: Arc<Client>,
    epoch: Epoch,
    forkchoice: Forkchoice,
) -> thread::JoinHandle<Option<Instant>> {
    let stop = stop.clone();
    thread::spawn(move || {
        let mut last = None;
        while !stop.load(SeqCst) {
            if client.canonicalize(epoch, forkchoice).is_ok() {
                last = Some(Instant::now());
            }
            thread::sleep(Duration::from_millis(2));
        }
        last
    })
}

#[test]
fn a_leader_that_is_cut_off_from_nats_stops_before_the_follower_begins() {
    let Some(server) = NatsServer::start() else { return };
    let runtime = Runtime::new().unwrap();
    let network = Proxy::start(server.address(), runtime.handle());
    let folder = TempDir::new().unwrap();
    init(binary(), folder.path());
    let file = settings(folder.path());
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let config = ["--config", file.to_str().unwrap()];
    let nats = format!("nats://{}", network.address);
    let own = ["storage-writer", "--datadir", data.to_str().unwrap(), "--nats", &nats];
    let leader =
        Service::start(binary(), folder.path(), "leader", 0, &[&own[..], &config].concat());
    leader.becomes_ready();
    let leader_url = format!("http://{}", leader.address);
    let head = runtime.block_on(grow(&leader_url, folder.path()));
    let url = server.url();
    let own = ["follower", "--leader", &leader_url, "--datadir", copy.to_str().unwrap()];
    let more = ["--http.port=0", "--nats", &url];
    let arguments = [&own[..], &more, &config].concat();
    let mut follower = Service::start(binary(), folder.path(), "follower", 0, &arguments);
    let http: SocketAddr =
        follower.running.says("listening port=\"http\" address=").parse().unwrap();
    eventually("the follower has the head", || {
        let latest = json!(["latest", false]);
        let mut client = HttpClient::new(http, None);
        let shown = runtime.block_on(client.call("eth_getBlockByNumber", latest)).ok()?;
        (shown["hash"] == json!(head.hash)).then_some(())
    });
    let connect = |address: SocketAddr| {
        let url = format!("http://{address}");
        Client::connect(&url, ClientConfig::default(), runtime.handle()).unwrap()
    };
    let (old, new) = (connect(leader.address), connect(follower.address));
    let epoch = eventually("a grant", || old.acquire_epoch("old").ok());
    let forkchoice = old.checkpoint().unwrap().forkchoice;
    assert_eq!(forkchoice.head.hash, head.hash);
    let stop = Arc::<AtomicBool>::default();
    let writes = write_until(&stop, old.clone(), epoch, forkchoice);
    thread::sleep(LEASE);
    // The follower reaches the leader and NATS; only the leader does not reach NATS.
    let cut = Instant::now();
    network.set(Network::Silent);
    let written = eventually("a write at the follower", || {
        let epoch = new.acquire_epoch("new").ok()?;
        new.canonicalize(epoch, forkchoice).ok()?;
        Some(Instant::now())
    });
    let (status, text) = leader.get("/readyz");
    assert_eq!(status, 503, "{text}");
    stop.store(true, SeqCst);
    let last = writes.join().unwrap().expect("a write at the leader");
    let after = |at: Instant| at.saturating_duration_since(cut);
    eprintln!("last write at the leader {:?} after the cut", after(last));
    eprintln!("first write at the follower {:?} after the cut", after(written));
    assert!(after(last) > Duration::ZERO, "the lease lasts for a while");
    assert!(last + MARGIN < written, "the leader stops first");
    assert!(after(written) < Duration::from_secs(10), "{:?}", after(written));
    // The old leader finds NATS again, and stays what it is.
    network.set(Network::Works);
    network.reset();
    eventually("the old leader gives way", || {
        leader.running.log().contains("another storage-writer leads").then_some(())
    });
    thread::sleep(2 * LEASE);
    assert!(old.acquire_epoch("old").is_err());
    let holds = |service: &Service, holds: u8| {
        let line = format!("tandem_storage_writer_lease_held {holds}");
        let (_, metrics) = service.get("/metrics");
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    };
    holds(&leader, 0);
    holds(&follower, 1);
    for client in [&old, &new] {
        client.stop();
    }
}
