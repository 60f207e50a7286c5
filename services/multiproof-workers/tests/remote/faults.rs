//! Workers that lie, that are paused or slow, and no workers at all.

use crate::{
    pods::{Pods, as_executor},
    support::{Chain, Made, Random},
};
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tandem_multiproof_workers_client::fleet::Config;
use tandem_primitives::{B256, ShardSet};
use tandem_proto::multiproof::ProofApi;
use tandem_testkit::network::Network;

/// Adds blocks on the head, whose roots must be right at once. Returns the last block.
fn extend(pods: &Pods, chain: &mut Chain, count: usize, random: &mut Random) -> Made {
    let mut head = chain.genesis;
    let mut last = None;
    for _ in 0..count {
        let made = chain.make(head, 8, random);
        let got = as_executor(&*pods.fleet, &made).unwrap();
        assert_eq!(got, (made.root, false), "block {}", made.block.id.number);
        chain.commit(&made);
        head = made.block.id;
        last = Some(made);
    }
    last.unwrap()
}

/// Returns settings under which no worker is late because the machine is slow.
fn patient() -> Config {
    Config { late_ms_min: 60_000, late_ms_max: 60_000, ..Config::default() }
}

#[test]
fn the_shards_are_shared_and_each_has_one_owner() {
    let mut chain = Chain::new();
    let pods = Pods::start(&chain, 3, patient());
    let last = extend(&pods, &mut chain, 4, &mut Random(5));
    // A worker keeps its tries only after it has answered.
    let block = last.block.id.hash;
    crate::scripted::wait_until(|| pods.hold(block) == ShardSet::ALL);
    let held: usize = pods.pods.iter().map(|pod| pod.holds(block).len()).sum();
    assert_eq!(held, 16);
    let status = pods.fleet.status().unwrap();
    assert_eq!((status.tip, status.shards, status.threads), (Some(block), ShardSet::ALL, 6));
    assert_eq!(pods.local.status().unwrap().tip, None, "this process was not asked");
}

#[test]
fn a_worker_that_lies_is_found_out_and_not_used_again() {
    let mut chain = Chain::new();
    let mut random = Random(7);
    let pods = Pods::start(&chain, 3, patient());
    let mut made = extend(&pods, &mut chain, 3, &mut random);
    pods.pods[1].liar.lies.store(u64::MAX, SeqCst);
    let mut asked_again = 0;
    for _ in 0..12 {
        let next = chain.make(made.block.id, 8, &mut random);
        let (root, again) = as_executor(&*pods.fleet, &next).unwrap();
        assert_eq!(root, next.root);
        asked_again += u32::from(again);
        chain.commit(&next);
        made = next;
    }
    assert_eq!(asked_again, 1, "found out by the first block");
    let begun = pods.pods[1].liar.begun.load(SeqCst);
    let last = pods.extend_until(&mut chain, made, &mut random, |pods, block| {
        pods.pods[0].holds(block).union(pods.pods[2].holds(block)) == ShardSet::ALL
    });
    assert_eq!(pods.pods[1].liar.begun.load(SeqCst), begun, "left alone");
    assert!(pods.pods[1].holds(last.block.id.hash).is_empty());
}

#[test]
fn a_worker_on_trial_that_lies_never_answers() {
    let mut chain = Chain::new();
    let mut random = Random(8);
    let mut pods = Pods::start(&chain, 2, patient());
    let made = extend(&pods, &mut chain, 2, &mut random);
    // Behind a new connection, the worker must first prove itself.
    pods.pods[0].kill();
    let next = chain.make(made.block.id, 8, &mut random);
    assert_eq!(as_executor(&*pods.fleet, &next).unwrap(), (next.root, false));
    chain.commit(&next);
    pods.pods[0].revive(&chain);
    pods.pods[0].liar.lies.store(u64::MAX, SeqCst);
    crate::scripted::wait_until(|| pods.fleet.connected() == 2);
    let mut made = next;
    for _ in 0..8 {
        let next = chain.make(made.block.id, 8, &mut random);
        assert_eq!(as_executor(&*pods.fleet, &next).unwrap(), (next.root, false));
        chain.commit(&next);
        made = next;
    }
}

#[test]
fn a_block_that_is_wrong_itself_stays_wrong_and_nobody_is_blamed() {
    let mut chain = Chain::new();
    let mut random = Random(9);
    let pods = Pods::start(&chain, 3, patient());
    let made = extend(&pods, &mut chain, 2, &mut random);
    let mut wrong = chain.make(made.block.id, 8, &mut random);
    let root = std::mem::replace(&mut wrong.root, B256::repeat_byte(1));
    assert_eq!(as_executor(&*pods.fleet, &wrong).unwrap(), (root, true));
    pods.fleet.discard(wrong.block.id.hash);
    let next = chain.make(made.block.id, 8, &mut random);
    assert_eq!(as_executor(&*pods.fleet, &next).unwrap(), (next.root, false));
    chain.commit(&next);
    let block = next.block.id.hash;
    crate::scripted::wait_until(|| pods.hold(block) == ShardSet::ALL);
    assert!(pods.pods.iter().all(|pod| !pod.holds(block).is_empty()), "all are still used");
}

/// The next worker does not build on a trie diff of a liar.
#[test]
fn nobody_builds_on_a_trie_diff_that_does_not_fit_its_block() {
    use std::sync::Arc;
    use tandem_primitives::{NodeChange, Shard, TrieDiff};
    use tandem_proto::storage::TrieStorage;
    let mut chain = Chain::new();
    let mut random = Random(10);
    let first = chain.make(chain.genesis, 8, &mut random);
    chain.commit(&first);
    let mut wrong = TrieDiff::default();
    let nodes = Shard::all().map(|shard| [shard.nibble()]);
    for path in nodes {
        wrong.push(NodeChange { owner: None, path: &path, rlp: Some(&[0xc0; 40]) });
    }
    chain
        .storage
        .put_trie_diff(first.block.id.hash, ShardSet::ALL, Arc::new(wrong.clone()))
        .unwrap();
    let told = chain.storage.trie_diff(first.block.id.hash).unwrap().unwrap();
    assert_ne!(*told, wrong);
    let workers = chain.workers(2, chain.storage.clone());
    let second = chain.make(first.block.id, 8, &mut random);
    assert_eq!(as_executor(&*workers, &second).unwrap(), (second.root, false));
    workers.stop();
}

/// Disturbs one pod for good: the others take over its shards, and it gets them back once it works
/// again.
fn worked_around(disturbance: Network) {
    let mut chain = Chain::new();
    let mut random = Random(11);
    let config =
        Config { late_ms_max: 500, suspend_ms_min: 50, suspend_ms_max: 200, ..Config::default() };
    let pods = Pods::start(&chain, 3, config);
    let made = chain.make(chain.genesis, 8, &mut random);
    assert_eq!(as_executor(&*pods.fleet, &made).unwrap().0, made.root);
    chain.commit(&made);
    let all_share = |pods: &Pods, block| {
        pods.hold(block) == ShardSet::ALL
            && pods.pods.iter().all(|pod| !pod.holds(block).is_empty())
    };
    let made = pods.extend_until(&mut chain, made, &mut random, all_share);
    pods.pods[2].network.set(disturbance);
    let made = pods.extend_until(&mut chain, made, &mut random, |pods, block| {
        pods.pods[0].holds(block).union(pods.pods[1].holds(block)) == ShardSet::ALL
    });
    pods.pods[2].network.set(Network::Works);
    pods.extend_until(&mut chain, made, &mut random, all_share);
}

#[test]
fn a_paused_worker_is_worked_around_and_used_again_afterwards() {
    worked_around(Network::Silent);
}

#[test]
fn a_slow_worker_is_worked_around_and_used_again_afterwards() {
    worked_around(Network::Slow(Duration::from_millis(1_500)));
}

#[test]
fn a_worker_a_tenth_of_a_second_slower_is_worked_around_and_used_again_afterwards() {
    worked_around(Network::Slow(Duration::from_millis(100)));
}

#[test]
fn a_worker_that_is_cut_off_is_worked_around_and_used_again_afterwards() {
    worked_around(Network::Cut);
}

#[test]
fn without_workers_this_process_computes() {
    let mut chain = Chain::new();
    let pods = Pods::start(&chain, 0, Config::default());
    let last = extend(&pods, &mut chain, 10, &mut Random(12));
    crate::scripted::wait_until(|| {
        let status = pods.local.status().unwrap();
        (status.tip, status.shards) == (Some(last.block.id.hash), ShardSet::ALL)
    });
}
