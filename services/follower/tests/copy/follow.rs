//! Followers of an honest leader.

use crate::{
    chain::{Leader, new_database},
    setup::{Copy, named, wait_until},
};
use tandem_proto::storage::BaseReads;
use tandem_storage_writer::Config;

#[test]
fn a_follower_has_the_chain_of_its_leader_through_reorgs_rewinds_and_restarts() {
    for seed in [0x5eed, 0xf00d, 7] {
        let directory = tempfile::tempdir().unwrap();
        let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
        let mut leader = Leader::start(&theirs, Config::with_small_limits(&theirs), seed);
        new_database(&own);
        let start =
            |leader: &Leader| Copy::start(&own, vec![named("leader", leader.host.client())]);
        let mut copy = start(&leader);
        let mut earlier = 0;
        for step in 0..90 {
            leader.step();
            if leader.random.one_in(6) {
                copy.wait_for(&leader.writer);
                copy.compare(&leader.writer, &leader.chain);
                earlier += copy.compare_history(&leader.chain);
            }
            if leader.random.one_in(12) {
                copy.end();
                copy = start(&leader);
            }
            if leader.random.one_in(30) {
                leader.host.stop();
                let writer = leader.writer.clone();
                leader.host.start_again(&writer);
            }
            // A leader that goes back further than its reverse diffs is out of the question.
            assert_eq!(copy.follower.status().refused(), None, "step {step} of seed {seed}");
        }
        copy.wait_for(&leader.writer);
        copy.compare(&leader.writer, &leader.chain);
        earlier += copy.compare_history(&leader.chain);
        assert!(earlier > 100, "{earlier} states");
        assert_eq!(copy.follower.status().lag_blocks(), Some(0));
        let last = copy.heard.chosen.lock().last().copied();
        assert!(last.is_none_or(|last| last == leader.writer.checkpoint().unwrap().forkchoice));
        copy.end();
        leader.host.stop();
    }
}

#[test]
fn a_follower_that_is_too_far_behind_downloads_a_state_once() {
    let directory = tempfile::tempdir().unwrap();
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let config =
        Config { feed_blocks: 4, access_list_blocks: 4, ..Config::with_small_limits(&theirs) };
    let mut leader = Leader::start(&theirs, config, 11);
    leader.grow(60);
    wait_until(|| leader.writer.checkpoint().unwrap().base.number > 45);
    new_database(&own);
    let copy = Copy::start(&own, vec![named("leader", leader.host.client())]);
    copy.wait_for(&leader.writer);
    assert_eq!(*copy.heard.adopted.lock(), 1);
    assert!(copy.heard.stored.lock().iter().all(|block| block.number > 40));
    leader.grow(5);
    copy.wait_for(&leader.writer);
    copy.compare(&leader.writer, &leader.chain);
    assert!(copy.compare_history(&leader.chain) > 0);
    copy.end();
    // With a state of its own, a follower does not throw it away by itself.
    leader.grow(60);
    wait_until(|| leader.writer.checkpoint().unwrap().base.number > 105);
    let copy = Copy::start(&own, vec![named("leader", leader.host.client())]);
    wait_until(|| copy.fatal.is_cancelled());
    assert_eq!(copy.head().number, 65);
    copy.end();
    leader.host.stop();
}

#[test]
fn a_leader_of_another_chain_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let mut leader = Leader::start(&theirs, Config::with_small_limits(&theirs), 5);
    std::fs::create_dir_all(&own).unwrap();
    let genesis = own.join("genesis.json");
    let (json, _) = tandem_testkit::world::genesis();
    std::fs::write(&genesis, json.replace("0x1c9c380", "0x1c9c381")).unwrap();
    tandem_storage_writer::init(&genesis, &own, |_| {}).unwrap();
    let copy = Copy::start(&own, vec![named("leader", leader.host.client())]);
    wait_until(|| copy.fatal.is_cancelled());
    let refused = copy.follower.status().refused().unwrap();
    assert!(refused.contains("genesis"), "{refused}");
    copy.end();
    leader.host.stop();
}
