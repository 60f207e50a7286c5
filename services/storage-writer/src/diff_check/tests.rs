use super::check;
use crate::{
    Error,
    apply::{Tries, undo, write_state},
    overlay::Overlay,
};
use std::{collections::BTreeSet, sync::Arc};
use tandem_primitives::{
    Account, AccountUpdate, B256, NodeChange, SlotUpdate, TrieDiff, U256, keccak256,
};
use tandem_store::{
    Durability, Store,
    tables::{AccountTrie, Accounts, Slots, StorageTrie, Table},
};

/// xorshift generator: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn key(kind: u64, n: u64) -> B256 {
    keccak256([kind.to_be_bytes(), n.to_be_bytes()].concat())
}

/// Returns updates of random accounts, a few of which have large storage. Some are deleted, some
/// are wiped.
fn updates(random: &mut Random, accounts: u64, slots: u64) -> Vec<AccountUpdate> {
    let touched: BTreeSet<B256> =
        (0..accounts).map(|_| key(0, random.below(1500) >> random.below(8))).collect();
    let mut updates = Vec::new();
    for address_hash in touched {
        let account = Account {
            nonce: random.below(1000),
            balance: U256::from(random.below(1 << 40)),
            code_hash: B256::ZERO,
        };
        let gone = random.below(8) == 0;
        let count = if gone { 0 } else { random.below(slots) >> random.below(6) };
        let keys: BTreeSet<B256> = (0..count).map(|_| key(1, random.below(400))).collect();
        let slots = keys
            .into_iter()
            .map(|key| SlotUpdate {
                key,
                value: U256::from(random.below(3) * (random.below(u64::MAX) >> random.below(64))),
            })
            .collect();
        let account = (!gone).then_some(account);
        let wiped = random.below(8) == 0;
        updates.push(AccountUpdate { address_hash, account, wiped, slots });
    }
    updates
}

fn write(store: &Store, updates: &[AccountUpdate], tries: &Tries) {
    let mut batch = store.batch();
    write_state(&mut batch, &store.view(), updates).unwrap();
    tries.write(&mut batch, &store.view()).unwrap();
    store.write(batch, Durability::Process).unwrap();
}

/// Returns whether storage-writer would accept this diff for a block with this state root.
fn is_taken(store: &Store, diff: TrieDiff, root: B256) -> bool {
    let view = store.view();
    match Tries::from_parts(&view, vec![Arc::new(diff)]) {
        Ok(tries) if tries.root == root => check(&view, &tries.parts).unwrap().is_ok(),
        Ok(_) | Err(Error::Trie(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the diff with the change at a position replaced or left out.
fn replaced(diff: &TrieDiff, at: usize, by: Option<NodeChange<'_>>) -> TrieDiff {
    let mut other = TrieDiff::default();
    other.wiped.clone_from(&diff.wiped);
    for (index, change) in diff.iter().enumerate() {
        match by {
            _ if index != at => other.push(change),
            Some(by) => other.push(by),
            None => {}
        }
    }
    other
}

fn with(diff: &TrieDiff, change: NodeChange<'_>) -> TrieDiff {
    let mut other = diff.clone();
    other.push(change);
    other
}

/// Returns some nodes of the base that a diff does not mention.
fn untouched(store: &Store, diff: &TrieDiff, random: &mut Random) -> Vec<(Option<B256>, Vec<u8>)> {
    let touched: BTreeSet<_> = diff.iter().map(|c| (c.owner, c.path.to_vec())).collect();
    let view = store.view();
    let mut nodes = Vec::new();
    let mut accounts = view.cursor::<AccountTrie>(&[]);
    while let Some((path, _)) = accounts.entry().unwrap() {
        if !path.is_empty() {
            nodes.push((None, path.to_vec()));
        }
        accounts.advance();
    }
    let mut storage = view.cursor::<StorageTrie>(&[]);
    while let Some((key, _)) = storage.entry().unwrap() {
        nodes.push((Some(B256::from_slice(&key[..32])), key[32..].to_vec()));
        storage.advance();
    }
    nodes.retain(|node| !touched.contains(node) && random.below(8) == 0);
    let wiped = |(owner, _): &_| matches!(owner, Some(owner) if diff.wiped.contains(owner));
    nodes.retain(|node| !wiped(node));
    nodes
}

/// Lengths of the paths of changed nodes, in the account trie and in storage tries.
type Depths = [BTreeSet<usize>; 2];

/// Checks that a diff is refused with a node left out, removed, altered, or duplicated below
/// itself.
fn refuse_mutations(
    store: &Store,
    diff: &TrieDiff,
    root: B256,
    random: &mut Random,
    depths: &mut Depths,
) -> usize {
    let mut refused = 0;
    for (at, change) in diff.iter().enumerate() {
        let refuse = |diff, what: &str| {
            let (owner, path) = (change.owner, change.path);
            assert!(!is_taken(store, diff, root), "{what}: {owner:?} {path:?}");
        };
        let stood = match change.owner {
            None => store.view().get::<AccountTrie>(change.path).unwrap().is_some(),
            Some(owner) if diff.wiped.contains(&owner) => false,
            Some(owner) => store.view().get::<StorageTrie>((owner, change.path)).unwrap().is_some(),
        };
        // Only some nodes of each block are tested, so that the test takes seconds.
        if random.below(4) != 0 {
            continue;
        }
        // The removal of a node that never existed changes nothing, so a diff may leave it out.
        if change.rlp.is_none() && !stood {
            continue;
        }
        depths[usize::from(change.owner.is_some())].insert(change.path.len());
        refused += 1;
        refuse(replaced(diff, at, None), "left out");
        let Some(rlp) = change.rlp else {
            let node = NodeChange { rlp: Some(&[0x80; 40]), ..change };
            refuse(replaced(diff, at, Some(node)), "put instead of removed");
            continue;
        };
        let gone = NodeChange { rlp: None, ..change };
        refuse(replaced(diff, at, Some(gone)), "removed instead of put");
        let mut other = rlp.to_vec();
        other[random.below(rlp.len() as u64) as usize] ^= 1 << random.below(8);
        let altered = NodeChange { rlp: Some(&other), ..change };
        refuse(replaced(diff, at, Some(altered)), "a bit flipped");
        let deeper = [change.path, &[random.below(16) as u8]].concat();
        if deeper.len() <= 64 && !diff.iter().any(|c| c.path == deeper) {
            refuse(with(diff, NodeChange { path: &deeper, ..change }), "one too much");
        }
    }
    refused
}

/// Checks diffs with extra nodes of the base, and with wipes added or left out.
fn refuse_surplus(store: &Store, diff: &TrieDiff, root: B256, random: &mut Random) {
    for (owner, path) in untouched(store, diff, random) {
        for rlp in [None, Some(&[0x80; 40][..])] {
            let surplus = NodeChange { owner, path: &path, rlp };
            assert!(!is_taken(store, with(diff, surplus), root), "{surplus:?}");
        }
        let mut wiping = diff.clone();
        wiping.wiped.extend(owner);
        assert_eq!(is_taken(store, wiping, root), owner.is_none(), "{owner:?}");
    }
    for at in 0..diff.wiped.len() {
        let mut kept = diff.clone();
        let owner = kept.wiped.remove(at);
        let view = store.view();
        let stood = view.cursor::<StorageTrie>(owner.as_slice());
        let rewritten = diff.iter().any(|change| change.owner == Some(owner));
        if stood.entry().unwrap().is_some() && !rewritten {
            assert!(!is_taken(store, kept, root), "{owner} is not wiped");
        }
    }
}

#[test]
fn honest_diffs_are_taken_and_any_change_of_one_node_is_refused() {
    let (mut depths, mut refused) = (Depths::default(), 0);
    for seed in 1..=2u64 {
        let (store, mut random) = (Store::in_memory(), Random(seed * 0x9e37_79b9_7f4a_7c15));
        for block in 0..14 {
            let accounts = if block == 0 { 900 } else { random.below(40) };
            let updates = updates(&mut random, accounts, 300);
            let tries = Tries::compute(&store.view(), &updates).unwrap();
            let (diff, root) = (tries.parts[0].clone(), tries.root);
            let honest = is_taken(&store, (*diff).clone(), root);
            assert!(honest, "seed {seed}: an honest diff in block {block}");
            if block > 10 {
                refused += refuse_mutations(&store, &diff, root, &mut random, &mut depths);
                refuse_surplus(&store, &diff, root, &mut random);
            }
            write(&store, &updates, &tries);
        }
    }
    assert!(refused > 500, "{refused} nodes");
    assert!(depths.iter().all(|depths| depths.len() >= 3), "{depths:?}");
}

/// Returns all records of a table.
pub fn records<T: Table>(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let view = store.view();
    let mut cursor = view.cursor::<T>(&[]);
    let mut records = Vec::new();
    while let Some((key, value)) = cursor.entry().unwrap() {
        records.push((key.to_vec(), value.to_vec()));
        cursor.advance();
    }
    records
}

/// Writes the same blocks into two stores, one by one and in steps of several. Accounts are deleted,
/// wiped and made again within a step.
#[test]
fn a_step_of_several_blocks_leaves_what_they_leave_one_by_one() {
    let (mut wiped_in_step, mut refused) = (0, 0);
    for seed in 1..=4u64 {
        let mut random = Random(seed * 0x9e37_79b9_7f4a_7c15);
        let (single, together) = (Store::in_memory(), Store::in_memory());
        for step in 0..10 {
            let blocks = if step == 0 { 1 } else { 2 + random.below(6) };
            let (mut parts, mut root) = (Vec::new(), B256::ZERO);
            let view = together.view();
            let mut state = Overlay::new(&view);
            for _ in 0..blocks {
                let accounts = if step == 0 { 600 } else { random.below(40) };
                let updates = updates(&mut random, accounts, 200);
                assert_eq!(state.undo(&updates).unwrap(), undo(&single.view(), &updates).unwrap());
                state.apply(&updates);
                let tries = Tries::compute(&single.view(), &updates).unwrap();
                write(&single, &updates, &tries);
                parts.push(tries.parts[0].clone());
                root = tries.root;
            }
            let tries = Tries::from_parts(&view, parts.clone()).unwrap();
            assert_eq!(tries.root, root);
            assert_eq!(check(&view, &tries.parts).unwrap(), Ok(()), "seed {seed}, step {step}");
            // A step without one of its blocks fits only if the others change all of its nodes again.
            for left_out in 0..parts.len() - 1 {
                let mut others = parts.clone();
                others.remove(left_out);
                refused += usize::from(check(&view, &others).unwrap().is_err());
            }
            let earlier = &parts[..parts.len() - 1];
            wiped_in_step += earlier.iter().map(|part| part.wiped.len()).sum::<usize>();
            write(&together, &state.into_updates(), &tries);
            assert_eq!(records::<Accounts>(&single), records::<Accounts>(&together));
            assert_eq!(records::<Slots>(&single), records::<Slots>(&together));
            assert_eq!(records::<AccountTrie>(&single), records::<AccountTrie>(&together));
            assert_eq!(records::<StorageTrie>(&single), records::<StorageTrie>(&together));
        }
    }
    assert!(wiped_in_step > 50 && refused > 50, "{wiped_in_step} wiped, {refused} refused");
}
