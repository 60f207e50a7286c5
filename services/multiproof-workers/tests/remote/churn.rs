//! Workers that come and go between blocks and within them.

use crate::{
    pods::{Pods, as_executor},
    support::{Chain, Made, Random, prove, state_root},
};
use std::{collections::BTreeSet, time::Duration};
use tandem_multiproof_workers_client::fleet::Config;
use tandem_primitives::{Shard, ShardSet};
use tandem_proto::multiproof::{Error, ProofApi, ShardRoots};
use tandem_testkit::network::Network;

/// Settings that retry workers at once. No worker is late because a busy machine lets one of
/// sixteen wait.
fn hasty() -> Config {
    Config {
        late_ms_min: 1_000,
        late_ms_max: 1_000,
        suspend_ms_min: 10,
        suspend_ms_max: 40,
        keep_alive_ms: 500,
        ..Config::default()
    }
}

/// Disturbs one of the pods, or none.
fn disturb(pods: &mut Pods, chain: &Chain, random: &mut Random) {
    let at = random.below(pods.pods.len() as u64) as usize;
    let pod = &mut pods.pods[at];
    match random.below(14) {
        0 => pod.kill(),
        1 => pod.network.set(Network::Cut),
        2 => pod.network.set(Network::Silent),
        3 => pod.network.set(Network::Slow(Duration::from_millis(20))),
        4..=7 => pod.revive(chain),
        _ => {}
    }
}

/// Feeds a block to the fleet, with a disturbance in between.
fn prove_disturbed(
    pods: &mut Pods,
    chain: &Chain,
    made: &Made,
    random: &mut Random,
) -> Result<ShardRoots, Error> {
    let fleet = pods.fleet.clone();
    let mut session = fleet.begin(made.begin())?;
    for update in &made.updates {
        if random.one_in(6) {
            fleet.foresee(made.block.id.hash, chain.foresight(made, random));
        }
        if random.one_in(24) {
            disturb(pods, chain, random);
        }
        session.update(update.clone());
    }
    session.finish();
    if random.one_in(8) {
        disturb(pods, chain, random);
    }
    session.roots()
}

/// Runs a chain of random blocks with forks and refusals at `count` pods, next to one worker.
fn run(count: usize, blocks: usize, seed: u64) {
    eprintln!("{count} pods, seed {seed}");
    let mut chain = Chain::new();
    let mut random = Random(seed);
    let mut pods = Pods::start(&chain, count, hasty());
    let one = chain.workers(1, chain.storage.clone());
    let (mut before, mut head) = (chain.genesis, chain.genesis);
    let mut last = None;
    for number in 0..blocks {
        if random.one_in(4) {
            disturb(&mut pods, &chain, &mut random);
        }
        let parent = if random.one_in(8) { before } else { head };
        let made = chain.make(parent, 1 + random.below(20) as usize, &mut random);
        if random.one_in(8) {
            // Given up half way.
            let mut session = pods.fleet.begin(made.begin()).unwrap();
            session.update(made.updates[0].clone());
        }
        let got = prove_disturbed(&mut pods, &chain, &made, &mut random).unwrap();
        let want = prove(&*one, &made).unwrap();
        assert_eq!(got.roots, want.roots, "block {number}, {count} pods, seed {seed}");
        assert_eq!((got.shards, state_root(&got)), (ShardSet::ALL, made.root));
        if random.one_in(8) {
            pods.fleet.discard(made.block.id.hash);
            one.discard(made.block.id.hash);
            continue;
        }
        chain.commit(&made);
        (before, head) = (parent, made.block.id);
        if random.one_in(3) {
            chain.make_head(head);
        }
        last = Some(made);
    }
    // Once undisturbed, the pods share the shards again: each has its own at some block. Not all of
    // them need have some at one block, as many pods on few processors are late now and then.
    for pod in &mut pods.pods {
        pod.revive(&chain);
    }
    let mut waited_for: BTreeSet<_> = (0..count).collect();
    let shared = |pods: &Pods, block| {
        let held: Vec<_> = pods.pods.iter().map(|pod| pod.holds(block)).collect();
        // When each shard has one holder, no worker was asked beside those that answer.
        let each_has_one = held.iter().map(|held| held.len()).sum::<usize>() == Shard::COUNT;
        if each_has_one && pods.hold(block) == ShardSet::ALL {
            waited_for.retain(|pod| held[*pod].is_empty());
        }
        waited_for.is_empty()
    };
    let made = pods.extend_until(&mut chain, last.unwrap(), &mut random, shared);
    let next = chain.make(made.block.id, 9, &mut random);
    assert_eq!(as_executor(&*pods.fleet, &next).unwrap().0, next.root);
    one.stop();
    pods.local.stop();
}

const SEED: u64 = 20_261_122;

#[test]
fn one_pod_gives_the_roots_of_one_worker() {
    run(1, 50, SEED);
}

#[test]
fn two_pods_give_the_roots_of_one_worker() {
    run(2, 60, SEED + 1);
}

#[test]
fn three_pods_give_the_roots_of_one_worker() {
    run(3, 60, SEED + 2);
}

#[test]
fn sixteen_pods_give_the_roots_of_one_worker() {
    run(16, 40, SEED + 3);
}
