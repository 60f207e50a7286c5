//! Calls that take long, that were abandoned by their caller, that are repeated, and that arrive at
//! once.

use alloy_primitives::B256;
use serde_json::{Value, json};
use std::time::Duration;
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Built, Client, Contents, Forks, GatedNode, Node, RpcError, decode_status, new_payload,
    reseal,
};
use tokio::task::JoinHandle;

const TRANSACTIONS: Contents = Contents::Random(4);

fn chain(seed: u64, len: usize) -> (Builder, Vec<Built>) {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let chain = builder.chain(builder.genesis(), seed, len, TRANSACTIONS);
    (builder, chain)
}

/// Sends a call that may take long, on a connection of its own.
fn send(mut client: Client, call: (&'static str, Value)) -> JoinHandle<Result<Value, RpcError>> {
    tokio::spawn(async move { client.call(call.0, call.1).await })
}

fn forkchoice(head: B256) -> (&'static str, Value) {
    let zero = B256::ZERO;
    let state = json!({"headBlockHash": head, "safeBlockHash": zero, "finalizedBlockHash": zero});
    ("engine_forkchoiceUpdatedV3", json!([state]))
}

fn assert_valid(answer: Result<Value, RpcError>, built: &Built) {
    let status = decode_status(answer.unwrap());
    assert_eq!(status.verdict(), ("VALID", Some(built.hash)), "{status:?}");
}

fn assert_head_set(answer: Result<Value, RpcError>, built: &Built) {
    let status = answer.unwrap()["payloadStatus"].take();
    assert_eq!(decode_status(status).verdict(), ("VALID", Some(built.hash)));
}

/// common.md, Timeouts: the caller may give up and retry. The block's execution continues
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_does_not_stop_its_block() {
    let (builder, chain) = chain(61_000, 2);
    let node = GatedNode::start(builder.genesis_json(), 64).await;
    let call = send(node.client(), chain[0].new_payload());
    node.wait_for_arrivals(1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    node.open();
    // A later call is answered after it.
    let mut client = node.client();
    assert_valid(client.call("engine_newPayloadV4", chain[0].new_payload().1).await, &chain[0]);
    assert_eq!(node.arrivals(), 1, "the block was executed once, for the caller that is gone");
    assert_valid(client.call("engine_newPayloadV4", chain[1].new_payload().1).await, &chain[1]);
    let (method, params) = forkchoice(chain[1].hash);
    assert_head_set(client.call(method, params).await, &chain[1]);
    node.stop().await;
}

/// paris.md: the timeout of 8 s applies to the caller, which may wait longer (common.md, Timeouts).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_more_than_eight_seconds_is_answered() {
    let (builder, chain) = chain(62_000, 1);
    let node = GatedNode::start(builder.genesis_json(), 64).await;
    let payload = send(node.client(), chain[0].new_payload());
    node.wait_for_arrivals(1).await;
    let head = send(node.client(), forkchoice(chain[0].hash));
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!payload.is_finished() && !head.is_finished());
    // Other calls are served meanwhile.
    let mut client = node.client();
    assert_eq!(client.call("eth_blockNumber", json!([])).await.unwrap(), json!("0x0"));
    node.open();
    assert_valid(payload.await.unwrap(), &chain[0]);
    // The call arrived before or after the block was ready: its place in the queue was behind the
    // block.
    assert_head_set(head.await.unwrap(), &chain[0]);
    node.stop().await;
}

/// paris.md, `engine_newPayloadV1`, point 7: no verdict, an error object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_with_too_much_to_do_answers_a_server_error() {
    let (builder, chain) = chain(63_000, 3);
    let node = GatedNode::start(builder.genesis_json(), 1).await;
    let first = send(node.client(), chain[0].new_payload());
    node.wait_for_arrivals(1).await;
    // Room for only one of these two.
    let mut calls = [1, 2].map(|index| (index, send(node.client(), chain[index].new_payload())));
    let [(_, one), (_, other)] = &mut calls;
    let refused = tokio::select! {
        answer = one => (1, answer),
        answer = other => (2, answer),
    };
    let (refused, answer) = (refused.0, refused.1.unwrap());
    let error = answer.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (-32000, "Server error"));
    assert!(error.data.unwrap()["err"].as_str().unwrap().contains("overloaded"));
    node.open();
    assert_valid(first.await.unwrap(), &chain[0]);
    let [one, other] = calls;
    let taken = if refused == 1 { other } else { one };
    let status = decode_status(taken.1.await.unwrap().unwrap());
    // The third block's parent may be the one that was refused.
    let want = if taken.0 == 1 { "VALID" } else { "SYNCING" };
    assert_eq!(status.status, want, "{status:?}");
    // A retry succeeds.
    let mut client = node.client();
    for built in &chain {
        assert_valid(client.call("engine_newPayloadV4", built.new_payload().1).await, built);
    }
    node.stop().await;
}

/// paris.md, "Payload validation", point 4: executed once, one verdict for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_comes_many_times_at_once_is_executed_once() {
    let (builder, chain) = chain(64_000, 1);
    let node = GatedNode::start(builder.genesis_json(), 64).await;
    let calls: Vec<_> = (0..8).map(|_| send(node.client(), chain[0].new_payload())).collect();
    node.wait_for_arrivals(1).await;
    node.open();
    for call in calls {
        assert_valid(call.await.unwrap(), &chain[0]);
    }
    assert_eq!(node.arrivals(), 1);
    node.stop().await;
}

/// paris.md, "Payload validation", point 3: an invalid payload is never shown, not even during its
/// validation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_is_not_shown_before_it_is_valid() {
    let (mut builder, chain) = chain(65_000, 1);
    let node = GatedNode::start(builder.genesis_json(), 64).await;
    let mut payload = chain[0].payload.clone();
    payload.state_root = B256::repeat_byte(3);
    reseal(&mut payload, &chain[0].sidecar);
    let hash = payload.block_hash;
    let call = send(node.client(), new_payload(Fork::Osaka, &payload, &chain[0].sidecar));
    node.wait_for_arrivals(1).await;
    node.wait_for_record(hash).await;
    let mut client = node.client();
    for opened in [false, true] {
        let block = client.call("eth_getBlockByHash", json!([hash, true])).await;
        assert_eq!(block.unwrap(), Value::Null, "gate open: {opened}");
        let bodies = client.call("engine_getPayloadBodiesByHashV1", json!([[hash]])).await;
        assert_eq!(bodies.unwrap(), json!([null]), "gate open: {opened}");
        if !opened {
            node.open();
            while !call.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    let status = decode_status(call.await.unwrap().unwrap());
    assert_eq!(status.verdict(), ("INVALID", Some(builder.genesis())));
    // A valid one is shown from its answer on.
    let next = builder.build(chain[0].hash, 65_001, TRANSACTIONS);
    for built in [&chain[0], &next] {
        assert_valid(client.call("engine_newPayloadV4", built.new_payload().1).await, built);
        let block = client.call("eth_getBlockByHash", json!([built.hash, false])).await;
        assert_eq!(block.unwrap()["hash"], json!(built.hash));
    }
    node.stop().await;
}

/// Two branches from two connections, forkchoices back and forth from a third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_branches_may_come_at_once_while_the_head_moves_between_them() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start(builder.genesis_json()).await;
    let trunk = builder.chain(builder.genesis(), 66_000, 2, TRANSACTIONS);
    for built in &trunk {
        node.extend(built).await;
    }
    let branches = [1, 2].map(|seed| builder.chain(trunk[1].hash, 66_000 + seed, 40, TRANSACTIONS));
    let senders = branches.clone().map(|branch| {
        let mut client = node.another_engine_client();
        tokio::spawn(async move {
            for built in &branch {
                let (method, params) = built.new_payload();
                assert_valid(client.call(method, params).await, built);
            }
        })
    });
    // The head follows the known part of each branch.
    let mut client = node.another_engine_client();
    for index in 0..40 {
        for branch in &branches {
            let (method, params) = forkchoice(branch[index].hash);
            let status = client.call(method, params).await.unwrap()["payloadStatus"].take();
            let status = decode_status(status);
            match status.status.as_str() {
                "VALID" => assert_eq!(status.latest_valid_hash, Some(branch[index].hash)),
                other => assert_eq!(other, "SYNCING"),
            }
        }
    }
    for sender in senders {
        sender.await.unwrap();
    }
    for branch in [&branches[0], &branches[1], &branches[0]] {
        node.set_head(branch[39].hash).await;
        node.assert_head(&branch[39]).await;
    }
    node.stop_and_verify().await;
}

/// common.md, "Message ordering": forkchoices of one connection take effect in their order,
/// whatever payloads arrive meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forkchoices_take_effect_in_their_order_while_payloads_come() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start(builder.genesis_json()).await;
    let trunk = builder.chain(builder.genesis(), 67_000, 20, TRANSACTIONS);
    let more = builder.chain(trunk[19].hash, 67_001, 20, TRANSACTIONS);
    for built in &trunk {
        node.import(built).await;
    }
    let mut client = node.another_engine_client();
    let to_send = more.clone();
    let sender = tokio::spawn(async move {
        for built in &to_send {
            let (method, params) = built.new_payload();
            assert_valid(client.call(method, params).await, built);
        }
    });
    for index in [3, 19, 7, 0, 12, 5, 18, 2, 11, 19, 1, 4] {
        let (method, params) = forkchoice(trunk[index].hash);
        let answers = node.engine.batch(&[(method, params), ("eth_blockNumber", json!([]))]).await;
        assert_eq!(answers[0]["payloadStatus"]["status"], "VALID");
        assert_eq!(answers[1], json!(format!("{:#x}", index + 1)));
    }
    sender.await.unwrap();
    node.assert_head(&trunk[4]).await;
    node.set_head(more[19].hash).await;
    node.assert_head(&more[19]).await;
    node.stop_and_verify().await;
}
