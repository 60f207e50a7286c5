//! The pool of transactions in whole nodes: what users send, what blocks and reorgs do to it, what a
//! restart keeps, and how transactions travel between nodes and to and from geth.

use alloy_primitives::{B256, Bytes};
use serde_json::{Value, json};
use std::{fs, net::Ipv4Addr};
use tandem_chain::{Fork, decode_transaction};
use tandem_cluster::Config;
use tandem_cluster_tests::{
    Builder, Contents, Forks, Node, TestBlob, Transfer, blob_transaction, driver::geth_engine, wait,
};
use tandem_testkit::geth::{Geth, is_installed, run};

fn config(peers: Vec<String>) -> Config {
    let mut config = Config::small();
    (config.with_discovery, config.with_sessions) = (true, true);
    (config.discovery.addr, config.discovery.port) = (Ipv4Addr::LOCALHOST.into(), 0);
    config.peer_sessions.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.peer_sessions.static_peers = peers;
    config.peer_sessions.redial_secs = 1;
    config.peer_sessions.dial_ms = 100;
    config
}

const TIP: u128 = 1_000_000_000;

fn transfer(sender: usize, nonce: u64, tip: u128) -> (Bytes, B256) {
    let Transfer { raw, hash, .. } = Transfer::new(sender, nonce, tip);
    (raw, hash)
}

async fn send(node: &mut Node, raw: &Bytes) -> B256 {
    let hash = node.http.call("eth_sendRawTransaction", json!([raw])).await.unwrap();
    serde_json::from_value(hash).unwrap()
}

async fn call(node: &mut Node, method: &str, params: Value) -> Value {
    node.http.call(method, params).await.unwrap()
}

/// Returns the numbers of pending and queued transactions.
async fn counts(node: &mut Node) -> (u64, u64) {
    let status = call(node, "txpool_status", json!([])).await;
    let number = |name: &str| {
        let text = status[name].as_str().unwrap().trim_start_matches("0x");
        u64::from_str_radix(text, 16).unwrap()
    };
    (number("pending"), number("queued"))
}

async fn wait_for_counts(node: &mut Node, want: (u64, u64)) {
    wait(&format!("{want:?}"), async || (counts(node).await == want).then_some(())).await;
}

async fn has(node: &mut Node, hash: B256) -> bool {
    !call(node, "eth_getTransactionByHash", json!([hash])).await.is_null()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_see_their_transactions_before_a_block_has_them() {
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    assert_eq!(counts(&mut node).await, (0, 0));
    let Transfer { raw: first, hash, sender, to } = Transfer::new(0, 0, TIP);
    assert_eq!(send(&mut node, &first).await, hash);
    let (gapped, gapped_hash) = transfer(0, 2, TIP);
    send(&mut node, &gapped).await;
    assert_eq!(counts(&mut node).await, (1, 1));
    let found = call(&mut node, "eth_getTransactionByHash", json!([hash])).await;
    let members = ["blockHash", "blockNumber", "transactionIndex"];
    assert!(members.iter().all(|member| found[member].is_null()), "{found}");
    assert_eq!((&found["hash"], &found["from"]), (&json!(hash), &json!(sender)));
    for (tag, nonce) in [("latest", "0x0"), ("pending", "0x1")] {
        let count = call(&mut node, "eth_getTransactionCount", json!([sender, tag])).await;
        assert_eq!(count, json!(nonce), "{tag}");
    }

    let name = sender.to_checksum(None);
    let content = call(&mut node, "txpool_content", json!([])).await;
    assert_eq!(content["pending"][&name]["0"], found);
    assert_eq!(content["queued"][&name]["2"]["hash"], json!(gapped_hash));
    let own = call(&mut node, "txpool_contentFrom", json!([sender])).await;
    assert_eq!((&own["pending"]["0"], &own["queued"]), (&found, &content["queued"][&name]));
    let lines = call(&mut node, "txpool_inspect", json!([])).await;
    let line = format!("{}: 1 wei + 21000 gas × 100000000000 wei", to.to_checksum(None));
    assert_eq!(lines["pending"][&name]["0"], json!(line));

    // The gap is filled, and a better price replaces.
    send(&mut node, &transfer(0, 1, TIP).0).await;
    assert_eq!(counts(&mut node).await, (3, 0));
    let refused = |error: tandem_cluster_tests::RpcError| error.data.unwrap()["reason"].clone();
    let again = node.http.call("eth_sendRawTransaction", json!([first])).await.unwrap_err();
    assert_eq!(refused(again), json!("already_known"));
    let cheap = transfer(0, 0, TIP + 1).0;
    let cheap = node.http.call("eth_sendRawTransaction", json!([cheap])).await.unwrap_err();
    assert_eq!(refused(cheap), json!("replacement_underpriced"));
    // With blobs, a sender is refused while it has others.
    let blobs = [TestBlob::constant(1)];
    let raw = blob_transaction(0, &blobs, |tx| tx.nonce = 3).with_cells(&blobs).encode();
    let mixed = node.http.call("eth_sendRawTransaction", json!([raw])).await.unwrap_err();
    assert_eq!(refused(mixed), json!("address_reserved"));
    node.stop_and_verify().await;
}

/// Blocks with every type of transaction, first sent, then included, then removed by a reorg.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_block_includes_leaves_and_what_a_reorg_removes_returns() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    let with = builder.build(builder.genesis(), 7, Contents::Everything);
    let mut sent = Vec::new();
    for raw in with.payload.transactions.iter().filter(|raw| raw[0] != 3) {
        // Some senders have a transaction with blobs in between, or a delegation.
        if node.http.call("eth_sendRawTransaction", json!([raw])).await.is_ok() {
            sent.push(*decode_transaction(raw).unwrap().hash());
        }
    }
    let kinds: std::collections::BTreeSet<_> =
        with.payload.transactions.iter().map(|raw| raw[0].min(0xc0)).collect();
    assert_eq!(kinds.len(), 5, "every type: {kinds:?}");
    assert!(sent.len() >= 5, "{}", sent.len());
    // And one that stays.
    let (waiting, waiting_hash) = transfer(0, 1_000, TIP);
    send(&mut node, &waiting).await;
    let before = counts(&mut node).await;

    let without = builder.build_of(builder.genesis(), 2, &[]);
    let above = builder.build_of(without.hash, 3, &[]);
    for built in [&with, &without, &above] {
        node.import(built).await;
    }
    node.set_head(with.hash).await;
    wait_for_counts(&mut node, (0, 1)).await;
    node.set_head(above.hash).await;
    wait("the return of all", async || {
        for hash in &sent {
            if !has(&mut node, *hash).await {
                return None;
            }
        }
        Some(())
    })
    .await;
    let after = counts(&mut node).await;
    assert!(after.0 + after.1 >= before.0 + before.1, "{after:?}, before {before:?}");
    assert!(has(&mut node, waiting_hash).await);
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_transactions_survive_restarts() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    let blobs = [TestBlob::constant(1), TestBlob::varied()];
    let blob = blob_transaction(1, &blobs, |_| {});
    send(&mut node, &blob.with_cells(&blobs).encode()).await;
    for nonce in 0..5 {
        send(&mut node, &transfer(0, nonce, TIP).0).await;
    }
    for _ in 0..3 {
        node = node.restart().await;
        wait_for_counts(&mut node, (6, 0)).await;
        assert_eq!(node.blob_status().await.stored_blobs, 2);
    }
    // A transaction in a block is not remembered for the next start.
    let with = builder.build_of(builder.genesis(), 1, &[&blob]);
    node.extend(&with).await;
    wait_for_counts(&mut node, (5, 0)).await;
    node = node.restart().await;
    wait_for_counts(&mut node, (5, 0)).await;
    assert!(!call(&mut node, "eth_getTransactionByHash", json!([blob.hash()])).await.is_null());
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_reach_other_nodes_and_each_blob_is_verified_once() {
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut a = Node::start_with(builder.genesis_json(), config(Vec::new())).await;
    // Sent before there is any peer.
    send(&mut a, &transfer(0, 0, TIP).0).await;
    let enode = a.discovery().unwrap().enode;
    let mut b = Node::start_with(builder.genesis_json(), config(vec![enode.clone()])).await;
    let mut c = Node::start_with(builder.genesis_json(), config(vec![enode])).await;
    for node in [&mut b, &mut c] {
        wait_for_counts(node, (1, 0)).await;
    }
    let blobs = [TestBlob::constant(1), TestBlob::varied()];
    let blob = blob_transaction(1, &blobs, |_| {});
    send(&mut b, &blob.with_cells(&blobs).encode()).await;
    for nonce in 1..300 {
        send(&mut b, &transfer(0, nonce, TIP).0).await;
    }
    for node in [&mut a, &mut c] {
        wait_for_counts(node, (301, 0)).await;
        assert!(has(node, blob.hash()).await);
        let hashes = blobs.map(|blob| blob.versioned_hash);
        let found = node.engine.call("engine_getBlobsV2", json!([hashes])).await.unwrap();
        assert_eq!(found.as_array().unwrap().len(), 2);
        assert_eq!(node.blob_status().await.verified, 2);
    }
    for node in [a, b, c] {
        node.stop_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_travel_to_geth_and_back() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json()).unwrap();
    run(folder.path(), "geth", "init", &[&genesis]);
    let args = ["--port", "0", "--syncmode", "full", "--cache", "64"];
    let geth = Geth::start(folder.path(), "geth", &args);
    // geth takes no transactions of peers before its consensus client names a head.
    let mut engine = geth_engine(folder.path(), "geth").await;
    let state = json!({"headBlockHash": builder.genesis(), "safeBlockHash": B256::ZERO,
        "finalizedBlockHash": B256::ZERO});
    let answer = engine.call("engine_forkchoiceUpdatedV3", json!([state, null])).await.unwrap();
    assert_eq!(answer["payloadStatus"]["status"], json!("VALID"));

    let mut node = Node::start_with(builder.genesis_json(), config(vec![geth.enode()])).await;
    wait("the session with geth", async || {
        node.peer_sessions().unwrap().sessions().await.unwrap().pop()
    })
    .await;
    let blobs = [TestBlob::constant(1), TestBlob::varied()];
    let blob = blob_transaction(1, &blobs, |_| {});
    send(&mut node, &blob.with_cells(&blobs).encode()).await;
    let (raw, hash) = transfer(0, 0, TIP);
    send(&mut node, &raw).await;
    for hash in [hash, blob.hash()] {
        // geth's index of transactions is not there at once.
        let look = format!(
            "(function () {{ try {{ return eth.getTransaction('{hash}') }} catch (e) {{ return null }} }})()"
        );
        wait("a transaction in geth", async || {
            let found = geth.eval(&look);
            (!found.is_null()).then_some(())
        })
        .await;
    }
    // And from geth, with blobs and without.
    let back = blob_transaction(2, &blobs, |_| {});
    for raw in [transfer(0, 1, TIP).0, back.with_cells(&blobs).encode()] {
        engine.call("eth_sendRawTransaction", json!([raw])).await.unwrap();
    }
    wait_for_counts(&mut node, (4, 0)).await;
    assert!(has(&mut node, back.hash()).await);
    assert_eq!(node.blob_status().await.verified, 2, "the same blobs");
    node.stop_and_verify().await;
}
