//! Records of the database, whose bytes a damaged disk may have changed.

use crate::{Target, heap, seeds::OSAKA, structures};
use bytes::Bytes;
use std::sync::Arc;
use tandem_primitives::{
    Account, AccountUpdate, B256, BlockId, EMPTY_CODE_HASH, SlotUpdate, StateDiff, U256,
};
use tandem_storage_writer::records::{PendingRecord, ReverseDiff, decode_block, decode_forkchoice};

/// Target whose first byte says which record follows.
pub const TARGET: Target = Target {
    name: "records",
    bytes_per_byte: 4,
    structures: structures::none,
    constant: 2 << 10,
    input_len_max: 8 << 10,
    mutations: 100_000,
    seeds,
    dictionary: &[
        b"\x00\x00\x00\x01",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x03",
        b"\x21",
        b"\x20",
    ],
    run: read,
};

fn account() -> Account {
    Account { nonce: 300, balance: U256::MAX, code_hash: B256::repeat_byte(3) }
}

fn seeds() -> Vec<Vec<u8>> {
    let update = |n: u8, account, wiped, slots| AccountUpdate {
        address_hash: B256::repeat_byte(n),
        account,
        wiped,
        slots,
    };
    let slot = |n, value| SlotUpdate { key: B256::repeat_byte(n), value };
    let slots = vec![slot(1, U256::ZERO), slot(2, U256::MAX), slot(3, U256::from(256))];
    let simple = Account { code_hash: EMPTY_CODE_HASH, ..Account::default() };
    let accounts = vec![
        update(1, None, true, vec![]),
        update(2, Some(account()), false, slots),
        update(3, Some(simple), true, vec![slot(9, U256::from(1))]),
    ];
    let diff = StateDiff {
        accounts: accounts.clone(),
        codes: vec![(B256::repeat_byte(6), vec![1, 2, 3].into())],
    };
    let pending = PendingRecord {
        id: BlockId::new(7, B256::repeat_byte(9)),
        parent: B256::repeat_byte(8),
        transaction_hashes: [B256::repeat_byte(4), B256::repeat_byte(5)].into(),
        diff: Arc::new(diff),
    };
    let reverse = ReverseDiff { block: OSAKA.blocks[0].hash, updates: accounts };
    let mut encoded = Vec::new();
    account().encode(&mut encoded);
    let forkchoice = [&[1][..], &[7; 40], &[1], &[8; 40], &[0], &[0; 40]].concat();
    [pending.encode(), reverse.encode(), forkchoice, vec![1; 40], encoded]
        .into_iter()
        .zip(0..)
        .map(|(bytes, choice)| [&[choice], &bytes[..]].concat())
        .collect()
}

fn read(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    match choice % 5 {
        0 => {
            let bytes = Bytes::copy_from_slice(bytes);
            if let Ok(record) = heap::measured(|| PendingRecord::decode(&bytes.into())) {
                assert_eq!(PendingRecord::decode(&record.encode().into()).unwrap(), record);
            }
        }
        1 => {
            if let Ok(diff) = heap::measured(|| ReverseDiff::decode(bytes)) {
                assert_eq!(ReverseDiff::decode(&diff.encode()).unwrap(), diff);
            }
        }
        2 => drop(heap::measured(|| decode_forkchoice(bytes))),
        3 => drop(heap::measured(|| decode_block(bytes))),
        _ => {
            if let Ok(account) = heap::measured(|| Account::decode(bytes)) {
                let mut again = Vec::new();
                account.encode(&mut again);
                assert_eq!(Account::decode(&again), Ok(account));
            }
        }
    }
}
