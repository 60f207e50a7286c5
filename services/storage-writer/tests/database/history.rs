//! History: where it begins and ends, what it takes up, and storage without code. Its values are compared
//! in the random histories.

use crate::common::{Random, World, account_key, block, new_chain, slot_key};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{Account, AccountUpdate, B256, BlockId, SlotUpdate, StateDiff, U256};
use tandem_proto::storage::{
    BaseReads, BlockWrites, Epoch, Forkchoice, HistoryReads, ReadState, WriteLease,
};
use tandem_storage_writer::{Config, Deps, StorageWriter, compact_tables, database_files};

/// Chain without branches.
struct Growing {
    writer: Arc<StorageWriter>,
    epoch: Epoch,
    head: BlockId,
    world: World,
    random: Random,
}

impl Growing {
    fn start(datadir: &Path, history_blocks: u64) -> Self {
        let (head, world) = new_chain(datadir);
        let (writer, epoch) = open(datadir, history_blocks);
        Self { writer, epoch, head, world, random: Random(9) }
    }

    /// Opens the database again.
    fn restart(&mut self, datadir: &Path, history_blocks: u64) {
        self.writer.stop();
        // The database closes with its last handle.
        self.writer = idle();
        (self.writer, self.epoch) = open(datadir, history_blocks);
    }

    /// Adds a block, and waits until the base is its parent.
    fn add(&mut self, diff: StateDiff) {
        self.world.apply(&diff);
        let next = block(self.head, &self.world, diff, &mut self.random);
        self.head = next.id;
        self.writer.commit(self.epoch, next).unwrap();
        let forkchoice = Forkchoice { head: self.head, safe: None, finalized: Some(self.head) };
        self.writer.canonicalize(self.epoch, forkchoice).unwrap();
        let started = Instant::now();
        while self.writer.checkpoint().unwrap().base.number + 1 < self.head.number {
            assert!(started.elapsed() < Duration::from_secs(20), "the base does not follow");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn grow(&mut self, blocks: u64) {
        for _ in 0..blocks {
            let diff = self.world.random_diff(&mut self.random);
            self.add(diff);
        }
    }

    fn kept(&self) -> Option<(u64, u64)> {
        self.writer.kept_states().unwrap().map(|kept| (kept.oldest, kept.newest))
    }
}

fn open(datadir: &Path, history_blocks: u64) -> (Arc<StorageWriter>, Epoch) {
    let config = Config { persist_depth: 1, history_blocks, ..Config::with_small_limits(datadir) };
    let writer = StorageWriter::start(config, Deps::default()).unwrap();
    let epoch = writer.acquire_epoch("test").unwrap();
    (writer, epoch)
}

/// Returns the number of records of history in a closed database.
fn records(datadir: &Path) -> u64 {
    let shapes = database_files(datadir).unwrap().tables;
    let of = |table: &str| {
        shapes.iter().find(|shape| shape.table == table).map_or(0, |shape| shape.keys_estimate)
    };
    of("account_history") + of("slot_history")
}

#[test]
fn history_begins_at_the_base_and_goes_when_it_is_switched_off() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let mut chain = Growing::start(datadir, 0);
    chain.grow(10);
    assert_eq!(chain.kept(), None);
    chain.restart(datadir, 100);
    assert_eq!(chain.kept(), Some((9, 9)));
    chain.grow(10);
    assert_eq!(chain.kept(), Some((9, 19)));
    let at_19 = chain.writer.checkpoint().unwrap().base;
    chain.restart(datadir, 6);
    assert_eq!(chain.kept(), Some((13, 19)), "a lower limit holds at once");
    chain.restart(datadir, 0);
    chain.grow(1);
    assert_eq!(chain.kept(), None);
    let read = chain.writer.read_state_after(at_19, &ReadState::default());
    assert_eq!(read.unwrap(), None);
    // There is a gap now, so nothing of before counts.
    chain.restart(datadir, 100);
    assert_eq!(chain.kept(), Some((20, 20)));
    assert_eq!(chain.writer.read_state_after(at_19, &ReadState::default()).unwrap(), None);
    chain.writer.stop();
}

#[test]
fn history_takes_up_no_more_with_a_longer_chain() {
    let directory = tempfile::tempdir().unwrap();
    let datadir = directory.path();
    let mut chain = Growing::start(datadir, 16);
    let mut sizes = Vec::new();
    for _ in 0..8 {
        chain.grow(40);
        let base = chain.writer.checkpoint().unwrap().base.number;
        assert_eq!(chain.kept(), Some((base - 16, base)));
        chain.writer.stop();
        chain.writer = idle();
        // Removed records leave a file that has others when it is compacted.
        let tables = ["account_history", "slot_history"].map(str::to_owned);
        compact_tables(datadir, &tables, |_, _| {}, |_, _| {}).unwrap();
        sizes.push(records(datadir));
        (chain.writer, chain.epoch) = open(datadir, 16);
    }
    // The chain has some 9,000 changes, and the blocks of the spans that are kept have 1,200 at most.
    assert!(sizes.iter().all(|records| (50..2_000).contains(records)), "{sizes:?}");
    chain.writer.stop();
}

/// Returns a storage-writer that takes the place of another one.
fn idle() -> Arc<StorageWriter> {
    let (genesis, _) = tandem_testkit::world::genesis();
    let config = Config::with_small_limits("");
    StorageWriter::create_in_memory(genesis.as_bytes(), config, Deps::default()).unwrap()
}

#[test]
fn storage_of_an_account_without_code_is_found_in_the_states_that_have_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = Growing::start(directory.path(), 100);
    let address_hash = account_key(1_000);
    let change = |account: Option<Account>, wiped: bool, slots: &[u64]| StateDiff {
        accounts: vec![AccountUpdate {
            address_hash,
            account,
            wiped,
            slots: slots
                .iter()
                .map(|slot| SlotUpdate { key: slot_key(*slot), value: U256::from(7) })
                .collect(),
        }],
        codes: Vec::new(),
    };
    let bare = Account { nonce: 0, balance: U256::from(1), ..Account::default() };
    let mut blocks = vec![chain.head];
    // Block 2 creates an account with storage, as before EIP-161. Block 5 removes it, and block 8
    // creates one with a nonce.
    for number in 1..=12 {
        let mut slots = [3, 1, 2];
        slots.sort_by_key(|slot| slot_key(*slot));
        chain.add(match number {
            2 => change(Some(bare), false, &slots),
            5 => change(None, true, &[]),
            8 => change(Some(Account { nonce: 1, ..bare }), true, &slots[..1]),
            _ => StateDiff::default(),
        });
        blocks.push(chain.head);
    }
    for (number, block) in blocks.iter().enumerate().take(12) {
        let found = chain.writer.has_storage_after(*block, address_hash).unwrap();
        let want = (2..5).contains(&number) || number >= 8;
        assert_eq!(found, Some(want), "block {number}");
    }
    assert_eq!(chain.writer.has_storage_after(blocks[12], address_hash).unwrap(), None);
    let other = B256::repeat_byte(0x11);
    assert_eq!(chain.writer.has_storage_after(blocks[4], other).unwrap(), Some(false));
    chain.writer.stop();
}
