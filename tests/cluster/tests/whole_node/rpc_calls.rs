//! Calls that would run for hours. They are cut off, share their batch's budget, and end when their
//! caller leaves. Other calls are refused while they hold all threads.

use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Client, Contents, Forks, Node};
use tokio::{task::JoinHandle, time::timeout};

/// Endless loop, limited only by gas, as the initcode of a contract.
const ENDLESS: &str = "0x5b5f56";
/// Code that returns nothing.
const QUICK: &str = "0x00";
/// More gas than any test needs.
const GAS: u64 = 1 << 50;

/// Starts a node with one thread for calls that gives them all the gas there is.
async fn node(seconds_max: u64, change: impl FnOnce(&mut Config)) -> Node {
    let mut config = Config::small();
    config.executor.call_gas_max = GAS;
    config.executor.batch_gas_max = GAS;
    config.executor.call_seconds_max = seconds_max;
    config.executor.call_threads = 1;
    change(&mut config);
    Node::start_with(Builder::new(Forks::at_genesis(Fork::Shanghai)).genesis_json(), config).await
}

fn call(id: usize, method: &str, code: &str) -> Value {
    let params = json!([{"data": code, "gas": format!("{GAS:#x}")}, "latest"]);
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

async fn post(client: &mut Client, body: &Value) -> Value {
    client.post(Bytes::from(body.to_string()), None).await.unwrap().json()
}

/// Spawns a client that makes an endless call, until it is aborted or the node is gone.
fn endless(node: &Node) -> JoinHandle<()> {
    let mut client = Client::new(node.http_address(), None);
    let body = Bytes::from(call(0, "eth_call", ENDLESS).to_string());
    // Retries if the call is refused.
    tokio::spawn(async move { while client.post(body.clone(), None).await.is_ok() {} })
}

/// Makes calls until all threads and the whole queue are taken.
async fn until_full(node: &mut Node) -> Value {
    loop {
        // An accepted call waits: its caller gives up, and the call leaves the queue.
        let mut client = Client::new(node.http_address(), None);
        let asked = call(1, "eth_call", QUICK);
        if let Ok(answer) = timeout(Duration::from_millis(20), post(&mut client, &asked)).await
            && answer["error"]["code"] == -32005
        {
            return answer;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_end_is_cut_as_geth_cuts_it() {
    let mut node = node(1, |_| {}).await;
    for method in ["eth_call", "eth_estimateGas", "eth_createAccessList"] {
        let answer = post(&mut node.http, &call(1, method, ENDLESS)).await;
        assert_eq!(answer["error"]["code"], -32000, "{method}: {answer}");
        assert_eq!(answer["error"]["message"], "execution aborted (timeout = 1s)", "{method}");
    }
    let answer = post(&mut node.http, &call(1, "eth_call", QUICK)).await;
    assert_eq!(answer["result"], "0x", "{answer}");
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_has_the_time_of_one_call() {
    let mut node = node(1, |_| {}).await;
    let first = call(0, "eth_call", QUICK);
    let rest = (1..100).map(|id| call(id, "eth_call", ENDLESS));
    let batch = Value::Array(std::iter::once(first).chain(rest).collect());
    let answers = post(&mut node.http, &batch).await;
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 100);
    assert_eq!(answers[0]["result"], "0x");
    assert_eq!(answers[1]["error"]["message"], "execution aborted (timeout = 1s)");
    for late in &answers[2..] {
        assert_eq!(late["error"]["code"], -32002, "{late}");
        assert_eq!(late["error"]["message"], "request timed out");
    }
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_has_gas_of_its_own() {
    let limit = |config: &mut Config| {
        config.executor.call_gas_max = 1_000_000;
        config.executor.batch_gas_max = 2_500_000;
    };
    let mut node = node(0, limit).await;
    let batch = (0..5).map(|id| call(id, "eth_call", ENDLESS)).collect();
    let answers = post(&mut node.http, &Value::Array(batch)).await;
    let codes: Vec<_> =
        answers.as_array().unwrap().iter().map(|answer| &answer["error"]["code"]).collect();
    // The third exceeds the limit, and is the last one.
    assert_eq!(codes, [-32000, -32000, -32000, -32005, -32005], "{answers}");
    assert_eq!(answers[2]["error"]["message"], "out of gas");
    let refused = answers[3]["error"]["message"].as_str().unwrap();
    assert!(refused.starts_with("limit exceeded") && refused.contains("2500000 gas"), "{refused}");
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_are_free_again_when_callers_have_gone_and_reads_and_blocks_go_on_meanwhile() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Shanghai));
    let mut config = Config::small();
    config.executor.call_gas_max = GAS;
    config.executor.batch_gas_max = GAS;
    config.executor.call_seconds_max = 0;
    config.executor.call_queue_max = 1;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    // One executes for hours, the other waits for it.
    let callers = [endless(&node), endless(&node)];
    let refused = until_full(&mut node).await;
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("limit exceeded"), "{message}");
    // Look-ups do not wait for calls, and blocks are executed.
    let block = builder.chain(builder.genesis(), 7, 1, Contents::Random(3)).remove(0);
    node.extend(&block).await;
    let number = node.http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(number["number"], "0x1");
    for caller in callers {
        caller.abort();
    }
    // The thread is released by a call that has no time limit.
    let free = async {
        loop {
            let answer = post(&mut node.http, &call(1, "eth_call", QUICK)).await;
            if answer["result"] == "0x" {
                return;
            }
            assert_eq!(answer["error"]["code"], -32005, "{answer}");
        }
    };
    timeout(Duration::from_secs(60), free).await.unwrap();
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stops_under_calls_without_end() {
    let node = node(0, |_| {}).await;
    let callers: Vec<_> = (0..8).map(|_| endless(&node)).collect();
    let mut node = node;
    // Until one of them executes and others wait.
    let (mut client, asked) = (Client::new(node.http_address(), None), call(1, "eth_call", QUICK));
    while timeout(Duration::from_millis(200), post(&mut client, &asked)).await.is_ok() {}
    let number = node.http.call("eth_blockNumber", json!([])).await.unwrap();
    assert_eq!(number, "0x0");
    timeout(Duration::from_secs(60), node.stop_and_verify()).await.unwrap();
    for caller in callers {
        caller.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gas_prices_follow_the_head() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    let mut prices = Vec::new();
    for block in builder.chain(builder.genesis(), 11, 3, Contents::Random(8)) {
        node.extend(&block).await;
        let tip = node.http.call("eth_maxPriorityFeePerGas", json!([])).await.unwrap();
        let tip = u64::from_str_radix(&tip.as_str().unwrap()[2..], 16).unwrap();
        let price = node.http.call("eth_gasPrice", json!([])).await.unwrap();
        let price = u64::from_str_radix(&price.as_str().unwrap()[2..], 16).unwrap();
        assert_eq!(price, tip + block.header.base_fee_per_gas.unwrap());
        // Both ports share the known price.
        let again = node.engine.call("eth_gasPrice", json!([])).await.unwrap();
        assert_eq!(again, json!(format!("{price:#x}")));
        prices.push(price);
    }
    prices.dedup();
    assert!(prices.len() > 1, "a new head has a price of its own: {prices:?}");
    node.stop_and_verify().await;
}
