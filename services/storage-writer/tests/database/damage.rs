//! Wrong trie diffs and damaged tries: neither stays in the base.

use crate::common::{Random, World, block, new_chain, slot_key};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{
    AccountUpdate, B256, BlockId, ShardSet, SlotUpdate, StateDiff, TrieDiff, U256,
};
use tandem_proto::storage::{
    BaseReads, Block, BlockWrites, Epoch, Forkchoice, TrieStorage, WriteLease,
};
use tandem_storage_writer::{
    Config, Deps, Difference, Error, NodeFault, OwnWorkers, ScrubConfig, ScrubStatus,
    StorageWriter, repair, verify,
};
use tandem_store::{
    Durability, Options, Store,
    tables::{AccountTrie, Canonical, Code, StorageTrie, Transactions},
};

fn config(datadir: &Path) -> Config {
    Config { persist_depth: 1, ..Config::with_small_limits(datadir) }
}

struct Node {
    writer: Arc<StorageWriter>,
    epoch: Epoch,
}

impl Node {
    fn open(datadir: &Path) -> Self {
        let writer = StorageWriter::start(config(datadir), Deps::default()).unwrap();
        let epoch = writer.acquire_epoch("test").unwrap();
        Self { writer, epoch }
    }

    fn head(&self, block: &Block) {
        self.writer.commit(self.epoch, block.clone()).unwrap();
        let forkchoice = Forkchoice { head: block.id, safe: None, finalized: Some(block.id) };
        self.writer.canonicalize(self.epoch, forkchoice).unwrap();
    }

    fn wait_for_base(&self, number: u64) {
        let started = Instant::now();
        while self.writer.checkpoint().unwrap().base.number != number {
            assert!(started.elapsed() < Duration::from_secs(20), "the base does not follow");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Chain over a genesis, built one block at a time.
struct Chain {
    parent: BlockId,
    world: World,
    random: Random,
}

impl Chain {
    fn next(&mut self, diff: StateDiff) -> Block {
        self.world.apply(&diff);
        let block = block(self.parent, &self.world, diff, &mut self.random);
        self.parent = block.id;
        block
    }

    fn random_block(&mut self) -> Block {
        let diff = self.world.random_diff(&mut self.random);
        self.next(diff)
    }

    /// Returns a block that writes to many slots of every account, so that all storage tries are
    /// walked.
    fn everything(&mut self) -> Block {
        let accounts = self.world.0.iter().map(|(&address_hash, &(account, _))| {
            let value = |k: u64| U256::from(self.random_value(k));
            let mut slots: Vec<SlotUpdate> =
                (0..60).map(|k| SlotUpdate { key: slot_key(k), value: value(k) }).collect();
            slots.sort_by_key(|slot| slot.key);
            AccountUpdate { address_hash, account: Some(account), wiped: false, slots }
        });
        let diff = StateDiff { accounts: accounts.collect(), codes: Vec::new() };
        self.next(diff)
    }

    fn random_value(&self, k: u64) -> u64 {
        self.parent.number * 1000 + k + 1
    }
}

fn new_chain_at(datadir: &Path) -> Chain {
    let (parent, world) = new_chain(datadir);
    Chain { parent, world, random: Random(7) }
}

/// Returns the diff with one node below the tops missing or changed, `None` if it has none there.
fn with_a_wrong_node(right: &TrieDiff, missing: bool, random: &mut Random) -> Option<TrieDiff> {
    let below: Vec<usize> = (0..right.len())
        .filter(|&at| {
            let change = right.get(at).unwrap();
            change.rlp.is_some() && (change.owner.is_some() || change.path.len() > 1)
        })
        .collect();
    let target = (!below.is_empty()).then(|| *random.pick(&below))?;
    let mut wrong = TrieDiff::default();
    wrong.wiped.clone_from(&right.wiped);
    for (at, mut change) in right.iter().enumerate() {
        let mut other = change.rlp.unwrap_or_default().to_vec();
        if at == target {
            if missing {
                continue;
            }
            *other.last_mut().unwrap() ^= 1;
            change.rlp = Some(&other);
        }
        wrong.push(change);
    }
    Some(wrong)
}

/// A node that gets diffs with one wrong node ends with the same contents as an honest one.
#[test]
fn a_wrong_node_below_the_tops_never_enters_the_base() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut chain = new_chain_at(a.path());
    new_chain(b.path());
    let (honest, victim) = (Node::open(a.path()), Node::open(b.path()));
    let (mut wrong, mut random) = (0, Random(99));
    for number in 1..=30 {
        let block = if number % 10 == 0 { chain.everything() } else { chain.random_block() };
        honest.writer.commit(honest.epoch, block.clone()).unwrap();
        let right = honest.writer.trie_diff(block.id.hash).unwrap().unwrap();
        let handed = with_a_wrong_node(&right, number % 2 == 0, &mut random);
        wrong += usize::from(handed.is_some());
        let handed = handed.map_or(right, Arc::new);
        victim.writer.put_trie_diff(block.id.hash, ShardSet::ALL, handed).unwrap();
        honest.head(&block);
        victim.head(&block);
    }
    assert!(wrong > 20, "{wrong}");
    for node in [&honest, &victim] {
        node.wait_for_base(29);
        assert_eq!(node.writer.verify().unwrap().first_difference, None);
    }
    let nodes = |node: &Node| {
        let report = node.writer.verify().unwrap();
        (report.base, report.account_nodes, report.storage_nodes)
    };
    assert_eq!(nodes(&honest), nodes(&victim));
}

/// Diffs of workers in the same process have all their nodes checked at each 64th block.
#[test]
fn a_wrong_node_of_own_workers_is_found_at_the_next_checked_block() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut chain = new_chain_at(a.path());
    new_chain(b.path());
    let (honest, victim) = (Node::open(a.path()), Node::open(b.path()));
    let own = OwnWorkers(victim.writer.clone());
    let mut random = Random(5);
    for number in 1..=65 {
        let block = if number == 64 { chain.everything() } else { chain.random_block() };
        honest.writer.commit(honest.epoch, block.clone()).unwrap();
        let mut handed = honest.writer.trie_diff(block.id.hash).unwrap().unwrap();
        if number == 64 {
            handed = Arc::new(with_a_wrong_node(&handed, false, &mut random).unwrap());
        }
        own.put_trie_diff(block.id.hash, ShardSet::ALL, handed).unwrap();
        honest.head(&block);
        victim.head(&block);
    }
    for node in [&honest, &victim] {
        node.wait_for_base(64);
        assert_eq!(node.writer.verify().unwrap().first_difference, None);
    }
}

fn open_store(datadir: &Path) -> Store {
    Store::open(&datadir.join("db"), &Options::default()).unwrap()
}

/// Removes some nodes at every depth, the shallowest first. Returns their number.
fn take_out_nodes(datadir: &Path, every: u64) -> u64 {
    let store = open_store(datadir);
    let view = store.view();
    let (mut batch, mut seen, mut gone) = (store.batch(), 0, 0);
    let mut accounts = view.cursor::<AccountTrie>(&[]);
    while let Some((path, _)) = accounts.entry().unwrap() {
        if seen % every == 1 {
            batch.delete_raw::<AccountTrie>(path);
            gone += 1;
        }
        seen += 1;
        accounts.advance();
    }
    let mut storage = view.cursor::<StorageTrie>(&[]);
    while let Some((key, rlp)) = storage.entry().unwrap() {
        if seen % every == 1 {
            let mut other = rlp.to_vec();
            *other.last_mut().unwrap() ^= 1;
            let owner = B256::from_slice(&key[..32]);
            batch.put::<StorageTrie>((owner, &key[32..]), &other);
            gone += 1;
        }
        seen += 1;
        storage.advance();
    }
    drop((accounts, storage));
    store.write(batch, Durability::Process).unwrap();
    gone
}

fn grown(datadir: &Path) -> Chain {
    let mut chain = new_chain_at(datadir);
    let node = Node::open(datadir);
    for number in 1..=6 {
        let block = if number == 2 { chain.everything() } else { chain.random_block() };
        node.head(&block);
    }
    node.wait_for_base(5);
    chain
}

#[test]
fn damaged_tries_are_rebuilt_when_a_block_meets_them() {
    for every in [2, 7, 40] {
        let directory = tempfile::tempdir().unwrap();
        let mut chain = grown(directory.path());
        assert!(take_out_nodes(directory.path(), every) > 0);
        assert!(!verify(directory.path()).unwrap().is_clean());
        let node = Node::open(directory.path());
        for _ in 0..3 {
            node.head(&chain.everything());
        }
        node.wait_for_base(8);
        drop(node);
        // The block has walked through every storage trie, so no damage is left to find.
        assert_eq!(verify(directory.path()).unwrap().first_difference, None, "every {every}");
    }
}

#[test]
fn a_start_that_meets_damaged_tries_rebuilds_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = grown(directory.path());
    let pending = chain.everything();
    {
        let node = Node::open(directory.path());
        node.writer.commit(node.epoch, pending.clone()).unwrap();
    }
    take_out_nodes(directory.path(), 3);
    let node = Node::open(directory.path());
    let kept = node.writer.pending().unwrap();
    assert!(kept.iter().any(|block| block.id == pending.id), "a valid block is kept");
    node.head(&pending);
    node.head(&chain.everything());
    node.wait_for_base(7);
    drop(node);
    assert_eq!(verify(directory.path()).unwrap().first_difference, None);
}

#[test]
fn a_side_block_is_asked_for_over_damaged_tries() {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = grown(directory.path());
    take_out_nodes(directory.path(), 3);
    let node = Node::open(directory.path());
    let block = chain.everything();
    node.writer.commit(node.epoch, block.clone()).unwrap();
    assert!(node.writer.trie_diff(block.id.hash).unwrap().is_some());
}

#[test]
fn verify_reports_damage_and_repair_mends_it() {
    let directory = tempfile::tempdir().unwrap();
    grown(directory.path());
    let clean = verify(directory.path()).unwrap();
    assert!(clean.is_clean());
    let gone = take_out_nodes(directory.path(), 5);
    {
        let store = open_store(directory.path());
        let mut batch = store.batch();
        let surplus = B256::repeat_byte(0x77);
        batch.put::<StorageTrie>((surplus, &[1, 2, 3, 4, 5]), &[0x80; 40]);
        batch.put::<AccountTrie>(&[], &[0x80; 40]);
        batch.delete::<Canonical>(3);
        let view = store.view();
        let mut index = view.cursor::<Transactions>(&[]);
        while let Some((key, _)) = index.entry().unwrap() {
            batch.delete_raw::<Transactions>(key);
            index.advance();
        }
        drop(index);
        store.write(batch, Durability::Process).unwrap();
    }
    let report = verify(directory.path()).unwrap();
    assert!(report.differences >= gone, "{report:?}");
    let first = report.first_difference.unwrap();
    assert!(
        matches!(first, Difference::Node { fault, .. } if fault != NodeFault::Extra),
        "{first}"
    );
    let (before, after) = repair(directory.path()).unwrap();
    assert!(before.differences >= gone);
    assert_eq!(after.first_difference, None);
    let nodes = |report: &tandem_storage_writer::Report| {
        (report.account_nodes, report.storage_nodes, report.pending, report.blocks)
    };
    assert_eq!(nodes(&after), nodes(&clean));
    assert!(verify(directory.path()).unwrap().is_clean());
}

/// Opens the database with a check in the background that does not rest, and waits for two passes: the first
/// may have been begun before.
fn scrub(datadir: &Path) -> ScrubStatus {
    try_scrub(datadir).unwrap()
}

/// As [`scrub`], of a database that may not open.
fn try_scrub(datadir: &Path) -> Result<ScrubStatus, Error> {
    let scrub = ScrubConfig { bytes_per_second: 1 << 30, rest_seconds: 0 };
    let config = Config { scrub, ..config(datadir) };
    let writer = StorageWriter::start(config, Deps::default())?;
    let started = Instant::now();
    loop {
        let status = writer.scrub_status();
        if status.passes >= 2 {
            return Ok(status);
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_background_check_finds_damaged_tries_and_rebuilds_them() {
    let directory = tempfile::tempdir().unwrap();
    grown(directory.path());
    assert_eq!(scrub(directory.path()).faults, 0);
    let gone = take_out_nodes(directory.path(), 5);
    let status = scrub(directory.path());
    // The root node is of no shard: the next block compares it.
    assert!(status.faults + 1 >= gone && gone > 3, "{status:?}, {gone} gone");
    assert!(status.last_fault.unwrap().contains("the node at path"));
    assert!(repair(directory.path()).unwrap().0.differences <= 1);
    assert_eq!(scrub(directory.path()), ScrubStatus { passes: 2, ..ScrubStatus::default() });
}

/// A code cannot be rebuilt from anything.
#[test]
fn the_background_check_names_a_code_and_a_record_that_are_damaged() {
    let directory = tempfile::tempdir().unwrap();
    grown(directory.path());
    {
        let store = open_store(directory.path());
        let view = store.view();
        let mut batch = store.batch();
        let used = view.cursor::<Code>(&[]).entry().unwrap().map(|(hash, _)| hash.to_vec());
        batch.put::<Code>(B256::from_slice(&used.unwrap()), b"another code");
        store.write(batch, Durability::Process).unwrap();
    }
    let status = scrub(directory.path());
    let fault = status.last_fault.unwrap();
    assert!(fault.starts_with("code: ") && status.faults > 0, "{fault}");
}

/// Each file of a table, one byte at a time.
#[test]
fn the_background_check_finds_a_flipped_byte() {
    let directory = tempfile::tempdir().unwrap();
    grown(directory.path());
    open_store(directory.path()).flush().unwrap();
    let is_table = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "sst");
    let files = std::fs::read_dir(directory.path().join("db")).unwrap();
    let files: Vec<_> = files.map(|entry| entry.unwrap().path()).filter(is_table).collect();
    assert!(files.len() > 5, "{files:?}");
    let mut found = 0;
    for file in files {
        let copy = tempfile::tempdir().unwrap();
        let folder = copy.path().join("db");
        std::fs::create_dir(&folder).unwrap();
        for entry in std::fs::read_dir(directory.path().join("db")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        let damaged = folder.join(file.file_name().unwrap());
        let mut bytes = std::fs::read(&damaged).unwrap();
        // In the first block of records.
        bytes[10] ^= 0x40;
        std::fs::write(&damaged, bytes).unwrap();
        let fault = match try_scrub(copy.path()) {
            Ok(status) => status.last_fault.unwrap_or_default(),
            // The start needs what is damaged.
            Err(error) => error.to_string(),
        };
        if fault.is_empty() && !damaged.exists() {
            // The database did not need it any more.
            continue;
        }
        assert!(fault.contains("orruption"), "{file:?}: {fault}");
        found += 1;
    }
    assert!(found > 5);
    assert_eq!(scrub(directory.path()).faults, 0);
}
