//! Blocks over shards that survive, against a state kept in maps. After each block, the store that
//! took the diffs must equal a store built from nothing, and the root must be alloy-trie's.

use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use tandem_primitives::{AccountUpdate, Shard, SlotUpdate, U256, WalkTarget};
use tandem_testkit::trie::*;
use tandem_trie::{AheadLimits, ShardTrie, apply_block, combine};

/// Number of sequences, each of several blocks.
const SEQUENCES: u64 = 10_000;

fn answer(rng: &mut StdRng, store: &mut Store, shards: &mut [ShardTrie], targets: &[WalkTarget]) {
    store.walked += targets.len();
    for target in targets {
        let shard = &mut shards[Shard::of(target.owner.as_ref().unwrap_or(&target.key)).index()];
        store.walk_one(target, &mut |owner, path, rlp| {
            shard.reveal(owner.as_ref(), path, rlp).unwrap();
            if rng.random_ratio(1, 10) {
                // Nodes that are already known, and nodes whose parent is unknown, change nothing.
                shard.reveal(owner.as_ref(), path, rlp).unwrap();
            }
        });
        shard.answered(target);
    }
}

/// Feeds a block to the shards with late answers in any order.
fn run_block(
    rng: &mut StdRng,
    store: &mut Store,
    shards: &mut [ShardTrie],
    updates: &[AccountUpdate],
) {
    let mut waiting = Vec::new();
    for update in updates {
        let shard = &mut shards[update.shard().index()];
        if rng.random_ratio(1, 3) {
            let slots: Vec<_> = update.slots.iter().map(|slot| slot.key).collect();
            shard.prefetch(&update.address_hash, &slots);
        }
        shard.update(update);
        shard.take_targets(&mut waiting);
        waiting.shuffle(rng);
        let now: Vec<_> = waiting.drain(..rng.random_range(0..=waiting.len())).collect();
        answer(rng, store, shards, &now);
        let shard = &mut shards[update.shard().index()];
        if rng.random() {
            shard.ahead =
                AheadLimits { touches_min: rng.random_range(0..3), levels: rng.random_range(0..4) };
            shard.work_ahead();
        }
    }
    let mut roots: [_; 16] = Default::default();
    for at in 0..16 {
        let mut rounds = 0;
        let (top, diff) = loop {
            if let Some(done) = shards[at].finish().unwrap() {
                break done;
            }
            shards[at].take_targets(&mut waiting);
            assert!(!waiting.is_empty(), "more nodes needed but none asked for");
            waiting.shuffle(rng);
            answer(rng, store, shards, &waiting);
            waiting.clear();
            rounds += 1;
            assert!(rounds < 200);
        };
        // A change of one shard does not affect the others.
        store.apply(&diff);
        roots[at] = top;
    }
    let (_, node) = combine(&roots).unwrap();
    assert_eq!(node.is_none(), roots.iter().all(Option::is_none));
    for (nibble, top) in (0..).zip(&roots) {
        let stored = store.nodes.get(&(None, vec![nibble]));
        assert_eq!(top.as_ref().map(|top| top.to_vec()).as_ref(), stored);
    }
}

/// Creates updates of one block. Some revert updates of an earlier block.
fn block(
    rng: &mut StdRng,
    state: &mut State,
    addresses: &KeySpace,
    slots: &KeySpace,
) -> Vec<AccountUpdate> {
    let mut updates = Vec::new();
    for _ in 0..rng.random_range(0..10) {
        let next = update(rng, state, addresses, slots);
        let before = state.0.get(&next.address_hash).cloned();
        state.apply(&next);
        updates.push(next.clone());
        if next.wiped || next.account.is_none() || rng.random_ratio(3, 4) {
            continue;
        }
        let old = before.clone().unwrap_or_default();
        let restore = next.slots.iter().map(|slot| SlotUpdate {
            key: slot.key,
            value: old.1.get(&slot.key).copied().unwrap_or(U256::ZERO),
        });
        let account = before.map(|(account, _)| account);
        let slots = if account.is_some() { restore.collect() } else { Vec::new() };
        let back = AccountUpdate { address_hash: next.address_hash, account, wiped: false, slots };
        state.apply(&back);
        updates.push(back);
    }
    updates
}

/// Seed of the running sequence, named on failure.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

fn sequence(seed: u64) {
    let _seed = Seed(seed);
    let rng = &mut rng(seed);
    let (addresses, slots) = (KeySpace::random(rng), KeySpace::random(rng));
    let mut state = State::default();
    if rng.random() {
        for _ in 0..rng.random_range(0..40) {
            let next = update(rng, &state, &addresses, &slots);
            state.apply(&next);
        }
    }
    let mut store = state.store();
    let mut shards = all_shards();
    for _ in 0..rng.random_range(1..8) {
        let updates = block(rng, &mut state, &addresses, &slots);
        if rng.random_ratio(1, 4) {
            let (root, _, diff) = apply_block(&mut shards, &updates, &mut store).unwrap();
            store.apply(&diff);
            assert_eq!(root, state.root(), "root, seed {seed}");
        } else {
            run_block(rng, &mut store, &mut shards, &updates);
        }
        let fresh = state.store();
        assert_eq!(store.nodes, fresh.nodes, "nodes, seed {seed}");
        for shard in &mut shards {
            match rng.random_range(0..8) {
                0 => shard.clear(),
                1 => {
                    let bytes_max = rng.random_range(0..=shard.byte_len());
                    shard.prune(bytes_max);
                }
                _ => {}
            }
        }
    }
    // The builder's nodes, and so all diffs, are checked against alloy-trie's root here.
    let (root, _, diff) = apply_block(&mut all_shards(), &[], &mut store).unwrap();
    assert_eq!(root, state.root(), "root, seed {seed}");
    assert!(diff.is_empty());
}

#[test]
fn diffs_of_any_blocks_add_up_to_the_trie_from_nothing() {
    (0..SEQUENCES).for_each(sequence);
}
