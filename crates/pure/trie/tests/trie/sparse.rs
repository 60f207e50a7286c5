//! Comparison with alloy-trie: single tries, the builder, and `combine`.

use rand::{
    Rng,
    seq::{IndexedRandom, SliceRandom},
};
use std::collections::BTreeMap;
use tandem_primitives::{
    B256, Bytes, EMPTY_TRIE_ROOT, NodeChange, Shard, SubtrieRoot, TrieDiff, keccak256,
};
use tandem_testkit::trie::*;
use tandem_trie::{
    Blinded, Error, Lookup, OutOfOrder, Scratch, SparseTrie, StorageTrie, TrieBuilder, combine,
};

type Nodes = BTreeMap<Vec<u8>, Vec<u8>>;
type Leaves = BTreeMap<B256, Vec<u8>>;

fn build(leaves: &Leaves) -> (Nodes, B256) {
    let mut nodes = Nodes::new();
    let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
        assert!(nodes.insert(path.to_vec(), rlp.to_vec()).is_none(), "a node comes once");
    });
    for (key, value) in leaves {
        builder.push(key, value).unwrap();
    }
    let top = builder.finish();
    assert_eq!(top.as_ref(), nodes.get(&vec![]));
    (nodes, top.map_or(EMPTY_TRIE_ROOT, keccak256))
}

fn oracle(leaves: &Leaves) -> B256 {
    oracle_root(leaves.iter().map(|(key, value)| (key, value.clone())))
}

fn commit(trie: &mut StorageTrie, nodes: &mut Nodes) -> Option<B256> {
    let mut diff = TrieDiff::default();
    let root = trie.root(None, &mut diff, &mut Scratch::default());
    for NodeChange { path, rlp, .. } in diff.iter() {
        match rlp {
            Some(rlp) => {
                assert_ne!(nodes.insert(path.to_vec(), rlp.to_vec()).as_deref(), Some(rlp))
            }
            None => assert!(nodes.remove(path).is_some(), "a deletion of nothing"),
        }
    }
    root
}

fn leaf(rng: &mut rand::rngs::StdRng) -> Vec<u8> {
    alloy_rlp::encode(value(rng))
}

/// Reveals a blinded node.
fn reveal(trie: &mut StorageTrie, nodes: &Nodes, blinded: Blinded) {
    let path = unpack(&blinded.key);
    let at = &path[..usize::from(blinded.depth)];
    trie.reveal(at, &nodes[at], true).unwrap();
}

#[test]
fn removals_and_updates_in_any_order_leave_the_trie_from_nothing() {
    for seed in 0..5_000 {
        let rng = &mut rng(seed);
        let space = KeySpace::random(rng);
        let mut leaves = Leaves::new();
        for _ in 0..rng.random_range(0..30) {
            leaves.insert(space.key(rng), leaf(rng));
        }
        let (mut nodes, root) = build(&leaves);
        assert_eq!(root, oracle(&leaves), "builder, seed {seed}");
        let mut trie = StorageTrie::blinded(root);
        for _ in 0..rng.random_range(1..5) {
            // Walks are answered from the nodes of the time when the block began.
            let base = nodes.clone();
            for _ in 0..rng.random_range(0..20) {
                let known: Vec<B256> = leaves.keys().copied().collect();
                let key = if rng.random() { known.choose(rng).copied() } else { None };
                let key = key.unwrap_or_else(|| space.key(rng));
                let value = rng.random::<bool>().then(|| leaf(rng));
                while let Err(blinded) = match &value {
                    Some(value) => trie.update(&key, value),
                    None => trie.remove(&key),
                } {
                    reveal(&mut trie, &base, blinded);
                }
                match value {
                    Some(value) => leaves.insert(key, value),
                    None => leaves.remove(&key),
                };
                let found = trie.find(&key);
                let want = leaves.get(&key).map_or(Lookup::Absent, |value| Lookup::Value(value));
                assert_eq!(found, want, "seed {seed}");
            }
            assert_eq!(commit(&mut trie, &mut nodes), Some(oracle(&leaves)), "root, seed {seed}");
            assert_eq!(nodes, build(&leaves).0, "nodes, seed {seed}");
            if rng.random_ratio(1, 4) {
                trie.prune(rng.random_range(0..2), rng.random());
            }
        }
    }
}

#[test]
fn what_is_taken_back_leaves_no_diff() {
    for seed in 0..1_000 {
        let rng = &mut rng(seed);
        let space = KeySpace::random(rng);
        let leaves: Leaves = (0..30).map(|_| (space.key(rng), leaf(rng))).collect();
        let mut trie = StorageTrie::empty(None);
        for (key, value) in &leaves {
            trie.update(key, value).unwrap();
        }
        let mut nodes = Nodes::new();
        let root = commit(&mut trie, &mut nodes);
        let mut keys: Vec<B256> =
            (0..20).map(|_| space.key(rng)).chain(leaves.keys().copied()).collect();
        for _ in 0..2 {
            keys.shuffle(rng);
            for key in &keys {
                if rng.random() {
                    trie.remove(key).unwrap()
                } else {
                    trie.update(key, &leaf(rng)).unwrap()
                }
            }
        }
        for key in &keys {
            match leaves.get(key) {
                Some(value) => trie.update(key, value).unwrap(),
                None => trie.remove(key).unwrap(),
            }
        }
        let mut diff = TrieDiff::default();
        assert_eq!(trie.root(None, &mut diff, &mut Scratch::default()), root);
        assert!(diff.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_value_that_is_there_already_dirties_nothing() {
    let mut trie = StorageTrie::empty(None);
    let key = B256::repeat_byte(3);
    trie.update(&key, &[5]).unwrap();
    commit(&mut trie, &mut Nodes::new());
    trie.update(&key, &[5]).unwrap();
    trie.remove(&B256::ZERO).unwrap();
    assert!(!trie.is_dirty());
    trie.update(&key, &[6]).unwrap();
    assert!(trie.is_dirty());
}

#[test]
fn a_large_trie_is_hashed_in_parallel_to_the_same_root() {
    let rng = &mut rng(7);
    let leaves: Leaves = (0..20_000).map(|_| (B256::new(rng.random()), leaf(rng))).collect();
    let mut trie = StorageTrie::empty(None);
    let mut order: Vec<_> = leaves.iter().collect();
    order.shuffle(rng);
    for (key, value) in order {
        trie.update(key, value).unwrap();
    }
    let mut nodes = Nodes::new();
    assert_eq!(commit(&mut trie, &mut nodes), Some(oracle(&leaves)));
    assert_eq!(nodes, build(&leaves).0);
    let full = trie.byte_len();
    trie.prune(1, false);
    assert!(trie.byte_len() < full / 100, "an old trie is forgotten but for its root");
    assert_eq!(trie.base_root(), Some(oracle(&leaves)));
}

#[test]
fn keys_out_of_order_are_refused_and_change_nothing() {
    let (low, high) = (B256::repeat_byte(0x31), B256::repeat_byte(0x32));
    let mut builder = TrieBuilder::with_prefix(&[3], |_: &[u8], _: &[u8]| {});
    builder.push(&low, &[1]).unwrap();
    assert_eq!(builder.push(&low, &[1]), Err(OutOfOrder(low)));
    assert_eq!(
        builder.push(&B256::repeat_byte(0x41), &[1]),
        Err(OutOfOrder(B256::repeat_byte(0x41)))
    );
    builder.push(&high, &[1]).unwrap();
    assert_eq!(builder.push(&low, &[1]), Err(OutOfOrder(low)));
    let mut again = TrieBuilder::with_prefix(&[3], |_: &[u8], _: &[u8]| {});
    again.push(&low, &[1]).unwrap();
    again.push(&high, &[1]).unwrap();
    assert_eq!(builder.finish(), again.finish());
    assert_eq!(TrieBuilder::new(|_: &[u8], _: &[u8]| {}).finish(), None);
}

#[test]
fn subtries_combine_to_the_root_of_the_whole() {
    for seed in 0..2_000 {
        let rng = &mut rng(seed);
        let space = KeySpace::random(rng);
        let shards = *[0, 1, 1, 2, 3, 16].choose(rng).unwrap();
        let mut nibbles: Vec<u8> = (0..16).collect();
        nibbles.shuffle(rng);
        let mut leaves = Leaves::new();
        for &nibble in &nibbles[..shards] {
            for _ in 0..rng.random_range(1..5) {
                let mut key = space.key(rng);
                key[0] = nibble << 4 | key[0] & 15;
                leaves.insert(key, leaf(rng));
            }
        }
        let mut roots: [SubtrieRoot; 16] = Default::default();
        for shard in Shard::all() {
            let mut trie = SparseTrie::<33>::empty(Some(shard.nibble()));
            for (key, value) in leaves.iter().filter(|(key, _)| Shard::of(key) == shard) {
                trie.update(key, value).unwrap();
            }
            trie.root(None, &mut TrieDiff::default(), &mut Scratch::default());
            roots[shard.index()] = trie.top().map(Bytes::from);
        }
        let (root, node) = combine(&roots).unwrap();
        assert_eq!(root, oracle(&leaves), "seed {seed}");
        assert_eq!(node, build(&leaves).0.get(&vec![]).cloned(), "seed {seed}");
    }
    let mut roots: [SubtrieRoot; 16] = Default::default();
    roots[4] = Some(Bytes::from_static(&[0xc1]));
    assert!(matches!(combine(&roots), Err(Error::Malformed(..))));
}

/// Reveals mutated nodes. With unchecked hashes a wrong node may pass for another. The result must
/// be an error or another root, never a panic.
#[test]
fn mutated_nodes_are_refused_and_never_panic() {
    for seed in 0..3_000 {
        let rng = &mut rng(seed);
        let space = KeySpace::random(rng);
        let leaves: Leaves =
            (0..rng.random_range(1..20)).map(|_| (space.key(rng), leaf(rng))).collect();
        let (nodes, root) = build(&leaves);
        let mut wrong = nodes.clone();
        let paths: Vec<_> = nodes.keys().cloned().collect();
        let path = paths.choose(rng).unwrap();
        let rlp = wrong.get_mut(path).unwrap();
        match rng.random_range(0..4) {
            0 => rlp.truncate(rng.random_range(0..rlp.len())),
            1 => rlp.push(rng.random()),
            _ => {
                let at = rng.random_range(0..rlp.len());
                rlp[at] ^= rng.random_range(1..=255u8);
            }
        }
        let mut checked = StorageTrie::blinded(root);
        let refused = wrong
            .iter()
            .any(|(path, rlp)| matches!(checked.reveal(path, rlp, true), Err(Error::Hash { .. })));
        assert!(refused, "seed {seed}");

        let mut unchecked = StorageTrie::unknown(None);
        let _ = wrong.iter().try_for_each(|(path, rlp)| unchecked.reveal(path, rlp, false));
        for _ in 0..20 {
            let key = *leaves.keys().collect::<Vec<_>>().choose(rng).unwrap();
            if rng.random() {
                let _ = unchecked.update(key, &leaf(rng));
            } else {
                let _ = unchecked.remove(key);
            }
        }
        unchecked.root(None, &mut TrieDiff::default(), &mut Scratch::default());
    }
}

#[test]
fn paths_outside_the_trie_are_refused() {
    let mut trie = SparseTrie::<33>::unknown(Some(3));
    for path in [&[][..], &[4], &[3, 16], &[3; 65]] {
        assert_eq!(trie.reveal(path, &[0xc0], true), Err(Error::Path));
    }
}

/// Encodes a list of items that are already encoded.
fn list(items: &[&[u8]]) -> Vec<u8> {
    let payload = items.concat();
    let mut rlp = Vec::new();
    alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut rlp);
    [rlp, payload].concat()
}

#[test]
fn nodes_that_no_trie_makes_are_refused() {
    let string = |bytes: &[u8]| alloy_rlp::encode(bytes);
    let path = |flag: u8, rest: usize| string(&[&[flag][..], &vec![0x11; rest]].concat());
    let hash = string(&[7; 32]);
    let small_leaf = list(&[&path(0x20, 10), &string(&[1])]);
    let branch = |children: usize, value: &[u8]| {
        let mut items = vec![&hash[..]; children];
        items.resize(16, &[0x80]);
        items.push(value);
        list(&items)
    };
    let leaf = |path: &[u8], value: &[u8]| list(&[path, &string(value)]);
    let mut long = leaf(&path(0x20, 32), &[9; 33]);
    let mut trie = StorageTrie::unknown(None);
    trie.reveal(&[], &long, true).unwrap();
    long.push(0);
    let wrong: [(&str, Vec<u8>); 17] = [
        ("nothing", vec![]),
        ("a string", string(&[1; 40])),
        ("no item", list(&[])),
        ("one item", list(&[&hash])),
        ("three items", list(&[&hash, &hash, &hash])),
        ("eighteen items", list(&[&hash[..]; 18])),
        ("bytes behind", long),
        ("a value longer than any", leaf(&path(0x20, 32), &[9; 34])),
        ("an empty value", leaf(&path(0x20, 32), &[])),
        ("a leaf that ends early", leaf(&path(0x20, 31), &[9; 33])),
        ("a leaf that ends late", leaf(&path(0x30, 32), &[9; 33])),
        ("a path with an unknown flag", leaf(&path(0x60, 32), &[9; 33])),
        ("an extension to the end", list(&[&path(0x00, 32), &hash])),
        ("an empty extension", list(&[&path(0x00, 0), &hash])),
        ("an extension to a leaf", list(&[&path(0x00, 22), &small_leaf])),
        ("a branch with one child", branch(1, &[0x80])),
        ("a branch with a value", branch(2, &[0x01])),
    ];
    for (what, rlp) in wrong {
        for verify in [false, true] {
            let result = StorageTrie::unknown(None).reveal(&[], &rlp, verify);
            assert!(matches!(result, Err(Error::Malformed(..))), "{what}");
        }
    }
}

#[test]
fn pruning_forgets_the_cold_part_of_a_trie_in_use() {
    let rng = &mut rng(11);
    let leaves: Leaves = (0..2_000).map(|_| (B256::new(rng.random()), leaf(rng))).collect();
    let (nodes, root) = build(&leaves);
    let mut trie = StorageTrie::empty(None);
    for (key, value) in &leaves {
        trie.update(key, value).unwrap();
    }
    assert_eq!(commit(&mut trie, &mut Nodes::new()), Some(root));
    let full = trie.byte_len();
    trie.set_now(1);
    let (hot, cold) = (leaves.keys().next().unwrap(), leaves.keys().last().unwrap());
    assert!(matches!(trie.find(hot), Lookup::Value(_)));
    trie.prune(1, false);
    assert!(trie.byte_len() < full / 20);
    assert_eq!(trie.find(hot), Lookup::Value(&leaves[hot]));
    let Lookup::Blinded(blinded) = trie.find(cold) else { panic!("the cold part is still there") };
    reveal(&mut trie, &nodes, blinded);
    assert_eq!(trie.base_root(), Some(root));
}
