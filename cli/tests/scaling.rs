//! Processes of multiproof-worker join and leave while payloads flow.

#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use tandem_bus_tests::NatsServer;
use tandem_cluster_tests::{
    Client, Endless, Process, Recorded, Running, Six, ends_of_logs, send_head, send_payload, signal,
};
use tempfile::TempDir;

/// Two processors are few for sixteen workers, so a worker may wait for its turn. A worker that was
/// late is tried again soon.
const SETTINGS: &str = "\
[multiproof_workers]
threads = 1
proof_threads = 1
[fleet]
late_ms_min = 500
suspend_ms_min = 100
suspend_ms_max = 1000
";

/// Transactions per block: enough to reach most shards.
const TRANSACTIONS: usize = 30;
/// Upper bound of the blocks that any test takes, on the slowest machine.
const BLOCKS_MAX: usize = 2_000;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tandem"))
}

/// A cluster with one worker of its own, and workers that join it.
struct Scaled {
    folder: TempDir,
    settings: PathBuf,
    nats: NatsServer,
    six: Six,
    engine: Client,
    chain: Endless,
    blocks: usize,
    /// Workers that joined, by name.
    workers: BTreeMap<String, Running>,
    /// Bytes of the executor's log that were read.
    read: usize,
    /// Workers that answer for the shards now, from the executor's log.
    dealt: BTreeSet<String>,
}

impl Scaled {
    fn start(nats: NatsServer) -> Self {
        let folder = TempDir::new().unwrap();
        let [settings, genesis] = ["tandem.toml", "genesis.json"].map(|it| folder.path().join(it));
        let chain = Endless::new(16);
        fs::write(&genesis, chain.genesis_json()).unwrap();
        fs::write(&settings, SETTINGS).unwrap();
        let (url, file) = (nats.url(), settings.to_str().unwrap());
        let more = ["--nats", &url, "--disable-discovery", "--config", file];
        let six = Six::start(binary(), folder.path(), &genesis, &more);
        let engine = six.endpoints.engine();
        let (workers, read, dealt) = (BTreeMap::new(), 0, BTreeSet::new());
        Self { folder, settings, nats, six, engine, chain, blocks: 0, workers, read, dealt }
    }

    /// Starts one more worker, with the certificate that `tandem cluster` made for workers.
    fn join(&mut self) {
        let name = format!("newcomer-{}", self.workers.len() + 1);
        let storage = format!("https://127.0.0.1:{}", self.six.port("storage-writer", "grpc"));
        let (url, settings) = (self.nats.url(), self.settings.to_str().unwrap());
        let certificates = self.folder.path().join("data/certificates/multiproof-worker");
        let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"]
            .map(|name| certificates.join(name).display().to_string());
        let arguments = [
            "multiproof-worker",
            "--grpc.port=0",
            "--worker-id",
            &name,
            "--storage-writer",
            &storage,
            "--nats",
            &url,
            "--config",
            settings,
            "--tls.ca",
            &ca,
            "--tls.cert",
            &cert,
            "--tls.key",
            &key,
        ];
        let running = Running::start(binary(), self.folder.path(), &name, arguments);
        self.workers.insert(name, running);
    }

    /// Sends the next block, which is VALID at once: workers that join or leave meanwhile cause no
    /// retry.
    async fn extend(&mut self) {
        let block = self.chain.next_block(TRANSACTIONS);
        let label = format!("block {}", block.number);
        let block =
            Recorded { method: block.method.to_owned(), params: block.params, hash: block.hash };
        let sent = send_payload(&mut self.engine, &block).await;
        sent.unwrap_or_else(|error| {
            panic!("{label}: {error}\n{}", ends_of_logs(self.folder.path()))
        });
        send_head(&mut self.engine, block.hash).await.unwrap();
        self.blocks += 1;
        self.see_deals();
    }

    /// Reads on in the executor's log.
    fn see_deals(&mut self) {
        let log = fs::read_to_string(self.folder.path().join("data/logs/executor.log")).unwrap();
        // The log is read up to the last whole line.
        let end = log.rfind('\n').map_or(0, |at| at + 1);
        for line in log[self.read..end].lines().filter(|line| line.contains("shards move ")) {
            let names = line.split_once("workers=[").and_then(|(_, rest)| rest.split_once(']'));
            let names = names.expect("names of workers").0.split(", ");
            let names = names.map(|name| name.trim_matches('"').to_owned());
            self.dealt = names.filter(|name| !name.is_empty()).collect();
        }
        self.read = end;
    }

    /// Sends blocks until a condition holds for the workers that answer.
    async fn extend_until(&mut self, what: &str, mut holds: impl FnMut(&BTreeSet<String>) -> bool) {
        for _ in 0..BLOCKS_MAX {
            self.extend().await;
            if holds(&self.dealt) {
                eprintln!("{what} at block {}", self.blocks);
                return;
            }
        }
        let (dealt, log) = (&self.dealt, ends_of_logs(self.folder.path()));
        let newcomers: Vec<_> = self.workers.values().map(Running::log).collect();
        let newcomers = newcomers.join("\n");
        panic!("{what}: not within {BLOCKS_MAX} blocks, but {dealt:?}\n{log}\n{newcomers}");
    }

    /// Starts workers until there are `count`, and sends blocks until each of them has had shards.
    /// A worker that gets shards was in time with a block before. The workers need not have shards
    /// at the same time: on a busy machine, one is late from time to time.
    async fn grow(&mut self, count: usize) {
        while self.workers.len() + 1 < count {
            self.join();
            self.extend().await;
        }
        let mut waited_for: BTreeSet<_> = self.workers.keys().cloned().collect();
        self.extend_until(&format!("{count} workers have answered"), |dealt| {
            waited_for.retain(|name| !dealt.contains(name));
            waited_for.is_empty()
        })
        .await;
    }

    /// Stops workers until `count` are left, while blocks go on.
    async fn shrink(&mut self, count: usize) {
        let mut leaving = Vec::new();
        while self.workers.len() + 1 > count {
            let (name, running) = self.workers.pop_last().unwrap();
            signal(running.pid(), Signal::TERM);
            leaving.push((name, running));
            self.extend().await;
        }
        let left: BTreeSet<_> = leaving.iter().map(|(name, _)| name.clone()).collect();
        let all_gone = |dealt: &BTreeSet<String>| dealt.is_disjoint(&left) && !dealt.is_empty();
        self.extend_until(&format!("{count} workers are left"), all_gone).await;
        for (name, mut running) in leaving {
            assert!(running.ends().success(), "{name}: {}", running.log());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_up_to_sixteen_and_go_again_and_every_block_is_valid() {
    let Some(nats) = NatsServer::start() else { return };
    let mut scaled = Scaled::start(nats);
    scaled.extend_until("one worker answers", |dealt| dealt.len() == 1).await;
    for count in [2, 4, 8, 16] {
        scaled.grow(count).await;
    }
    for count in [8, 2, 1] {
        scaled.shrink(count).await;
    }
    assert_eq!(scaled.dealt.len(), 1, "{:?}", scaled.dealt);
    let Scaled { mut six, folder, nats, .. } = scaled;
    assert!(six.stop().0.success(), "{}", six.log());
    drop(nats);
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}
