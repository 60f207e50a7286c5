//! Empty blocks of Cancun, made without a node. Without transactions, withdrawals and system
//! contracts the state never changes, so all of them have the genesis' state root.

use crate::client::request;
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Header};
use alloy_primitives::{B256, Bytes};
use serde_json::json;
use std::{fs, path::Path};

const GAS_LIMIT: u64 = 30_000_000;
/// The price at which the base fee of empty blocks no longer falls.
const BASE_FEE: u64 = 7;
const GENESIS_TIME: u64 = 0x1000;
const SLOT_SECONDS: u64 = 12;

/// The properties of a block that its children need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tip {
    pub number: u64,
    pub hash: B256,
}

/// Writes a genesis file of one account without a fork's system contracts.
///
/// # Errors
/// If the file cannot be written.
pub fn write_genesis(path: &Path) -> anyhow::Result<()> {
    let mut config = json!({"chainId": 1337, "terminalTotalDifficulty": 0,
        "terminalTotalDifficultyPassed": true, "shanghaiTime": 0, "cancunTime": 0,
        "blobSchedule": {"cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477}}});
    for fork in [
        "homestead",
        "eip150",
        "eip155",
        "eip158",
        "byzantium",
        "constantinople",
        "petersburg",
        "istanbul",
        "berlin",
        "london",
        "mergeNetsplit",
    ] {
        config[format!("{fork}Block")] = json!(0);
    }
    let genesis = json!({"config": config, "nonce": "0x0", "extraData": "0x", "difficulty": "0x0",
        "timestamp": format!("{GENESIS_TIME:#x}"), "gasLimit": format!("{GAS_LIMIT:#x}"),
        "baseFeePerGas": format!("{BASE_FEE:#x}"),
        "alloc": {"0x00000000000000000000000000000000000000aa": {"balance": "0x1"}}});
    Ok(fs::write(path, genesis.to_string())?)
}

/// Returns the slot of a block with this time, 0 for the genesis.
pub fn slot_of(time: u64) -> u64 {
    time.saturating_sub(GENESIS_TIME) / SLOT_SECONDS
}

/// Makes the empty child of a block in the slot `slot` on a branch. Returns the block and the
/// request that sends it to a node. Branches differ by their extra data.
pub fn child(parent: Tip, state_root: B256, slot: u64, branch: u16) -> (Tip, String) {
    let header = Header {
        parent_hash: parent.hash,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        state_root,
        transactions_root: EMPTY_ROOT_HASH,
        receipts_root: EMPTY_ROOT_HASH,
        number: parent.number + 1,
        gas_limit: GAS_LIMIT,
        timestamp: GENESIS_TIME + slot * SLOT_SECONDS,
        extra_data: Bytes::copy_from_slice(&branch.to_be_bytes()),
        base_fee_per_gas: Some(BASE_FEE),
        withdrawals_root: Some(EMPTY_ROOT_HASH),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        ..Header::default()
    };
    let tip = Tip { number: header.number, hash: header.hash_slow() };
    let payload = json!({"parentHash": header.parent_hash, "feeRecipient": header.beneficiary,
        "stateRoot": state_root, "receiptsRoot": EMPTY_ROOT_HASH, "logsBloom": header.logs_bloom,
        "prevRandao": B256::ZERO, "blockNumber": format!("{:#x}", header.number),
        "gasLimit": format!("{GAS_LIMIT:#x}"), "gasUsed": "0x0",
        "timestamp": format!("{:#x}", header.timestamp), "extraData": header.extra_data,
        "baseFeePerGas": format!("{BASE_FEE:#x}"), "blockHash": tip.hash, "transactions": [],
        "withdrawals": [], "blobGasUsed": "0x0", "excessBlobGas": "0x0"});
    (tip, request("engine_newPayloadV3", &json!([payload, [], B256::ZERO])))
}

/// Returns the request that makes a block the head, with these safe and finalized blocks.
pub fn forkchoice(head: B256, safe: B256, finalized: B256) -> String {
    let state = json!({"headBlockHash": head, "safeBlockHash": safe,
        "finalizedBlockHash": finalized});
    request("engine_forkchoiceUpdatedV3", &json!([state, null]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_and_slots_make_different_blocks() {
        let genesis = Tip { number: 0, hash: B256::repeat_byte(1) };
        let (a, body) = child(genesis, B256::ZERO, 1, 0);
        let (b, _) = child(genesis, B256::ZERO, 1, 1);
        let (c, _) = child(genesis, B256::ZERO, 2, 0);
        assert!(a.hash != b.hash && a.hash != c.hash && b.hash != c.hash);
        assert_eq!(a.number, 1);
        assert!(body.contains(&a.hash.to_string()));
    }
}
