//! Two storage-writers of one chain with the same list of URLs: a lease decides which one leads, and the
//! other one keeps a copy.

use crate::binary;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tandem_bus_tests::{NatsServer, eventually, free_port};
use tandem_cluster_tests::{
    Corpus, Process, Recorded, Service, SingleExecutor, send_head, send_payload,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longest wait for the verdict about a block.
const VERDICT_MAX: Duration = Duration::from_secs(60);

/// Both storage-writers, with NATS and the consensus client's blocks.
struct House {
    runtime: Runtime,
    nats: NatsServer,
    folder: TempDir,
    ports: [u16; 2],
    blocks: Vec<Recorded>,
    /// Blocks that were sent so far.
    sent: usize,
}

impl House {
    fn new(nats: NatsServer) -> Self {
        let folder = TempDir::new().unwrap();
        // Beyond a few blocks, a follower has to copy the state.
        let text = "[storage_writer]\nfeed_blocks = 8\nunfinalized_blocks_max = 16\n\
                    [storage_writer.lead]\nlease_ms = 1500\nmargin_ms = 200\n";
        fs::write(folder.path().join("settings.toml"), text).unwrap();
        Self {
            runtime: Runtime::new().unwrap(),
            nats,
            folder,
            ports: [free_port(), free_port()],
            blocks: Corpus::demo().payloads().collect(),
            sent: 0,
        }
    }

    fn data(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("data-{index}"))
    }

    /// Makes the database of the genesis, as before each start of the first storage-writer in a cluster.
    fn init(&self, index: usize) {
        let made = Command::new(binary())
            .args(["init", "--genesis"])
            .arg(Corpus::demo().genesis())
            .arg("--datadir")
            .arg(self.data(index))
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    fn urls(&self) -> [String; 2] {
        self.ports.map(|port| format!("http://127.0.0.1:{port}"))
    }

    /// Starts a storage-writer.
    fn start(&self, index: usize) -> Service {
        let (data, urls) = (self.data(index), self.urls());
        let config = self.folder.path().join("settings.toml");
        let (list, nats) = (urls.join(","), self.nats.url());
        let own = [
            "storage-writer",
            "--datadir",
            data.to_str().unwrap(),
            "--config",
            config.to_str().unwrap(),
            "--nats",
            &nats,
            "--leader",
            &list,
            "--advertise",
            &urls[index],
        ];
        let name = format!("storage-writer-{index}");
        Service::start(binary(), self.folder.path(), &name, self.ports[index], &own)
    }

    /// Starts a storage-writer that led before. It hears of the other one and ends, and follows when it is
    /// started again.
    fn start_superseded(&self, index: usize) -> Service {
        let mut first = self.start(index);
        eventually("the end of the old leader", || first.running.has_ended().then_some(()));
        let log = first.running.log();
        assert!(log.contains("this one follows after a restart"), "{log}");
        self.start(index)
    }

    /// Starts a worker and an executor that know both storage-writers.
    fn executor(&self, name: &str) -> (Service, SingleExecutor) {
        let (list, folder) = (self.urls().join(","), self.folder.path());
        let own = ["multiproof-worker", "--storage-writer", &list];
        let worker = Service::start(binary(), folder, &format!("worker-of-{name}"), 0, &own);
        let url = format!("http://{}", worker.address);
        let more = ["--storage-writer", &list, "--worker", &url];
        let executor = SingleExecutor::start(binary(), folder, name, &more);
        executor.service.becomes_ready();
        (worker, executor)
    }

    /// Sends blocks up to this number over an executor of its own.
    fn send(&mut self, until: usize) {
        let (mut worker, mut executor) = self.executor(&format!("executor-{until}"));
        self.send_to(&mut executor, until);
        assert!(executor.service.running.terminate().0.success());
        worker.running.terminate();
    }

    /// Sends blocks up to this number to an executor.
    fn send_to(&mut self, executor: &mut SingleExecutor, until: usize) {
        let mut engine = executor.endpoints.engine();
        let end = Instant::now() + VERDICT_MAX;
        while self.sent < until {
            let block = &self.blocks[self.sent];
            let sent = self.runtime.block_on(async {
                send_payload(&mut engine, block).await?;
                send_head(&mut engine, block.hash).await
            });
            match sent {
                Ok(()) => self.sent += 1,
                Err(error) => {
                    assert!(Instant::now() < end, "block {}: {error}", self.sent);
                    // The new leader may lack the last blocks, which are then sent again.
                    self.sent -= usize::from(error == "SYNCING" && self.sent > 0);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Waits until a storage-writer that follows has applied this many blocks since its start.
    fn has_applied(&self, follower: &Service, blocks: usize) {
        eventually("the blocks at the follower", || {
            let (_, metrics) = follower.get("/metrics");
            let mut lines = metrics.lines();
            let count = lines
                .find_map(|line| line.strip_prefix("tandem_follower_blocks_applied_total "))?;
            (count.parse::<usize>().ok()? >= blocks).then_some(())
        });
        follower.becomes_ready();
    }
}

#[test]
fn an_executor_follows_the_lead_and_its_process_goes_on() {
    let Some(nats) = NatsServer::start() else { return };
    let mut house = House::new(nats);
    house.init(0);
    let (mut first, second) = (house.start(0), house.start(1));
    let (_worker, mut executor) = house.executor("executor");
    house.send_to(&mut executor, 6);
    house.has_applied(&second, 6);
    first.running.kill();
    // The new leader's term fences the executor, and no other one has the right to write.
    executor.begins_anew();
    house.send_to(&mut executor, 12);
    assert!(!executor.service.running.has_ended());
    let log = executor.service.running.log();
    assert!(log.contains("another storage-writer leads: this executor asks it"), "{log}");
    assert!(executor.service.running.terminate().0.success());
}

/// Returns whether a storage-writer leads and holds the lease.
fn leads(service: &Service) -> bool {
    let Some((_, metrics)) = service.try_get("/metrics") else { return false };
    ["tandem_storage_writer_leads 1", "tandem_storage_writer_lease_held 1"]
        .iter()
        .all(|wanted| metrics.lines().any(|line| line == *wanted))
}

fn verify(datadir: &Path) {
    let (status, text) = Process::verify_datadir(binary(), datadir);
    assert!(status.success(), "{}: {status}\n{text}", datadir.display());
}

#[test]
fn the_lead_goes_back_and_forth_between_two_with_the_same_list() {
    let Some(nats) = NatsServer::start() else { return };
    let mut house = House::new(nats);
    house.init(0);
    let (mut first, mut second) = (house.start(0), house.start(1));
    eventually("the first one leads", || leads(&first).then_some(()));
    let (_, metrics) = first.get("/metrics");
    let term = metrics.lines().find(|line| line.starts_with("tandem_storage_writer_term "));
    assert_eq!(term, Some("tandem_storage_writer_term 1"), "0 is that of every new database");
    house.send(6);
    house.has_applied(&second, 6);
    assert!(!leads(&second), "it follows");

    // The leader dies, and comes back with its data.
    first.running.kill();
    eventually("the second one leads", || leads(&second).then_some(()));
    house.send(12);
    let mut first = house.start_superseded(0);
    house.has_applied(&first, 6);

    // The second one is stopped in order, as when its machine is drained.
    assert!(second.running.terminate().0.success());
    eventually("the first one leads again", || leads(&first).then_some(()));
    house.send(40);

    // The second one lost its data. Its new database of the genesis is not mistaken for the chain: it gives
    // way, and copies the state of the leader, which has no blocks from genesis on any more.
    fs::remove_dir_all(house.data(1)).unwrap();
    house.init(1);
    let mut second = house.start_superseded(1);
    second.becomes_ready();
    assert!(leads(&first), "all the time");
    house.send(44);
    house.has_applied(&second, 4);
    for (index, service) in [&mut second, &mut first].into_iter().enumerate() {
        let (status, _) = service.running.terminate();
        assert!(status.success(), "{status}\n{}", service.running.log());
        verify(&house.data(1 - index));
    }
}
