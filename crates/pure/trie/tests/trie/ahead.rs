//! Hashing ahead changes no result: with and without it, the updates leave equal top nodes and
//! equal changes.

use rand::Rng;
use tandem_primitives::{Account, AccountUpdate, B256, Shard, SlotUpdate, TrieDiff, U256};
use tandem_testkit::trie::{one_shard::*, *};
use tandem_trie::{AheadLimits, ShardTrie};

fn eager() -> AheadLimits {
    AheadLimits { touches_min: 0, levels: 0 }
}

#[test]
fn the_diff_is_the_same_with_and_without_work_ahead() {
    let mut counts = (0, 0, 0);
    for seed in 0..10_000 {
        let rng = &mut rng(seed);
        let spaces = (KeySpace::random(rng), KeySpace::random(rng));
        let mut state = State::default();
        updates(rng, &mut state, &spaces);
        let mut store = state.store();
        let first = Shard::from_nibble(0).unwrap();
        let (mut plain, mut ahead) = (ShardTrie::new(first), ShardTrie::new(first));
        for _ in 0..rng.random_range(1..5) {
            let updates = updates(rng, &mut state, &spaces);
            run(rng, &mut ahead, &store, &updates);
            updates.iter().for_each(|update| plain.update(update));
            let want = finish(&mut plain, &store);
            let got = finish(&mut ahead, &store);
            assert_eq!(got.0, want.0, "top, seed {seed}");
            assert_eq!(sorted(&got.1), sorted(&want.1), "diff, seed {seed}");
            store.apply(&got.1);
            let done = ahead.counts();
            counts = (counts.0 + done.ahead, counts.1 + done.at_end, counts.2 + done.again);
        }
        assert_eq!(store.nodes, state.store().nodes, "nodes, seed {seed}");
    }
    assert!(counts.0 > 100_000 && counts.2 > 10_000, "little was hashed ahead: {counts:?}");
}

fn key(start: &[u8]) -> B256 {
    let mut key = B256::ZERO;
    key[..start.len()].copy_from_slice(start);
    key
}

fn write(nonce: u64, slots: &[(u8, u64)]) -> AccountUpdate {
    let slot = |&(at, value): &(u8, u64)| SlotUpdate {
        key: key(&[at, at.wrapping_mul(7)]),
        value: U256::from(value),
    };
    AccountUpdate {
        address_hash: key(&[1, nonce as u8 % 2]),
        account: Some(Account { nonce, ..Account::default() }),
        wiped: false,
        slots: slots.iter().map(slot).collect(),
    }
}

/// Returns a shard and a store that hold a few accounts and slots.
fn base() -> (ShardTrie, Store) {
    let mut store = Store::default();
    let mut shard = ShardTrie::new(Shard::from_nibble(0).unwrap());
    let slots: Vec<_> = (0..=255).map(|at| (at, 1 << 60 | u64::from(at))).collect();
    shard.update(&write(2, &slots));
    shard.update(&write(3, &[]));
    let (_, diff) = finish(&mut shard, &store);
    store.apply(&diff);
    shard.ahead = eager();
    (shard, store)
}

#[test]
fn what_is_written_and_restored_leaves_no_change() {
    for ahead in [false, true] {
        let (mut shard, store) = base();
        for update in [
            write(2, &[(3, 9), (200, 0)]),
            write(5, &[]),
            write(4, &[(3, 10), (77, 1)]),
            write(3, &[]),
            write(2, &[(3, 1 << 60 | 3), (77, 1 << 60 | 77), (200, 1 << 60 | 200)]),
        ] {
            shard.update(&update);
            if ahead {
                shard.work_ahead();
            }
        }
        let (_, diff) = finish(&mut shard, &store);
        assert_eq!(diff, TrieDiff::default(), "work ahead: {ahead}");
        assert_eq!(shard.counts().ahead > 0, ahead);
    }
}

#[test]
fn what_is_hashed_ahead_is_not_hashed_at_the_end() {
    let (mut shard, store) = base();
    let slots: Vec<_> = (0..128).map(|at| (at, 5)).collect();
    shard.update(&write(2, &slots));
    shard.ahead.levels = 1;
    let hashed = shard.work_ahead();
    // Half of the top branch's children, each with sixteen leaves.
    assert_eq!(hashed, 8 + 128);
    assert_eq!(shard.work_ahead(), 0);
    finish(&mut shard, &store);
    let counts = shard.counts();
    assert_eq!((counts.ahead, counts.again), (136, 0));
    // The storage trie's top, the account leaf, and the branches above it.
    assert!(counts.at_end <= 5, "{counts:?}");
}

#[test]
fn an_account_without_open_storage_is_written_at_once() {
    let (mut shard, store) = base();
    shard.ahead.levels = 1;
    shard.update(&write(5, &[]));
    assert!(shard.work_ahead() > 0);
    // The last value wins.
    shard.update(&write(7, &[]));
    let (top, _) = finish(&mut shard, &store);
    let (mut plain, store) = base();
    plain.update(&write(7, &[]));
    assert_eq!(top, finish(&mut plain, &store).0);
}

#[test]
fn a_trie_much_written_to_is_mostly_hashed_ahead_and_seldom_twice() {
    let rng = &mut rng(7);
    let address_hash = key(&[1]);
    let update = |nonce: u64, slots: Vec<SlotUpdate>| AccountUpdate {
        address_hash,
        account: Some(Account { nonce, ..Account::default() }),
        wiped: false,
        slots,
    };
    let mut slots = |count: usize, kept: &[B256]| -> Vec<SlotUpdate> {
        let mut slot = |at: usize| {
            let key = kept.get(at % 977).copied().unwrap_or_else(|| B256::new(rng.random()));
            let value = if rng.random_ratio(1, 8) { U256::ZERO } else { value(rng) };
            SlotUpdate { key, value }
        };
        (0..count).map(&mut slot).collect()
    };
    let written = slots(20_000, &[]);
    let known: Vec<B256> = written.iter().map(|slot| slot.key).collect();
    let first = Shard::from_nibble(0).unwrap();
    let (mut plain, mut ahead) = (ShardTrie::new(first), ShardTrie::new(first));
    let mut store = Store::default();
    plain.update(&update(1, written));
    store.apply(&finish(&mut plain, &store).1);
    let blocks: Vec<_> = (2..2_000)
        .map(|nonce| {
            let start = nonce as usize * 7 % 19_000;
            update(nonce, slots(2, &known[start..start + 40]))
        })
        .collect();
    blocks.iter().for_each(|block| plain.update(block));
    let want = finish(&mut plain, &store);
    let mut targets = Vec::new();
    for block in &blocks {
        ahead.update(block);
        ahead.take_targets(&mut targets);
        answer(&mut ahead, &store, &std::mem::take(&mut targets));
        ahead.work_ahead();
    }
    let got = finish(&mut ahead, &store);
    assert_eq!((&got.0, sorted(&got.1)), (&want.0, sorted(&want.1)));
    store.apply(&got.1);
    let counts = ahead.counts();
    let needed = got.1.len() as u64;
    assert!(counts.at_end < needed / 5, "{counts:?} for {needed}");
    assert!(counts.again < needed / 3, "{counts:?} for {needed}");
}
