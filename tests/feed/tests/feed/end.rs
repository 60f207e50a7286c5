//! End of the stream, which a follower reaches before it leads.

use crate::{
    leader::{Leader, bus, published},
    stored::{Stored, contents, wait_for},
};
use prost::Message;
use tandem_bus_tests::{NatsServer, eventually};
use tandem_proto::{
    feed_log::FeedNote,
    storage,
    wire::storage_writer::v1::{self, follow_response::Item},
};
use tandem_storage_writer_client::{LoggedFeed, StreamEnd};
use tokio::runtime::Runtime;

#[test]
fn the_end_of_the_stream_has_its_newest_head_and_what_came_after_it() {
    let Some(mut server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let bus = bus(&[&server], &runtime);
    let config = published(directory.path(), 1);
    let mut leader = Leader::unpublished(config.clone(), 20);
    let genesis = leader.chain[0].0;
    let feed = LoggedFeed::new(bus.clone(), genesis.hash, runtime.handle().clone());
    let end = || runtime.block_on(feed.end());
    // The bus may not be connected at first.
    eventually("an answer of NATS", || end().ok());
    assert_eq!(end(), Ok(None), "there is no stream");
    leader.publish(&bus, &runtime);
    wait_for(&server, genesis, &runtime);
    for blocks in [3, 1, 20] {
        leader.grow(blocks);
        let head = leader.head();
        eventually("the head", || {
            (end() == Ok(Some(StreamEnd { at: head, chosen: Some(head) }))).then_some(())
        });
    }
    leader.reorg(2);
    let head = leader.head();
    eventually("the other branch", || {
        (end() == Ok(Some(StreamEnd { at: head, chosen: Some(head) }))).then_some(())
    });
    // A publisher that dies leaves a step back and half a block after its last head.
    let found = contents(&server, &runtime);
    let below = leader.chain[leader.chain.len() - 3].0;
    let resume = v1::FollowResponse { item: Some(Item::Resume(below.into())) };
    let part = v1::FeedPart { data: vec![1; 1_000].into(), left: 5_000 };
    let part = v1::FollowResponse { item: Some(Item::Part(part)) };
    let note = FeedNote { turn: found.turn, at: below };
    runtime.block_on(async {
        let stored = Stored::find(&server).await;
        for message in [resume, part] {
            stored.append_half_a_block(note, message.encode_to_vec()).await;
        }
    });
    assert_eq!(end(), Ok(Some(StreamEnd { at: below, chosen: Some(head) })));
    server.kill();
    let error = end().unwrap_err();
    assert!(matches!(error, storage::Error::Unavailable(_)), "{error}");
    server.restart();
    runtime.block_on(async { Stored::find(&server).await.purge().await });
    eventually("an empty stream", || (end() == Ok(None)).then_some(()));
}

#[test]
fn a_chain_that_is_longer_on_a_branch_that_was_left_has_not_reached_the_end() {
    let Some(server) = NatsServer::start() else { return };
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let folder = |name: &str| directory.path().join(name);
    let bus = bus(&[&server], &runtime);
    // With the same seed, both have the same blocks at first.
    let mut leader = Leader::start(published(&folder("leader"), 1), 21, &bus, &runtime);
    let mut copy = Leader::unpublished(published(&folder("copy"), 1), 21);
    let genesis = leader.chain[0].0;
    let feed = LoggedFeed::new(bus, genesis.hash, runtime.handle().clone());
    let end_at = |head| {
        let found = || runtime.block_on(feed.end()).ok()?.filter(|end| end.at == head);
        eventually("the end", || found().filter(|end| end.chosen == Some(head)))
    };
    leader.grow(6);
    let end = end_at(leader.head());
    assert_eq!(end.is_in(&*leader.writer), Ok(true));
    copy.grow(5);
    assert_eq!(end.is_in(&*copy.writer), Ok(false), "a block is absent");
    // The leader chose these and did not publish them.
    copy.grow(4);
    assert_eq!(end.is_in(&*copy.writer), Ok(true));
    leader.reorg(2);
    let end = end_at(leader.head());
    assert!(copy.head().number > leader.head().number);
    assert_eq!(end.is_in(&*copy.writer), Ok(false), "the newest head is of another branch");
    assert_eq!(end.is_in(&*leader.writer), Ok(true));
}
