//! Old bodies and receipts: removed by policy, and their absence is said (EIP-4444).

use crate::common::{Random, World, block, new_chain};
use alloy_consensus::Header;
use alloy_rlp::Decodable;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{BlockId, U256, keccak256};
use tandem_proto::{
    feed::FeedReads,
    storage::{
        BaseReads, Block, BlockReads, BlockRef, BlockWrites, Epoch, Error, Forkchoice, WriteLease,
    },
};
use tandem_storage_writer::{Config, Deps, History, StorageWriter};

/// Blocks whose reverse diffs are kept.
const REVERSE: u64 = 12;

struct Node {
    writer: Arc<StorageWriter>,
    epoch: Epoch,
}

impl Node {
    fn open(datadir: &Path, history: History) -> Self {
        let config = Config {
            persist_depth: 1,
            reverse_diff_blocks: REVERSE,
            feed_blocks: REVERSE,
            history,
            ..Config::with_small_limits(datadir)
        };
        let writer = StorageWriter::start(config, Deps::default()).unwrap();
        let epoch = writer.acquire_epoch("test").unwrap();
        Self { writer, epoch }
    }

    fn choose(&self, id: BlockId) {
        let forkchoice = Forkchoice { head: id, safe: None, finalized: Some(id) };
        self.writer.canonicalize(self.epoch, forkchoice).unwrap();
    }

    fn oldest(&self) -> u64 {
        self.writer.checkpoint().unwrap().oldest_block
    }

    fn wait(&self, what: &str, is_so: impl Fn(&StorageWriter) -> bool) {
        let started = Instant::now();
        while !is_so(&self.writer) {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}; {}", self.oldest());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_oldest(&self, number: u64) {
        self.wait("history is not pruned", |it| it.checkpoint().unwrap().oldest_block >= number);
        assert_eq!(self.oldest(), number);
    }
}

/// Chain over a genesis, built one block at a time.
struct Chain {
    parent: BlockId,
    world: World,
    random: Random,
}

impl Chain {
    fn at(datadir: &Path) -> Self {
        let (parent, world) = new_chain(datadir);
        Self { parent, world, random: Random(11) }
    }

    fn next(&mut self, difficulty: u64) -> Block {
        let diff = self.world.random_diff(&mut self.random);
        self.world.apply(&diff);
        let mut next = block(self.parent, &self.world, diff, &mut self.random);
        let mut header = Header::decode(&mut &next.header[..]).unwrap();
        header.difficulty = U256::from(difficulty);
        next.header = alloy_rlp::encode(&header).into();
        next.id = BlockId::new(header.number, keccak256(&next.header));
        next.access_list = None;
        self.parent = next.id;
        next
    }

    /// Commits this many blocks, and waits for the base to follow.
    fn extend(&mut self, node: &Node, count: u64, difficulty: u64) -> Vec<Block> {
        let blocks: Vec<_> = (0..count).map(|_| self.next(difficulty)).collect();
        for next in &blocks {
            node.writer.commit(node.epoch, next.clone()).unwrap();
            node.choose(next.id);
        }
        let base = self.parent.number - 1;
        node.wait("the base does not follow", |it| it.checkpoint().unwrap().base.number >= base);
        blocks
    }
}

/// Checks that exactly the blocks from `oldest` on have bodies and an index of their transactions.
fn check(node: &Node, blocks: &[Block], oldest: u64) {
    for block in blocks {
        let number = block.id.number;
        let (_, header) = node.writer.header(BlockRef::Number(number)).unwrap().unwrap();
        assert_eq!(header, block.header, "headers stay");
        let found = node.writer.block(BlockRef::Hash(block.id.hash));
        let place = block.transaction_hashes.first().map(|hash| node.writer.transaction(*hash));
        if number < oldest {
            assert_eq!(found, Err(Error::Pruned { number, oldest }));
            assert!(place.is_none_or(|place| place.unwrap().is_none()), "block {number}");
        } else {
            assert_eq!(found.unwrap().unwrap().body, block.body);
            assert!(place.is_none_or(|place| place.unwrap().is_some()), "block {number}");
        }
    }
    assert!(node.writer.block(BlockRef::Number(0)).unwrap().is_some(), "genesis stays");
    assert_eq!(node.writer.verify().unwrap().first_difference, None);
}

#[test]
fn the_last_blocks_are_kept_also_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = Chain::at(directory.path());
    let node = Node::open(directory.path(), History::All);
    let mut blocks = chain.extend(&node, 60, 0);
    assert_eq!(node.oldest(), 0);
    check(&node, &blocks, 0);
    node.writer.stop();
    drop(node);
    // A lowered limit is reached, although a block prunes only a few.
    let node = Node::open(directory.path(), History::Blocks(20));
    blocks.extend(chain.extend(&node, 5, 0));
    let base = node.writer.checkpoint().unwrap().base.number;
    node.wait_for_oldest(base + 1 - 20);
    let oldest = node.oldest();
    check(&node, &blocks, oldest);
    node.writer.stop();
    drop(node);
    // Pruned blocks stay pruned without the policy.
    let node = Node::open(directory.path(), History::All);
    assert_eq!(node.oldest(), oldest);
    check(&node, &blocks, oldest);
    node.writer.stop();
}

/// A move of the base back needs bodies, and so does a follower that has a place in the feed.
#[test]
fn what_a_rewind_or_the_feed_needs_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = Chain::at(directory.path());
    let node = Node::open(directory.path(), History::Blocks(1));
    let blocks = chain.extend(&node, 40, 0);
    let base = node.writer.checkpoint().unwrap().base.number;
    node.wait_for_oldest(base + 1 - REVERSE);
    let oldest = node.oldest();
    check(&node, &blocks, oldest);
    let at = |number: u64| blocks[number as usize - 1].id;
    assert!(node.writer.feed_next(at(oldest - 1), 0).is_ok());
    let (behind, first) = (oldest - 2, oldest - 1);
    let refused = node.writer.feed_next(at(behind), 0);
    assert_eq!(refused.unwrap_err(), Error::TooFarBehind { at: behind, oldest: first });
    // Also without changes, which such a reader does not need.
    let refused = node.writer.feed_next(at(behind), 1000);
    assert_eq!(refused.unwrap_err(), Error::TooFarBehind { at: behind, oldest: first });
    node.choose(at(oldest - 1));
    node.wait("the base does not step back", |it| it.checkpoint().unwrap().base.number < oldest);
    assert!(node.writer.block(BlockRef::Hash(at(oldest).hash)).unwrap().is_some());
    node.writer.stop();
}

#[test]
fn blocks_with_proof_of_work_lose_their_bodies_and_others_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = Chain::at(directory.path());
    let node = Node::open(directory.path(), History::Merge);
    let mut blocks = chain.extend(&node, 20, 7);
    blocks.extend(chain.extend(&node, 30, 0));
    node.wait_for_oldest(21);
    blocks.extend(chain.extend(&node, 5, 0));
    check(&node, &blocks, 21);
    node.writer.stop();
}
