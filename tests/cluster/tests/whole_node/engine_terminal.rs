//! The first payload on a proof-of-work chain (execution-apis, `src/engine/paris.md`, "Payload
//! validation", points 2 and 3; EIP-3675).

use alloy_primitives::B256;
use serde_json::{Value, json};
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_cluster_tests::{Builder, Contents, Forks, Node, decode_status, new_payload, reseal};

const DIFFICULTY: u64 = 0x20000;

/// Starts a node with a proof-of-work genesis block, and returns two payloads on it. They have no
/// transactions, so that another parent hash does not change their execution.
async fn start(terminal_total_difficulty: u64) -> (Node, B256, Vec<Payload>) {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Paris));
    let mut genesis: Value = serde_json::from_str(builder.genesis_json()).unwrap();
    genesis["difficulty"] = json!(format!("{DIFFICULTY:#x}"));
    genesis["config"]["terminalTotalDifficulty"] = json!(terminal_total_difficulty);
    genesis["config"].as_object_mut().unwrap().remove("terminalTotalDifficultyPassed");
    let mut node = Node::start(&genesis.to_string()).await;
    let block = node.http.call("eth_getBlockByNumber", json!(["0x0", false])).await.unwrap();
    assert_eq!(block["difficulty"], genesis["difficulty"]);
    let genesis: B256 = serde_json::from_value(block["hash"].clone()).unwrap();
    let mut parent = genesis;
    let payloads = builder.chain(builder.genesis(), 81_000, 2, Contents::Random(0)).into_iter();
    let payloads = payloads
        .map(|built| {
            let mut payload = built.payload;
            payload.parent_hash = parent;
            reseal(&mut payload, &PayloadSidecar::default());
            parent = payload.block_hash;
            payload
        })
        .collect();
    (node, genesis, payloads)
}

async fn send(node: &mut Node, payload: &Payload) -> (String, Option<B256>) {
    let (method, params) = new_payload(Fork::Paris, payload, &PayloadSidecar::default());
    let status = decode_status(node.engine.call(method, params).await.unwrap());
    (status.status, status.latest_valid_hash)
}

/// Point 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_before_the_terminal_total_difficulty_are_invalid_with_the_zero_hash() {
    let (mut node, genesis, payloads) = start(DIFFICULTY + 1).await;
    let invalid = ("INVALID".to_owned(), Some(B256::ZERO));
    for _ in 0..2 {
        for payload in &payloads {
            assert_eq!(send(&mut node, payload).await, invalid);
            let status = node.forkchoice(payload.block_hash, B256::ZERO, B256::ZERO).await;
            assert_eq!(status.unwrap().verdict(), ("INVALID", Some(B256::ZERO)));
        }
    }
    let head = node.http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(head["hash"], json!(genesis));
    node.stop_and_verify().await;
}

/// Point 3: if the newest valid ancestor is a proof-of-work block, it is not named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_payload_on_the_terminal_block_has_the_zero_hash() {
    let (mut node, genesis, payloads) = start(DIFFICULTY).await;
    // The terminal block may be a head.
    let status = node.forkchoice(genesis, B256::ZERO, B256::ZERO).await.unwrap();
    assert_eq!(status.verdict(), ("VALID", Some(genesis)));
    let mut parent = genesis;
    for payload in &payloads {
        let mut wrong = payload.clone();
        wrong.parent_hash = parent;
        wrong.state_root = B256::repeat_byte(3);
        reseal(&mut wrong, &PayloadSidecar::default());
        parent = wrong.block_hash;
        let found = send(&mut node, &wrong).await;
        assert_eq!(found, ("INVALID".to_owned(), Some(B256::ZERO)));
    }
    for payload in &payloads {
        let found = send(&mut node, payload).await;
        assert_eq!(found, ("VALID".to_owned(), Some(payload.block_hash)));
        node.set_head(payload.block_hash).await;
    }
    // From the first proof-of-stake block on, there is a valid ancestor to name.
    let mut wrong = payloads[1].clone();
    wrong.state_root = B256::repeat_byte(3);
    reseal(&mut wrong, &PayloadSidecar::default());
    let found = send(&mut node, &wrong).await;
    assert_eq!(found, ("INVALID".to_owned(), Some(payloads[0].block_hash)));
    node.stop_and_verify().await;
}
