//! Malformed messages of the proof stream other than updates.

use crate::malformed::id;
use bytes::Bytes;
use tandem_proto::{
    convert::{SessionAnswer, SessionCommand},
    wire::{multiproof_workers::v1 as workers, types::v1 as types},
};

#[test]
fn a_malformed_begin_or_advice_names_the_field() {
    use workers::process_block_request::Command as Wire;
    let refused = |command| {
        let message = workers::ProcessBlockRequest { session: 1, command: Some(command) };
        SessionCommand::try_from(message).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let begin = |length, shards| {
        let (parent, traceparent) = (vec![0; 32].into(), "x".repeat(length));
        Wire::Begin(workers::Begin { block: Some(id()), parent, traceparent, shards })
    };
    assert_eq!(refused(begin(256, Some(0xffff))), "");
    let error = "process_block.begin.traceparent: 257 are more than 256";
    assert_eq!(refused(begin(257, None)), error);
    let error = "process_block.begin.shards: 65536 is not in 0..=65535";
    assert_eq!(refused(begin(0, Some(1 << 16))), error);

    let valid = workers::Prefetch {
        block: vec![1; 32].into(),
        address_hashes: vec![2; 64].into(),
        slot_counts: vec![0, 1],
        slot_keys: vec![3; 32].into(),
    };
    let advice = |spoil: fn(&mut workers::Prefetch)| {
        let mut message = valid.clone();
        spoil(&mut message);
        refused(Wire::Prefetch(message))
    };
    let expect = [
        (advice(|_| ()), ""),
        (advice(|p| p.block = Bytes::new()), "block: expected 32 bytes, got 0"),
        (
            advice(|p| p.address_hashes = vec![2; 33].into()),
            "address_hashes: 33 bytes are not a multiple of 32",
        ),
        (advice(|p| p.slot_counts = vec![1]), "slot_counts: expected 2 items, got 1"),
        (advice(|p| p.slot_counts = vec![1, 1]), "slot_keys: expected 2 items, got 1"),
        (
            advice(|p| p.slot_keys = vec![3; 31].into()),
            "slot_keys: 31 bytes are not a multiple of 32",
        ),
    ];
    for (got, want) in expect {
        assert_eq!(got.strip_prefix("process_block.prefetch.").unwrap_or(&got), want);
    }
    let foresee = |after: usize| {
        let of = |accounts: usize| types::AccountUpdates {
            address_hashes: (0..accounts).flat_map(|n| [n as u8; 32]).collect::<Vec<_>>().into(),
            accounts: Some(types::Accounts {
                flags: vec![0; accounts].into(),
                ..Default::default()
            }),
            slot_counts: vec![0; accounts],
            ..Default::default()
        };
        let block = vec![1; 32].into();
        refused(Wire::Foresee(workers::Foresee {
            block,
            before: Some(of(2)),
            after: Some(of(after)),
        }))
    };
    assert_eq!(foresee(2), "");
    assert_eq!(foresee(1), "process_block.foresee.after: expected 2 items, got 1");
    let discard = Wire::Discard(workers::DiscardRequest { block: vec![1; 31].into() });
    assert_eq!(refused(discard), "process_block.discard.block: expected 32 bytes, got 31");
}

#[test]
fn times_of_work_are_bounded() {
    use workers::process_block_response::Answer;
    let refused = |numbers: usize| {
        let roots = workers::ShardRoots { work_ns: vec![u64::MAX; numbers], ..Default::default() };
        let answer = Some(Answer::Roots(roots));
        let message = workers::ProcessBlockResponse { session: 1, answer };
        SessionAnswer::try_from(message).err().map(|error| error.to_string()).unwrap_or_default()
    };
    // A sum beyond 64 bits is cut, and an interval without an end is empty.
    assert_eq!([refused(2_048), refused(3)], ["", ""]);
    assert_eq!(refused(2_049), "process_block.roots.work_ns: 2049 are more than 2048");
}

#[test]
fn roots_come_once_for_a_shard_and_in_order() {
    use workers::process_block_response::Answer;
    let roots: Vec<_> = (0..16).map(|shard| workers::SubtrieRoot { shard, node: None }).collect();
    let refused = |spoil: fn(&mut Vec<workers::SubtrieRoot>)| {
        let mut roots = roots.clone();
        spoil(&mut roots);
        let answer =
            Some(Answer::Roots(workers::ShardRoots { roots, stats: None, work_ns: Vec::new() }));
        let message = workers::ProcessBlockResponse { session: 1, answer };
        SessionAnswer::try_from(message).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let expect = [
        (refused(|_| ()), ""),
        // Roots of some shards.
        (refused(|roots| roots.truncate(15)), ""),
        (
            refused(|roots| roots.push(roots[15].clone())),
            "process_block.roots.roots: 17 are more than 16",
        ),
        (
            refused(|roots| roots[4].shard = 3),
            "process_block.roots.roots[4].shard: is not in ascending order",
        ),
        (
            refused(|roots| roots[3].shard = 16),
            "process_block.roots.roots[3].shard: 16 is not in 0..=15",
        ),
        (
            refused(|roots| roots.swap(3, 4)),
            "process_block.roots.roots[4].shard: is not in ascending order",
        ),
        (
            refused(|roots| roots[3].node = Some(Bytes::new())),
            "process_block.roots.roots[3].node: 0 is not in 1..=65534",
        ),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}
