//! A leader's server, a follower's process, and what they are compared by.

use parking_lot::Mutex;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_follower::{ChainView, Config, Deps, Follower, Leader};
use tandem_primitives::{B256, BlockId, Bytes, StateDiff};
use tandem_proto::storage::{BaseReads, BlockReads, BlockRef, Forkchoice, HistoryReads, ReadState};
use tandem_rpc::ConnectionConfig;
use tandem_storage_writer::{StartsAs, StorageWriter, grpc::Server, verify};
use tandem_storage_writer_client::{Client, ClientConfig};
use tandem_testkit::world::{World, account_key, slot_key};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Server of a leader, which keeps its port when it is restarted.
pub struct Host {
    pub runtime: Runtime,
    address: SocketAddr,
    running: Option<(CancellationToken, JoinHandle<std::io::Result<()>>)>,
}

impl Host {
    pub fn start(writer: &Arc<StorageWriter>) -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut host = Self { runtime: Runtime::new().unwrap(), address, running: None };
        host.start_again(writer);
        host
    }

    pub fn start_again(&mut self, writer: &Arc<StorageWriter>) {
        let listener = self.runtime.block_on(TcpListener::bind(self.address)).unwrap();
        self.address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = Server::new(writer.clone()).feeding(writer.clone()).led_by(writer.clone());
        let task = self.runtime.spawn(server.serve(listener, stop.clone()));
        self.running = Some((stop, task));
    }

    pub fn stop(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.cancel();
        self.runtime.block_on(task).unwrap().unwrap();
    }

    pub fn client(&self) -> Arc<Client> {
        let connection = ConnectionConfig {
            connect_ms_max: 10_000,
            keep_alive_ms: 20_000,
            ..ConnectionConfig::default()
        };
        let config = ClientConfig { connection, ..ClientConfig::default() };
        let endpoint = format!("http://{}", self.address);
        Client::connect(&endpoint, config, self.runtime.handle()).unwrap()
    }
}

/// View that notes what it hears.
#[derive(Default)]
pub struct Heard {
    pub stored: Mutex<Vec<BlockId>>,
    pub chosen: Mutex<Vec<Forkchoice>>,
    pub adopted: Mutex<u64>,
}

impl ChainView for Heard {
    fn stored(&self, block: BlockId, _: B256, _: &Bytes, _: Arc<StateDiff>) {
        self.stored.lock().push(block);
    }

    fn chosen(&self, forkchoice: Forkchoice) {
        self.chosen.lock().push(forkchoice);
    }

    fn adopted(&self) {
        *self.adopted.lock() += 1;
    }

    fn behind(&self, _: Option<BlockId>) {}
}

/// Follower with its database.
pub struct Copy {
    datadir: PathBuf,
    pub writer: Arc<StorageWriter>,
    pub follower: Arc<Follower>,
    pub heard: Arc<Heard>,
    pub fatal: CancellationToken,
}

impl Copy {
    /// Starts a follower over an existing database.
    pub fn start(datadir: &Path, leaders: Vec<Leader>) -> Self {
        let config = tandem_storage_writer::Config {
            starts_as: StartsAs::Follower,
            ..tandem_storage_writer::Config::with_small_limits(datadir)
        };
        let writer = StorageWriter::start(config, tandem_storage_writer::Deps::default()).unwrap();
        let (heard, fatal) = (Arc::<Heard>::default(), CancellationToken::new());
        let deps =
            Deps { leaders, storage: writer.clone(), view: heard.clone(), fatal: fatal.clone() };
        let config =
            Config { retry_ms_min: 5, retry_ms_max: 50, head_step_blocks: 3, ..Config::default() };
        let follower = Follower::start(config, deps).unwrap();
        Self { datadir: datadir.to_owned(), writer, follower, heard, fatal }
    }

    pub fn head(&self) -> BlockId {
        self.writer.checkpoint().unwrap().forkchoice.head
    }

    /// Waits until the forkchoice is the leader's.
    pub fn wait_for(&self, leader: &StorageWriter) {
        let want = leader.checkpoint().unwrap().forkchoice;
        wait_until(|| {
            let status = self.follower.status();
            let is_outdated = status.is_outdated();
            assert!(!self.fatal.is_cancelled(), "{:?}, {is_outdated}", status.refused());
            self.writer.checkpoint().unwrap().forkchoice == want
        });
    }

    /// Compares blocks from genesis on, and the state at the base, with the leader's.
    pub fn compare(&self, leader: &StorageWriter, chain: &[(BlockId, World)]) {
        for (id, _) in chain {
            let by_number = BlockRef::Number(id.number);
            let (own, theirs) = (self.writer.block(by_number), leader.block(by_number));
            assert_eq!(own.unwrap(), theirs.unwrap(), "block {id}");
        }
        let base = self.writer.checkpoint().unwrap().base;
        let world = &chain[base.number as usize].1;
        let accounts: Vec<B256> = world.0.keys().copied().collect();
        let slots: Vec<(B256, B256)> = world
            .0
            .iter()
            .flat_map(|(owner, (_, slots))| slots.keys().map(|slot| (*owner, *slot)))
            .collect();
        let request = ReadState { accounts, slots, codes: Vec::new() };
        let values = self.writer.read_state(&request).unwrap();
        if values.base != base {
            return;
        }
        for ((owner, slot), value) in request.slots.iter().zip(&values.slots) {
            assert_eq!(world.0[owner].1[slot], *value);
        }
        for (address, account) in request.accounts.iter().zip(&values.accounts) {
            assert_eq!(Some(world.0[address].0), *account);
        }
    }

    /// Compares the states after all blocks that history has. Returns their number.
    pub fn compare_history(&self, chain: &[(BlockId, World)]) -> usize {
        let kept = self.writer.kept_states().unwrap().unwrap();
        let accounts: Vec<B256> = (0..40).map(account_key).collect();
        let slots: Vec<(B256, B256)> = accounts
            .iter()
            .flat_map(|owner| (0..12).map(|slot| (*owner, slot_key(slot * 5))))
            .collect();
        let request = ReadState { accounts, slots, codes: Vec::new() };
        let mut compared = 0;
        for (block, world) in chain {
            let values = self.writer.read_state_after(*block, &request).unwrap();
            let Some(values) = values else {
                // The base may move on meanwhile.
                let is_kept = (kept.oldest + 16..=kept.newest).contains(&block.number);
                assert!(!is_kept, "block {block} of {kept:?}");
                continue;
            };
            for (address, account) in request.accounts.iter().zip(&values.accounts) {
                assert_eq!(world.0.get(address).map(|(account, _)| *account), *account);
            }
            for ((owner, slot), value) in request.slots.iter().zip(&values.slots) {
                let slots = world.0.get(owner).map(|(_, slots)| slots);
                let want = slots.and_then(|slots| slots.get(slot).copied()).unwrap_or_default();
                assert_eq!(want, *value, "slot {slot} of {owner} after {block}");
            }
            compared += 1;
        }
        compared
    }

    /// Ends the follower.
    pub fn stop(self) -> PathBuf {
        self.follower.stop();
        let Self { datadir, writer, follower, .. } = self;
        drop(follower);
        writer.stop();
        datadir
    }

    /// Ends the follower, and checks its whole database.
    pub fn end(self) -> PathBuf {
        let datadir = self.stop();
        let report = verify(&datadir).unwrap();
        assert_eq!(report.first_difference, None);
        datadir
    }
}

/// Returns the client of a leader, as a follower takes it.
pub fn named(name: &str, api: Arc<dyn tandem_proto::feed::LeaderApi>) -> Leader {
    Leader::new(name, api)
}

/// Waits until a condition holds.
pub fn wait_until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < end, "it never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}
