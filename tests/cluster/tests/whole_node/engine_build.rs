//! Payload building: `payloadAttributes` of engine_forkchoiceUpdated, and engine_getPayload in all
//! versions (execution-apis, `src/engine`, paris.md to osaka.md).

use alloy_primitives::B256;
use serde_json::{Value, json};
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_cluster_tests::{
    Builder, Built, Contents, FORKS, Forks, Node, RpcError, decode_status, new_payload,
};

const TRANSACTIONS: Contents = Contents::Random(6);

/// Starts a node whose head is the last of a few blocks.
async fn start(fork: Fork, seed: u64) -> (Builder, Node, Built) {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let mut node = Node::start(builder.genesis_json()).await;
    let chain = builder.chain(builder.genesis(), seed, 3, TRANSACTIONS);
    for built in &chain {
        node.extend(built).await;
    }
    (builder, node, chain[2].clone())
}

/// Returns the versions of forkchoiceUpdated and getPayload for a fork's payloads.
fn versions(fork: Fork) -> (u8, u8) {
    match fork {
        Fork::Shanghai => (2, 2),
        Fork::Cancun => (3, 3),
        Fork::Prague => (3, 4),
        Fork::Osaka => (3, 5),
        _ => (1, 1),
    }
}

/// Returns the attributes that a consensus client would send; `salt` distinguishes payloads.
fn attributes(fork: Fork, head: &Built, salt: u8) -> Value {
    let mut attributes = json!({
        "timestamp": format!("{:#x}", head.header.timestamp + 12),
        "prevRandao": B256::repeat_byte(salt),
        "suggestedFeeRecipient": "0x0e00000000000000000000000000000000000001",
    });
    if fork >= Fork::Shanghai {
        attributes["withdrawals"] = json!([
            {
                "index": "0x7", "validatorIndex": "0x9", "amount": "0x3b9aca00",
                "address": "0x0d00000000000000000000000000000000000001",
            },
            {
                "index": "0x8", "validatorIndex": "0xa", "amount": "0x0",
                "address": "0x0d00000000000000000000000000000000000002",
            },
        ]);
    }
    if fork >= Fork::Cancun {
        attributes["parentBeaconBlockRoot"] = json!(B256::repeat_byte(0xbe));
    }
    attributes
}

/// Begins to build on the head and returns the payload's id.
async fn begin(node: &mut Node, fork: Fork, head: &Built, attributes: &Value) -> String {
    let method = format!("engine_forkchoiceUpdatedV{}", versions(fork).0);
    let state = json!({
        "headBlockHash": head.hash, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
    });
    let answer = node.engine.call(&method, json!([state, attributes])).await.unwrap();
    let status = decode_status(answer["payloadStatus"].clone());
    assert_eq!(status.verdict(), ("VALID", Some(head.hash)));
    let id = answer["payloadId"].as_str().expect("a build has begun").to_owned();
    assert_eq!(id.len(), 2 + 16, "eight bytes: {id}");
    id
}

async fn get(node: &mut Node, version: u8, id: &str) -> Result<Value, RpcError> {
    node.engine.call(&format!("engine_getPayloadV{version}"), json!([id])).await
}

/// Returns the payload in an answer, and the sidecar for newPayload.
fn unpack(version: u8, answer: &Value) -> (Payload, PayloadSidecar) {
    let payload = if version == 1 { answer } else { &answer["executionPayload"] };
    let payload = serde_json::from_value(payload.clone()).unwrap();
    let sidecar = PayloadSidecar {
        versioned_hashes: (version >= 3).then(Vec::new),
        parent_beacon_block_root: (version >= 3).then(|| B256::repeat_byte(0xbe)),
        execution_requests: (version >= 4)
            .then(|| serde_json::from_value(answer["executionRequests"].clone()).unwrap()),
    };
    (payload, sidecar)
}

/// paris.md, "Payload building", points 1 and 2, and the results of getPayload in each version. The
/// payload equals the one that the oracle builds from the same attributes, and the node accepts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_built_from_its_attributes_on_every_fork() {
    for fork in FORKS {
        let (mut builder, mut node, head) = start(fork, 51_000).await;
        let (_, version) = versions(fork);
        let asked = attributes(fork, &head, 1);
        let id = begin(&mut node, fork, &head, &asked).await;
        let answer = get(&mut node, version, &id).await.unwrap();
        let (payload, sidecar) = unpack(version, &answer);
        for (member, value) in [
            ("timestamp", json!(format!("{:#x}", payload.timestamp))),
            ("prevRandao", json!(payload.prev_randao)),
            ("suggestedFeeRecipient", json!(payload.fee_recipient)),
            ("withdrawals", json!(payload.withdrawals)),
        ] {
            assert_eq!(asked.get(member).unwrap_or(&Value::Null), &value, "{fork}: {member}");
        }
        assert_eq!(payload.parent_hash, head.hash);
        assert!(payload.transactions.is_empty());

        let want = builder.build_empty(&payload, sidecar.parent_beacon_block_root);
        assert_eq!(payload, want.payload, "{fork}");
        assert_eq!(sidecar, want.sidecar, "{fork}");
        if version > 1 {
            assert_eq!(answer["blockValue"], "0x0");
            let empty = json!({"commitments": [], "proofs": [], "blobs": []});
            let bundle = if version >= 3 { empty } else { Value::Null };
            assert_eq!(answer["blobsBundle"], bundle, "{fork}");
            let flag = if version >= 3 { json!(false) } else { Value::Null };
            assert_eq!(answer["shouldOverrideBuilder"], flag, "{fork}");
            let members = [2, 4, 5, 5][usize::from(version) - 2];
            assert_eq!(answer.as_object().unwrap().len(), members, "{fork}: {answer}");
        }
        node.assert_head(&head).await;
        node.extend(&want).await;
        node.assert_head(&want).await;
        let next = builder.build(want.hash, 51_001, TRANSACTIONS);
        node.extend(&next).await;
        node.assert_head(&next).await;
        node.stop_and_verify().await;
    }
}

/// Forks that activate between the head and the payload: the attributes' time decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_payload_of_a_fork_follows_its_rules() {
    for (old, new) in FORKS.into_iter().zip(FORKS.into_iter().skip(1)) {
        let mut builder = Builder::new(Forks::leaving(old, 12));
        let mut node = Node::start(builder.genesis_json()).await;
        let head = builder.get(builder.genesis()).clone();
        let (_, version) = versions(new);
        let id = begin(&mut node, new, &head, &attributes(new, &head, 2)).await;
        let answer = get(&mut node, version, &id).await.unwrap();
        let (payload, sidecar) = unpack(version, &answer);
        let want = builder.build_empty(&payload, sidecar.parent_beacon_block_root);
        assert_eq!((payload, sidecar), (want.payload.clone(), want.sidecar.clone()), "{new}");
        node.extend(&want).await;
        node.stop_and_verify().await;
    }
}

/// paris.md, "Payload building", points 5 and 6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_attributes_are_the_same_build_and_others_another() {
    let fork = Fork::Osaka;
    let (mut builder, mut node, head) = start(fork, 52_000).await;
    let first = begin(&mut node, fork, &head, &attributes(fork, &head, 1)).await;
    let built = get(&mut node, 5, &first).await.unwrap();
    let mut ids = vec![first.clone()];
    for (member, value) in [
        ("timestamp", json!(format!("{:#x}", head.header.timestamp + 13))),
        ("prevRandao", json!(B256::repeat_byte(2))),
        ("suggestedFeeRecipient", json!("0x0e00000000000000000000000000000000000002")),
        ("withdrawals", json!([])),
        ("parentBeaconBlockRoot", json!(B256::repeat_byte(0xbd))),
    ] {
        let mut other = attributes(fork, &head, 1);
        other[member] = value;
        ids.push(begin(&mut node, fork, &head, &other).await);
    }
    let next = builder.build(head.hash, 52_001, TRANSACTIONS);
    node.extend(&next).await;
    let mut later = attributes(fork, &head, 1);
    later["timestamp"] = json!(format!("{:#x}", next.header.timestamp + 12));
    ids.push(begin(&mut node, fork, &next, &later).await);
    let again = begin(&mut node, fork, &next, &later).await;
    assert_eq!(ids.last(), Some(&again));
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    // The head has moved on: the payload begun before still exists, unchanged.
    assert_eq!(get(&mut node, 5, &first).await.unwrap(), built);
    for id in &ids[1..] {
        let (payload, sidecar) = unpack(5, &get(&mut node, 5, id).await.unwrap());
        let root = sidecar.parent_beacon_block_root;
        let (method, mut params) = new_payload(fork, &payload, &sidecar);
        if *id == ids[5] {
            params[2] = json!(B256::repeat_byte(0xbd));
        }
        let status = decode_status(node.engine.call(method, params).await.unwrap());
        assert_eq!(status.verdict(), ("VALID", Some(payload.block_hash)), "{root:?} {status:?}");
    }
    node.assert_head(&next).await;
    node.stop_and_verify().await;
}

/// paris.md, `engine_getPayloadV1`, point 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_was_not_given_is_an_unknown_payload() {
    let fork = Fork::Osaka;
    let (_, mut node, head) = start(fork, 53_000).await;
    for version in 1..=5 {
        let error = get(&mut node, version, "0x0102030405060708").await.unwrap_err();
        let found = (error.code, error.message.as_str(), error.data);
        assert_eq!(found, (-38001, "Unknown payload", None), "V{version}");
        let method = format!("engine_getPayloadV{version}");
        for wrong in [
            json!([]),
            json!([null]),
            json!(["0x1"]),
            json!(["0x010203040506070809"]),
            json!([7]),
            json!(["0x0102030405060708", 1]),
        ] {
            let error = node.engine.call(&method, wrong.clone()).await.unwrap_err();
            assert_eq!(error.code, -32602, "V{version} {wrong}");
        }
    }
    // The node remembers only a limited number: a caller cannot fill the memory with them.
    let first = begin(&mut node, fork, &head, &attributes(fork, &head, 0)).await;
    for salt in 1..=40 {
        begin(&mut node, fork, &head, &attributes(fork, &head, salt)).await;
    }
    assert_eq!(get(&mut node, 5, &first).await.unwrap_err().code, -38001);
    let newest = begin(&mut node, fork, &head, &attributes(fork, &head, 40)).await;
    assert!(get(&mut node, 5, &newest).await.is_ok());
    node.stop_and_verify().await;
}

/// cancun.md, prague.md and osaka.md: a version of getPayload serves the payloads of its forks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_of_another_fork_than_the_methods_is_an_unsupported_fork() {
    for fork in FORKS {
        let (_, mut node, head) = start(fork, 54_000).await;
        let id = begin(&mut node, fork, &head, &attributes(fork, &head, 1)).await;
        for version in 1..=5 {
            let answer = get(&mut node, version, &id).await;
            let code = answer.as_ref().map_or_else(|error| error.code, |_| 0);
            // V2 serves Paris too.
            let served = version == versions(fork).1 || (version, fork) == (2, Fork::Paris);
            assert_eq!(code, if served { 0 } else { -38005 }, "{fork} by V{version}: {answer:?}");
        }
        if fork == Fork::Paris {
            let payload = get(&mut node, 2, &id).await.unwrap()["executionPayload"].take();
            assert!(payload.get("withdrawals").is_none(), "ExecutionPayloadV1: {payload}");
        }
        node.stop_and_verify().await;
    }
}

/// A caller may ask for a payload whose parent is no longer the head, nor on the canonical chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_on_a_block_that_was_left_behind_is_still_built() {
    let fork = Fork::Osaka;
    let (mut builder, mut node, head) = start(fork, 55_000).await;
    let side = builder.chain(head.hash, 55_001, 2, TRANSACTIONS);
    let main = builder.chain(head.hash, 55_002, 24, TRANSACTIONS);
    for built in &side {
        node.extend(built).await;
    }
    let id = begin(&mut node, fork, &side[1], &attributes(fork, &side[1], 1)).await;
    for built in &main {
        node.extend(built).await;
    }
    let (payload, sidecar) = unpack(5, &get(&mut node, 5, &id).await.unwrap());
    let want = builder.build_empty(&payload, sidecar.parent_beacon_block_root);
    assert_eq!(payload, want.payload);
    node.assert_head(&main[23]).await;
    let next = builder.build(main[23].hash, 55_003, TRANSACTIONS);
    node.extend(&next).await;
    node.import(&want).await;
    node.assert_head(&next).await;
    node.stop_and_verify().await;
}
