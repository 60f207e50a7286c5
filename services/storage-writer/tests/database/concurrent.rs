//! Readers beside a base that moves, in one process.

use crate::common::{Random, block, new_chain, new_chain_in_memory};
use crate::readers::{Events, deps, move_and_read};
use tandem_proto::storage::{BaseReads, BlockWrites, Forkchoice, TrieStorage, WriteLease};
use tandem_storage_writer::{Config, Deps, StorageWriter, verify};

#[test]
fn an_answer_is_of_one_block_while_the_base_moves_forward_and_back() {
    let (directory, events) = (tempfile::tempdir().unwrap(), Events::default());
    let (_, world) = new_chain(directory.path());
    let writer =
        StorageWriter::start(Config::with_small_limits(directory.path()), deps(&events)).unwrap();
    move_and_read(writer.clone(), writer, world, &events);
    assert_eq!(verify(directory.path()).unwrap().first_difference, None);
}

#[test]
fn an_answer_from_memory_is_of_one_block_while_the_base_moves_forward_and_back() {
    let events = Events::default();
    let (writer, world) = new_chain_in_memory(deps(&events));
    move_and_read(writer.clone(), writer, world, &events);
}

/// A reader that puts a branch together asks for the diffs first and for the base then. A block
/// must be in one of the two at every moment.
#[test]
fn a_block_without_a_trie_diff_is_in_the_base_that_is_asked_for_next() {
    let directory = tempfile::tempdir().unwrap();
    let (mut parent, mut world) = new_chain(directory.path());
    let config = Config::with_small_limits(directory.path());
    let depth = config.unfinalized_blocks_max as usize;
    let writer = StorageWriter::start(config, Deps::default()).unwrap();
    let epoch = writer.acquire_epoch("test").unwrap();
    let mut random = Random(11);
    let mut next = || {
        let diff = world.random_diff(&mut random);
        world.apply(&diff);
        let block = block(parent, &world, diff, &mut random);
        parent = block.id;
        writer.commit(epoch, block).unwrap();
        parent
    };
    let blocks: Vec<_> = (0..200).map(|_| next()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in &blocks[..blocks.len() - depth] {
                while writer.trie_diff(id.hash).unwrap().is_some() {}
                let base = writer.checkpoint().unwrap().base;
                assert!(base.number >= id.number, "{id} is neither pending nor in base {base}");
            }
        });
        let head = *blocks.last().unwrap();
        writer.canonicalize(epoch, Forkchoice { head, ..Forkchoice::default() }).unwrap();
    });
}
