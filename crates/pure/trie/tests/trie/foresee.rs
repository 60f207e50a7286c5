//! Foresight, right or wrong, at any moment of a block. The top node and the changes must be those
//! of the updates alone.

use rand::{
    Rng,
    rngs::StdRng,
    seq::{IndexedRandom, SliceRandom},
};
use tandem_primitives::{Account, AccountUpdate, B256, Shard, SlotUpdate, U256};
use tandem_testkit::trie::{one_shard::*, *};
use tandem_trie::ShardTrie;

fn shard() -> ShardTrie {
    ShardTrie::new(Shard::from_nibble(0).unwrap())
}

/// Returns random foresight on the parent's state, which the block often confirms.
fn foresight(
    rng: &mut StdRng,
    parent: &State,
    updates: &[AccountUpdate],
    slot_keys: &KeySpace,
) -> Option<(AccountUpdate, AccountUpdate)> {
    let address_hash = match updates.choose(rng) {
        Some(update) if rng.random_ratio(3, 4) => update.address_hash,
        _ => **parent.0.keys().collect::<Vec<_>>().choose(rng)?,
    };
    let of_it = |update: &&AccountUpdate| update.address_hash == address_hash;
    let updates: Vec<_> = updates.iter().filter(of_it).collect();
    let known = parent.0.get(&address_hash);
    let before = known.filter(|_| rng.random_ratio(3, 4)).map(|(account, _)| *account);
    let after = match updates.choose(rng) {
        Some(update) if rng.random_ratio(3, 4) => update.account,
        _ => Some(account(rng)),
    };
    let written = updates.iter().flat_map(|update| update.slots.iter().map(|slot| slot.key));
    let there = known.iter().flat_map(|(_, slots)| slots.keys().copied());
    let mut keys: Vec<B256> = written.chain(there).chain([slot_keys.key(rng)]).collect();
    keys.shuffle(rng);
    keys.truncate(rng.random_range(0..=keys.len()));
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for key in keys {
        let value_before = known.and_then(|(_, slots)| slots.get(&key)).copied();
        let mut said =
            updates.iter().flat_map(|update| &update.slots).filter(|slot| slot.key == key);
        let value_after = match said.next_back() {
            Some(slot) if rng.random_ratio(3, 4) => slot.value,
            _ => value(rng),
        };
        old.push(SlotUpdate { key, value: value_before.unwrap_or_default() });
        new.push(SlotUpdate { key, value: value_after });
    }
    let of = |account, slots| AccountUpdate { address_hash, account, wiped: false, slots };
    Some((of(before, old), of(after.filter(|_| before.is_some()), new)))
}

fn run_foreseeing(
    rng: &mut StdRng,
    shard: &mut ShardTrie,
    store: &Store,
    parent: &State,
    updates: &[AccountUpdate],
    slot_keys: &KeySpace,
) {
    run_advised(rng, shard, store, updates, |rng, shard, _| {
        for _ in 0..rng.random_range(0..3) {
            if let Some((before, after)) = foresight(rng, parent, updates, slot_keys) {
                shard.foresee(&before, &after);
            }
        }
        if rng.random_ratio(1, 4) {
            shard.hash_foreseen();
        }
    });
}

#[test]
fn the_diff_is_the_same_with_and_without_foresight() {
    let (mut foreseen, mut withdrawn) = (0, 0);
    for seed in 0..10_000 {
        let rng = &mut rng(seed);
        let spaces = (KeySpace::random(rng), KeySpace::random(rng));
        let mut state = State::default();
        updates(rng, &mut state, &spaces);
        let mut store = state.store();
        let (mut plain, mut foreseeing) = (shard(), shard());
        for _ in 0..rng.random_range(1..5) {
            let parent = state.clone();
            let updates = updates(rng, &mut state, &spaces);
            if rng.random_ratio(1, 4) {
                // Canceled first: no trace of it may stay.
                run_foreseeing(rng, &mut foreseeing, &store, &parent, &updates, &spaces.1);
                foreseeing.cancel();
            }
            run_foreseeing(rng, &mut foreseeing, &store, &parent, &updates, &spaces.1);
            updates.iter().for_each(|update| plain.update(update));
            let want = finish(&mut plain, &store);
            let got = finish(&mut foreseeing, &store);
            assert_eq!(got.0, want.0, "top, seed {seed}");
            assert_eq!(sorted(&got.1), sorted(&want.1), "diff, seed {seed}");
            store.apply(&got.1);
            let counts = foreseeing.counts();
            (foreseen, withdrawn) = (foreseen + counts.foreseen, withdrawn + counts.withdrawn);
        }
        assert_eq!(store.nodes, state.store().nodes, "nodes, seed {seed}");
    }
    assert!(withdrawn > 10_000 && foreseen - withdrawn > 10_000, "{withdrawn} of {foreseen}");
}

fn key(start: &[u8]) -> B256 {
    let mut key = B256::ZERO;
    key[..start.len()].copy_from_slice(start);
    key
}

fn token(nonce: u64, values: impl IntoIterator<Item = u64>) -> AccountUpdate {
    let slot = |(at, value): (u8, u64)| SlotUpdate { key: key(&[at]), value: U256::from(value) };
    AccountUpdate {
        address_hash: key(&[1]),
        account: Some(Account { nonce, ..Account::default() }),
        wiped: false,
        slots: (0..).step_by(16).zip(values).map(slot).collect(),
    }
}

/// Checks that foreseen values are hashed before the update comes, which then leaves no work.
#[test]
fn an_update_that_was_foreseen_finds_its_nodes_hashed() {
    let (before, after) = (token(1, 1..17), token(2, 101..117));
    let mut state = State::default();
    state.apply(&before);
    let store = state.store();
    let mut shard = shard();
    assert_eq!(shard.hash_foreseen(), 0, "nothing was foreseen");
    shard.foresee(&before, &after);
    let mut targets = Vec::new();
    shard.take_targets(&mut targets);
    assert_eq!(targets.len(), 17);
    answer(&mut shard, &store, &targets);
    assert_eq!(shard.hash_foreseen(), 17, "the leaves and the root of the storage");
    shard.update(&after);
    shard.take_targets(&mut targets);
    let (_, diff) = finish(&mut shard, &store);
    // The changes are the leaves, the storage root and the account's leaf.
    assert_eq!(diff.len(), 18);
    let counts = shard.counts();
    assert_eq!((counts.foreseen, counts.withdrawn), (17, 0));
    assert!(counts.at_end <= 2, "{counts:?}");
}

#[test]
fn foresight_of_another_state_or_shard_changes_nothing() {
    let (before, after) = (token(1, 1..5), token(2, 11..15));
    let mut state = State::default();
    state.apply(&before);
    let store = state.store();
    let mut shard = shard();
    shard.prefetch(&before.address_hash, &[]);
    let (elsewhere, stranger) = (key(&[0x11]), token(7, 21..25));
    let moved =
        |update: &AccountUpdate| AccountUpdate { address_hash: elsewhere, ..update.clone() };
    shard.foresee(&moved(&before), &moved(&after));
    let mut targets = Vec::new();
    shard.take_targets(&mut targets);
    assert_eq!(targets.len(), 1);
    answer(&mut shard, &store, &targets);
    // The account is known by now and differs from `stranger`. The slots of `turned` come in
    // another order. Neither is written.
    let mut turned = after.clone();
    turned.slots.reverse();
    shard.foresee(&stranger, &turned);
    let (_, diff) = finish(&mut shard, &store);
    assert!(diff.is_empty());
    assert_eq!(shard.counts().foreseen, 0);
}
