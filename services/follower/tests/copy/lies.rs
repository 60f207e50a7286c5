//! Leaders that send what is wrong: each is refused with a message that says what, nothing of the
//! block stays, and an honest leader takes over.

use crate::{
    chain::{Leader, new_database},
    setup::{Copy, named, wait_until},
    tampered::{Lie, Tampered},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tandem_primitives::{
    AccountUpdate, B256, BlockId, Bytes, SlotUpdate, StateDiff, U256, keccak256,
};
use tandem_proto::feed::{Changes, FeedBlock};
use tandem_storage_writer::Config;
use tandem_testkit::world::account_key;

/// Height at which the lie is told.
const AT: u64 = 9;

/// Returns the block with changed changes. A list becomes a diff, as its hash is in the header.
fn with_diff(block: FeedBlock, change: impl FnOnce(&mut StateDiff)) -> Vec<FeedBlock> {
    let mut diff = match &block.changes {
        Changes::Diff(diff) => StateDiff::clone(diff),
        _ => StateDiff::default(),
    };
    change(&mut diff);
    vec![FeedBlock { changes: Changes::Diff(Arc::new(diff)), ..block }]
}

/// Changes one value of the account with this key.
fn wrong_value(diff: &mut StateDiff) {
    let address_hash = account_key(3);
    diff.accounts.retain(|update| update.address_hash != address_hash);
    let slots = vec![SlotUpdate { key: B256::repeat_byte(7), value: U256::from(1) }];
    let account = Some(tandem_primitives::Account { nonce: 77, ..Default::default() });
    diff.accounts.push(AccountUpdate { address_hash, account, wiped: false, slots });
    diff.accounts.sort_unstable_by_key(|update| update.address_hash);
}

/// Lies, each with words that its refusal has.
const LIES: [(&str, Lie, &str); 9] = [
    ("a wrong value", |block| with_diff(block, wrong_value), "shards that differ"),
    ("a dropped block", |_| Vec::new(), "expected block 9 after 8"),
    ("a block twice", |block| vec![block.clone(), block], "expected block 10 after 9"),
    (
        "a block of a branch that is not there",
        |block| {
            let mut header = block.header.to_vec();
            header[40] ^= 1;
            let id = BlockId::new(AT, keccak256(&header));
            vec![FeedBlock { id, header: header.into(), ..block }]
        },
        "block 9",
    ),
    (
        "another hash",
        |block| vec![FeedBlock { id: BlockId::new(AT, B256::repeat_byte(5)), ..block }],
        "its header has hash",
    ),
    (
        "another body",
        |block| {
            vec![FeedBlock { body: Bytes::from_static(&[0xc4, 0xc1, 0x05, 0xc0, 0xc0]), ..block }]
        },
        "body",
    ),
    (
        "other receipts",
        |block| {
            let receipts = tandem_chain::encode_receipts(&[tandem_chain::Receipt {
                tx_type: alloy_consensus::TxType::Legacy,
                success: false,
                cumulative_gas_used: 3,
                logs: Vec::new(),
                post_state: None,
            }]);
            vec![FeedBlock { receipts, ..block }]
        },
        "receipts root",
    ),
    (
        "a code with another hash",
        |block| {
            with_diff(block, |diff| {
                diff.codes.push((B256::repeat_byte(1), Bytes::from_static(&[1])));
            })
        },
        "has another hash",
    ),
    (
        "no changes",
        |block| vec![FeedBlock { changes: Changes::Omitted, ..block }],
        "brings no changes",
    ),
];

#[test]
fn each_lie_is_refused_by_its_name_and_an_honest_leader_takes_over() {
    let directory = tempfile::tempdir().unwrap();
    let theirs = directory.path().join("leader");
    let mut leader = Leader::start(&theirs, Config::with_small_limits(&theirs), 21);
    leader.grow(14);
    for (index, (name, lie, words)) in LIES.into_iter().enumerate() {
        let liar = || named("liar", Arc::new(Tampered::feed(leader.host.client(), AT, lie)));
        let own = directory.path().join(format!("copy-{index}"));
        new_database(&own);
        let copy = Copy::start(&own, vec![liar()]);
        wait_until(|| copy.fatal.is_cancelled());
        let refused = copy.follower.status().refused().unwrap();
        assert!(refused.contains(words), "{name}: {refused}");
        let last = if name == "a block twice" { AT } else { AT - 1 };
        let highest = copy.heard.stored.lock().iter().map(|block| block.number).max();
        assert_eq!(highest, Some(last), "{name}");
        // Nothing of the refused block is there, and the rest is sound.
        copy.end();
        let honest = named("honest", leader.host.client());
        let copy = Copy::start(&own, vec![liar(), honest]);
        copy.wait_for(&leader.writer);
        copy.compare(&leader.writer, &leader.chain);
        copy.end();
    }
    leader.host.stop();
}

#[test]
fn blocks_in_another_order_are_refused() {
    static SWAPPED: AtomicBool = AtomicBool::new(false);
    let directory = tempfile::tempdir().unwrap();
    let (theirs, own) = (directory.path().join("leader"), directory.path().join("copy"));
    let mut leader = Leader::start(&theirs, Config::with_small_limits(&theirs), 33);
    leader.grow(12);
    new_database(&own);
    // The block comes later than the one after it.
    let lie: Lie = |block| {
        SWAPPED.store(true, Relaxed);
        let id = BlockId::new(AT + 1, block.id.hash);
        vec![FeedBlock { id, ..block.clone() }, block]
    };
    let liar = named("liar", Arc::new(Tampered::feed(leader.host.client(), AT, lie)));
    let copy = Copy::start(&own, vec![liar]);
    wait_until(|| copy.fatal.is_cancelled());
    assert!(SWAPPED.load(Relaxed));
    let refused = copy.follower.status().refused().unwrap();
    assert!(refused.contains("expected block 9 after 8"), "{refused}");
    copy.end();
    leader.host.stop();
}
