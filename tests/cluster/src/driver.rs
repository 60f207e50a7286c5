//! The consensus client's side of a chain: the calls for one block after the other.

use crate::{
    client::{Client, PayloadStatus, decode_status},
    payload::new_payload,
};
use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tandem_auth::Secret;
use tandem_chain::{Fork, Payload, PayloadSidecar, decode_transaction};

use crate::wait::wait;

/// Recipient of the fees of proposed blocks.
pub const FEE_RECIPIENT: &str = "0x0e00000000000000000000000000000000000001";

/// Payload that an execution client built.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Fork of the payload.
    pub fork: Fork,
    /// The payload.
    pub payload: Payload,
    /// The other parameters of newPayload.
    pub sidecar: PayloadSidecar,
    /// Income of the fee recipient, in wei, as the client states it.
    pub value: u128,
    /// `blobsBundle`.
    pub bundle: Value,
}

/// Returns a client of the Engine API of a geth in this folder, whose port its log names.
pub async fn geth_engine(folder: &Path, name: &str) -> Client {
    let log = folder.join(name).with_extension("log");
    let address = wait("geth's Engine API", async || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let line = text
            .lines()
            .find(|it| it.contains("HTTP server started") && it.contains("auth=true"))?;
        let address = line.split("endpoint=").nth(1)?.split_whitespace().next()?;
        address.parse().ok()
    })
    .await;
    let secret = Secret::load(&folder.join(name).join("geth/jwtsecret")).unwrap();
    Client::new(address, Some(secret))
}

/// Returns the attributes of a block at this time. `salt` distinguishes payloads.
pub fn attributes(fork: Fork, timestamp: u64, salt: u8) -> Value {
    let mut attributes = json!({
        "timestamp": format!("{timestamp:#x}"),
        "prevRandao": B256::repeat_byte(salt),
        "suggestedFeeRecipient": FEE_RECIPIENT,
        "withdrawals": [
            {"index": "0x7", "validatorIndex": "0x9", "amount": "0x3b9aca00",
                "address": "0x0d00000000000000000000000000000000000001"},
            {"index": "0x8", "validatorIndex": "0xa", "amount": "0x0",
                "address": "0x0d00000000000000000000000000000000000002"},
        ],
        "parentBeaconBlockRoot": B256::repeat_byte(0xbe),
    });
    if fork >= Fork::Amsterdam {
        attributes["slotNumber"] = json!(format!("{:#x}", timestamp / 12));
        attributes["targetGasLimit"] = json!("0x3938700");
    }
    attributes
}

/// Makes a block the head, and begins to build on it if there are attributes. Returns the payload's
/// id.
pub async fn choose(
    engine: &mut Client,
    fork: Fork,
    head: B256,
    attributes: Value,
) -> Option<String> {
    let state = json!({
        "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
    });
    let (method, params) = match fork {
        Fork::Amsterdam => ("engine_forkchoiceUpdatedV4", json!([state, attributes, null])),
        _ => ("engine_forkchoiceUpdatedV3", json!([state, attributes])),
    };
    let answer = engine.call(method, params).await.unwrap();
    let status = decode_status(answer["payloadStatus"].clone());
    assert_eq!(status.verdict(), ("VALID", Some(head)), "{status:?}");
    answer["payloadId"].as_str().map(str::to_owned)
}

/// Returns the payload of a build, on Osaka's or Amsterdam's rules.
pub async fn take(engine: &mut Client, fork: Fork, id: &str) -> Proposal {
    let version = if fork >= Fork::Amsterdam { 6 } else { 5 };
    let method = format!("engine_getPayloadV{version}");
    read(fork, &engine.call(&method, json!([id])).await.unwrap())
}

/// Reads an answer of getPayload, on Osaka's or Amsterdam's rules.
pub fn read(fork: Fork, answer: &Value) -> Proposal {
    let payload: Payload = serde_json::from_value(answer["executionPayload"].clone()).unwrap();
    let decoded = payload.transactions.iter().map(|raw| decode_transaction(raw).unwrap());
    let hashes = decoded.flat_map(|it| it.blob_versioned_hashes().unwrap_or_default().to_vec());
    let sidecar = PayloadSidecar {
        versioned_hashes: Some(hashes.collect()),
        parent_beacon_block_root: Some(B256::repeat_byte(0xbe)),
        execution_requests: serde_json::from_value(answer["executionRequests"].clone()).unwrap(),
    };
    let value = answer["blockValue"].as_str().unwrap().trim_start_matches("0x");
    let value = u128::from_str_radix(value, 16).unwrap();
    Proposal { fork, payload, sidecar, value, bundle: answer["blobsBundle"].clone() }
}

impl Proposal {
    /// Sends the payload to an execution client.
    pub async fn send(&self, engine: &mut Client) -> PayloadStatus {
        let (method, params) = new_payload(self.fork, &self.payload, &self.sidecar);
        decode_status(engine.call(method, params).await.unwrap())
    }
}
