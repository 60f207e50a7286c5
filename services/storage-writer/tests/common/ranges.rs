//! Parts of states, as peers ask for them, against a state that a test keeps.

use crate::common::{Random, World, account_key};
use std::collections::BTreeMap;
use tandem_primitives::{B256, Bytes, EMPTY_CODE_HASH, EMPTY_TRIE_ROOT, keccak256};
use tandem_proto::{
    snap::{Leaf, NodePaths, StateItems, StateRequest},
    storage::StorageApi,
};
use tandem_trie::{account_leaf, check_range, storage_root};

type Leaves = BTreeMap<B256, Vec<u8>>;

fn account_leaves(world: &World) -> Leaves {
    let leaf = |(key, (account, slots)): (&B256, &(_, BTreeMap<B256, _>))| {
        let root = alloy_trie::root::storage_root_unsorted(slots.iter().map(|(k, v)| (*k, *v)));
        let mut leaf = Vec::new();
        account_leaf(account, root, &mut leaf);
        (*key, leaf)
    };
    world.0.iter().map(leaf).collect()
}

fn slot_leaves(world: &World, owner: &B256) -> Leaves {
    let slots = world.0.get(owner).map(|(_, slots)| slots);
    let leaf = |(key, value): (&B256, &_)| (*key, alloy_rlp::encode(value));
    slots.into_iter().flatten().map(leaf).collect()
}

fn pairs(leaves: Vec<Leaf>) -> Vec<(B256, Bytes)> {
    leaves.into_iter().map(|Leaf { key, value }| (key, value)).collect()
}

/// Returns accounts from a key on, and their proof.
pub fn accounts(
    api: &dyn StorageApi,
    root: B256,
    start: B256,
    bytes: u64,
) -> (Vec<(B256, Bytes)>, Vec<Bytes>) {
    let limit = B256::repeat_byte(0xff);
    match api.state_items(&StateRequest::Accounts { root, start, limit, bytes }).unwrap() {
        StateItems::Accounts { leaves, proof } => (pairs(leaves), proof),
        other => panic!("not accounts: {other:?}"),
    }
}

/// Downloads a whole state in random steps, and compares it.
pub fn check(api: &dyn StorageApi, world: &World, random: &mut Random) {
    let root = world.root();
    let want = account_leaves(world);
    let (mut start, mut got) = (B256::ZERO, Leaves::new());
    loop {
        let (leaves, proof) = accounts(api, root, start, random.below(1000));
        assert!(!leaves.is_empty() || !proof.is_empty() || want.is_empty());
        let more = check_range(root, start, &leaves, &proof).unwrap();
        assert!(!leaves.is_empty() || !more);
        let last = leaves.last().map(|(key, _)| *key);
        got.extend(leaves.into_iter().map(|(key, value)| (key, value.to_vec())));
        let Some(last) = last.filter(|_| more) else { break };
        start = next(last);
    }
    assert_eq!(got, want);
    check_slots(api, world, &want, random);
    check_single(api, world, random);
    // From a key between accounts.
    let start = account_key(random.below(60));
    let (leaves, proof) = accounts(api, root, start, 1 << 20);
    assert_eq!(check_range(root, start, &leaves, &proof), Ok(false));
    assert_eq!(leaves.len(), want.range(start..).count());
}

/// Compares the slots of all accounts.
fn check_slots(api: &dyn StorageApi, world: &World, accounts: &Leaves, random: &mut Random) {
    let root = world.root();
    let roots: BTreeMap<B256, B256> = accounts
        .iter()
        .map(|(key, leaf)| (*key, storage_root(leaf).unwrap()))
        .filter(|(_, root)| *root != EMPTY_TRIE_ROOT)
        .collect();
    let mut waiting: Vec<B256> = roots.keys().copied().collect();
    let mut got: BTreeMap<B256, Leaves> = BTreeMap::new();
    let mut start = B256::ZERO;
    while !waiting.is_empty() {
        let request = StateRequest::Slots {
            root,
            accounts: waiting.clone(),
            start,
            limit: B256::repeat_byte(0xff),
            bytes: random.below(600),
        };
        let StateItems::Slots { tries, proof } = api.state_items(&request).unwrap() else {
            panic!("not slots");
        };
        let count = tries.len().max(1);
        let mut owners = waiting.drain(..count).collect::<Vec<_>>().into_iter();
        let mut tries = tries.into_iter().map(pairs);
        let mut rest = None;
        for (at, owner) in owners.by_ref().enumerate() {
            let leaves = tries.next().unwrap_or_default();
            let from = if at == 0 { start } else { B256::ZERO };
            // Only the last range may have a proof.
            let proof = if at + 1 == count { &proof[..] } else { &[] };
            let more = check_range(roots[&owner], from, &leaves, proof).unwrap();
            let last = leaves.last().map(|(key, _)| *key);
            let slots = got.entry(owner).or_default();
            slots.extend(leaves.into_iter().map(|(key, value)| (key, value.to_vec())));
            rest = last.filter(|_| more).map(|last| (owner, next(last)));
        }
        start = B256::ZERO;
        if let Some((owner, from)) = rest {
            waiting.insert(0, owner);
            start = from;
        }
    }
    for (owner, leaves) in got {
        assert_eq!(leaves, slot_leaves(world, &owner));
    }
}

/// Asks for all codes.
pub fn check_codes(api: &dyn StorageApi, world: &World) {
    let hashes: Vec<B256> = world.0.values().map(|(account, _)| account.code_hash).collect();
    let request = StateRequest::Codes { hashes: hashes.clone(), bytes: 1 << 20 };
    let StateItems::Codes(codes) = api.state_items(&request).unwrap() else {
        panic!("not codes");
    };
    assert_eq!(codes.iter().map(keccak256).collect::<Vec<_>>(), hashes);
    assert_eq!(keccak256([]), EMPTY_CODE_HASH);
}

/// Asks for single nodes.
fn check_single(api: &dyn StorageApi, world: &World, random: &mut Random) {
    let (root, owner) = (world.root(), account_key(random.below(40)));
    let storage = slot_leaves(world, &owner);
    let paths = vec![Bytes::new(), Bytes::from_static(&[3; 65]), Bytes::from_static(&[3; 20])];
    let of = |owner| NodePaths { owner, paths: paths.clone() };
    let paths = vec![of(None), of(Some(owner))];
    let request = StateRequest::Nodes { root, paths, bytes: 1 << 20 };
    let StateItems::Nodes(nodes) = api.state_items(&request).unwrap() else {
        panic!("not nodes");
    };
    assert_eq!(keccak256(&nodes[0]), root);
    assert!(nodes[1].is_empty() && nodes[2].is_empty());
    if storage.is_empty() {
        assert_eq!(nodes.len(), 3);
    } else {
        let want = alloy_trie::root::storage_root_unsorted(
            world.0[&owner].1.iter().map(|(key, value)| (*key, *value)),
        );
        assert_eq!((keccak256(&nodes[3]), nodes.len()), (want, 6));
    }
}

fn next(key: B256) -> B256 {
    let number = tandem_primitives::U256::from_be_bytes(key.0);
    number.wrapping_add(tandem_primitives::U256::from(1)).to_be_bytes().into()
}
