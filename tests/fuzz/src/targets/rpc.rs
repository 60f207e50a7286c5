//! HTTP request bodies, through the router of the server: limits, envelope, parameters and checks.
//! For payloads, the block that they describe follows.

use crate::{Target, heap, seeds::OSAKA, structures};
use axum::{Router, body::Body, http::Request};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::sync::LazyLock;
use tandem_cluster::{ClientInfo, Cluster, Config, Handle};
use tandem_cluster_tests::{Built, new_payload};
use tandem_executor::{ForkchoiceState, rpc::engine_methods};
use tandem_http::{Limits, public_router};
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// Target for bodies to the Engine API.
pub const ENGINE: Target = Target {
    name: "engine_api",
    bytes_per_byte: 4,
    structures: structures::requests,
    // Payload attributes begin a build: an execution on the builder's thread, which counts too.
    constant: 1 << 20,
    input_len_max: 32 << 10,
    mutations: 6000,
    seeds: engine_seeds,
    dictionary: &[
        b"null",
        b"\"0x\"",
        b"\"0x0\"",
        b"[]",
        b"{}",
        b"[[[[",
        b"\"\\u0000\"",
        b"1e9",
        b"-1",
        b",",
        b"engine_newPayloadV1",
        b"engine_newPayloadV2",
        b"engine_newPayloadV3",
        b"engine_newPayloadV4",
        b"engine_newPayloadV5",
        b"engine_forkchoiceUpdatedV3",
        b"engine_getPayloadV5",
        b"engine_getBlobsV2",
        b"\"params\":",
        b"\"id\":",
        b"\"jsonrpc\":\"2.0\"",
    ],
    run: answer,
};

/// Target for bodies to the methods of the public port.
pub const ETH: Target = Target {
    name: "eth_api",
    bytes_per_byte: 4,
    structures: structures::requests,
    constant: 640 << 10,
    input_len_max: 8 << 10,
    mutations: 6000,
    seeds: eth_seeds,
    dictionary: &[
        b"null",
        b"\"0x\"",
        b"\"0x0\"",
        b"[]",
        b"{}",
        b"\"latest\"",
        b"\"pending\"",
        b"\"safe\"",
        b"\"earliest\"",
        b"\"0xffffffffffffffff\"",
        b"\"blockHash\":",
        b"\"blockNumber\":",
        b"\"requireCanonical\":true",
        b"\"accessList\":",
        b"\"input\":",
        b"true",
        b"false",
    ],
    run: answer,
};

/// A node without sockets, started once, with its first block applied.
pub struct Node {
    runtime: Runtime,
    router: Router,
    handle: Handle,
    _cluster: Cluster,
}

/// Node of this process.
pub static NODE: LazyLock<Node> = LazyLock::new(Node::start);

impl Node {
    fn start() -> Self {
        let cluster = Cluster::start_in_memory(Config::small(), OSAKA.genesis.as_bytes()).unwrap();
        let handle = cluster.handle();
        let client = ClientInfo { version: "0.0.0".to_owned(), commit: [0; 4] };
        let methods = engine_methods(&handle, client);
        // The public router with the Engine API's methods. The token is checked before the body is
        // read, and has a test of its own.
        let router = public_router(methods, Limits::engine());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let node = Self { runtime, router, handle, _cluster: cluster };
        let Built { payload, sidecar, hash, .. } = OSAKA.blocks[0].clone();
        let state = ForkchoiceState { head: hash, safe: hash, finalized: hash };
        let status = node.wait(node.handle.new_payload(4, payload, sidecar)).unwrap();
        assert_eq!(status.status.as_str(), "VALID", "{status:?}");
        node.wait(node.handle.forkchoice_updated(state)).unwrap();
        node
    }

    /// Returns the engine.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits for a future.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Returns the answer to a request body, and its HTTP status.
    fn post(&self, body: Bytes) -> (u16, Bytes) {
        let request = Request::post("/").header("content-type", "application/json");
        let request = request.body(Body::from(body)).unwrap();
        let router = self.router.clone();
        self.wait(async {
            let response = router.oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        })
    }
}

/// A response object.
#[derive(Deserialize)]
struct Answer<'a> {
    jsonrpc: &'a str,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    code: i32,
    message: String,
}

fn answer(input: &[u8]) {
    let node = &*NODE;
    let body = Bytes::copy_from_slice(input);
    let (status, answer) = heap::measured(|| node.post(body));
    assert_eq!(status, 200);
    let text = std::str::from_utf8(&answer).unwrap();
    if text.is_empty() {
        // Only notifications.
        return;
    }
    let raw: Vec<&RawValue> = match text.starts_with('[') {
        true => serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:.200}")),
        false => {
            vec![serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:.200}"))]
        }
    };
    for raw in raw {
        let answer: Answer<'_> = serde_json::from_str(raw.get()).unwrap();
        assert_eq!(answer.jsonrpc, "2.0");
        assert!(answer.id.is_none_or(|id| !id.get().starts_with(['[', '{'])), "{text:.200}");
        let Some(error) = answer.error else { continue };
        assert!(answer.result.is_none(), "{text:.200}");
        // An internal error is a handler that panicked.
        assert_ne!(error.code, -32603, "{}", error.message);
    }
}

fn call(method: &str, params: &Value) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into_bytes()
}

fn engine_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    // The parent is not known, so the block is decoded and checked, but not executed.
    for block in &OSAKA.blocks[2..] {
        let (method, params) = block.new_payload();
        seeds.push(call(method, &params));
        for fork in tandem_cluster_tests::FORKS {
            let (method, params) = new_payload(fork, &block.payload, &block.sidecar);
            seeds.push(call(method, &params));
        }
    }
    let (hash, zero) = (OSAKA.blocks[0].hash, alloy_primitives::B256::ZERO);
    let state =
        |head| json!({"headBlockHash": head, "safeBlockHash": zero, "finalizedBlockHash": zero});
    let attributes = json!({
        "timestamp": "0x7fffffff", "prevRandao": zero, "withdrawals": [],
        "suggestedFeeRecipient": "0x0000000000000000000000000000000000000001",
        "parentBeaconBlockRoot": zero,
    });
    for version in 1..=3 {
        let method = format!("engine_forkchoiceUpdatedV{version}");
        seeds.push(call(&method, &json!([state(hash), null])));
        seeds.push(call(&method, &json!([state(OSAKA.blocks[3].hash), attributes])));
        seeds.push(call(&method, &json!([state(hash), attributes])));
    }
    for version in 1..=6 {
        seeds.push(call(&format!("engine_getPayloadV{version}"), &json!(["0x0000000000000001"])));
    }
    for version in 1..=2 {
        let method = format!("engine_getPayloadBodiesByHashV{version}");
        seeds.push(call(&method, &json!([[hash, zero]])));
        let method = format!("engine_getPayloadBodiesByRangeV{version}");
        seeds.push(call(&method, &json!(["0x1", "0x2"])));
        seeds.push(call(&format!("engine_getBlobsV{version}"), &json!([[zero, hash]])));
    }
    seeds.push(call("engine_exchangeCapabilities", &json!([["engine_newPayloadV4"]])));
    let client = json!({"code": "TD", "name": "x", "version": "1", "commit": "0x00000000"});
    seeds.push(call("engine_getClientVersionV1", &json!([client])));
    let batch = [
        &b"["[..],
        &seeds[10],
        b",",
        &seeds[11],
        b",1,{\"jsonrpc\":\"2.0\",\"method\":\"eth_chainId\"}]",
    ]
    .concat();
    seeds.push(batch);
    seeds
}

fn eth_seeds() -> Vec<Vec<u8>> {
    let block = &OSAKA.blocks[0];
    let address = block.world.0.keys().next().copied().unwrap_or_default();
    let contract = block.world.0.iter().find(|(_, account)| !account.code.is_empty());
    let contract = contract.map(|(address, _)| *address).unwrap_or_default();
    let transaction = alloy_primitives::keccak256(&block.payload.transactions[0]);
    let (hash, zero) = (block.hash, alloy_primitives::B256::ZERO);
    let message = json!({"from": address, "to": contract, "gas": "0x186a0", "value": "0x0",
        "input": "0x0102", "accessList": [{"address": contract, "storageKeys": [zero]}]});
    let filter = json!({"fromBlock": "0x0", "toBlock": "latest", "address": contract, "topics": [null, [zero]]});
    let calls = [
        ("eth_chainId", json!([])),
        ("net_version", json!([])),
        ("web3_clientVersion", json!([])),
        ("eth_blockNumber", json!([])),
        ("eth_syncing", json!([])),
        ("eth_config", json!([])),
        ("eth_getBlockByNumber", json!(["0x1", true])),
        ("eth_getBlockByNumber", json!(["finalized", false])),
        ("eth_getBlockByHash", json!([hash, true])),
        ("eth_getTransactionByHash", json!([transaction])),
        ("eth_getTransactionReceipt", json!([transaction])),
        ("eth_getBalance", json!([address, "latest"])),
        ("eth_getBalance", json!([address, {"blockHash": hash, "requireCanonical": true}])),
        ("eth_getTransactionCount", json!([address, {"blockNumber": "0x0"}])),
        ("eth_getCode", json!([contract, "safe"])),
        ("eth_getStorageAt", json!([contract, "0x0", "earliest"])),
        ("eth_getStorageValues", json!([{contract.to_string(): [zero]}, "latest"])),
        ("eth_call", json!([message, "latest"])),
        ("eth_call", json!([{"input": "0x60005260206000f3", "gas": "0x186a0"}, hash])),
        ("eth_estimateGas", json!([message, "latest"])),
        ("eth_createAccessList", json!([message, "latest"])),
        ("eth_getProof", json!([contract, [zero], "latest"])),
        ("eth_feeHistory", json!(["0x2", "latest", [1.5, 50]])),
        ("eth_getLogs", json!([filter])),
        ("eth_getBlockReceipts", json!(["0x1"])),
        ("eth_getBlockTransactionCountByNumber", json!(["0x1"])),
        ("eth_getTransactionByBlockHashAndIndex", json!([hash, "0x0"])),
        ("debug_getRawBlock", json!(["0x1"])),
        ("debug_getRawReceipts", json!([hash])),
        ("eth_sendRawTransaction", json!(["0x02c0"])),
    ];
    calls.iter().map(|(method, params)| call(method, params)).collect()
}
