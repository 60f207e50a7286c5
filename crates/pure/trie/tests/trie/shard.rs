//! Requests of one shard, and the input that it refuses.

use tandem_primitives::{
    Account, AccountUpdate, B256, EMPTY_TRIE_ROOT, Shard, SlotUpdate, TrieDiff, U256, WalkTarget,
    keccak256,
};
use tandem_testkit::trie::*;
use tandem_trie::{ApplyError, Error, ShardTrie, apply_block};

fn key(start: &[u8]) -> B256 {
    let mut key = B256::ZERO;
    key[..start.len()].copy_from_slice(start);
    key
}

fn slot(start: &[u8], value: u64) -> SlotUpdate {
    SlotUpdate { key: key(start), value: U256::from(value) }
}

fn write(address_hash: B256, nonce: u64, slots: Vec<SlotUpdate>) -> AccountUpdate {
    let account = Some(Account { nonce, ..Account::default() });
    AccountUpdate { address_hash, account, wiped: false, slots }
}

/// Returns two accounts in shard 3, each with slots at 11.., 12.., 2...
fn base() -> (State, Store) {
    let mut state = State::default();
    for address in [[0x31], [0x32]] {
        let slots = vec![slot(&[0x11], 1), slot(&[0x12], u64::MAX), slot(&[0x20], 3)];
        state.apply(&write(key(&address), 1, slots));
    }
    let store = state.store();
    (state, store)
}

fn targets(shard: &mut ShardTrie) -> Vec<WalkTarget> {
    let mut targets = Vec::new();
    shard.take_targets(&mut targets);
    targets
}

fn answer(shard: &mut ShardTrie, store: &Store, targets: &[WalkTarget]) -> Result<(), Error> {
    for target in targets {
        let mut result = Ok(());
        store.walk_one(target, &mut |owner, path, rlp| {
            if result.is_ok() {
                result = shard.reveal(owner.as_ref(), path, rlp);
            }
        });
        result?;
        shard.answered(target);
    }
    Ok(())
}

fn shard() -> ShardTrie {
    ShardTrie::new(Shard::from_nibble(3).unwrap())
}

#[test]
fn every_walk_is_asked_for_once() {
    let (_, store) = base();
    let mut shard = shard();
    let address = key(&[0x31]);
    let update = write(address, 2, vec![slot(&[0x11], 7)]);
    shard.prefetch(&address, &[key(&[0x11])]);
    shard.update(&update);
    shard.update(&update);
    let asked = targets(&mut shard);
    assert_eq!(
        asked,
        [
            WalkTarget { owner: None, key: address, from_depth: 1 },
            WalkTarget { owner: Some(address), key: key(&[0x11]), from_depth: 0 },
        ]
    );
    assert_eq!(shard.finish().unwrap(), None);
    assert_eq!(targets(&mut shard), []);
    answer(&mut shard, &store, &asked).unwrap();
    assert!(shard.finish().unwrap().is_some());
    // Revealed nodes stay: the next block needs none.
    shard.update(&write(address, 3, vec![slot(&[0x11], 8)]));
    assert_eq!(targets(&mut shard), []);
    assert!(shard.finish().unwrap().is_some());
}

#[test]
fn walks_needed_again_while_under_way_are_counted() {
    let (_, store) = base();
    let mut shard = shard();
    let address = key(&[0x31]);
    let update = write(address, 2, vec![slot(&[0x11], 7)]);
    shard.prefetch(&address, &[key(&[0x11])]);
    shard.update(&update);
    let asked = targets(&mut shard);
    answer(&mut shard, &store, &asked).unwrap();
    shard.update(&update);
    assert!(shard.finish().unwrap().is_some());
    assert_eq!(shard.duplicates(), 2, "the account and the slot of the first update");
    shard.clear();
    assert_eq!(shard.duplicates(), 2, "a count over all blocks");
}

#[test]
fn a_hash_computed_elsewhere_is_checked_also_where_nodes_are_not() {
    let (_, store) = base();
    let mut shard = shard();
    shard.verify_nodes = false;
    let address = key(&[0x31]);
    shard.prefetch(&address, &[]);
    let asked = targets(&mut shard);
    let mut nodes = Vec::new();
    store.walk_one(&asked[0], &mut |_, path, rlp| nodes.push((path.to_vec(), rlp.to_vec())));
    let (top, leaf) = (&nodes[0], &nodes[1]);
    shard.reveal_hashed(None, &top.0, &top.1, &keccak256(&top.1)).unwrap();
    let wrong = shard.reveal_hashed(None, &leaf.0, &leaf.1, &keccak256(&top.1));
    assert!(matches!(wrong, Err(Error::Hash { .. })), "{wrong:?}");
    shard.reveal_hashed(None, &leaf.0, &leaf.1, &keccak256(&leaf.1)).unwrap();
    shard.answered(&asked[0]);
    shard.prefetch(&address, &[]);
    assert_eq!(targets(&mut shard), []);
}

#[test]
fn a_walk_left_unanswered_is_asked_for_again_in_the_next_block() {
    let (_, store) = base();
    let mut shard = shard();
    let (address, slots) = (key(&[0x31]), [key(&[0x11])]);
    shard.update(&write(address, 2, vec![]));
    let asked = targets(&mut shard);
    answer(&mut shard, &store, &asked).unwrap();
    shard.prefetch(&address, &slots);
    assert_eq!(targets(&mut shard).len(), 1);
    assert!(shard.finish().unwrap().is_some());
    shard.prefetch(&address, &slots);
    assert_eq!(targets(&mut shard).len(), 1);
}

#[test]
fn a_sibling_that_a_deletion_may_need_is_asked_for_before_the_end() {
    let (_, store) = base();
    let mut shard = shard();
    let address = key(&[0x31]);
    shard.update(&write(address, 1, vec![slot(&[0x12], 0)]));
    let asked = targets(&mut shard);
    answer(&mut shard, &store, &asked).unwrap();
    // 11.. and 12.. share a branch at depth 1, which collapses into 11.. when 12.. goes.
    let sibling = WalkTarget { owner: Some(address), key: key(&[0x11]), from_depth: 2 };
    let asked = targets(&mut shard);
    assert_eq!(asked, [sibling]);
    answer(&mut shard, &store, &asked).unwrap();
    assert!(shard.finish().unwrap().is_some());
}

#[test]
fn no_storage_is_walked_where_the_account_leaf_says_there_is_none() {
    let mut state = State::default();
    state.apply(&write(key(&[0x31]), 1, vec![]));
    let store = state.store();
    let mut shard = shard();
    shard.prefetch(&key(&[0x31]), &[]);
    let asked = targets(&mut shard);
    answer(&mut shard, &store, &asked).unwrap();
    shard.update(&write(key(&[0x31]), 1, vec![slot(&[1], 1)]));
    shard.update(&write(key(&[0x32]), 1, vec![slot(&[1], 1)]));
    assert_eq!(targets(&mut shard), []);
    assert!(shard.finish().unwrap().is_some());
}

#[test]
fn a_contract_that_lives_for_one_transaction_leaves_nothing() {
    let (_, mut store) = base();
    let mut shards = all_shards();
    let address = key(&[0x3f]);
    let gone = AccountUpdate { address_hash: address, account: None, wiped: true, slots: vec![] };
    let updates = [write(address, 1, vec![slot(&[1], 1)]), gone];
    let (_, _, diff) = apply_block(&mut shards, &updates, &mut store).unwrap();
    assert_eq!(diff, TrieDiff::default());
}

#[test]
fn a_node_that_no_walk_brings_is_an_error() {
    let (_, mut store) = base();
    let address = key(&[0x31]);
    let update = write(address, 2, vec![slot(&[0x11], 7)]);
    store.nodes.remove(&(Some(address), vec![1])).unwrap();
    let result = apply_block(&mut all_shards(), std::slice::from_ref(&update), &mut store);
    let key = key(&[0x11]);
    let missing = Error::Missing { owner: Some(address), key, depth: 1 };
    assert_eq!(result, Err(ApplyError::Trie(missing)));

    let (_, mut store) = base();
    store.nodes.remove(&(None, vec![3, 1])).unwrap();
    let result = apply_block(&mut all_shards(), &[update], &mut store);
    let missing = Error::Missing { owner: None, key: address, depth: 2 };
    assert_eq!(result, Err(ApplyError::Trie(missing)));
}

#[test]
fn a_storage_trie_of_another_root_than_the_account_leaf_says_is_refused() {
    let (_, store) = base();
    let (one, two) = (key(&[0x31]), key(&[0x32]));
    // The slots of one account differ from the other's, but its nodes are consistent with each
    // other.
    let mut state = State::default();
    state.apply(&write(one, 1, vec![slot(&[0x11], 9)]));
    let mut wrong = store.clone();
    wrong.nodes.retain(|(owner, _), _| *owner != Some(one));
    let others = state.store().nodes.into_iter().filter(|((owner, _), _)| owner.is_some());
    wrong.nodes.extend(others);
    let update = [write(one, 1, vec![slot(&[0x20], 1)])];
    let result = apply_block(&mut all_shards(), &update, &mut wrong);
    assert!(
        matches!(result, Err(ApplyError::Trie(Error::StorageRoot { address_hash, .. })) if address_hash == one)
    );
    // There are no nodes at all, though the leaf has a root.
    wrong.nodes.retain(|(owner, _), _| *owner != Some(two));
    let update = [write(two, 1, vec![slot(&[0x20], 1)])];
    let result = apply_block(&mut all_shards(), &update, &mut wrong);
    assert!(matches!(
        result,
        Err(ApplyError::Trie(Error::StorageRoot { got: EMPTY_TRIE_ROOT, .. }))
    ));
}

#[test]
fn a_node_with_another_hash_is_refused_unless_unchecked() {
    let (_, mut store) = base();
    let leaf = store.nodes.get_mut(&(None, vec![3, 1])).unwrap();
    *leaf.last_mut().unwrap() ^= 1;
    let update = [write(key(&[0x31]), 2, vec![])];
    let result = apply_block(&mut all_shards(), &update, &mut store);
    assert!(matches!(result, Err(ApplyError::Trie(Error::Hash { depth: 2, .. }))));
    let mut shards = all_shards();
    shards.iter_mut().for_each(|shard| shard.verify_nodes = false);
    assert!(apply_block(&mut shards, &update, &mut store).is_ok());
}

#[test]
fn shards_must_be_the_sixteen_in_order() {
    let mut shards = all_shards();
    shards.swap(0, 1);
    let result = apply_block(&mut shards, &[], &mut Store::default());
    assert_eq!(result, Err(ApplyError::Trie(Error::Shards)));
    let result = apply_block(&mut shards[2..], &[], &mut Store::default());
    assert_eq!(result, Err(ApplyError::Trie(Error::Shards)));
}

#[test]
fn pruning_keeps_what_was_used_last() {
    let rng = &mut rng(3);
    let space = KeySpace { common: 0, alphabet: 16, end: 64 };
    let mut state = State::default();
    let mut store = Store::default();
    let mut shards = all_shards();
    let mut block = |updates: &[AccountUpdate], shards: &mut [ShardTrie], store: &mut Store| {
        updates.iter().for_each(|update| state.apply(update));
        let (root, _, diff) = apply_block(shards, updates, store).unwrap();
        store.apply(&diff);
        assert_eq!(root, state.root());
    };
    let slots = |rng: &mut rand::rngs::StdRng| {
        (0..200)
            .map(|_| SlotUpdate { key: space.key(rng), value: value(rng).max(U256::ONE) })
            .collect()
    };
    let (old, new) = (write(key(&[0x31]), 1, slots(rng)), write(key(&[0x32]), 1, slots(rng)));
    block(std::slice::from_ref(&old), &mut shards, &mut store);
    block(std::slice::from_ref(&new), &mut shards, &mut store);
    let full = shards[3].byte_len();
    shards[3].prune(full);
    assert_eq!(shards[3].byte_len(), full, "nothing goes while it fits");
    shards[3].prune(full * 3 / 4);
    assert!(shards[3].byte_len() <= full * 3 / 4);
    let walked = store.walked;
    block(&[write(key(&[0x32]), 2, new.slots[..9].to_vec())], &mut shards, &mut store);
    assert_eq!(store.walked, walked, "the trie used last is still there");
    block(&[write(key(&[0x31]), 2, vec![slot(&[1], 1)])], &mut shards, &mut store);
    assert!(store.walked > walked, "the older one is read again");
    // The limit is below the size of a single trie: its most recently used nodes stay.
    let hot = |nonce| [write(key(&[0x32]), nonce, new.slots[..3].to_vec())];
    block(&hot(3), &mut shards, &mut store);
    shards[3].prune(full / 4);
    assert!(shards[3].byte_len() <= full / 4);
    let walked = store.walked;
    block(&hot(4), &mut shards, &mut store);
    assert_eq!(store.walked, walked, "the part used last is still there");
}
