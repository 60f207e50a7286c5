//! Updates of many leaves at once, against one-by-one updates and alloy-trie.

use rand::{
    Rng,
    rngs::StdRng,
    seq::{IndexedRandom, SliceRandom},
};
use std::collections::BTreeMap;
use tandem_primitives::{AccountUpdate, B256, Bytes, Shard, SlotUpdate, TrieDiff, U256};
use tandem_testkit::trie::*;
use tandem_trie::{Scratch, ShardTrie, StorageTrie, TrieBuilder};

type Change = (Bytes, Option<Bytes>);

/// Hashes the trie. Returns the root, and the diff path by path.
fn commit(trie: &mut StorageTrie, scratch: &mut Scratch) -> (Option<B256>, Vec<Change>) {
    let mut diff = TrieDiff::default();
    let root = trie.root(None, &mut diff, scratch);
    let bytes = Bytes::copy_from_slice;
    let mut changes: Vec<_> =
        diff.iter().map(|change| (bytes(change.path), change.rlp.map(bytes))).collect();
    changes.sort();
    (root, changes)
}

fn leaves(rng: &mut StdRng, space: &KeySpace, count: usize) -> Vec<(B256, Vec<u8>)> {
    (0..count).map(|_| (space.key(rng), alloy_rlp::encode(value(rng)))).collect()
}

/// Returns a trie with some of its nodes in memory, and the leaves that it holds.
fn start(rng: &mut StdRng, space: &KeySpace) -> (StorageTrie, BTreeMap<B256, Vec<u8>>) {
    let count = rng.random_range(0..60);
    let known: BTreeMap<_, _> = leaves(rng, space, count).into_iter().collect();
    let mut nodes = Vec::new();
    let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
        nodes.push((path.to_vec(), rlp.to_vec()));
    });
    for (key, value) in &known {
        builder.push(key, value).unwrap();
    }
    builder.finish();
    nodes.sort();
    let root = oracle_root(known.iter().map(|(key, value)| (key, value.clone())));
    let mut trie = StorageTrie::blinded(root);
    // Reveal all nodes, or a part of them.
    let share = *[1.0, 1.0, 0.7].choose(rng).unwrap();
    for (path, rlp) in nodes {
        if rng.random_bool(share) {
            trie.reveal(&path, &rlp, true).unwrap();
        }
    }
    (trie, known)
}

#[test]
fn many_at_once_are_as_one_after_the_other() {
    let mut scratch = Scratch::default();
    let mut whole = 0;
    for seed in 0..6_000 {
        let rng = &mut rng(seed);
        let space = KeySpace::random(rng);
        let (mut one_by_one, mut known) = start(rng, &space);
        let mut at_once = one_by_one.clone();
        for _ in 0..3 {
            // A removed leaf may come back within the block, at its former path or nearby.
            let mut keys: Vec<B256> = known.keys().copied().collect();
            keys.shuffle(rng);
            for key in keys.iter().take(rng.random_range(0..8)) {
                let removed = one_by_one.remove(key);
                assert_eq!(removed, at_once.remove(key));
                if removed.is_ok() {
                    known.remove(key);
                }
            }
            let count = rng.random_range(0..60);
            let mut batch = leaves(rng, &space, count);
            let again = batch.choose(rng).cloned();
            batch.extend(again);
            let mut last = BTreeMap::new();
            for (at, (key, value)) in batch.iter().enumerate() {
                let result = one_by_one.update(key, value);
                last.insert(*key, (at, result));
                if result.is_ok() {
                    known.insert(*key, value.clone());
                }
            }
            let want: BTreeMap<_, _> = last
                .into_iter()
                .filter_map(|(key, (at, result))| Some((key, (at, result.err()?))))
                .collect();
            let mut got = BTreeMap::new();
            at_once.update_all(&batch, &mut scratch, |at, blinded| {
                let before = got.insert(batch[at].0, (at, blinded));
                assert!(before.is_none_or(|(before, _)| before < at));
            });
            assert_eq!(got, want, "blinded, seed {seed}");
            if rng.random() {
                let want = commit(&mut one_by_one, &mut scratch);
                assert_eq!(commit(&mut at_once, &mut scratch), want, "seed {seed}");
                if got.is_empty() && want.0.is_some() {
                    whole += 1;
                    let oracle = oracle_root(known.iter().map(|(key, value)| (key, value.clone())));
                    assert_eq!(want.0, Some(oracle), "seed {seed}");
                }
            }
        }
        assert_eq!(at_once.byte_len(), one_by_one.byte_len(), "seed {seed}");
    }
    assert!(whole > 2_000, "too few tries were compared with the oracle: {whole}");
}

#[test]
fn a_large_trie_is_built_at_once() {
    let rng = &mut rng(3);
    let mut scratch = Scratch::default();
    let mut trie = StorageTrie::empty(None);
    let mut known = BTreeMap::new();
    for count in [20_000, 5_000] {
        let batch: Vec<_> =
            (0..count).map(|_| (B256::new(rng.random()), alloy_rlp::encode(value(rng)))).collect();
        known.extend(batch.iter().cloned());
        trie.update_all(&batch, &mut scratch, |_, blinded| panic!("{blinded:?}"));
        let (root, changes) = commit(&mut trie, &mut scratch);
        assert_eq!(root, Some(oracle_root(known.iter().map(|(k, v)| (k, v.clone())))));
        // The diff contains nodes of the trie only, and the first diff contains all of them.
        let mut nodes = BTreeMap::new();
        let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
            nodes.insert(Bytes::copy_from_slice(path), Bytes::copy_from_slice(rlp));
        });
        for (key, value) in &known {
            builder.push(key, value).unwrap();
        }
        builder.finish();
        assert!(count != 20_000 || changes.len() == nodes.len());
        for (path, rlp) in changes {
            assert_eq!(rlp.as_ref(), nodes.get(&path), "{path}");
        }
    }
}

#[test]
#[should_panic = "a value has 1 to 33 bytes"]
fn a_value_that_is_too_long_is_a_fault_of_the_caller() {
    let leaves: Vec<_> = (0..40u8).map(|at| (B256::repeat_byte(at), vec![1; 34])).collect();
    StorageTrie::empty(None).update_all(&leaves, &mut Scratch::default(), |_, _| {});
}

/// Runs accounts that write many slots in one update, with answers and work ahead at any moment.
#[test]
fn many_slots_in_one_update_leave_the_state_from_nothing() {
    for seed in 0..250 {
        let rng = &mut rng(seed);
        let spaces = (KeySpace::random(rng), KeySpace::random(rng));
        let (mut state, mut store) = (State::default(), Store::default());
        let mut shard = ShardTrie::new(Shard::of(&B256::ZERO));
        for _ in 0..4 {
            let mut updates = one_shard::updates(rng, &mut state, &spaces);
            for at in 0..updates.len() {
                if updates[at].account.is_none() || rng.random_ratio(3, 4) {
                    continue;
                }
                let slots = (0..60).map(|_| {
                    let value = if rng.random_ratio(1, 30) { U256::ZERO } else { value(rng) };
                    SlotUpdate { key: spaces.1.key(rng), value }
                });
                let slots = slots.collect();
                let many = AccountUpdate { wiped: false, slots, ..updates[at].clone() };
                state.apply(&many);
                updates.push(many);
            }
            one_shard::run(rng, &mut shard, &store, &updates);
            let got = one_shard::finish(&mut shard, &store);
            if rng.random_ratio(1, 3) {
                assert!(shard.revert());
                one_shard::run(rng, &mut shard, &store, &updates);
                let again = one_shard::finish(&mut shard, &store);
                assert_eq!(again.0, got.0, "seed {seed}");
                assert_eq!(one_shard::sorted(&again.1), one_shard::sorted(&got.1), "seed {seed}");
            }
            store.apply(&got.1);
            assert_eq!(store.nodes, state.store().nodes, "seed {seed}");
        }
    }
}
