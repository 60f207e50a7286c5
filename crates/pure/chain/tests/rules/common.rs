use alloy_consensus::{SignableTransaction, TxEip1559, transaction::RlpEcdsaEncodableTx};
use alloy_eips::{Encodable2718, eip1559::BaseFeeParams};
use alloy_primitives::{Address, B256, Bloom, Bytes, Signature, U256, b256, keccak256};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::{fs::File, io::Read, path::Path, sync::LazyLock};
use tandem_chain::*;

/// Chain built by geth: its rules, its genesis, its payloads from block 1 on.
pub struct Demo {
    pub spec: ChainSpec,
    pub genesis: Header,
    pub payloads: Vec<(Payload, PayloadSidecar)>,
}

const DEMO_STATE_ROOT: B256 =
    b256!("0x7454fe9af8e738b1dec512c0dae2e803e8f1bed357f9ea72d0ab279e3f0cf586");

pub static DEMO: LazyLock<Demo> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../corpora/demo");
    let spec = ChainSpec::from_genesis_json(&gunzip(&folder.join("genesis.json.gz"))).unwrap();
    let lines = gunzip(&folder.join("payloads.jsonl.gz"));
    let payloads = lines.lines().map(read_call).collect();
    Demo { genesis: spec.genesis_header(DEMO_STATE_ROOT), spec, payloads }
});

pub fn gunzip(path: &Path) -> String {
    let mut text = String::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

fn read_call(line: &str) -> (Payload, PayloadSidecar) {
    let call: Value = serde_json::from_str(line).unwrap();
    let sidecar = PayloadSidecar {
        versioned_hashes: serde_json::from_value(call["versionedHashes"].clone()).unwrap(),
        parent_beacon_block_root: serde_json::from_value(call["parentBeaconBlockRoot"].clone())
            .unwrap(),
        execution_requests: serde_json::from_value(call["executionRequests"].clone()).unwrap(),
    };
    (serde_json::from_value(call["executionPayload"].clone()).unwrap(), sidecar)
}

/// RLP of an empty list.
pub const EMPTY_LIST: [u8; 1] = [0xc0];

/// Returns a genesis file with these additional entries in `config`.
pub fn genesis_json(config: &str) -> String {
    let comma = if config.is_empty() { "" } else { "," };
    format!(
        r#"{{"config": {{"chainId": 1, "londonBlock": 0, "terminalTotalDifficulty": 0{comma}
            {config}}}, "gasLimit": "0x1c9c380", "difficulty": "0x0"}}"#
    )
}

pub fn spec(config: &str) -> ChainSpec {
    ChainSpec::from_genesis_json(&genesis_json(config)).unwrap()
}

/// Returns a chain of id 1 with all forks up to this one active from genesis on.
pub fn spec_of(fork: Fork) -> ChainSpec {
    let keys = ["shanghaiTime", "cancunTime", "pragueTime", "osakaTime", "amsterdamTime"];
    let active = keys.iter().zip(&Fork::MERGED[1..]).filter(|(_, other)| **other <= fork);
    let entries: Vec<_> = active.map(|(key, _)| format!("\"{key}\": 0")).collect();
    spec(&entries.join(","))
}

/// Returns a valid empty header on top of this parent.
pub fn child(spec: &ChainSpec, parent: &Header) -> Header {
    let timestamp = parent.timestamp + 12;
    let fork = spec.fork_at(timestamp);
    let params = spec.blob_params_at(timestamp);
    Header {
        parent_hash: parent.hash_slow(),
        number: parent.number + 1,
        timestamp,
        gas_limit: parent.gas_limit,
        base_fee_per_gas: parent.next_block_base_fee(BaseFeeParams::ethereum()),
        withdrawals_root: (fork >= Fork::Shanghai).then_some(alloy_consensus::EMPTY_ROOT_HASH),
        blob_gas_used: params.map(|_| 0),
        excess_blob_gas: params
            .map(|params| parent.next_block_excess_blob_gas(params).unwrap_or(0)),
        parent_beacon_block_root: (fork >= Fork::Cancun).then_some(B256::ZERO),
        requests_hash: (fork >= Fork::Prague).then_some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH),
        block_access_list_hash: (fork >= Fork::Amsterdam).then(|| keccak256(EMPTY_LIST)),
        slot_number: (fork >= Fork::Amsterdam).then_some(0),
        ..Header::default()
    }
}

/// Returns the payload with the fields of this header and these transactions; its hash is wrong.
pub fn payload(header: &Header, transactions: Vec<Bytes>) -> (Payload, PayloadSidecar) {
    let payload = Payload {
        parent_hash: header.parent_hash,
        fee_recipient: header.beneficiary,
        state_root: header.state_root,
        receipts_root: header.receipts_root,
        logs_bloom: Bloom::ZERO,
        prev_randao: header.mix_hash,
        block_number: header.number,
        gas_limit: header.gas_limit,
        gas_used: header.gas_used,
        timestamp: header.timestamp,
        extra_data: header.extra_data.clone(),
        base_fee_per_gas: U256::from(header.base_fee_per_gas.unwrap_or(0)),
        block_hash: B256::ZERO,
        transactions,
        withdrawals: header.withdrawals_root.map(|_| Vec::new()),
        blob_gas_used: header.blob_gas_used,
        excess_blob_gas: header.excess_blob_gas,
        block_access_list: header.block_access_list_hash.map(|_| EMPTY_LIST.into()),
        slot_number: header.slot_number,
    };
    let sidecar = PayloadSidecar {
        versioned_hashes: None,
        parent_beacon_block_root: header.parent_beacon_block_root,
        execution_requests: header.requests_hash.map(|_| Vec::new()),
    };
    (payload, sidecar)
}

/// Returns the block of a payload after correcting its hash, as a malicious builder would.
pub fn rehash(mut payload: Payload, sidecar: &PayloadSidecar) -> Result<Block, BlockError> {
    match Block::from_payload(payload.clone(), sidecar) {
        Err(BlockError::BlockHash { want, .. }) => {
            payload.block_hash = want;
            Block::from_payload(payload, sidecar)
        }
        result => result,
    }
}

/// Checks all rules that need no execution.
pub fn check(
    spec: &ChainSpec,
    parent: &Header,
    payload: Payload,
    sidecar: &PayloadSidecar,
) -> Result<Block, BlockError> {
    let block = rehash(payload, sidecar)?;
    validate_header(spec, &block.header, parent)?;
    validate_body(spec, &block)?;
    recover_senders(&block)?;
    Ok(block)
}

/// Returns the EIP-2718 bytes of a transaction under some signature.
pub fn raw<T>(transaction: T) -> Bytes
where
    T: SignableTransaction<Signature> + RlpEcdsaEncodableTx,
    Transaction: From<alloy_consensus::Signed<T>>,
{
    let signed = transaction.into_signed(Signature::test_signature());
    Transaction::from(signed).encoded_2718().into()
}

/// Returns a plain transaction for chain 1.
pub fn transfer() -> TxEip1559 {
    TxEip1559 {
        chain_id: 1,
        gas_limit: 21_000,
        to: Address::repeat_byte(7).into(),
        ..Default::default()
    }
}
