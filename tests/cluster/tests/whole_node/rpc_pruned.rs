//! Old blocks that are not kept any more (EIP-4444): what users and the consensus client are told.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Contents, Forks, Node};
use tandem_storage_writer::History;

const BLOCKS: usize = 48;

async fn oldest(node: &Node) -> u64 {
    let storage = node.storage();
    let ask = move || storage.checkpoint().unwrap().oldest_block;
    tokio::task::spawn_blocking(ask).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pruned_block_is_said_to_be_pruned() {
    let mut config = Config::default();
    config.storage_writer.reverse_diff_blocks = 4;
    config.storage_writer.feed_blocks = 4;
    config.storage_writer.history = History::Blocks(8);
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let chain = builder.chain(builder.genesis(), 77, BLOCKS, Contents::Everything);
    for built in &chain {
        node.import(built).await;
        node.forkchoice(built.hash, built.hash, built.hash).await.unwrap();
    }
    let started = Instant::now();
    while oldest(&node).await < 20 {
        assert!(started.elapsed() < Duration::from_secs(20), "{}", oldest(&node).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let first = &chain[0];
    let (number, hash) = (json!("0x1"), json!(first.hash));
    for (method, params) in [
        ("eth_getBlockByNumber", json!([number, false])),
        ("eth_getBlockByHash", json!([hash, true])),
        ("eth_getBlockReceipts", json!([number])),
        ("eth_getBlockTransactionCountByHash", json!([hash])),
        ("eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "latest"}])),
        ("debug_getRawBlock", json!([number])),
        ("debug_getRawReceipts", json!([number])),
    ] {
        let error = node.http.call(method, params).await.expect_err(method);
        assert_eq!(error.code, 4444, "{method}: {}", error.message);
        assert_eq!(error.message, "Pruned history unavailable", "{method}");
    }
    let header = node.http.call("debug_getRawHeader", json!([number])).await.unwrap();
    assert!(header.is_string(), "headers stay");
    let transaction = alloy_primitives::keccak256(&first.payload.transactions[0]);
    let found = node.http.call("eth_getTransactionByHash", json!([transaction])).await.unwrap();
    assert_eq!(found, Value::Null);
    let last = json!([format!("{BLOCKS:#x}"), false]);
    assert!(node.http.call("eth_getBlockByNumber", last).await.unwrap().is_object());
    let method = "engine_getPayloadBodiesByRangeV1";
    let count = format!("{BLOCKS:#x}");
    let bodies = node.engine.call(method, json!(["0x1", count])).await.unwrap();
    let bodies = bodies.as_array().unwrap();
    assert_eq!((bodies.len(), &bodies[0]), (BLOCKS, &Value::Null));
    assert!(bodies[BLOCKS - 1].is_object());
}
