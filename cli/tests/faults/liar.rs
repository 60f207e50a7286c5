//! A worker that returns wrong subtrie roots.

use crate::{binary, replay::Replay, table::Table};
use rand::Rng;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_bus_tests::eventually;
use tandem_cluster_tests::{Corpus, Hooked, Liar, Wired, Wiring, send_head, send_payload};
use tandem_multiproof_workers::{Config, Deps, MultiproofWorkers, grpc::Server};
use tandem_policy::LivePolicies;
use tandem_storage_writer_client::{Client, ClientConfig};
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Handle, task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

/// Settings with which no worker is late because the machine is slow, and a quarantine ends soon.
const SETTINGS: &str =
    "[fleet]\nlate_ms_min = 60000\nlate_ms_max = 60000\nquarantine_seconds = 1\n";
const QUARANTINE: Duration = Duration::from_secs(1);

/// Message of the executor about a worker that lied.
const FOUND_OUT: &str = "worker gave wrong subtrie roots and is not used";
/// Message of the executor about a block whose first root came from a lie.
const WRONG_ROOT: &str = "first state root was wrong";

/// Maximum number of blocks for one lie: the worker is on trial before it answers.
const BLOCKS_MAX: usize = 8;

/// A worker in this process, over the storage-writer of other processes.
struct LyingWorker {
    liar: Arc<Liar>,
    address: SocketAddr,
    workers: Arc<MultiproofWorkers>,
    storage: Arc<Client>,
    stop: CancellationToken,
}

impl LyingWorker {
    fn start(storage_writer: SocketAddr) -> Self {
        let (endpoint, runtime) = (format!("http://{storage_writer}"), Handle::current());
        let storage = Client::connect(&endpoint, ClientConfig::default(), &runtime).unwrap();
        let fatal = CancellationToken::new();
        let deps = Deps {
            storage: storage.clone(),
            bus: Bus::default(),
            policies: LivePolicies::default(),
            fatal: fatal.clone(),
        };
        let workers = MultiproofWorkers::start(Config::default(), deps).unwrap();
        let (liar, stop) = (Arc::<Liar>::default(), CancellationToken::new());
        let hooked = Arc::new(Hooked::new(workers.clone(), liar.clone()));
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::start(hooked, fatal).unwrap();
        runtime.spawn(server.serve(listener, stop.clone()));
        Self { liar, address, workers, storage, stop }
    }

    async fn stop(self) {
        let Self { workers, storage, stop, .. } = self;
        stop.cancel();
        let end = move || {
            storage.stop();
            workers.stop();
        };
        spawn_blocking(end).await.unwrap();
    }
}

/// Starts an executor with two workers, one of which is in this process and lies when told to.
fn start(folder: &Path) -> (Wired, LyingWorker) {
    let mut worker = None;
    let wired = Wired::start(
        &Wiring {
            binary: binary(),
            folder,
            genesis: &Corpus::demo().genesis(),
            settings: SETTINGS,
            nats: None,
            runtime: &Handle::current(),
        },
        |storage_writer| {
            let lying = worker.insert(LyingWorker::start(storage_writer));
            vec![format!("http://{}", lying.address)]
        },
    );
    let connected = || {
        let log = wired.log("executor");
        (log.matches("connected server=\"multiproof-worker\"").count() == 2).then_some(())
    };
    eventually("both workers are connected", connected);
    (wired, worker.expect("the executor was told of it"))
}

/// Replays blocks with a worker that lies from time to time, at most `lies_max` times. Returns how
/// many blocks got a wrong root from it. Each of these blocks is VALID, because the executor's own
/// process decides. The worker is then unused for a while, which the log reports in one line.
pub async fn run(seed: u64, lies_max: u64, table: &mut Table) -> u64 {
    eprintln!("seed {seed}, with a liar");
    let folder = TempDir::new().unwrap();
    let (wired, worker) = start(folder.path());
    let count = |text: &str| wired.log("executor").matches(text).count() as u64;
    let mut replay = Replay::new(seed, &wired.endpoints, folder.path());
    let liar = &worker.liar;
    let mut believed = 0;
    while believed < lies_max && replay.left() > 2 * BLOCKS_MAX {
        for _ in 0..replay.rng.random_range(1..=3) {
            replay.advance().await;
        }
        let (told, found) = (liar.told.load(SeqCst), count(FOUND_OUT));
        liar.lies.store(1, SeqCst);
        for _ in 0..BLOCKS_MAX {
            let begun = Instant::now();
            replay.advance().await;
            if liar.told.load(SeqCst) > told {
                replay.advance().await;
                if count(WRONG_ROOT) > believed {
                    table.add("wrong subtrie root", begun.elapsed());
                    believed += 1;
                    assert_eq!(count(FOUND_OUT), found + 1, "the log says it once");
                }
                break;
            }
        }
        // An answer on trial may have been a lie too, but it was not believed.
        liar.lies.store(0, SeqCst);
        sleep(QUARANTINE).await;
    }
    replay.advance().await;
    replay.assert_all_there().await;
    assert_eq!(count(WRONG_ROOT), believed);
    assert!(count(FOUND_OUT) <= liar.told.load(SeqCst), "nobody else is blamed");
    worker.stop().await;
    wired.stop();
    replay.verify();
    believed
}

/// Builds a payload beside a liar. Its root is in no header yet, so a lie would go unnoticed.
/// Therefore no remote worker is asked for it, and the payload is valid.
pub async fn build(seed: u64) {
    eprintln!("seed {seed}, a payload is built beside a liar");
    let folder = TempDir::new().unwrap();
    let (wired, worker) = start(folder.path());
    let mut replay = Replay::new(seed, &wired.endpoints, folder.path());
    let liar = &worker.liar;
    for _ in 0..replay.rng.random_range(1..=8) {
        replay.advance().await;
    }
    let begun = liar.begun.load(SeqCst);
    assert!(begun > 0, "it is asked for blocks");
    liar.lies.store(u64::MAX, SeqCst);
    let built = replay.build().await;
    assert_eq!(liar.begun.load(SeqCst), begun, "nobody asked it");
    let mut engine = wired.endpoints.engine();
    send_payload(&mut engine, &built).await.unwrap();
    send_head(&mut engine, built.hash).await.unwrap();
    assert!(liar.told.load(SeqCst) > 0, "it lied about the same block as soon as it was asked");
    worker.stop().await;
    wired.stop();
    replay.verify();
}
