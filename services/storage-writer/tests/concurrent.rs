//! Readers beside a base that moves, in one process.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/readers.rs"]
mod readers;

use common::{new_chain, new_chain_in_memory, small_config};
use readers::{Events, deps, move_and_read};
use tandem_storage_writer::{StorageWriter, verify};

#[test]
fn an_answer_is_of_one_block_while_the_base_moves_forward_and_back() {
    let (directory, events) = (tempfile::tempdir().unwrap(), Events::default());
    let (_, world) = new_chain(directory.path());
    let writer = StorageWriter::open(small_config(directory.path()), deps(&events)).unwrap();
    move_and_read(writer.clone(), writer, world, &events);
    assert_eq!(verify(directory.path()).unwrap().first_difference, None);
}

#[test]
fn an_answer_from_memory_is_of_one_block_while_the_base_moves_forward_and_back() {
    let events = Events::default();
    let (writer, world) = new_chain_in_memory(deps(&events));
    move_and_read(writer.clone(), writer, world, &events);
}
