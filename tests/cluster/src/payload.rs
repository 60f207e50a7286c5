//! Blocks as the Engine API takes them.

use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Header,
    proofs::{calculate_withdrawals_root, ordered_trie_root_encoded},
};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, keccak256};
use serde_json::{Value, json};
use tandem_chain::{Fork, Payload, PayloadSidecar};

/// Returns the hash that a payload must claim, from its fields and its sidecar.
pub fn block_hash(payload: &Payload, sidecar: &PayloadSidecar) -> B256 {
    let requests = sidecar.execution_requests.as_ref();
    Header {
        parent_hash: payload.parent_hash,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: payload.fee_recipient,
        state_root: payload.state_root,
        transactions_root: ordered_trie_root_encoded(&payload.transactions),
        receipts_root: payload.receipts_root,
        logs_bloom: payload.logs_bloom,
        number: payload.block_number,
        gas_limit: payload.gas_limit,
        gas_used: payload.gas_used,
        timestamp: payload.timestamp,
        extra_data: payload.extra_data.clone(),
        mix_hash: payload.prev_randao,
        base_fee_per_gas: Some(payload.base_fee_per_gas.to()),
        withdrawals_root: payload.withdrawals.as_deref().map(calculate_withdrawals_root),
        blob_gas_used: payload.blob_gas_used,
        excess_blob_gas: payload.excess_blob_gas,
        parent_beacon_block_root: sidecar.parent_beacon_block_root,
        requests_hash: requests.map(|list| Requests::new(list.clone()).requests_hash()),
        block_access_list_hash: payload.block_access_list.as_ref().map(keccak256),
        slot_number: payload.slot_number,
        ..Header::default()
    }
    .hash_slow()
}

/// Makes a changed payload claim its own hash again.
pub fn reseal(payload: &mut Payload, sidecar: &PayloadSidecar) {
    payload.block_hash = block_hash(payload, sidecar);
}

/// Returns the newPayload method of a fork, and its parameters.
pub fn new_payload(
    fork: Fork,
    payload: &Payload,
    sidecar: &PayloadSidecar,
) -> (&'static str, Value) {
    let (hashes, root) = (&sidecar.versioned_hashes, &sidecar.parent_beacon_block_root);
    match fork {
        Fork::Shanghai => ("engine_newPayloadV2", json!([payload])),
        Fork::Cancun => ("engine_newPayloadV3", json!([payload, hashes, root])),
        Fork::Prague | Fork::Osaka => {
            ("engine_newPayloadV4", json!([payload, hashes, root, sidecar.execution_requests]))
        }
        Fork::Amsterdam => {
            ("engine_newPayloadV5", json!([payload, hashes, root, sidecar.execution_requests]))
        }
        _ => ("engine_newPayloadV1", json!([payload])),
    }
}
