//! Subscriptions over WebSockets: heads and logs of each block, through a reorg, as `eth_getBlock…`
//! and `eth_getLogs` have them.

use alloy_primitives::B256;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Contents, Forks, Node, Transfer};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

const TRANSACTIONS: Contents = Contents::Random(9);

struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    async fn next(&mut self) -> Value {
        loop {
            let message = timeout(Duration::from_secs(20), self.0.next()).await.expect("silence");
            if let Message::Text(text) = message.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.0.send(Message::text(call.to_string())).await.unwrap();
        self.next().await
    }

    async fn subscribe(&mut self, params: Value) -> String {
        let answer = self.call("eth_subscribe", params).await;
        answer["result"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Returns the next notice, which must be of this subscription.
    async fn notice(&mut self, id: &str) -> Value {
        let mut notice = self.next().await;
        assert_eq!(notice["params"]["subscription"], id, "{notice}");
        notice["params"]["result"].take()
    }
}

async fn connect(node: &Node) -> Socket {
    Socket(connect_async(format!("ws://{}", node.http_address())).await.unwrap().0)
}

/// Returns the header as JSON-RPC has it.
async fn header(node: &mut Node, hash: B256) -> Value {
    let mut block = node.http.call("eth_getBlockByHash", json!([hash, false])).await.unwrap();
    for member in ["size", "transactions", "uncles", "withdrawals"] {
        block.as_object_mut().unwrap().remove(member);
    }
    block
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_follow_the_chain_through_a_reorg() {
    for fork in [Fork::Osaka, Fork::Amsterdam] {
        let mut builder = Builder::new(Forks::at_genesis(fork));
        let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
        let (mut heads, mut logs) = (connect(&node).await, connect(&node).await);
        let of_heads = heads.subscribe(json!(["newHeads"])).await;
        let of_logs = logs.subscribe(json!(["logs", {}])).await;
        let old = builder.chain(builder.genesis(), 1, 2, TRANSACTIONS);
        let others = builder.chain(builder.genesis(), 2, 3, TRANSACTIONS);

        let mut emitted = Vec::new();
        for block in &old {
            node.extend(block).await;
            assert_eq!(heads.notice(&of_heads).await, header(&mut node, block.hash).await);
            let all =
                node.http.call("eth_getLogs", json!([{"blockHash": block.hash}])).await.unwrap();
            for log in all.as_array().unwrap() {
                assert_eq!(&logs.notice(&of_logs).await, log);
            }
            emitted.push(all);
        }
        // The other branch replaces both at once.
        for block in &others {
            node.import(block).await;
        }
        node.set_head(others[2].hash).await;
        for block in &others {
            assert_eq!(heads.notice(&of_heads).await["hash"], json!(block.hash));
        }
        for log in emitted.iter().flat_map(|all| all.as_array().unwrap()) {
            let mut removed = log.clone();
            removed["removed"] = json!(true);
            assert_eq!(logs.notice(&of_logs).await, removed);
        }
        for block in &others {
            let all =
                node.http.call("eth_getLogs", json!([{"blockHash": block.hash}])).await.unwrap();
            for log in all.as_array().unwrap() {
                assert_eq!(&logs.notice(&of_logs).await, log);
            }
        }
        // Calls go over the same connection.
        let number = heads.call("eth_blockNumber", json!([])).await;
        assert_eq!(number["result"], json!("0x3"));
        for (params, text) in [
            (json!([]), "missing value"),
            (json!(["newBlocks"]), "no \\\"newBlocks\\\" subscription"),
            (json!(["logs", {"fromBlock": "0x1"}]), "new blocks"),
            (json!(["logs", {"address": 1}]), "invalid argument 1"),
        ] {
            let answer = heads.call("eth_subscribe", params).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert!(answer.to_string().contains(text), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_hear_of_transactions_when_they_become_pending() {
    const TIP: u128 = 1_000_000_000;
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    let (mut hashes, mut whole) = (connect(&node).await, connect(&node).await);
    let of_hashes = hashes.subscribe(json!(["newPendingTransactions"])).await;
    let of_whole = whole.subscribe(json!(["newPendingTransactions", true])).await;

    // The one with a gap becomes pending with the one before it.
    let [first, second] = [0, 1].map(|nonce| Transfer::new(0, nonce, TIP));
    node.http.call("eth_sendRawTransaction", json!([second.raw])).await.unwrap();
    node.http.call("eth_sendRawTransaction", json!([first.raw])).await.unwrap();
    for transfer in [&first, &second] {
        assert_eq!(hashes.notice(&of_hashes).await, json!(transfer.hash));
        let found =
            node.http.call("eth_getTransactionByHash", json!([transfer.hash])).await.unwrap();
        assert_eq!(whole.notice(&of_whole).await, found);
    }
    // A later subscriber hears of later ones only, and nobody of any after the end.
    let mut late = connect(&node).await;
    let of_late = late.subscribe(json!(["newPendingTransactions", false])).await;
    assert_eq!(hashes.call("eth_unsubscribe", json!([of_hashes])).await["result"], json!(true));
    let third = Transfer::new(0, 2, TIP);
    node.http.call("eth_sendRawTransaction", json!([third.raw])).await.unwrap();
    assert_eq!(late.notice(&of_late).await, json!(third.hash));
    let number = hashes.call("eth_blockNumber", json!([])).await;
    assert_eq!(number["result"], json!("0x0"), "{number}");
    let answer = late.call("eth_subscribe", json!(["newPendingTransactions", 1])).await;
    assert!(answer.to_string().contains("invalid argument 1"), "{answer}");
}
