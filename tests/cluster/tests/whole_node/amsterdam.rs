//! Amsterdam: blocks over its activation, payloads that are built, and access lists (execution-apis,
//! `src/engine/amsterdam.md`; EIP-7928).

use alloy_primitives::{B256, Bytes, U256};
use serde_json::{Value, json};
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_cluster_tests::{
    Builder, Built, Contents, Forks, GENESIS_TIME, Node, decode_status, new_payload, reseal,
};

/// Seconds from genesis to Amsterdam, longer than the few blocks before it take.
const AMSTERDAM_SECONDS: u64 = 1_000;
const WITHDRAWAL: &str = "0x0d00000000000000000000000000000000000001";

/// Starts a node on an Osaka chain of three blocks that reaches Amsterdam later.
async fn start(seed: u64) -> (Builder, Node, Vec<Built>) {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut genesis: Value = serde_json::from_str(builder.genesis_json()).unwrap();
    genesis["config"]["amsterdamTime"] = json!(GENESIS_TIME + AMSTERDAM_SECONDS);
    let mut node = Node::start(&genesis.to_string()).await;
    let chain = builder.chain(builder.genesis(), seed, 3, Contents::Random(6));
    for built in &chain {
        node.extend(built).await;
    }
    (builder, node, chain)
}

fn attributes(timestamp: u64, slot: u64, gas_limit: u64) -> Value {
    json!({
        "timestamp": format!("{timestamp:#x}"),
        "prevRandao": B256::repeat_byte(5),
        "suggestedFeeRecipient": "0x0e00000000000000000000000000000000000001",
        "withdrawals": [
            {"index": "0x1", "validatorIndex": "0x1", "amount": "0x7", "address": WITHDRAWAL},
            {"index": "0x2", "validatorIndex": "0x1", "amount": "0x0",
                "address": "0x0d00000000000000000000000000000000000002"},
        ],
        "parentBeaconBlockRoot": B256::repeat_byte(0xbe),
        "slotNumber": format!("{slot:#x}"),
        "targetGasLimit": format!("{gas_limit:#x}"),
    })
}

/// Builds a payload on the head and returns it with its sidecar.
async fn build(node: &mut Node, head: B256, attributes: &Value) -> (Payload, PayloadSidecar) {
    let state = json!({
        "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
    });
    let columns = format!("0x{}", "ff".repeat(16));
    let params = json!([state, attributes, columns]);
    let answer = node.engine.call("engine_forkchoiceUpdatedV4", params).await.unwrap();
    let id = answer["payloadId"].as_str().expect("a build has begun").to_owned();
    let older = node.engine.call("engine_getPayloadV5", json!([id])).await;
    assert_eq!(older.unwrap_err().code, -38005);
    let answer = node.engine.call("engine_getPayloadV6", json!([id])).await.unwrap();
    let payload = serde_json::from_value(answer["executionPayload"].clone()).unwrap();
    let sidecar = PayloadSidecar {
        versioned_hashes: Some(Vec::new()),
        parent_beacon_block_root: Some(B256::repeat_byte(0xbe)),
        execution_requests: serde_json::from_value(answer["executionRequests"].clone()).unwrap(),
    };
    (payload, sidecar)
}

/// Sends a payload and returns status and latest valid hash.
async fn send(
    node: &mut Node,
    payload: &Payload,
    sidecar: &PayloadSidecar,
) -> (String, Option<B256>) {
    let (method, params) = new_payload(Fork::Amsterdam, payload, sidecar);
    let status = decode_status(node.engine.call(method, params).await.unwrap());
    let (verdict, latest) = status.verdict();
    (verdict.to_owned(), latest)
}

/// Checks the access list that JSON-RPC shows of a block without transactions. Withdrawals and the
/// system calls after the transactions have index 1.
async fn assert_shown(node: &mut Node, block: B256, slot: u64) {
    let shown = node.http.call("eth_getBlockAccessList", json!([block])).await.unwrap();
    let accounts = shown.as_array().unwrap();
    let of = |address: &str| {
        accounts.iter().find(|account| account["address"] == address).expect("a listed account")
    };
    let paid = of(WITHDRAWAL);
    let balance = (41 - slot) * 7_000_000_000;
    let change = json!({"index": "0x1", "value": format!("{balance:#x}")});
    assert_eq!(paid["balanceChanges"], json!([change]));
    for empty in ["storageChanges", "storageReads", "nonceChanges", "codeChanges"] {
        assert_eq!(paid[empty], json!([]), "{empty}");
    }
    // The counting queue of builders' deposits changes its slot once in each block.
    let queue = of("0x0000bff46984e3725691fa540a8c7589300d8282");
    let calls = B256::from(U256::from(41 - slot));
    let change = json!({"key": B256::ZERO, "changes": [{"index": "0x1", "value": calls}]});
    assert_eq!(queue["storageChanges"], json!([change]));
}

async fn body(node: &mut Node, version: u8, hash: B256) -> Value {
    let method = format!("engine_getPayloadBodiesByHashV{version}");
    node.engine.call(&method, json!([[hash]])).await.unwrap()[0].take()
}

/// Blocks over the activation, built and validated, with their lists kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_over_the_activation_are_built_and_valid() {
    let (_, mut node, chain) = start(91_000).await;
    let (mut head, mut limit) = (chain[2].hash, chain[2].header.gas_limit);
    for number in 0..3 {
        let timestamp = GENESIS_TIME + AMSTERDAM_SECONDS + 12 * number;
        // Slot numbers need not rise.
        let asked = attributes(timestamp, 40 - number, 0);
        let (payload, sidecar) = build(&mut node, head, &asked).await;
        assert_eq!(payload.slot_number, Some(40 - number));
        assert!(payload.gas_limit < limit, "the target decides");
        let valid = ("VALID".to_owned(), Some(payload.block_hash));
        assert_eq!(send(&mut node, &payload, &sidecar).await, valid);
        node.set_head(payload.block_hash).await;
        let list = json!(payload.block_access_list.clone().unwrap());
        assert_eq!(body(&mut node, 2, payload.block_hash).await["blockAccessList"], list);
        assert!(body(&mut node, 1, payload.block_hash).await.get("blockAccessList").is_none());
        let raw = node.http.call("debug_getRawBlockAccessList", json!(["latest"])).await;
        assert_eq!(raw.unwrap(), list);
        assert_shown(&mut node, payload.block_hash, 40 - number).await;
        (head, limit) = (payload.block_hash, payload.gas_limit);
    }
    assert_eq!(body(&mut node, 2, chain[0].hash).await["blockAccessList"], Value::Null);
    // No list before Amsterdam, and none of an unknown block.
    for block in [chain[0].hash, B256::repeat_byte(9)] {
        let shown = node.http.call("eth_getBlockAccessList", json!([block])).await;
        assert_eq!(shown.unwrap(), Value::Null);
        let error =
            node.http.call("debug_getRawBlockAccessList", json!([block])).await.unwrap_err();
        assert_eq!(error.code, -32001);
    }
    let slot = json!(["0x0000bff46984e3725691fa540a8c7589300d8282", "0x0", "latest"]);
    let calls = node.http.call("eth_getStorageAt", slot).await.unwrap();
    assert_eq!(calls, json!(B256::from(U256::from(3))), "a system call in each block");
    let block = node.http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(block["slotNumber"], "0x26");
    assert!(block["blockAccessListHash"].is_string());
    node.stop_and_verify().await;
}

/// The head may move between branches on both sides of the activation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorg_crosses_the_activation_in_both_directions() {
    let (mut builder, mut node, chain) = start(92_000).await;
    let asked = attributes(GENESIS_TIME + AMSTERDAM_SECONDS, 7, 30_000_000);
    let (payload, sidecar) = build(&mut node, chain[2].hash, &asked).await;
    let valid = ("VALID".to_owned(), Some(payload.block_hash));
    assert_eq!(send(&mut node, &payload, &sidecar).await, valid);
    node.set_head(payload.block_hash).await;
    let branch = builder.chain(chain[1].hash, 92_001, 3, Contents::Random(6));
    for built in &branch {
        node.extend(built).await;
    }
    node.assert_head(&branch[2]).await;
    node.set_head(payload.block_hash).await;
    assert_eq!(send(&mut node, &payload, &sidecar).await, valid);
    node.stop_and_verify().await;
}

/// A wrong list makes the block invalid on its valid parent, whatever is wrong with it. One that does
/// not decode says nothing about the ancestors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_with_another_access_list_is_invalid() {
    let (_, mut node, chain) = start(93_000).await;
    let parent = chain[2].hash;
    let asked = attributes(GENESIS_TIME + AMSTERDAM_SECONDS, 7, 30_000_000);
    let (payload, sidecar) = build(&mut node, parent, &asked).await;
    let list = payload.block_access_list.clone().unwrap();
    let cut = list.slice(..list.len() - 1);
    let longer = Bytes::from([&list[..], &[0xc0]].concat());
    // An empty entry for an address above all others.
    let entry = [&[0xda, 0x94][..], &[0xff; 20], &[0xc0; 5]].concat();
    let (start, content) = list.split_at(3);
    assert_eq!(start[0], 0xf9, "a list of some hundred bytes");
    let len = u16::from_be_bytes([start[1], start[2]]) + entry.len() as u16;
    let more = [&[0xf9][..], &len.to_be_bytes(), content, &entry].concat();
    let twice = [&[0xf9][..], &(len + entry.len() as u16).to_be_bytes(), content, &entry, &entry];
    for (other, latest, kind) in [
        (Bytes::from([0xc0]), Some(parent), "access_list: "),
        (more.into(), Some(parent), "access_list: "),
        (twice.concat().into(), Some(parent), "access_list_form: "),
        (cut, None, "access_list_encoding: "),
        (longer, None, "access_list_encoding: "),
        (Bytes::new(), None, "access_list_encoding: "),
    ] {
        let mut changed = Payload { block_access_list: Some(other.clone()), ..payload.clone() };
        reseal(&mut changed, &sidecar);
        let (method, params) = new_payload(Fork::Amsterdam, &changed, &sidecar);
        let answer = node.engine.call(method, params).await.unwrap();
        let error = answer["validationError"].as_str().unwrap_or_default();
        assert!(error.starts_with(kind), "{other}: {answer}");
        assert_eq!(
            (&answer["status"], &answer["latestValidHash"]),
            (&json!("INVALID"), &json!(latest))
        );
    }
    // The block with another slot is another valid block, because no code reads the slot.
    let mut sibling = Payload { slot_number: Some(8), ..payload.clone() };
    reseal(&mut sibling, &sidecar);
    for payload in [&payload, &sibling] {
        let valid = ("VALID".to_owned(), Some(payload.block_hash));
        assert_eq!(send(&mut node, payload, &sidecar).await, valid);
    }
    let (_, params) = new_payload(Fork::Amsterdam, &payload, &sidecar);
    let older = node.engine.call("engine_newPayloadV4", params.clone()).await;
    assert_eq!(older.unwrap_err().code, -32602, "two members more than V4 has");
    let mut early = params;
    early[0]["timestamp"] = json!(format!("{:#x}", GENESIS_TIME + AMSTERDAM_SECONDS - 1));
    let early = node.engine.call("engine_newPayloadV5", early).await;
    assert_eq!(early.unwrap_err().code, -38005);
    node.stop_and_verify().await;
}
