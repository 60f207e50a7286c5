//! Runs of one shard with late answers and work ahead at any moment.

use super::*;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use tandem_primitives::SubtrieRoot;

/// Key spaces of a test's accounts and slots.
pub type Spaces = (KeySpace, KeySpace);

pub type Change = (Option<B256>, Vec<u8>, Option<Vec<u8>>);

/// Sorts a diff for comparison.
pub fn sorted(diff: &TrieDiff) -> (Vec<B256>, Vec<Change>) {
    let mut wiped = diff.wiped.clone();
    wiped.sort_unstable();
    let mut changes: Vec<Change> = diff
        .iter()
        .map(|change| (change.owner, change.path.to_vec(), change.rlp.map(<[u8]>::to_vec)))
        .collect();
    changes.sort_unstable();
    (wiped, changes)
}

/// Answers walks from the store.
pub fn answer(shard: &mut ShardTrie, store: &Store, targets: &[WalkTarget]) {
    for target in targets {
        store.walk_one(target, &mut |owner, path, rlp| {
            shard.reveal(owner.as_ref(), path, rlp).unwrap();
        });
        shard.answered(target);
    }
}

/// Ends the block, and answers all walks that this requires.
pub fn finish(shard: &mut ShardTrie, store: &Store) -> (SubtrieRoot, TrieDiff) {
    let mut targets = Vec::new();
    loop {
        shard.take_targets(&mut targets);
        answer(shard, store, &std::mem::take(&mut targets));
        if let Some(done) = shard.finish().unwrap() {
            return done;
        }
    }
}

/// Runs the updates with answers and work ahead at any moment.
pub fn run(rng: &mut StdRng, shard: &mut ShardTrie, store: &Store, updates: &[AccountUpdate]) {
    run_advised(rng, shard, store, updates, |rng, shard, next| {
        if let Some(update) = next.filter(|_| rng.random_ratio(1, 4)) {
            let slots: Vec<_> = update.slots.iter().map(|slot| slot.key).collect();
            shard.prefetch(&update.address_hash, &slots);
        }
    });
    if rng.random() {
        shard.work_ahead();
    }
}

/// Runs the updates with answers and work ahead at any moment. `advise` is called before each
/// update, which it receives, and after the last one.
pub fn run_advised(
    rng: &mut StdRng,
    shard: &mut ShardTrie,
    store: &Store,
    updates: &[AccountUpdate],
    mut advise: impl FnMut(&mut StdRng, &mut ShardTrie, Option<&AccountUpdate>),
) {
    let mut waiting = Vec::new();
    for next in updates.iter().map(Some).chain([None]) {
        advise(rng, shard, next);
        if let Some(update) = next {
            shard.update(update);
        }
        shard.take_targets(&mut waiting);
        waiting.shuffle(rng);
        let now: Vec<_> = waiting.drain(..rng.random_range(0..=waiting.len())).collect();
        answer(shard, store, &now);
        if rng.random() {
            shard.ahead.touches_min = rng.random_range(0..4);
            shard.ahead.levels = rng.random_range(0..4);
            shard.work_ahead();
        }
    }
    answer(shard, store, &waiting);
}

/// Creates updates in a single shard, of accounts with some storage.
pub fn updates(rng: &mut StdRng, state: &mut State, spaces: &Spaces) -> Vec<AccountUpdate> {
    let mut updates = Vec::new();
    for _ in 0..rng.random_range(0..30) {
        let mut next = update(rng, state, &spaces.0, &spaces.1);
        next.address_hash[0] &= 0x0f;
        if next.account.is_some() && rng.random_ratio(1, 4) {
            // This many slots are written together.
            let keys: BTreeSet<B256> =
                (0..rng.random_range(8..60)).map(|_| spaces.1.key(rng)).collect();
            let deleted = rng.random_range(2..10);
            next.slots = keys
                .into_iter()
                .map(|key| {
                    let zero = rng.random_ratio(1, deleted);
                    SlotUpdate { key, value: if zero { U256::ZERO } else { value(rng) } }
                })
                .collect();
            next.slots.shuffle(rng);
        }
        let before = state.0.get(&next.address_hash).cloned();
        state.apply(&next);
        updates.push(next.clone());
        let Some((account, slots)) = before.filter(|_| rng.random_ratio(1, 4)) else { continue };
        let back = AccountUpdate {
            account: Some(account),
            wiped: false,
            slots: next.slots.iter().map(|slot| restored(slot.key, &slots)).collect(),
            ..next
        };
        state.apply(&back);
        updates.push(back);
    }
    updates
}

fn restored(key: B256, slots: &Slots) -> SlotUpdate {
    SlotUpdate { key, value: slots.get(&key).copied().unwrap_or_default() }
}
