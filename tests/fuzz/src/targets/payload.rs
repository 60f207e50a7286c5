//! Valid payloads with changes that claim their own hash again. They reach the code behind the
//! check of the block hash, up to the EVM and the state root.

use super::rpc::NODE;
use crate::{Reader, Target, seeds::OSAKA, structures};
use alloy_primitives::{Address, B256, Bloom, U256};
use tandem_chain::{Block, BlockError, Payload, PayloadSidecar, Withdrawal};

/// Target for scripts of changes to a payload.
pub const TARGET: Target = Target {
    name: "payload",
    bytes_per_byte: 0,
    structures: structures::none,
    constant: 0,
    input_len_max: 4 << 10,
    mutations: 400,
    seeds,
    dictionary: &[b"\x08\xff\xff\xff\xff\xff\xff\xff\xff", b"\x20", b"\x00"],
    run: send,
};

/// Number of fields that a change may name.
const FIELDS: u8 = 24;

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![0], vec![1]];
    for block in 0..3 {
        for field in 0..FIELDS {
            for value in [0_u8, 1, 0xff] {
                let mut seed = vec![block, field, 8];
                seed.extend([value; 40]);
                seeds.push(seed);
            }
        }
    }
    for raw in crate::seeds::transactions().iter().step_by(4) {
        let mut seed = vec![1, 17, 0];
        seed.extend((raw.len() as u16).to_le_bytes());
        seed.extend(raw);
        seeds.push(seed);
    }
    seeds
}

/// Makes one change to a payload or its sidecar.
fn change(reader: &mut Reader<'_>, payload: &mut Payload, sidecar: &mut PayloadSidecar) {
    let index = |reader: &mut Reader<'_>, len: usize| usize::from(reader.byte()) % len.max(1);
    match reader.byte() % FIELDS {
        0 => payload.parent_hash = B256::from(reader.word()),
        1 => payload.fee_recipient = Address::from_word(reader.word().into()),
        2 => payload.state_root = reader.word().into(),
        3 => payload.receipts_root = reader.word().into(),
        4 => payload.logs_bloom = Bloom::repeat_byte(reader.byte()),
        5 => payload.prev_randao = reader.word().into(),
        6 => payload.block_number = reader.number(),
        7 => payload.gas_limit = reader.number(),
        8 => payload.gas_used = reader.number(),
        9 => payload.timestamp = reader.number(),
        10 => payload.extra_data = reader.bytes().to_vec().into(),
        11 => payload.base_fee_per_gas = reader.word(),
        12 => payload.blob_gas_used = (reader.byte() != 0).then(|| reader.number()),
        13 => payload.excess_blob_gas = (reader.byte() != 0).then(|| reader.number()),
        14 => payload.withdrawals = None,
        15 => payload.withdrawals.get_or_insert_default().push(Withdrawal {
            index: reader.number(),
            validator_index: reader.number(),
            address: Address::from_word(reader.word().into()),
            amount: reader.number(),
        }),
        16 => payload.transactions.clear(),
        17 => {
            let at = index(reader, payload.transactions.len() + 1);
            payload.transactions.insert(at, reader.bytes().to_vec().into());
        }
        18 => {
            let at = index(reader, payload.transactions.len());
            if at < payload.transactions.len() {
                payload.transactions.remove(at);
            }
        }
        19 => {
            let at = index(reader, payload.transactions.len());
            let place = usize::from(reader.byte());
            if let Some(raw) = payload.transactions.get_mut(at) {
                let mut bytes = raw.to_vec();
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = reader.byte();
                }
                *raw = bytes.into();
            }
        }
        20 => sidecar.parent_beacon_block_root = (reader.byte() != 0).then(|| reader.word().into()),
        21 => sidecar.versioned_hashes = None,
        22 => sidecar.execution_requests = Some(vec![reader.bytes().to_vec().into()]),
        _ => sidecar.execution_requests = None,
    }
}

fn send(input: &[u8]) {
    let mut reader = Reader(input);
    // Genesis and the first block are known; the third block's parent is not.
    let block = usize::from(reader.byte()) % 3;
    let (mut payload, mut sidecar) =
        (OSAKA.blocks[block].payload.clone(), OSAKA.blocks[block].sidecar.clone());
    while !reader.is_empty() {
        change(&mut reader, &mut payload, &mut sidecar);
    }
    // The node itself reports the expected hash.
    match Block::from_payload(payload.clone(), &sidecar) {
        Err(BlockError::BlockHash { want, .. }) => payload.block_hash = want,
        Err(_) if payload.base_fee_per_gas > U256::from(u64::MAX) => {}
        _ => {}
    }
    let node = &*NODE;
    // An error is the engine's own failure, such as too many pending blocks. A panic of its thread
    // ends the process, or all later answers.
    if let Err(error) = node.wait(node.handle().new_payload(4, payload, sidecar)) {
        let text = error.to_string();
        assert!(!text.contains("thread failed") && !text.contains("stopped"), "{text}");
    }
}
