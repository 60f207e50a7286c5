//! Leader whose chain a test extends, with the publisher of its feed, and followers of the stream.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header, TxType};
use parking_lot::Mutex;
use std::{path::Path, sync::Arc, time::Duration};
use tandem_bus::{Bus, Options};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_chain::{Receipt, encode_receipts, receipts_root};
use tandem_follower::{ChainView, Follower, Leader as Source};
use tandem_primitives::{B256, BlockId, Bytes, EMPTY_TRIE_ROOT, StateDiff, keccak256};
use tandem_proto::storage::{
    self, BaseReads, Block, BlockWrites, Epoch, Forkchoice, Term, WriteLease,
};
use tandem_storage_writer::{
    Config, Deps, FeedAcks, FeedConfig, FeedPublisher, FeedStream, StartsAs, StorageWriter, init,
    verify,
};
use tandem_storage_writer_client::LoggedFeed;
use tandem_testkit::world::{Random, World, genesis};
use tandem_trie::list_root;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Makes a database with the genesis of all tests. Returns its block and state.
pub fn new_database(datadir: &Path) -> (BlockId, World) {
    let (json, world) = genesis();
    std::fs::create_dir_all(datadir).unwrap();
    let path = datadir.join("genesis.json");
    std::fs::write(&path, json).unwrap();
    (init(&path, datadir, |_| {}).unwrap().genesis, world)
}

/// Settings of a leader that publishes its feed.
pub fn published(datadir: &Path, replicas: usize) -> Config {
    let feed = FeedConfig { stream: FeedStream::JetStream, replicas, ..FeedConfig::default() };
    // The publisher of a busy machine may be behind by all blocks of a test.
    Config { feed, feed_blocks: 1000, sync: false, ..Config::with_small_limits(datadir) }
}

/// Settings of a leader whose forkchoices wait for the stream.
pub fn acknowledged(datadir: &Path, replicas: usize, wait_ms: u64) -> Config {
    let mut config = published(datadir, replicas);
    config.feed.acks = FeedAcks::Stream;
    config.feed.ack_wait_ms = wait_ms;
    config
}

/// Returns a bus over these servers, which may not be connected yet.
pub fn bus(servers: &[&NatsServer], runtime: &Runtime) -> Bus {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    Bus::connect(&urls, &Options::default(), runtime.handle()).unwrap()
}

/// Leader, whose publisher ends with it.
pub struct Leader {
    pub writer: Arc<StorageWriter>,
    publisher: Option<FeedPublisher>,
    epoch: Epoch,
    random: Random,
    /// Blocks and the states after them, from genesis to the head.
    pub chain: Vec<(BlockId, World)>,
    /// Bytes of each transaction.
    pub transaction_bytes: usize,
}

impl Leader {
    /// Starts over a new database. Leaders with the same seed make the same blocks.
    pub fn start(config: Config, seed: u64, bus: &Bus, runtime: &Runtime) -> Self {
        let mut leader = Self::unpublished(config, seed);
        leader.publish(bus, runtime);
        leader
    }

    /// Starts over a new database, without a publisher so far.
    pub fn unpublished(config: Config, seed: u64) -> Self {
        let genesis = new_database(&config.datadir);
        Self::over(config, vec![genesis], Random(seed))
    }

    fn over(config: Config, chain: Vec<(BlockId, World)>, random: Random) -> Self {
        let writer = StorageWriter::start(config, Deps::default()).unwrap();
        let epoch = writer.acquire_epoch("leader").unwrap();
        Self { writer, publisher: None, epoch, random, chain, transaction_bytes: 160 }
    }

    /// Starts to publish.
    pub fn publish(&mut self, bus: &Bus, runtime: &Runtime) {
        self.publisher = FeedPublisher::start(&self.writer, bus, runtime.handle()).unwrap();
        assert!(self.publisher.is_some());
    }

    /// Ends the process, as far as that goes, and starts another one over the same database.
    pub fn restart(self, config: Config, bus: &Bus, runtime: &Runtime) -> Self {
        let Self { writer, publisher, random, chain, .. } = self;
        drop(publisher);
        writer.stop();
        let gone = Arc::downgrade(&writer);
        drop(writer);
        eventually("the end of storage-writer", || gone.upgrade().is_none().then_some(()));
        let mut leader = Self::over(config, chain, random);
        leader.publish(bus, runtime);
        leader
    }

    /// Leads in this term, as after a promotion.
    pub fn lead(&mut self, term: Term) {
        assert_eq!(self.writer.lead(term), Ok(term));
        self.epoch = self.writer.acquire_epoch("leader").unwrap();
    }

    pub fn head(&self) -> BlockId {
        self.chain.last().unwrap().0
    }

    /// Adds a block without choosing a head.
    pub fn extend(&mut self) {
        let (parent, world) = self.chain.last().unwrap();
        let (block, world) = child(*parent, world, &mut self.random, self.transaction_bytes);
        let id = block.id;
        self.writer.commit(self.epoch, block).unwrap();
        self.chain.push((id, world));
    }

    /// Makes the tip the head.
    pub fn choose(&self) -> storage::Result<()> {
        let forkchoice = Forkchoice { head: self.head(), safe: None, finalized: None };
        self.writer.canonicalize(self.epoch, forkchoice).map(drop)
    }

    /// Adds blocks, one head after the other.
    pub fn grow(&mut self, blocks: u64) {
        for _ in 0..blocks {
            self.extend();
            self.choose().unwrap();
        }
    }

    /// Adds a block and makes it the head. Returns the answer to the latter.
    pub fn try_grow(&mut self) -> storage::Result<()> {
        self.extend();
        self.choose()
    }

    /// Replaces the newest blocks by one more of another branch.
    pub fn reorg(&mut self, depth: usize) {
        self.chain.truncate(self.chain.len() - depth);
        for _ in 0..=depth {
            self.extend();
        }
        self.choose().unwrap();
    }
}

/// Returns a random child of a block, and the state after it.
fn child(
    parent: BlockId,
    world: &World,
    random: &mut Random,
    transaction_bytes: usize,
) -> (Block, World) {
    let diff: StateDiff = world.random_diff(random);
    let mut after = world.clone();
    after.apply(&diff);
    let transactions: Vec<Bytes> = (0..1 + random.below(3))
        .map(|_| {
            let noise = random.next().to_be_bytes().repeat(transaction_bytes / 8);
            Bytes::from([&[2u8][..], &noise].concat())
        })
        .collect();
    let receipts: Vec<Receipt> = (1..=transactions.len() as u64)
        .map(|count| Receipt {
            tx_type: TxType::Eip1559,
            success: true,
            cumulative_gas_used: count * 21_000,
            logs: Vec::new(),
            post_state: None,
        })
        .collect();
    let (receipts_root, logs_bloom) = receipts_root(&receipts);
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number + 1,
        state_root: after.root(),
        transactions_root: list_root(&transactions),
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        receipts_root,
        logs_bloom,
        timestamp: random.next(),
        base_fee_per_gas: Some(1),
        withdrawals_root: Some(EMPTY_TRIE_ROOT),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(B256::ZERO),
        ..Header::default()
    };
    let mut fields = alloy_rlp::encode(&transactions);
    fields.extend_from_slice(&[0xc0, 0xc0]);
    let mut body = Vec::new();
    alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut body);
    body.extend_from_slice(&fields);
    let rlp = alloy_rlp::encode(&header);
    let block = Block {
        id: BlockId::new(header.number, keccak256(&rlp)),
        parent: parent.hash,
        header: rlp.into(),
        body: body.into(),
        receipts: encode_receipts(&receipts),
        transaction_hashes: transactions.iter().map(keccak256).collect(),
        diff: Arc::new(diff),
        access_list: None,
    };
    (block, after)
}

/// View that counts the blocks it hears of.
#[derive(Default)]
pub struct Heard(pub Mutex<Vec<BlockId>>);

impl ChainView for Heard {
    fn stored(&self, block: BlockId, _: B256, _: &Bytes, _: Arc<StateDiff>) {
        self.0.lock().push(block);
    }

    fn chosen(&self, _: Forkchoice) {}

    fn adopted(&self) {}

    fn behind(&self, _: Option<BlockId>) {}
}

/// Follower with its database.
pub struct Copy {
    config: Config,
    writer: Arc<StorageWriter>,
    pub follower: Arc<Follower>,
    pub heard: Arc<Heard>,
    fatal: CancellationToken,
}

impl Copy {
    /// Starts a follower over a database that exists.
    pub fn start(datadir: &Path, sources: Vec<Source>) -> Self {
        let config = Config { starts_as: StartsAs::Follower, ..Config::with_small_limits(datadir) };
        let writer = StorageWriter::start(config.clone(), Deps::default()).unwrap();
        let (heard, fatal) = (Arc::<Heard>::default(), CancellationToken::new());
        let deps = tandem_follower::Deps {
            leaders: sources,
            storage: writer.clone(),
            view: heard.clone(),
            fatal: fatal.clone(),
        };
        let settings = tandem_follower::Config {
            retry_ms_min: 10,
            retry_ms_max: 100,
            head_step_blocks: 3,
            silence_seconds_max: 3,
            ..tandem_follower::Config::default()
        };
        let follower = Follower::start(settings, deps).unwrap();
        Self { config, writer, follower, heard, fatal }
    }

    pub fn head(&self) -> BlockId {
        self.writer.checkpoint().unwrap().forkchoice.head
    }

    /// Waits until the head is the leader's.
    pub fn wait_for(&self, leader: &Leader) {
        eventually("the leader's head in the copy", || {
            assert!(!self.fatal.is_cancelled(), "{:?}", self.follower.status().refused());
            (self.head() == leader.head()).then_some(())
        });
        assert_eq!(self.follower.status().refused(), None);
    }

    /// Ends the follower.
    pub fn stop(self) {
        let Self { writer, follower, .. } = self;
        follower.stop();
        drop(follower);
        writer.stop();
    }

    /// Ends the follower, and checks its whole database.
    pub fn end(self) {
        let datadir = self.config.datadir.clone();
        self.stop();
        assert_eq!(verify(&datadir).unwrap().first_difference, None);
    }
}

/// Returns the stream as a source of a follower.
pub fn stream(bus: &Bus, runtime: &Runtime) -> Source {
    let directory = tempfile::tempdir().unwrap();
    let genesis = new_database(directory.path()).0;
    let feed = LoggedFeed::new(bus.clone(), genesis.hash, runtime.handle().clone());
    Source::feed_only("jetstream", Arc::new(feed))
}

/// Waits for a time, in which nothing is to happen.
pub fn pass(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
