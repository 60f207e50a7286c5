//! States of which a witness holds some nodes, against whole states. The witness consists of
//! alloy-trie's proofs of the touched keys in the state before. It also proves the neighbours of
//! deleted keys, since a branch that loses all children but one merges with the last.

use alloy_primitives::{Bytes, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, HashBuilder, Nibbles, proof::ProofRetainer};
use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use std::collections::{BTreeMap, BTreeSet};
use tandem_primitives::{Account, AccountUpdate, B256, U256};
use tandem_testkit::trie::*;
use tandem_trie::{Malformed, PartialState, Witness, WitnessError, account_leaf};

/// Returns the root of a trie, and the nodes on the way to some of its keys.
fn proof(leaves: &BTreeMap<B256, Vec<u8>>, keys: &BTreeSet<B256>) -> (B256, Vec<Bytes>) {
    let targets = keys.iter().map(Nibbles::unpack).collect();
    let mut builder = HashBuilder::default().with_proof_retainer(ProofRetainer::new(targets));
    for (key, value) in leaves {
        builder.add_leaf(Nibbles::unpack(key), value);
    }
    let root = builder.root();
    let nodes = builder.take_proof_nodes().into_inner().into_values().collect();
    (root, nodes)
}

fn storage_leaves(slots: &Slots) -> BTreeMap<B256, Vec<u8>> {
    slots.iter().map(|(key, value)| (*key, alloy_rlp::encode(value))).collect()
}

fn account_leaves(state: &State) -> BTreeMap<B256, Vec<u8>> {
    let leaf = |(key, (account, slots)): (&B256, &(Account, Slots))| {
        let root = oracle_root(storage_leaves(slots).iter().map(|(k, v)| (k, v.clone())));
        let mut leaf = Vec::new();
        account_leaf(account, root, &mut leaf);
        (*key, leaf)
    };
    state.0.iter().map(leaf).collect()
}

/// Returns the keys, and for each deleted key its neighbours in the remaining state.
fn with_neighbours<T>(keys: &BTreeSet<B256>, after: &BTreeMap<B256, T>) -> BTreeSet<B256> {
    let mut all = keys.clone();
    for key in keys.iter().filter(|key| !after.contains_key(*key)) {
        all.extend(after.range(..*key).next_back().map(|(key, _)| *key));
        all.extend(after.range(*key..).next().map(|(key, _)| *key));
    }
    all
}

/// Returns the nodes of `before` that the steps need.
fn witness_nodes(before: &State, steps: &[Step]) -> Vec<Bytes> {
    let mut accounts = BTreeSet::new();
    let mut slots: BTreeMap<B256, BTreeSet<B256>> = BTreeMap::new();
    let none = Slots::new();
    for Step { updates, after } in steps {
        let touched = updates.iter().map(|update| update.address_hash).collect();
        accounts.append(&mut with_neighbours(&touched, &after.0));
        for update in updates {
            let touched = update.slots.iter().map(|slot| slot.key).collect();
            let after = after.0.get(&update.address_hash).map_or(&none, |(_, slots)| slots);
            let needed = with_neighbours(&touched, after);
            slots.entry(update.address_hash).or_default().extend(needed);
        }
    }
    let (_, mut nodes) = proof(&account_leaves(before), &accounts);
    for (owner, keys) in slots {
        if let Some((_, slots)) = before.0.get(&owner).filter(|_| !keys.is_empty()) {
            nodes.append(&mut proof(&storage_leaves(slots), &keys).1);
        }
    }
    nodes
}

/// Updates of accounts, each at most once, and the state after them.
struct Step {
    updates: Vec<AccountUpdate>,
    after: State,
}

fn step(rng: &mut StdRng, before: &State, addresses: &KeySpace, slots: &KeySpace) -> Step {
    let mut updates = BTreeMap::new();
    for _ in 0..rng.random_range(0..6) {
        let update = update(rng, before, addresses, slots);
        updates.insert(update.address_hash, update);
    }
    let mut updates: Vec<_> = updates.into_values().collect();
    updates.shuffle(rng);
    let mut after = before.clone();
    updates.iter().for_each(|update| after.apply(update));
    Step { updates, after }
}

struct Sequence {
    before: State,
    steps: Vec<Step>,
    nodes: Vec<Bytes>,
}

fn sequence(seed: u64) -> Sequence {
    let mut rng = rng(seed);
    let (addresses, slots) = (KeySpace::random(&mut rng), KeySpace::random(&mut rng));
    let mut before = State::default();
    for _ in 0..rng.random_range(0..24) {
        let update = update(&mut rng, &before, &addresses, &slots);
        before.apply(&update);
    }
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let last = steps.last().map_or(&before, |step| &step.after);
        steps.push(step(&mut rng, last, &addresses, &slots));
    }
    let mut nodes = witness_nodes(&before, &steps);
    nodes.shuffle(&mut rng);
    Sequence { before, steps, nodes }
}

/// Applies the steps. Each must lead to the root of the whole state.
fn run(sequence: &Sequence, witness: &Witness) -> Result<(), WitnessError> {
    let mut state = PartialState::new(witness, sequence.before.root())?;
    for Step { updates, after } in &sequence.steps {
        assert_eq!(state.apply(updates)?, after.root());
    }
    Ok(())
}

#[test]
fn a_witness_leads_to_the_roots_of_the_whole_state() {
    for seed in 0..6_000 {
        let sequence = sequence(seed);
        run(&sequence, &Witness::new(sequence.nodes.clone()))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn lookups_find_what_the_state_holds_and_what_it_lacks() {
    for seed in 0..1_000 {
        let Sequence { before, steps, nodes } = sequence(seed);
        let (root, witness) = (before.root(), Witness::new(nodes));
        for update in steps.iter().flat_map(|step| &step.updates) {
            let address_hash = &update.address_hash;
            let got = witness.account(root, address_hash).unwrap();
            let want = before.0.get(address_hash);
            assert_eq!(got.map(|(account, _)| account), want.map(|(account, _)| *account));
            let Some((_, storage_root)) = got else { continue };
            for slot in &update.slots {
                let got = witness.slot(address_hash, storage_root, &slot.key).unwrap();
                let want = want.and_then(|(_, slots)| slots.get(&slot.key)).copied();
                assert_eq!(got, want.unwrap_or_default());
            }
        }
    }
}

#[test]
fn a_missing_node_is_named_and_never_gives_another_root() {
    let (mut named, mut spared) = (0, 0);
    for seed in 0..1_500 {
        let sequence = sequence(seed);
        for at in 0..sequence.nodes.len() {
            let mut nodes = sequence.nodes.clone();
            let dropped = keccak256(nodes.remove(at));
            let witness = Witness::new(nodes);
            if witness.node(&dropped).is_some() {
                continue; // two tries share it
            }
            match run(&sequence, &witness) {
                Ok(()) => spared += 1,
                Err(WitnessError::Missing(place)) => {
                    assert_eq!(place.hash, dropped, "seed {seed}");
                    named += 1;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    // Neighbours are not always needed, but nodes on the way to written keys are.
    assert!(named > 2 * spared, "{named} named, {spared} spared");
}

#[test]
fn flipped_bits_are_a_missing_node() {
    let mut rng = rng(7);
    for seed in 0..2_000 {
        let mut sequence = sequence(seed);
        if sequence.nodes.is_empty() {
            continue;
        }
        let at = rng.random_range(0..sequence.nodes.len());
        let mut bytes = sequence.nodes[at].to_vec();
        let bit = rng.random_range(0..bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let flipped = keccak256(&sequence.nodes[at]);
        sequence.nodes[at] = bytes.into();
        match run(&sequence, &Witness::new(sequence.nodes.clone())) {
            Ok(()) => {}
            Err(WitnessError::Missing(place)) => assert_eq!(place.hash, flipped),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
}

/// Checks that invalid nodes with correct hashes are refused: a witness may come with any root.
#[test]
fn nodes_that_are_none_are_refused() {
    let key = B256::repeat_byte(0x12);
    let update = AccountUpdate {
        address_hash: key,
        account: Some(Account::default()),
        wiped: false,
        slots: Vec::new(),
    };
    let account = |witness: &Witness, root| witness.account(root, &key).unwrap_err();
    let mut rng = rng(11);
    for length in (0..70).chain([500, 5_000, 70_000]) {
        let bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        let root = keccak256(&bytes);
        let witness = Witness::new(vec![bytes.into()]);
        assert!(
            matches!(account(&witness, root), WitnessError::Malformed(_, place) if place.hash == root)
        );
        assert!(PartialState::new(&witness, root).is_err());
    }
    // Three leaves: a path that is too long, a value that is not an account, a value that is too
    // long.
    for (path_len, value_len, place) in [(34, 40, true), (33, 40, false), (33, 300, false)] {
        let mut path = vec![0x12; path_len];
        path[0] = 0x20;
        let leaf: [Vec<u8>; 2] = [path, vec![0x99; value_len]];
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<&[u8], [u8]>(&[&leaf[0], &leaf[1]], &mut rlp);
        let root = keccak256(&rlp);
        let witness = Witness::new(vec![rlp.into()]);
        match account(&witness, root) {
            WitnessError::Malformed(Malformed::Path, _) => assert!(place),
            WitnessError::Leaf { owner: None, key: got, .. } => assert!(!place && got == key),
            error => panic!("{error}"),
        }
        let state = PartialState::new(&witness, root);
        assert!(state.and_then(|mut state| state.apply(std::slice::from_ref(&update))).is_err());
    }
}

/// Builds extensions inside extensions in one node: the way down must end after 64 nibbles.
#[test]
fn nested_nodes_end() {
    let mut rlp = vec![0xc2, 0x11, 0x80];
    while rlp.len() < 30 {
        let mut outer = vec![0xc0 + 1 + rlp.len() as u8, 0x11];
        outer.extend_from_slice(&rlp);
        rlp = outer;
    }
    let root = keccak256(&rlp);
    let witness = Witness::new(vec![rlp.into()]);
    let error = witness.account(root, &B256::repeat_byte(0x11)).unwrap_err();
    assert!(matches!(error, WitnessError::Malformed(Malformed::Child, _)), "{error}");
}

#[test]
fn the_empty_state_needs_no_witness() {
    let witness = Witness::new(Vec::new());
    assert!(witness.is_empty());
    let key = B256::repeat_byte(3);
    assert_eq!(witness.account(EMPTY_ROOT_HASH, &key), Ok(None));
    assert_eq!(witness.slot(&key, EMPTY_ROOT_HASH, &key), Ok(U256::ZERO));
    let mut state = PartialState::new(&witness, EMPTY_ROOT_HASH).unwrap();
    assert_eq!(state.apply(&[]), Ok(EMPTY_ROOT_HASH));
    let missing = PartialState::new(&witness, key).unwrap_err().to_string();
    assert_eq!(missing, format!("the witness lacks node {key} at path 0x of the account trie"));
}
