//! Ranges of tries and their proofs, against alloy-trie's proofs and against sorted maps.

use alloy_primitives::{Bytes, U256, keccak256};
use alloy_trie::{HashBuilder, Nibbles, proof::ProofRetainer};
use rand::{Rng, RngCore, rngs::StdRng};
use std::collections::BTreeMap;
use tandem_primitives::B256;
use tandem_testkit::trie::*;
use tandem_trie::{
    RangeFault, TrieBuilder, check_range, differing_children, leaves_in, node_at, path_to,
};

type Leaves = BTreeMap<B256, Vec<u8>>;

/// Returns leaves whose keys share long prefixes and whose values are short, so that nodes are
/// embedded.
fn random_leaves(rng: &mut StdRng) -> Leaves {
    let count = [0, 1, 2, 3, 20, 300][rng.random_range(0..6)];
    let shared = [0, 0, 1, 20, 31][rng.random_range(0..5)];
    let mut leaves = Leaves::new();
    for _ in 0..count {
        let mut key = B256::ZERO;
        rng.fill_bytes(&mut key[shared..]);
        if rng.random_bool(0.3) {
            key[shared] &= 0x11;
        }
        let len = [1, 2, 33, 100][rng.random_range(0..4)];
        leaves.insert(key, vec![rng.random_range(1..=255); len]);
    }
    leaves
}

/// Returns the nodes towards the keys by alloy-trie, and its root.
fn oracle_proof(leaves: &Leaves, keys: &[B256]) -> (B256, Vec<Bytes>) {
    let targets = keys.iter().map(Nibbles::unpack).collect();
    let mut builder = HashBuilder::default().with_proof_retainer(ProofRetainer::new(targets));
    for (key, value) in leaves {
        builder.add_leaf(Nibbles::unpack(key), value);
    }
    let root = builder.root();
    (root, builder.take_proof_nodes().into_inner().into_values().collect())
}

/// Returns the nodes of a trie by path.
fn nodes(leaves: &Leaves) -> BTreeMap<Vec<u8>, Bytes> {
    let mut nodes = BTreeMap::new();
    let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
        nodes.insert(path.to_vec(), Bytes::copy_from_slice(rlp));
    });
    leaves.iter().for_each(|(key, value)| builder.push(key, value).unwrap());
    builder.finish();
    nodes
}

fn random_key(rng: &mut StdRng, leaves: &Leaves) -> B256 {
    let known = leaves.keys().nth(rng.random_range(0..leaves.len().max(1)));
    match (rng.random_range(0..4), known) {
        (0, _) | (_, None) => B256::from(rng.random::<[u8; 32]>()),
        (1, Some(key)) => {
            B256::from(U256::from_be_bytes(key.0).saturating_add(U256::from(1)).to_be_bytes())
        }
        (_, Some(key)) => *key,
    }
}

#[test]
fn a_range_is_accepted_exactly_as_it_is() {
    for seed in 0..600 {
        let mut rng = rng(seed);
        let leaves = random_leaves(&mut rng);
        let start = if rng.random_bool(0.3) { B256::ZERO } else { random_key(&mut rng, &leaves) };
        let all: Vec<_> = leaves.range(start..).map(|(key, value)| (*key, value.clone())).collect();
        let count = rng.random_range(0..=all.len());
        let count = if all.is_empty() { 0 } else { count.max(1) };
        let range = &all[..count];
        let ends: Vec<_> = [start].into_iter().chain(range.last().map(|(key, _)| *key)).collect();
        let (root, proof) = oracle_proof(&leaves, &ends);
        let more = count < all.len();
        let checked = check_range(root, start, range, &proof);
        assert_eq!(checked, Ok(more && !leaves.is_empty()), "seed {seed}");
        if start.is_zero() && !more {
            assert_eq!(check_range(root, start, range, &[]), Ok(false), "seed {seed}");
        }
        // Each lie is refused.
        for at in 0..range.len().min(30) {
            let mut lie = range.to_vec();
            let (key, mut value) = lie.remove(at);
            // Without the last leaf the proof's end stands elsewhere, which is a true shorter range
            // only if its own end is proved too.
            if at + 1 < range.len() {
                assert!(
                    check_range(root, start, &lie, &proof).is_err(),
                    "seed {seed}, left out {at}"
                );
            }
            value[0] ^= 1;
            lie.insert(at, (key, value));
            assert!(check_range(root, start, &lie, &proof).is_err(), "seed {seed}, changed {at}");
        }
        if let Some((key, _)) = range.first()
            && *key > start
        {
            let mut lie = range.to_vec();
            lie.insert(0, (start, vec![1]));
            assert!(check_range(root, start, &lie, &proof).is_err(), "seed {seed}, added");
        }
        if more {
            assert!(check_range(root, start, &[] as &[(B256, Vec<u8>)], &proof).is_err());
            assert!(check_range(root, start, range, &[]).is_err());
        }
        let other = keccak256(root);
        assert!(check_range(other, start, range, &proof).is_err());
        for left_out in 0..proof.len() {
            let mut short = proof.clone();
            short.remove(left_out);
            if let Ok(more_found) = check_range(root, start, range, &short) {
                // A node that lies inside the range need not be there.
                assert_eq!(more_found, more, "seed {seed}");
            }
        }
    }
}

#[test]
fn keys_out_of_order_and_impossible_values_are_named() {
    let key = |byte| B256::repeat_byte(byte);
    let root = key(9);
    let range = |leaves: &[(B256, Vec<u8>)]| check_range(root, key(2), leaves, &[]).unwrap_err();
    let of_order = [(key(3), vec![1]), (key(3), vec![1])];
    assert_eq!(range(&of_order), RangeFault::OutOfOrder(key(3)));
    assert_eq!(range(&[(key(1), vec![1])]), RangeFault::OutOfOrder(key(1)));
    assert_eq!(range(&[(key(3), vec![])]), RangeFault::Value(key(3)));
    assert_eq!(range(&[(key(3), vec![1; 256])]), RangeFault::Value(key(3)));
}

#[test]
fn nodes_give_their_leaves_in_order_and_the_way_to_a_key() {
    for seed in 0..300 {
        let mut rng = rng(seed);
        let leaves = random_leaves(&mut rng);
        let nodes = nodes(&leaves);
        let mut found = Leaves::new();
        for (path, rlp) in &nodes {
            let mut last = None;
            leaves_in(path, rlp, &mut |key, value| {
                assert!(last.is_none_or(|last| last < key));
                last = Some(key);
                found.insert(key, value.to_vec());
            })
            .unwrap();
        }
        assert_eq!(found, leaves, "seed {seed}");
        let key = random_key(&mut rng, &leaves);
        let read = |path: &[u8]| Ok::<_, ()>(nodes.get(path).cloned());
        let way = path_to(&key, nodes.get(&vec![]).cloned(), read).unwrap();
        let (root, mut proof) = oracle_proof(&leaves, &[key]);
        // An embedded node is part of its parent here.
        proof.retain(|rlp| rlp.len() >= 32 || keccak256(rlp) == root);
        let mut way_sorted = way.clone();
        proof.sort();
        way_sorted.sort();
        if !leaves.is_empty() {
            assert_eq!(way_sorted, proof, "seed {seed}");
        }
    }
}

fn below(leaves: &Leaves, path: &[u8]) -> Leaves {
    let is_below = |key: &B256| (0..path.len()).all(|at| nibble(key, at) == path[at]);
    leaves.iter().filter(|(key, _)| is_below(key)).map(|(key, leaf)| (*key, leaf.clone())).collect()
}

fn nibble(key: &B256, at: usize) -> u8 {
    key[at / 2] >> (4 * (1 - at % 2)) & 0x0f
}

#[test]
fn a_node_is_found_at_its_path_and_differs_where_leaves_differ() {
    for seed in 0..300 {
        let mut rng = rng(seed);
        let leaves = random_leaves(&mut rng);
        let mut changed = leaves.clone();
        for _ in 0..rng.random_range(0..4) {
            let key = random_key(&mut rng, &leaves);
            match rng.random_range(0..3) {
                0 => drop(changed.remove(&key)),
                _ => drop(changed.insert(key, vec![rng.random_range(1..=255); 40])),
            }
        }
        let (nodes, others) = (nodes(&leaves), nodes(&changed));
        let Some(root) = nodes.get(&vec![]).map(keccak256) else { continue };
        let all: Vec<Bytes> = nodes.values().cloned().collect();
        for (path, rlp) in &nodes {
            assert_eq!(node_at(root, path, &all).as_ref(), Some(rlp), "seed {seed}");
            let mut elsewhere = path.clone();
            elsewhere.push(rng.random_range(0..16));
            assert_eq!(node_at(root, &elsewhere, &all).as_ref(), nodes.get(&elsewhere));
            if path.len() == 64 {
                continue;
            }
            let other = others.get(path);
            let found = differing_children(Some(rlp), other.map(|rlp| &rlp[..]));
            for at in 0..16 {
                let child = [&path[..], &[at]].concat();
                let differs = below(&leaves, &child) != below(&changed, &child);
                // A node of another kind tells nothing, so all of it may differ.
                assert!(!differs || found.contains(&at), "seed {seed}");
                if found.len() < 16 {
                    assert_eq!(differs, found.contains(&at), "seed {seed}");
                }
            }
        }
        assert_eq!(node_at(keccak256(root), &[], &all), None);
    }
}
