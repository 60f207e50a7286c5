//! Block-level access lists: kept with their blocks, pruned by age, gone with a dropped branch.

use crate::common::{Random, block, new_chain};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{B256, Bytes};
use tandem_proto::storage::{
    BaseReads, Block, BlockReads, BlockRef, BlockWrites, Epoch, Forkchoice, WriteLease,
};
use tandem_storage_writer::{Config, Deps, StorageWriter};

const KEPT: u64 = 10;
const BLOCKS: u64 = 60;

fn open(datadir: &Path) -> (Arc<StorageWriter>, Epoch) {
    let config =
        Config { persist_depth: 1, access_list_blocks: KEPT, ..Config::with_small_limits(datadir) };
    let writer = StorageWriter::start(config, Deps::default()).unwrap();
    let epoch = writer.acquire_epoch("test").unwrap();
    (writer, epoch)
}

fn wait_for_base(writer: &StorageWriter, number: u64) {
    let started = Instant::now();
    while writer.checkpoint().unwrap().base.number < number {
        assert!(started.elapsed() < Duration::from_secs(20), "the base does not follow");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn list_of(writer: &StorageWriter, hash: B256) -> Option<Bytes> {
    writer.access_list(BlockRef::Hash(hash)).unwrap()
}

#[test]
fn lists_are_kept_with_their_blocks_and_pruned_by_age() {
    let directory = tempfile::tempdir().unwrap();
    let (mut parent, mut world) = new_chain(directory.path());
    let mut random = Random(3);
    let (mut writer, mut epoch) = open(directory.path());
    let mut blocks: Vec<Block> = Vec::new();
    for number in 1..=BLOCKS {
        let diff = world.random_diff(&mut random);
        world.apply(&diff);
        let mut next = block(parent, &world, diff, &mut random);
        // Blocks without a list lie between, as before the fork.
        next.access_list =
            (number % 5 != 0).then(|| number.to_be_bytes().repeat(1 + number as usize).into());
        writer.commit(epoch, next.clone()).unwrap();
        assert_eq!(list_of(&writer, next.id.hash), next.access_list, "pending block {number}");
        let forkchoice = Forkchoice { head: next.id, safe: None, finalized: Some(next.id) };
        writer.canonicalize(epoch, forkchoice).unwrap();
        wait_for_base(&writer, number.saturating_sub(1));
        parent = next.id;
        blocks.push(next);
        if number == BLOCKS / 2 {
            writer.stop();
            drop(writer);
            (writer, epoch) = open(directory.path());
        }
    }
    let base = writer.checkpoint().unwrap().base.number;
    assert!(base >= BLOCKS - 1);
    for block in &blocks {
        let want = block.access_list.clone().filter(|_| block.id.number + KEPT > base);
        assert_eq!(list_of(&writer, block.id.hash), want, "block {}", block.id.number);
        let by_number = writer.access_list(BlockRef::Number(block.id.number)).unwrap();
        assert_eq!(by_number, want);
    }
    assert_eq!(list_of(&writer, B256::ZERO), None);
    writer.stop();
}

#[test]
fn a_dropped_block_takes_its_list_along() {
    let directory = tempfile::tempdir().unwrap();
    let (parent, mut world) = new_chain(directory.path());
    let mut random = Random(4);
    let (writer, epoch) = open(directory.path());
    let diff = world.random_diff(&mut random);
    world.apply(&diff);
    let mut refused = block(parent, &world, diff, &mut random);
    refused.access_list = Some(Bytes::from_static(&[0xc0]));
    writer.commit(epoch, refused.clone()).unwrap();
    writer.discard(epoch, refused.id.hash).unwrap();
    assert_eq!(list_of(&writer, refused.id.hash), None);
    // The block may come again, without its list.
    let again = Block { access_list: None, ..refused };
    writer.commit(epoch, again.clone()).unwrap();
    assert_eq!(list_of(&writer, again.id.hash), None, "nothing was left behind");
    writer.stop();
}
