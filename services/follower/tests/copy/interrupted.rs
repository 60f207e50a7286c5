//! First copies that are interrupted, and first copies of a leader that lies.

use crate::{
    chain::{Leader, new_database},
    setup::{Copy, named, wait_until},
    tampered::{Answers, Tampered},
};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::B256;
use tandem_proto::{
    snap::{StateItems, StateRequest},
    storage::{BaseReads, Error, StateDownloads, StateRanges},
};
use tandem_storage_writer::Config;
use tandem_storage_writer_client::Client;
use tandem_testkit::world::Random;

/// Blocks whose changes the leader keeps.
const KEPT: u64 = 50;

/// States that a leader gives up, so that it keeps the changes since the first one.
const STALE_MAX: usize = 8;

/// Starts a leader that lacks the changes since genesis.
fn leader_without_its_first_changes(datadir: &std::path::Path, seed: u64) -> Leader {
    let config = Config {
        feed_blocks: KEPT,
        access_list_blocks: KEPT,
        ..Config::with_small_limits(datadir)
    };
    let mut leader = Leader::start(datadir, config, seed);
    leader.grow(KEPT + 20);
    wait_until(|| leader.writer.checkpoint().unwrap().base.number > KEPT + 5);
    leader
}

/// Script of a leader: its faults, and the requests that it got.
struct Script {
    random: Random,
    /// States that it no longer serves.
    stale: HashSet<B256>,
    failed: u64,
    /// First keys of the accounts that it gave.
    given: Vec<B256>,
}

/// Returns answers in small parts, of which many fail, and states that are gone in the middle of a copy.
fn unreliable(script: Arc<Mutex<Script>>) -> Answers {
    Box::new(move |client: &Client, request: &StateRequest| {
        let mut script = script.lock();
        if script.random.one_in(8) {
            script.failed += 1;
            return Err(Error::Unavailable("interrupted".to_owned()));
        }
        if let Some(root) = request.root() {
            if script.stale.len() < STALE_MAX && script.random.one_in(9) {
                script.stale.insert(root);
            }
            if script.stale.contains(&root) {
                let (leaves, tries, proof) = Default::default();
                return Ok(match request {
                    StateRequest::Accounts { .. } => StateItems::Accounts { leaves, proof },
                    _ => StateItems::Slots { tries, proof },
                });
            }
        }
        let mut small = request.clone();
        match &mut small {
            StateRequest::Accounts { bytes, start, .. } => {
                script.given.push(*start);
                *bytes = 600;
            }
            StateRequest::Slots { bytes, .. } => *bytes = 600,
            _ => {}
        }
        client.state_items(&small)
    })
}

#[test]
fn an_interrupted_first_copy_goes_on_with_the_states_of_later_blocks() {
    for seed in [3, 17, 99] {
        let directory = tempfile::tempdir().unwrap();
        let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
        let mut leader = leader_without_its_first_changes(&theirs, seed);
        new_database(&own);
        let script = Arc::new(Mutex::new(Script {
            random: Random(!seed),
            stale: HashSet::new(),
            failed: 0,
            given: Vec::new(),
        }));
        let start = |leader: &Leader| {
            let api = Tampered::state(leader.host.client(), unreliable(script.clone()));
            Copy::start(&own, vec![named("unreliable", Arc::new(api))])
        };
        let mut copy = start(&leader);
        let (mut moved, mut restarts, mut restart_at) = (0, 0, 3);
        let end = Instant::now() + Duration::from_secs(300);
        while copy.head().number == 0 {
            if Instant::now() > end {
                let noted = copy.writer.download_progress().unwrap().unwrap();
                let noted = String::from_utf8_lossy(&noted);
                let Script { stale, failed, given, .. } = &*script.lock();
                let (stale, given) = (stale.len(), given.len());
                panic!("seed {seed}: {failed} failed, {stale} stale, {given} given; {noted}");
            }
            assert_eq!(copy.follower.status().refused(), None, "seed {seed}");
            std::thread::sleep(Duration::from_millis(5));
            // The next state to copy is that of a later block.
            let (stale, given) = {
                let script = script.lock();
                (script.stale.len(), script.given.len())
            };
            if stale > moved {
                moved = stale;
                leader.grow(3);
            }
            if given >= restart_at {
                copy.stop();
                copy = start(&leader);
                restarts += 1;
                restart_at = given + 3;
            }
        }
        copy.wait_for(&leader.writer);
        copy.compare(&leader.writer, &leader.chain);
        copy.end();
        leader.host.stop();
        let script = script.lock();
        let Script { stale, failed, given, .. } = &*script;
        eprintln!("seed {seed}: {failed} failures, {restarts} restarts, {} states", stale.len());
        assert!(*failed > 0 && !stale.is_empty(), "seed {seed}");
        assert!(given.is_sorted(), "seed {seed}: it began again: {given:?}");
    }
}

#[test]
fn a_copy_of_a_wrong_state_is_refused_and_an_honest_leader_gives_the_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let mut leader = leader_without_its_first_changes(&theirs, 5);
    new_database(&own);
    let lie: Answers = Box::new(|client: &Client, request: &StateRequest| {
        let mut items = client.state_items(request)?;
        if let StateItems::Accounts { leaves, .. } = &mut items {
            leaves.pop();
        }
        Ok(items)
    });
    let liar = named("liar", Arc::new(Tampered::state(leader.host.client(), lie)));
    let copy = Copy::start(&own, vec![liar, named("honest", leader.host.client())]);
    copy.wait_for(&leader.writer);
    let refused = copy.follower.status().refused().unwrap();
    assert!(refused.contains("state root"), "{refused}");
    copy.compare(&leader.writer, &leader.chain);
    copy.end();
    leader.host.stop();
}
