//! Publisher: the messages that it leaves in the stream.

use crate::{
    leader::{Leader, acknowledged, bus, pass, published},
    stored::{Stored, contents, wait_for},
};
use prost::Message;
use tandem_bus_tests::{NatsServer, eventually};
use tandem_primitives::B256;
use tandem_proto::{
    feed_log::FeedNote,
    storage::Term,
    wire::storage_writer::v1::{self, follow_response::Item},
};
use tokio::runtime::Runtime;

#[test]
fn each_block_is_in_the_stream_once_through_restarts_of_the_leader_and_of_the_server() {
    let Some(mut server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let config = published(directory.path(), 1);
    let bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(config.clone(), 1, &bus, &runtime);
    wait_for(&server, leader.head(), &runtime);
    leader.grow(12);
    wait_for(&server, leader.head(), &runtime);
    let mut leader = leader.restart(config, &bus, &runtime);
    leader.grow(7);
    wait_for(&server, leader.head(), &runtime);
    server.kill();
    leader.grow(9);
    server.restart();
    leader.grow(1);
    wait_for(&server, leader.head(), &runtime);
    let found = contents(&server, &runtime);
    assert_eq!(found.blocks.len(), 29, "all blocks from genesis on");
    assert!(found.blocks.values().all(|times| *times == 1), "{found:?}");
    assert!(leader.chain[1..].iter().all(|(id, _)| found.blocks.contains_key(&id.hash)));
    assert!(found.turns >= 3, "{found:?}");
}

#[test]
fn a_reorg_is_in_the_stream_as_a_step_back() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(published(directory.path(), 1), 2, &bus, &runtime);
    wait_for(&server, leader.head(), &runtime);
    leader.grow(6);
    wait_for(&server, leader.head(), &runtime);
    let left = leader.head();
    leader.reorg(2);
    wait_for(&server, leader.head(), &runtime);
    let found = contents(&server, &runtime);
    assert_eq!(found.blocks.get(&left.hash), Some(&1), "it was canonical");
    assert_eq!(found.blocks.len(), 9);
}

#[test]
fn of_two_publishers_the_older_one_gives_up() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (bus(&[&server], &runtime), bus(&[&server], &runtime));
    let config = |name: &str| published(&directory.path().join(name), 1);
    // Both have the same chain, because they have the same seed.
    let mut old = Leader::start(config("old"), 3, &first, &runtime);
    wait_for(&server, old.head(), &runtime);
    old.grow(5);
    wait_for(&server, old.head(), &runtime);
    let mut new = Leader::unpublished(config("new"), 3);
    new.grow(5);
    new.publish(&second, &runtime);
    assert_eq!(old.head(), new.head());
    // Its turn has begun.
    eventually("the turn of the new one", || {
        (contents(&server, &runtime).turns == 2).then_some(())
    });
    old.grow(3);
    pass(500);
    let found = contents(&server, &runtime);
    assert_eq!((found.at, found.turns), (new.head(), 2), "the old one is fenced");
    new.grow(2);
    wait_for(&server, new.head(), &runtime);
    let found = contents(&server, &runtime);
    assert_eq!(found.blocks.len(), 7);
    assert!(found.blocks.values().all(|times| *times == 1), "{found:?}");
    drop(old);
}

#[test]
fn a_leader_that_was_superseded_does_not_take_the_stream_when_it_comes_back() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (bus(&[&server], &runtime), bus(&[&server], &runtime));
    let config = |name: &str| acknowledged(&directory.path().join(name), 1, 20_000);
    let (mut old, mut new) =
        (Leader::unpublished(config("old"), 21), Leader::unpublished(config("new"), 21));
    new.lead(Term(1));
    new.publish(&second, &runtime);
    eventually("the first head in the stream", || new.choose().ok());
    new.grow(3);
    // It has the same blocks, has not heard yet that another one leads, and has not published since it
    // started.
    (0..3).for_each(|_| old.extend());
    assert_eq!(old.head(), new.head(), "both have the same seed");
    old.publish(&first, &runtime);
    let error = old.choose().unwrap_err().to_string();
    assert!(error.contains("fenced in term 0") && error.contains("in term 1"), "{error}");
    new.grow(2);
    let found = contents(&server, &runtime);
    assert_eq!((found.at, found.turns), (new.head(), 1));
    // Once it leads again, it goes on where the stream ends.
    (0..2).for_each(|_| old.extend());
    assert_eq!(old.head(), new.head());
    old.lead(Term(2));
    eventually("the head in the stream", || old.choose().ok());
    old.grow(1);
    let found = contents(&server, &runtime);
    assert_eq!((found.at, found.turns), (old.head(), 2));
    assert!(found.blocks.values().all(|times| *times == 1), "{found:?}");
    let error = new.try_grow().unwrap_err().to_string();
    assert!(error.contains("fenced in term 1"), "{error}");
}

#[test]
fn publishers_that_start_together_do_not_mix() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let buses = [0, 1, 2].map(|_| bus(&[&server], &runtime));
    let mut leaders = [0, 1, 2].map(|number: u32| {
        let datadir = directory.path().join(number.to_string());
        Leader::unpublished(published(&datadir, 1), 16)
    });
    for (leader, bus) in leaders.iter_mut().zip(&buses) {
        leader.publish(bus, &runtime);
    }
    for _ in 0..10 {
        leaders.iter_mut().for_each(|leader| leader.grow(1));
    }
    wait_for(&server, leaders[0].head(), &runtime);
    pass(500);
    // Reading it checks that each message leads on from the one before.
    let found = contents(&server, &runtime);
    assert_eq!(found.at, leaders[0].head());
    assert!(found.blocks.values().all(|times| *times == 1), "{found:?}");
}

#[test]
fn a_block_above_the_size_of_a_message_comes_in_parts() {
    let Some(server) = NatsServer::start_with("max_payload: 32768") else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let bus = bus(&[&server], &runtime);
    let config = published(directory.path(), 1);
    let mut leader = Leader::start(config.clone(), 4, &bus, &runtime);
    leader.transaction_bytes = 100_000;
    wait_for(&server, leader.head(), &runtime);
    leader.grow(4);
    wait_for(&server, leader.head(), &runtime);
    let found = contents(&server, &runtime);
    assert_eq!(found.blocks.len(), 4);
    assert!(found.parts >= 4 * 3, "{found:?}");
    // A publisher that died within a block leaves some of its parts.
    runtime.block_on(async {
        let stored = Stored::find(&server).await;
        let part = v1::FeedPart { data: vec![1; 1_000].into(), left: 5_000 };
        let message = v1::FollowResponse { item: Some(Item::Part(part)) };
        let note = FeedNote { turn: found.turn, at: found.at };
        stored.append_half_a_block(note, message.encode_to_vec()).await;
    });
    let mut leader = leader.restart(config, &bus, &runtime);
    leader.grow(2);
    wait_for(&server, leader.head(), &runtime);
    let found = contents(&server, &runtime);
    assert_eq!(found.blocks.len(), 6);
    assert!(found.blocks.values().all(|times| *times == 1), "{found:?}");
}

#[test]
fn a_stream_of_another_chain_is_left_alone() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    runtime.block_on(async {
        let jetstream =
            async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
        let other = async_nats::jetstream::stream::Config {
            name: tandem_proto::feed_log::FEED_STREAM.to_owned(),
            subjects: vec![tandem_proto::feed_log::feed_subject(B256::ZERO)],
            ..Default::default()
        };
        jetstream.create_stream(other).await.unwrap();
    });
    let bus = bus(&[&server], &runtime);
    let mut leader = Leader::start(published(directory.path(), 1), 5, &bus, &runtime);
    leader.grow(3);
    pass(500);
    let state = runtime.block_on(async { Stored::find(&server).await.info().await.state });
    assert_eq!(state.messages, 0);
}
