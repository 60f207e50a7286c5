//! The methods besides payloads and forkchoices: capabilities, identification, bodies, and the
//! other methods that the Engine API's port must have (execution-apis, `src/engine`).

use alloy_primitives::B256;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};
use tandem_auth::Secret;
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node, new_payload, reseal};

const TRANSACTIONS: Contents = Contents::Random(3);

async fn start(forks: Forks, len: usize) -> (Node, Vec<Built>) {
    let mut builder = Builder::new(forks);
    let mut node = Node::start(builder.genesis_json()).await;
    let chain = builder.chain(builder.genesis(), 71_000, len, TRANSACTIONS);
    for built in &chain {
        node.extend(built).await;
    }
    (node, chain)
}

fn body(built: &Built) -> Value {
    json!({"transactions": built.payload.transactions, "withdrawals": built.payload.withdrawals})
}

/// common.md, `engine_exchangeCapabilities`, points 2 and 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_capabilities_are_the_methods_that_are_served() {
    let (mut node, _) = start(Forks::at_genesis(Fork::Osaka), 0).await;
    let method = "engine_exchangeCapabilities";
    let ours = json!(["engine_newPayloadV4", "engine_unheardOfV9"]);
    let listed = node.engine.call(method, json!([ours])).await.unwrap();
    assert_eq!(node.engine.call(method, json!([[]])).await.unwrap(), listed);
    let listed: BTreeSet<String> = serde_json::from_value(listed).unwrap();
    let versions = |name: &str, last: u8| {
        (1..=last).map(|version| format!("engine_{name}V{version}")).collect::<Vec<_>>()
    };
    let want: BTreeSet<_> = [
        versions("newPayload", 5),
        versions("forkchoiceUpdated", 4),
        versions("getPayload", 6),
        versions("getPayloadBodiesByHash", 2),
        versions("getPayloadBodiesByRange", 2),
        versions("getClientVersion", 1),
        versions("getBlobs", 4),
    ]
    .concat()
    .into_iter()
    .collect();
    assert_eq!(listed, want);
    for method in &listed {
        let error = node.engine.call(method, json!([])).await.unwrap_err();
        assert_eq!(error.code, -32602, "{method} is listed and wants parameters");
    }
    for method in [
        "engine_newPayloadV6",
        "engine_forkchoiceUpdatedV5",
        "engine_getPayloadV7",
        "engine_getBlobsV5",
        "engine_exchangeTransitionConfigurationV1",
    ] {
        let error = node.engine.call(method, json!([])).await.unwrap_err();
        assert_eq!(error.code, -32601, "{method} is not listed");
    }
    for wrong in [json!([]), json!([null]), json!(["engine_newPayloadV4"]), json!([[1]])] {
        let error = node.engine.call(method, wrong.clone()).await.unwrap_err();
        assert_eq!(error.code, -32602, "{wrong}");
    }
    node.stop_and_verify().await;
}

/// identification.md, `engine_getClientVersionV1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_version_is_one_object_with_an_unused_code() {
    let (mut node, _) = start(Forks::at_genesis(Fork::Osaka), 0).await;
    let method = "engine_getClientVersionV1";
    let taken = ["BU", "CN", "EJ", "EG", "EX", "GE", "GR", "LH", "LS", "NM", "NB", "NE", "TE"];
    // Point 2: any two letters are accepted.
    for code in ["LH", "ZZ"] {
        let theirs = json!({"code": code, "name": "x", "version": "v1", "commit": "0xfa4ff922"});
        let answer = node.engine.call(method, json!([theirs])).await.unwrap();
        let [ours] = answer.as_array().unwrap().as_slice() else { panic!("{answer}") };
        assert_eq!(ours.as_object().unwrap().len(), 4);
        let text = |member: &str| ours[member].as_str().unwrap();
        let code = text("code");
        assert!(code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()), "{code}");
        assert!(!taken.contains(&code) && !["TK", "PM", "RH"].contains(&code), "{code} is taken");
        assert_eq!(text("name"), "Tandem");
        assert_eq!(text("version"), "v0.0.0");
        let commit = text("commit").strip_prefix("0x").unwrap();
        assert!(commit.len() == 8 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    for wrong in [json!([]), json!([null]), json!([{}]), json!([{"code": 7}]), json!(["LH"])] {
        let error = node.engine.call(method, wrong.clone()).await.unwrap_err();
        assert_eq!(error.code, -32602, "{wrong}");
    }
    node.stop_and_verify().await;
}

/// shanghai.md, `engine_getPayloadBodiesByHashV1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_come_in_the_order_of_the_hashes_with_null_for_missing_ones() {
    // Paris for the first blocks.
    let (mut node, chain) = start(Forks::leaving(Fork::Paris, 60), 20).await;
    assert_eq!(chain[0].fork, Fork::Paris);
    assert_eq!(chain[19].fork, Fork::Shanghai);
    let method = "engine_getPayloadBodiesByHashV1";
    let unknown = B256::repeat_byte(9);
    let hashes = json!([[chain[19].hash, unknown, chain[0].hash, chain[0].hash]]);
    let answer = node.engine.call(method, hashes).await.unwrap();
    assert_eq!(answer, json!([body(&chain[19]), null, body(&chain[0]), body(&chain[0])]));
    // Null before Shanghai, a list from then on.
    assert_eq!(answer[2]["withdrawals"], Value::Null);
    assert!(answer[2].as_object().unwrap().contains_key("withdrawals"));
    assert!(answer[0]["withdrawals"].is_array());
    assert_eq!(node.engine.call(method, json!([[]])).await.unwrap(), json!([]));
    for (count, served) in [(32, true), (128, true), (129, false), (2_000, false)] {
        let answer = node.engine.call(method, json!([vec![chain[3].hash; count]])).await;
        match answer {
            Ok(answer) => {
                assert!(served, "{count}");
                assert_eq!(answer, json!(vec![body(&chain[3]); count]));
            }
            Err(error) => {
                assert!(!served, "{count}: {error:?}");
                let found = (error.code, error.message.as_str(), error.data);
                assert_eq!(found, (-38004, "Too large request", None));
            }
        }
    }
    for wrong in [json!([]), json!([null]), json!([["0x12"]]), json!(["0x12"]), json!([[null]])] {
        let error = node.engine.call(method, wrong.clone()).await.unwrap_err();
        assert_eq!(error.code, -32602, "{wrong}");
    }
    node.stop_and_verify().await;
}

/// shanghai.md, `engine_getPayloadBodiesByRangeV1`: the canonical chain up to the head, no trailing
/// null.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_a_range_are_the_canonical_ones_up_to_the_head() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start(builder.genesis_json()).await;
    let chain = builder.chain(builder.genesis(), 72_000, 8, TRANSACTIONS);
    for built in &chain {
        node.extend(built).await;
    }
    let side = builder.chain(chain[4].hash, 72_001, 2, TRANSACTIONS);
    for built in &side {
        node.import(built).await;
    }
    let method = "engine_getPayloadBodiesByRangeV1";
    let hex = |number: u64| json!(format!("{number:#x}"));
    let bodies = |blocks: &[Built]| json!(blocks.iter().map(body).collect::<Vec<_>>());
    for (start, count, want) in [
        (1, 8, &chain[..]),
        (3, 2, &chain[2..4]),
        (5, 32, &chain[4..]),
        (8, 1, &chain[7..]),
        (8, 128, &chain[7..]),
        (9, 1, &[]),
        (u64::MAX, 128, &[]),
    ] {
        let answer = node.engine.call(method, json!([hex(start), hex(count)])).await.unwrap();
        assert_eq!(answer, bodies(want), "{start} {count}");
    }
    node.set_head(side[1].hash).await;
    let want = [&chain[3..5], &side[..]].concat();
    let answer = node.engine.call(method, json!(["0x4", "0x20"])).await.unwrap();
    assert_eq!(answer, bodies(&want), "of the branch that is canonical now");
    for (start, count, code) in [
        (hex(0), hex(1), -32602),
        (hex(1), hex(0), -32602),
        (hex(0), hex(0), -32602),
        (hex(1), hex(129), -38004),
        (hex(1), hex(u64::MAX), -38004),
        (json!(1), hex(1), -32602),
        (hex(1), Value::Null, -32602),
        (json!("0x01"), hex(1), -32602),
        (json!("0x10000000000000000"), hex(1), -32602),
    ] {
        let answer = node.engine.call(method, json!([start, count])).await;
        assert_eq!(answer.unwrap_err().code, code, "{start} {count}");
    }
    node.stop_and_verify().await;
}

/// paris.md, "Payload validation", point 3: an invalid payload is never shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_payload_has_no_body() {
    let (mut node, chain) = start(Forks::at_genesis(Fork::Osaka), 2).await;
    let mut payload = chain[1].payload.clone();
    payload.state_root = B256::repeat_byte(3);
    reseal(&mut payload, &chain[1].sidecar);
    let (method, params) = new_payload(Fork::Osaka, &payload, &chain[1].sidecar);
    assert_eq!(node.engine.call(method, params).await.unwrap()["status"], "INVALID");
    let hashes = json!([[payload.block_hash, chain[1].hash]]);
    let answer = node.engine.call("engine_getPayloadBodiesByHashV1", hashes).await.unwrap();
    assert_eq!(answer, json!([null, body(&chain[1])]));
    let hash = payload.block_hash;
    for (method, params) in
        [("eth_getBlockByHash", json!([hash, false])), ("eth_getBlockReceipts", json!([hash]))]
    {
        let answer = node.http.call(method, params).await;
        assert_eq!(answer.unwrap(), Value::Null, "{method}");
    }
    node.stop_and_verify().await;
}

/// common.md, "Underlying protocol": the consensus client needs no other connection. A method that
/// cannot be served yet returns its own error, not that of a missing method.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_eth_methods_of_the_engine_port_are_there() {
    let (mut node, chain) = start(Forks::at_genesis(Fork::Osaka), 2).await;
    let head = &chain[1];
    for (method, params, member, want) in [
        ("eth_blockNumber", json!([]), "", json!("0x2")),
        ("eth_chainId", json!([]), "", json!("0x116aa")),
        ("eth_syncing", json!([]), "", json!(false)),
        ("eth_getBlockByHash", json!([head.hash, false]), "/hash", json!(head.hash)),
        ("eth_getBlockByNumber", json!(["0x2", false]), "/hash", json!(head.hash)),
        ("eth_getCode", json!([B256::ZERO.to_string()[..42], "latest"]), "", json!("0x")),
        ("eth_call", json!([{"to": B256::ZERO.to_string()[..42]}, "latest"]), "", json!("0x")),
    ] {
        let answer = node.engine.call(method, params).await.unwrap();
        assert_eq!(answer.pointer(member), Some(&want), "{method}");
    }
    let logs =
        node.engine.call("eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x2"}])).await;
    assert!(logs.unwrap().is_array());
    node.stop_and_verify().await;
}

/// authentication.md, "JWT Claims": within 60 seconds of the node's clock, either way. (Other
/// properties of tokens are tested in `kit/auth`, and over HTTP in `bad_input.rs`.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_good_for_a_minute_around_its_time() {
    let (mut node, _) = start(Forks::at_genesis(Fork::Osaka), 0).await;
    let secret = Secret::load(&node.secret_file()).unwrap();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"engine_exchangeCapabilities","params":[[]]}"#;
    for (offset, want) in [(-90, 401), (-40, 200), (0, 200), (40, 200), (90, 401)] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let token = tandem_auth::sign(&secret, now.saturating_add_signed(offset));
        let answer = node.engine.post(call, Some(&format!("Bearer {token}"))).await.unwrap();
        assert_eq!(answer.status, want, "iat {offset} s from now");
    }
    node.stop_and_verify().await;
}
