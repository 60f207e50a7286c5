//! Blocks that are canceled, or reverted after they ended, leave no trace.

use rand::{Rng, rngs::StdRng};
use tandem_primitives::{Shard, TrieDiff};
use tandem_testkit::trie::{one_shard::*, *};
use tandem_trie::ShardTrie;

fn shard() -> ShardTrie {
    ShardTrie::new(Shard::from_nibble(0).unwrap())
}

/// Runs a block that will not stay, and reverts it.
fn stray(rng: &mut StdRng, shard: &mut ShardTrie, store: &Store, state: &State, spaces: &Spaces) {
    let updates = updates(rng, &mut state.clone(), spaces);
    run(rng, shard, store, &updates);
    if rng.random() {
        // Nodes may still be missing, so the end may not be reached.
        if rng.random() && shard.finish().unwrap().is_some() {
            assert!(shard.revert());
        } else {
            shard.cancel();
        }
        return;
    }
    let (_, diff) = finish(shard, store);
    if rng.random_ratio(1, 3) {
        // Another block on top, canceled as well, makes the first one irreversible.
        let mut store = store.clone();
        store.apply(&diff);
        run(rng, shard, &store, &updates);
        if !updates.is_empty() {
            assert!(!shard.revert());
            return;
        }
    }
    if rng.random_ratio(1, 8) {
        shard.prune(rng.random_range(0..=shard.byte_len()));
        shard.revert();
        return;
    }
    assert!(shard.revert());
    if rng.random() {
        assert!(!shard.revert(), "there is a way back by one block only");
    }
}

#[test]
fn blocks_taken_back_leave_no_trace() {
    for seed in 0..5_000 {
        let rng = &mut rng(seed);
        let spaces = (KeySpace::random(rng), KeySpace::random(rng));
        let mut state = State::default();
        updates(rng, &mut state, &spaces);
        let mut store = state.store();
        let mut shard = shard();
        for _ in 0..rng.random_range(1..6) {
            for _ in 0..rng.random_range(0..3) {
                stray(rng, &mut shard, &store, &state, &spaces);
            }
            let updates = updates(rng, &mut state, &spaces);
            run(rng, &mut shard, &store, &updates);
            let got = finish(&mut shard, &store);
            let mut fresh = self::shard();
            updates.iter().for_each(|update| fresh.update(update));
            let want = finish(&mut fresh, &store);
            assert_eq!(got.0, want.0, "top, seed {seed}");
            assert_eq!(sorted(&got.1), sorted(&want.1), "diff, seed {seed}");
            store.apply(&got.1);
        }
        assert_eq!(store.nodes, state.store().nodes, "nodes, seed {seed}");
    }
}

#[test]
fn a_block_run_again_reads_nothing() {
    for seed in 0..200 {
        let rng = &mut rng(seed);
        let spaces = (KeySpace::random(rng), KeySpace::random(rng));
        let mut state = State::default();
        updates(rng, &mut state, &spaces);
        let store = state.store();
        let mut shard = shard();
        let updates = updates(rng, &mut state, &spaces);
        let wiped = updates.iter().any(|update| update.wiped || update.account.is_none());
        run(rng, &mut shard, &store, &updates);
        let first = finish(&mut shard, &store);
        assert!(shard.revert());
        updates.iter().for_each(|update| shard.update(update));
        let mut targets = Vec::new();
        shard.take_targets(&mut targets);
        assert!(wiped || targets.is_empty(), "seed {seed}: {targets:?}");
        answer(&mut shard, &store, &targets);
        let second = finish(&mut shard, &store);
        assert_eq!((second.0, sorted(&second.1)), (first.0, sorted(&first.1)));
    }
}

#[test]
fn giving_up_a_shard_that_the_block_did_not_reach_keeps_the_last_block() {
    let rng = &mut rng(1);
    let spaces = (KeySpace::random(rng), KeySpace::random(rng));
    let mut state = State::default();
    let (mut shard, store) = (shard(), Store::default());
    let updates = updates(rng, &mut state, &spaces);
    assert!(!updates.is_empty());
    updates.iter().for_each(|update| shard.update(update));
    let (top, _) = finish(&mut shard, &store);
    shard.cancel();
    assert_eq!(finish(&mut shard, &store), (top, TrieDiff::default()));
    assert!(shard.revert(), "the block without changes");
    assert!(!shard.revert());
}
