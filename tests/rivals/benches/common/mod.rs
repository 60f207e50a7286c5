//! Parts that the benches share: leaves, and a root computed with each of the compared methods.
#![allow(dead_code)]

use alloy_trie::{HashBuilder, Nibbles};
use ethrex_crypto::NativeCrypto;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tandem_primitives::{B256, TrieDiff};
use tandem_trie::{Scratch, StorageTrie, TrieBuilder};

/// Allocator of the node.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

pub type Leaf = (B256, Vec<u8>);

/// Returns random keys with the RLP of random integers of 64 bits.
pub fn leaves(count: usize) -> Vec<Leaf> {
    let mut rng = StdRng::seed_from_u64(count as u64);
    let mut value = || alloy_rlp::encode(rng.random::<u64>());
    let values: Vec<_> = (0..count).map(|_| value()).collect();
    values.into_iter().map(|value| (B256::new(rng.random()), value)).collect()
}

pub fn update(trie: &mut StorageTrie, leaves: &[Leaf]) {
    for (key, value) in leaves {
        trie.update(key, value).unwrap();
    }
}

/// Returns the root of a changed trie, with the resulting diff.
pub fn root(trie: &mut StorageTrie, scratch: &mut Scratch) -> (Option<B256>, TrieDiff) {
    let mut diff = TrieDiff::default();
    let root = trie.root(None, &mut diff, scratch);
    (root, diff)
}

/// Sets all leaves at once.
pub fn update_all(trie: &mut StorageTrie, leaves: &[Leaf], scratch: &mut Scratch) {
    trie.update_all(leaves, scratch, |_, blinded| panic!("{blinded:?}"));
}

/// Inserts into an empty trie. Returns the root and all nodes.
pub fn tandem(leaves: &[Leaf], scratch: &mut Scratch) -> (Option<B256>, TrieDiff) {
    let mut trie = StorageTrie::empty(None);
    update_all(&mut trie, leaves, scratch);
    root(&mut trie, scratch)
}

/// Inserts into an empty trie one leaf after the other. Returns the root and all nodes.
pub fn tandem_one_by_one(leaves: &[Leaf], scratch: &mut Scratch) -> (Option<B256>, TrieDiff) {
    let mut trie = StorageTrie::empty(None);
    update(&mut trie, leaves);
    root(&mut trie, scratch)
}

/// Returns keys and values as ethrex-trie takes them. This step is not measured.
pub fn owned(leaves: &[Leaf]) -> Vec<(Vec<u8>, Vec<u8>)> {
    leaves.iter().map(|(key, value)| (key.to_vec(), value.clone())).collect()
}

/// Inserts into an empty ethrex-trie. Returns the root alone, which is its fastest method.
pub fn ethrex_root(leaves: Vec<(Vec<u8>, Vec<u8>)>) -> B256 {
    let mut trie = ethrex_trie::Trie::new_temp();
    for (key, value) in leaves {
        trie.insert(key, value).unwrap();
    }
    B256::new(trie.hash_no_commit(&NativeCrypto).0)
}

/// Inserts into an empty ethrex-trie. Returns the root and all nodes, as [`tandem`] does.
pub fn ethrex_nodes(leaves: Vec<(Vec<u8>, Vec<u8>)>) -> (B256, Vec<ethrex_trie::TrieNode>) {
    let mut trie = ethrex_trie::Trie::new_temp();
    for (key, value) in leaves {
        trie.insert(key, value).unwrap();
    }
    let (root, nodes) = trie.collect_changes_since_last_hash(&NativeCrypto);
    (B256::new(root.0), nodes)
}

fn sorted(leaves: &[Leaf]) -> Vec<&Leaf> {
    let mut sorted: Vec<_> = leaves.iter().collect();
    sorted.sort_unstable();
    sorted
}

/// Sorts, and builds with alloy-trie. Returns the root alone.
pub fn alloy(leaves: &[Leaf]) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in sorted(leaves) {
        builder.add_leaf(Nibbles::unpack(key), value);
    }
    builder.root()
}

/// Sorts, and builds with the project's builder of whole tries. Returns the top node alone.
pub fn built(leaves: &[Leaf]) -> Option<Vec<u8>> {
    let mut builder = TrieBuilder::new(|_: &[u8], _: &[u8]| {});
    for (key, value) in sorted(leaves) {
        builder.push(key, value).unwrap();
    }
    builder.finish()
}
