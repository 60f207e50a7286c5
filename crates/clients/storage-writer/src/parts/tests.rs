use super::*;
use std::cell::Cell;
use tandem_primitives::{B256, BlockId, Bytes, U256};
use tandem_proto::storage::TrieNode;

fn key(n: usize) -> B256 {
    U256::from(n).into()
}

fn base(number: u64) -> BlockId {
    BlockId::new(number, key(number as usize))
}

/// Returns values that identify their keys. The base moves with each call until `moves_until`.
fn answer(calls: &Cell<u64>, moves_until: u64, request: &ReadState) -> StateValues {
    assert!(request.accounts.len() <= READ_ACCOUNTS_MAX);
    assert!(request.slots.len() <= READ_SLOTS_MAX);
    assert!(request.codes.len() <= READ_CODES_MAX);
    calls.set(calls.get() + 1);
    StateValues {
        base: base(calls.get().min(moves_until)),
        accounts: vec![None; request.accounts.len()],
        slots: request.slots.iter().map(|(_, slot)| U256::from_be_bytes(slot.0)).collect(),
        codes: request.codes.iter().map(|hash| Some(Bytes::copy_from_slice(&hash[..]))).collect(),
    }
}

fn request(accounts: usize, slots: usize, codes: usize) -> ReadState {
    ReadState {
        accounts: (0..accounts).map(key).collect(),
        slots: (0..slots).map(|n| (key(0), key(n))).collect(),
        codes: (0..codes).map(key).collect(),
    }
}

#[test]
fn what_fits_is_one_call_and_more_is_put_together_in_order() {
    let cases = [
        (request(0, 0, 0), 1),
        (request(READ_ACCOUNTS_MAX, READ_SLOTS_MAX, READ_CODES_MAX), 1),
        (request(5, READ_SLOTS_MAX + 1, 3), 2),
        (request(READ_ACCOUNTS_MAX * 2, 1, READ_CODES_MAX * 3 + 1), 4),
    ];
    for (request, expected) in cases {
        let calls = Cell::new(0);
        let values = read_state(&request, |part| Ok(answer(&calls, 1, part))).unwrap();
        assert_eq!(calls.get(), expected);
        let whole = StateValues {
            base: base(1),
            accounts: vec![None; request.accounts.len()],
            slots: (0..request.slots.len()).map(U256::from).collect(),
            codes: request
                .codes
                .iter()
                .map(|hash| Some(Bytes::copy_from_slice(&hash[..])))
                .collect(),
        };
        assert!(values == whole);
    }
}

#[test]
fn parts_of_different_bases_are_never_mixed() {
    let request = request(1, READ_SLOTS_MAX * 2, 0);
    let calls = Cell::new(0);
    let values = read_state(&request, |part| Ok(answer(&calls, 5, part))).unwrap();
    assert_eq!((values.base, values.slots.len()), (base(5), READ_SLOTS_MAX * 2));
    let always = read_state(&request, |part| Ok(answer(&calls, u64::MAX, part)));
    assert_eq!(always, Err(base_moved()));
}

/// Returns one node for each target, and one that all targets have in common.
fn nodes(targets: &[WalkTarget]) -> Vec<TrieNode> {
    let node = |path: &[u8]| TrieNode {
        owner: None,
        path: Bytes::copy_from_slice(path),
        rlp: Bytes::from_static(&[1; 40]),
    };
    let own = targets.iter().map(|target| node(&target.key[..]));
    std::iter::once(node(&[3])).chain(own).collect()
}

#[test]
fn a_walk_in_parts_gives_each_node_once() {
    let target = |n| WalkTarget { owner: None, key: key(n), from_depth: 1 };
    for (count, expected) in [(0, 1), (WALK_TARGETS_MAX, 1), (2 * WALK_TARGETS_MAX + 1, 3)] {
        let targets: Vec<_> = (0..count).map(target).collect();
        let calls = Cell::new(0);
        let walk = |part: &[WalkTarget]| {
            assert!(part.len() <= WALK_TARGETS_MAX);
            calls.set(calls.get() + 1);
            Ok(TrieNodes { base: base(1), nodes: nodes(part) })
        };
        let walked = walk_trie(&targets, walk).unwrap();
        assert_eq!(calls.get(), expected);
        assert!(walked.nodes == nodes(&targets));
        calls.set(0);
        let moving = |part: &[WalkTarget]| {
            calls.set(calls.get() + 1);
            Ok(TrieNodes { base: base(calls.get() as u64), nodes: nodes(part) })
        };
        assert_eq!(walk_trie(&targets, moving).is_ok(), expected == 1);
    }
}
