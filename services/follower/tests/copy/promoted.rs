//! A follower that takes its leader's place, and one that goes over to it.

use crate::{
    chain::{Leader, child, new_database},
    setup::{Copy, Host, named, wait_until},
};
use tandem_follower::Leader as Source;
use tandem_primitives::BlockId;
use tandem_proto::storage::{
    BaseReads, BlockWrites, Forkchoice, Leadership, Standing, Term, WriteLease,
};
use tandem_storage_writer::{Config, StartsAs};

#[test]
fn another_follower_goes_over_to_the_promoted_one_and_leaves_the_old_leader() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |name: &str| directory.path().join(name);
    let (theirs, first, second) = (folder("leader"), folder("first"), folder("second"));
    let mut leader = Leader::start(&theirs, Config::with_small_limits(&theirs), 17);
    for own in [&first, &second] {
        new_database(own);
    }
    leader.grow(20);
    let promoted = Copy::start(&first, vec![named("leader", leader.host.client())]);
    promoted.wait_for(&leader.writer);
    assert!(promoted.follower.status().is_led());
    let mut host = Host::start(&promoted.writer);
    // It follows the first that leads.
    let leaders = || vec![named("leader", leader.host.client()), named("first", host.client())];
    let other = Copy::start(&second, leaders());
    other.wait_for(&leader.writer);
    leader.host.stop();
    wait_until(|| !promoted.follower.status().is_led());
    promoted.follower.stop();
    assert_eq!(promoted.writer.lead(Term::default()), Ok(Term(1)));

    // An executor adds blocks to where the old leader was.
    let epoch = promoted.writer.acquire_epoch("executor").unwrap();
    let (mut head, mut world) = leader.chain.last().cloned().unwrap();
    for _ in 0..8 {
        let (block, after) = child(head, &world, &mut leader.random);
        (head, world) = (block.id, after);
        promoted.writer.commit(epoch, block).unwrap();
        let forkchoice = Forkchoice { head, safe: None, finalized: None };
        promoted.writer.canonicalize(epoch, forkchoice).unwrap();
    }
    other.wait_for(&promoted.writer);
    // The old leader comes back and knows nothing of it: the other one does not go back to it.
    leader.host.start_again(&leader.writer.clone());
    host.stop();
    wait_until(|| !other.follower.status().is_led());
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(other.head(), head);
    host.start_again(&promoted.writer);
    wait_until(|| other.follower.status().is_led());
    assert_eq!(*other.writer.standing().borrow(), Standing::Follows);
    let genesis: BlockId = other.writer.checkpoint().unwrap().genesis;
    assert_eq!(genesis, promoted.writer.checkpoint().unwrap().genesis);
    // Its own promotion is above both.
    let datadir = other.end();
    host.stop();
    promoted.end();
    let config = Config { starts_as: StartsAs::Follower, ..Config::with_small_limits(&datadir) };
    let writer =
        tandem_storage_writer::StorageWriter::start(config, tandem_storage_writer::Deps::default());
    assert_eq!(writer.unwrap().lead(Term::default()), Ok(Term(2)));
    leader.host.stop();
}

#[test]
fn a_candidate_leaves_a_leader_that_is_alive_and_reads_the_stream_alone() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |name: &str| directory.path().join(name);
    let (theirs, further, own) = (folder("leader"), folder("further"), folder("copy"));
    // With the same seed, both have the same blocks; the second one stands for the stream.
    let start = |datadir| Leader::start(datadir, Config::with_small_limits(datadir), 19);
    let (mut leader, mut stream) = (start(&theirs), start(&further));
    leader.grow(12);
    stream.grow(20);
    new_database(&own);
    let sources = vec![
        named("leader", leader.host.client()),
        Source::feed_only("stream", stream.host.client()),
    ];
    let copy = Copy::start(&own, sources);
    copy.wait_for(&leader.writer);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(copy.head(), leader.head(), "its leader is in reach");
    copy.follower.leave_leaders();
    copy.wait_for(&stream.writer);
    // It does not go back when the stream has nothing more.
    stream.host.stop();
    leader.grow(10);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(copy.head(), stream.head());
    stream.host.start_again(&stream.writer.clone());
    stream.grow(3);
    copy.wait_for(&stream.writer);
    copy.end();
    leader.host.stop();
    stream.host.stop();
}

#[test]
fn a_stream_is_read_through_a_term_that_is_over_and_its_leader_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |name: &str| directory.path().join(name);
    let (theirs, own) = (folder("leader"), folder("copy"));
    let mut leader = Leader::start(&theirs, Config::with_small_limits(&theirs), 23);
    leader.grow(12);
    new_database(&own);
    let sources = |leader: &Leader| vec![named("leader", leader.host.client())];
    let copy = Copy::start(&own, sources(&leader));
    copy.wait_for(&leader.writer);
    // The lease may tell of a new holder before the end of the old one's blocks was read.
    copy.writer.hear_term(Term(3)).unwrap();
    let (own, head) = (copy.stop(), leader.head());
    leader.grow(5);
    let copy = Copy::start(&own, sources(&leader));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((copy.head(), copy.follower.status().is_led()), (head, false));
    let own = copy.stop();
    let stream = Source::feed_only("stream", leader.host.client());
    let copy = Copy::start(&own, vec![stream]);
    copy.wait_for(&leader.writer);
    leader.grow(5);
    copy.wait_for(&leader.writer);
    copy.end();
    leader.host.stop();
}

#[test]
fn a_copy_leaves_its_branch_for_that_of_a_term_that_is_over_only_as_a_candidate() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |name: &str| directory.path().join(name);
    let (theirs, further, own) = (folder("leader"), folder("further"), folder("copy"));
    let start = |datadir| Leader::start(datadir, Config::with_small_limits(datadir), 29);
    let (mut leader, mut stream) = (start(&theirs), start(&further));
    for side in [&mut leader, &mut stream] {
        side.grow(12);
    }
    // Two branches from here on, and the one in the stream is longer.
    stream.random.next();
    leader.grow(1);
    stream.grow(4);
    assert_ne!(leader.head().hash, stream.chain[13].0.hash);
    new_database(&own);
    let copy = Copy::start(&own, vec![named("leader", leader.host.client())]);
    copy.wait_for(&leader.writer);
    copy.writer.hear_term(Term(3)).unwrap();
    let own = copy.stop();
    let copy = Copy::start(&own, vec![Source::feed_only("stream", stream.host.client())]);
    wait_until(|| copy.heard.stored.lock().last() == Some(&stream.head()));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(copy.head(), leader.head());
    copy.follower.leave_leaders();
    copy.wait_for(&stream.writer);
    copy.end();
    leader.host.stop();
    stream.host.stop();
}
