//! Nodes that download the state of a recent block in place of executing the chain, and nodes that
//! serve it: Tandem and geth on either side.

use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tandem_chain::{Block, Fork};
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node};
use tandem_proto::{
    snap::DownloadedBlock,
    storage::{BlockRecord, BlockRef},
};
use tandem_testkit::geth::{Geth, import, is_installed, run};
use tokio::time::sleep;

/// Longest wait for anything.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Settings of a node that holds sessions with these peers only.
fn config(peers: Vec<String>) -> Config {
    let mut config = Config { with_sessions: true, ..Config::default() };
    config.with_discovery = true;
    (config.discovery.addr, config.discovery.port) = (Ipv4Addr::LOCALHOST.into(), 0);
    config.peer_sessions.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.peer_sessions.static_peers = peers;
    config.peer_sessions.redial_secs = 1;
    config.sync.snap_blocks_min = 32;
    config.sync.pivot_depth = 8;
    config
}

fn chain(len: usize) -> (Builder, Vec<Built>) {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut blocks = builder.chain(builder.genesis(), 71, len - 4, Contents::Random(6));
    let tip = blocks[len - 5].hash;
    blocks.extend(builder.chain(tip, 72, 4, Contents::Everything));
    (builder, blocks)
}

fn enode(node: &Node) -> String {
    node.discovery().unwrap().enode
}

/// Chooses a head until the node has it.
async fn reach(node: &mut Node, blocks: &[Built]) {
    let tip = blocks.last().unwrap();
    let end = Instant::now() + WAIT_MAX;
    loop {
        let status = node.forkchoice(tip.hash, B256::ZERO, B256::ZERO).await.unwrap();
        if status.verdict() == ("VALID", Some(tip.hash)) {
            return;
        }
        assert_eq!(status.verdict(), ("SYNCING", None), "{status:?}");
        assert!(Instant::now() < end, "the head was not reached");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Checks that a node has the state of the tip without having executed the chain.
async fn assert_downloaded(node: &mut Node, blocks: &[Built]) {
    let tip = blocks.last().unwrap();
    node.assert_head(tip).await;
    node.assert_state(&tip.world, "latest").await;
    let base = node.storage().checkpoint().unwrap().base.number;
    assert!(base + 8 >= tip.header.number, "the base is at {base}, so the chain was executed");
    for number in [1, blocks.len() as u64 / 2] {
        let number = json!(format!("{number:#x}"));
        let receipts = node.http.call("eth_getBlockReceipts", json!([number])).await.unwrap();
        let block = node.http.call("eth_getBlockByNumber", json!([number, false])).await.unwrap();
        let count = |value: &Value| value.as_array().unwrap().len();
        assert_eq!(count(&receipts), count(&block["transactions"]));
        if let Some(hash) = block["transactions"].get(0) {
            let found = node.http.call("eth_getTransactionByHash", json!([hash])).await.unwrap();
            assert_eq!(found["blockNumber"], number);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_downloads_the_state_from_another() {
    let (builder, blocks) = chain(60);
    let mut a = Node::start_with(builder.genesis_json(), config(Vec::new())).await;
    for built in &blocks {
        a.extend(built).await;
    }
    let mut b = Node::start_with(builder.genesis_json(), config(vec![enode(&a)])).await;
    reach(&mut b, &blocks).await;
    assert_downloaded(&mut b, &blocks).await;
    // It goes on as any other node, and after a restart.
    let mut builder = builder;
    let further = builder.chain(blocks[59].hash, 73, 3, Contents::Everything);
    b.extend(&further[0]).await;
    let mut b = b.restart().await;
    b.extend(&further[1]).await;
    b.assert_state(&further[1].world, "latest").await;
    b.stop_and_verify().await;
    a.stop_and_verify().await;
}

fn rlp(blocks: &[Built]) -> impl Iterator<Item = tandem_primitives::Bytes> {
    blocks
        .iter()
        .map(|built| Block::from_payload(built.payload.clone(), &built.sidecar).unwrap().to_rlp())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_downloads_the_state_from_geth() {
    if !is_installed() {
        return;
    }
    let (builder, blocks) = chain(60);
    let folder = tempfile::tempdir().unwrap();
    import(folder.path(), "geth", builder.genesis_json(), rlp(&blocks));
    let geth = Geth::start(folder.path(), "geth", &["--port", "0", "--cache", "64"]);
    let mut node = Node::start_with(builder.genesis_json(), config(vec![geth.enode()])).await;
    reach(&mut node, &blocks).await;
    assert_downloaded(&mut node, &blocks).await;
    node.stop_and_verify().await;
}

/// Begins a download at a node, stores the first blocks of a chain there, which `from` has, and restarts the node.
async fn begin_download(from: &Node, node: Node, blocks: &[Built], progress: &[u8]) -> Node {
    let downloads = node.downloads();
    downloads.begin_download().unwrap();
    if !progress.is_empty() {
        downloads.put_state(&[], progress).unwrap();
    }
    for built in blocks {
        let record = from.storage().block(BlockRef::Hash(built.hash)).unwrap().unwrap();
        let BlockRecord { id, header, body, receipts } = record;
        downloads.put_blocks(&[DownloadedBlock { id, header, body, receipts }]).unwrap();
    }
    // It keeps the database open.
    drop(downloads);
    node.restart().await
}

/// A restart before the state is whole: the node starts without one, and downloads it. `stored` is how many blocks
/// are there, `pivot` the one that was noted.
async fn assert_goes_on(stored: usize, pivot: Option<usize>) {
    let (builder, blocks) = chain(60);
    let mut a = Node::start_with(builder.genesis_json(), config(Vec::new())).await;
    for built in &blocks {
        a.extend(built).await;
    }
    let progress = pivot.map_or(Vec::new(), |pivot| {
        let header = &blocks[pivot - 1].header;
        let first = |part: u8| B256::right_padding_from(&[part << 4]);
        let next: Vec<_> = (0..16).map(first).collect();
        let record = json!({
            "number": pivot, "hash": blocks[pivot - 1].hash, "root": header.state_root, "next": next,
        });
        record.to_string().into_bytes()
    });
    let b = Node::start_with(builder.genesis_json(), config(vec![enode(&a)])).await;
    let mut b = begin_download(&a, b, &blocks[..stored], &progress).await;
    let refused = b.http.call("eth_getBalance", json!([Address::ZERO, "latest"])).await;
    assert!(refused.unwrap_err().message.contains("being downloaded"));
    reach(&mut b, &blocks).await;
    assert_downloaded(&mut b, &blocks).await;
    b.stop_and_verify().await;
    a.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_whole_state_starts_and_downloads_it() {
    assert_goes_on(0, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_without_a_pivot_goes_on_with_the_blocks_that_are_stored() {
    assert_goes_on(7, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_goes_on_whose_blocks_are_all_stored() {
    assert_goes_on(52, Some(52)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn geth_downloads_the_state_from_a_node() {
    if !is_installed() {
        return;
    }
    let (builder, blocks) = chain(150);
    let mut node = Node::start_with(builder.genesis_json(), config(Vec::new())).await;
    for built in &blocks {
        node.extend(built).await;
    }
    let tip = blocks.last().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let genesis = folder.join("genesis.json");
    std::fs::write(&genesis, builder.genesis_json()).unwrap();
    run(folder, "geth", "init", &[&genesis]);
    let flags = ["--port", "0", "--cache", "64", "--syncmode", "snap"];
    let geth = Geth::start(folder, "geth", &flags);
    geth.eval(&format!("admin.addPeer(\"{}\")", enode(&node)));
    let zero = B256::ZERO;
    let state =
        json!({"headBlockHash": tip.hash, "safeBlockHash": zero, "finalizedBlockHash": zero});
    let (method, params) = ("engine_forkchoiceUpdatedV3", [state, Value::Null]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let choose = format!("web3.currentProvider.send({call}).result.payloadStatus.status");
    let end = Instant::now() + WAIT_MAX;
    loop {
        let status = geth.eval(&choose);
        if status == "VALID" {
            break;
        }
        assert_eq!(status, "SYNCING");
        assert!(Instant::now() < end, "geth has not the head");
        sleep(Duration::from_millis(200)).await;
    }
    let log = std::fs::read_to_string(folder.join("geth.log")).unwrap();
    assert!(log.contains("after pivot commitment"), "geth executed the chain");
    for (address, account) in tip.world.0.iter().take(20) {
        let nonce = geth.eval(&format!("eth.getTransactionCount(\"{address}\")"));
        assert_eq!(nonce, json!(account.nonce), "{address}");
    }
    node.stop_and_verify().await;
}
