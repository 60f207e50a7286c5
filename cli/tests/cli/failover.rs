//! Death of the leading storage-writer with its disk, while a follower takes over by lease: what
//! `storage_writer.feed.acks` keeps, and what is lost without it.

use crate::binary;
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_cluster_tests::{
    Client as HttpClient, Corpus, Process, Recorded, Service, SingleExecutor, init, send_head,
    send_payload,
};
use tandem_proto::storage::{BlockReads, BlockRef};
use tandem_storage_writer_client::{Client, ClientConfig};
use tandem_testkit::network::{Network, Proxy};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Blocks that the follower has before it hears no more of its leader.
const SHARED: usize = 24;

/// Blocks after those, before the leader dies. `follower.lag_blocks_max` is not in the way: the follower
/// does not know of them.
const UNHEARD: usize = 10;

/// Blocks that the killer leaves time for: the replay goes on until the leader is gone.
const LATER: usize = 8;

/// Longest wait for the verdict about a block.
const VERDICT_MAX: Duration = Duration::from_secs(60);

/// A leader, its follower behind a proxy, and NATS.
struct House {
    runtime: Runtime,
    servers: Vec<NatsServer>,
    folder: TempDir,
    leader: Service,
    /// Connection of the follower to the leader.
    link: Proxy,
    follower: Service,
    http: SocketAddr,
    blocks: Vec<Recorded>,
}

/// Writes the settings of all storage-writers.
fn settings(folder: &Path, acks: Option<&str>, replicas: usize) -> PathBuf {
    let feed = acks.map_or(String::new(), |acks| {
        format!(
            "[storage_writer.feed]\nstream = \"jetstream\"\nacks = \"{acks}\"\nreplicas = {replicas}\n\
             ack_wait_ms = 20000\n"
        )
    });
    let lead =
        format!("[storage_writer.lead]\nlease_ms = 8000\nmargin_ms = 500\nreplicas = {replicas}\n");
    let file = folder.join("settings.toml");
    fs::write(&file, lead + &feed).unwrap();
    file
}

impl House {
    /// Starts the processes. `acks` is the setting of the same name, `None` without a stream.
    fn start(acks: Option<&str>, servers: Vec<NatsServer>) -> Self {
        let (runtime, folder) = (Runtime::new().unwrap(), TempDir::new().unwrap());
        init(binary(), folder.path());
        let file = settings(folder.path(), acks, servers.len());
        let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
        let nats = urls.join(",");
        let common = ["--config", file.to_str().unwrap(), "--nats", &nats];
        let data = folder.path().join("data");
        let own = ["storage-writer", "--datadir", data.to_str().unwrap()];
        let own = [&own[..], &common].concat();
        let leader = Service::start(binary(), folder.path(), "leader", 0, &own);
        leader.becomes_ready();
        let link = Proxy::start(leader.address, runtime.handle());
        let (url, copy) = (format!("http://{}", link.address), folder.path().join("copy"));
        let own = ["follower", "--leader", &url, "--datadir", copy.to_str().unwrap()];
        let own = [&own[..], &common, &["--http.port=0"]].concat();
        let mut follower = Service::start(binary(), folder.path(), "follower", 0, &own);
        let http = follower.running.says("listening port=\"http\" address=").parse().unwrap();
        let blocks = Corpus::demo().payloads().collect();
        Self { runtime, servers, folder, leader, link, follower, http, blocks }
    }

    /// Starts a worker and an executor over a storage-writer.
    fn executor(&self, name: &str, storage: SocketAddr) -> (Service, SingleExecutor) {
        let url = format!("http://{storage}");
        let own = ["multiproof-worker", "--storage-writer", &url];
        let of = format!("worker-of-{name}");
        let worker = Service::start(binary(), self.folder.path(), &of, 0, &own);
        let worker_url = format!("http://{}", worker.address);
        let more = ["--storage-writer", &url, "--worker", &worker_url];
        let executor = SingleExecutor::start(binary(), self.folder.path(), name, &more);
        executor.service.becomes_ready();
        (worker, executor)
    }

    /// Sends a block and makes it the head. Returns whether it was answered VALID before `gives_up`.
    fn extend(
        &self,
        engine: &mut HttpClient,
        block: &Recorded,
        gives_up: impl Fn() -> bool,
    ) -> bool {
        let end = Instant::now() + VERDICT_MAX;
        loop {
            let sent = self.runtime.block_on(async {
                send_payload(engine, block).await?;
                send_head(engine, block.hash).await
            });
            match sent {
                Ok(()) => return true,
                Err(_) if gives_up() => return false,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until JSON-RPC of the follower shows this block as the head.
    fn follower_shows(&self, block: &Recorded) {
        eventually("the follower's head", || {
            let mut client = HttpClient::new(self.http, None);
            let latest = json!(["latest", false]);
            let shown = self.runtime.block_on(client.call("eth_getBlockByNumber", latest)).ok()?;
            (shown["hash"] == json!(block.hash)).then_some(())
        });
    }

    /// Returns how many of the first blocks of the corpus are canonical at a storage-writer.
    fn canonical(&self, storage: SocketAddr, count: usize) -> usize {
        let url = format!("http://{storage}");
        let config = ClientConfig::default();
        let client = Client::connect(&url, config, self.runtime.handle()).unwrap();
        let is_there = |index: &usize| {
            let number = *index as u64 + 1;
            let found = client.header(BlockRef::Number(number)).unwrap();
            found.is_some_and(|(id, _)| id.hash == self.blocks[*index].hash)
        };
        let there = (0..count).take_while(is_there).count();
        client.stop();
        there
    }
}

/// Blocks of a run, all counted from the beginning of the chain.
struct Outcome {
    /// Blocks that were answered VALID as the head before the leader died.
    answered: usize,
    /// Blocks of these that the new leader had when it began to lead.
    kept: usize,
}

/// Kills a leader with its disk during a replay, while its follower hears nothing of it. Then the chain
/// goes on at the follower.
fn leader_dies_with_its_disk(acks: Option<&str>, servers: Vec<NatsServer>) -> Outcome {
    let mut house = House::start(acks, servers);
    let (mut worker, mut executor) = house.executor("first", house.leader.address);
    let mut engine = executor.endpoints.engine();
    for block in &house.blocks[..SHARED] {
        house.extend(&mut engine, block, || false);
    }
    house.follower_shows(&house.blocks[SHARED - 1]);
    house.link.set(Network::Silent);
    for block in &house.blocks[SHARED..SHARED + UNHEARD] {
        house.extend(&mut engine, block, || false);
    }
    // The replay goes on while the process is killed.
    let (pid, data) = (house.leader.running.pid(), house.folder.path().join("data"));
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(150));
        tandem_cluster_tests::signal(pid, rustix::process::Signal::KILL);
        Instant::now()
    });
    let mut answered = SHARED + UNHEARD;
    for block in &house.blocks[answered..answered + LATER] {
        if !house.extend(&mut engine, block, || killer.is_finished()) {
            break;
        }
        answered += 1;
    }
    let died = killer.join().unwrap();
    house.leader.running.kill();
    fs::remove_dir_all(&data).unwrap();
    // Without it nothing tells the new leader of blocks that it lacks.
    executor.service.running.kill();
    worker.running.kill();
    eventually("a new leader", || {
        assert!(!house.follower.running.has_ended(), "{}", house.follower.running.log());
        let (_, metrics) = house.follower.try_get("/metrics")?;
        let held = "tandem_storage_writer_lease_held 1";
        metrics.lines().any(|line| line == held).then_some(())
    });
    let kept = house.canonical(house.follower.address, answered);
    eprintln!("{acks:?}: led {:?} after the death, {kept} of {answered} blocks", died.elapsed());
    let (mut worker, mut executor) = house.executor("second", house.follower.address);
    let mut engine = executor.endpoints.engine();
    for block in &house.blocks[kept..] {
        house.extend(&mut engine, block, || false);
    }
    house.follower_shows(house.blocks.last().unwrap());
    let (status, _) = executor.service.running.terminate();
    assert!(status.success(), "{status}");
    worker.running.terminate();
    let (status, _) = house.follower.running.terminate();
    assert!(status.success(), "{status}\n{}", house.follower.running.log());
    let (status, text) = Process::verify_datadir(binary(), &house.folder.path().join("copy"));
    assert!(status.success(), "{status}\n{text}");
    drop(house.servers);
    Outcome { answered, kept }
}

#[test]
fn with_acks_of_the_stream_no_answered_block_is_lost_with_the_leaders_disk() {
    let Some(servers) = NatsServer::start_cluster(3) else { return };
    let Outcome { answered, kept } = leader_dies_with_its_disk(Some("stream"), servers);
    assert!(answered >= SHARED + UNHEARD);
    assert_eq!(kept, answered);
}

#[test]
fn without_a_stream_the_blocks_that_no_follower_had_are_lost_with_the_leaders_disk() {
    let Some(server) = NatsServer::start() else { return };
    let Outcome { answered, kept } = leader_dies_with_its_disk(None, vec![server]);
    assert!(answered >= SHARED + UNHEARD);
    assert_eq!(kept, SHARED, "what docs/cluster.md says");
}
