//! Sync from a real geth: headers and bodies over RLPx, executed here. Skipped, visibly, where geth
//! is not installed.

use alloy_primitives::B256;
use flate2::read::MultiGzDecoder;
use serde_json::json;
use std::{
    fs::File,
    io::Read,
    time::{Duration, Instant},
};
use tandem_chain::{Block, Payload, PayloadSidecar};
use tandem_cluster::Config;
use tandem_cluster_tests::{Corpus, Node, Recorded};
use tandem_testkit::geth::{Geth, import, is_installed};
use tokio::time::sleep;

/// Longest wait for anything.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn block(recorded: Recorded) -> Block {
    let Recorded { params, .. } = recorded;
    let field = |index: usize| params.get(index).cloned().unwrap_or_default();
    let payload: Payload = serde_json::from_value(field(0)).unwrap();
    let sidecar = PayloadSidecar {
        versioned_hashes: serde_json::from_value(field(1)).unwrap(),
        parent_beacon_block_root: serde_json::from_value(field(2)).unwrap(),
        execution_requests: serde_json::from_value(field(3)).unwrap(),
    };
    Block::from_payload(payload, &sidecar).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_syncs_from_geth_over_a_restart() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let corpus = Corpus::demo();
    let mut genesis = String::new();
    let file = File::open(corpus.genesis()).unwrap();
    MultiGzDecoder::new(file).read_to_string(&mut genesis).unwrap();
    let chain: Vec<Block> = corpus.payloads().map(block).collect();
    let (tip, finalized) = (chain[chain.len() - 1].id.hash, chain[chain.len() / 2].id.hash);
    assert_eq!(tip, corpus.head_hash);
    import(folder.path(), "geth", &genesis, chain.iter().map(Block::to_rlp));
    let args = ["--port", "0", "--syncmode", "full", "--cache", "64"];
    let geth = Geth::start(folder.path(), "geth", &args);
    assert_eq!(geth.eval("eth.getBlock('latest').hash"), json!(tip), "geth's head");

    let mut config = Config { with_sessions: true, ..Config::default() };
    config.peer_sessions.listen = ([127, 0, 0, 1], 0).into();
    config.peer_sessions.static_peers = vec![geth.enode()];
    config.peer_sessions.redial_secs = 1;
    config.sync.head_every = 8;
    let mut node = Node::start_with(&genesis, config).await;
    let mut restarted = false;
    let end = Instant::now() + WAIT_MAX;
    loop {
        let status = node.forkchoice(tip, B256::ZERO, finalized).await.unwrap();
        if status.verdict() == ("VALID", Some(tip)) {
            break;
        }
        assert_eq!(status.verdict(), ("SYNCING", None), "{status:?}");
        assert!(Instant::now() < end, "{}", geth.eval("admin.peers"));
        let number = node.http.call("eth_blockNumber", json!([])).await.unwrap();
        if !restarted && number != json!("0x0") {
            restarted = true;
            node = node.restart().await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let latest = node.http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(latest["hash"], json!(tip));
    assert_eq!(latest["stateRoot"], json!(corpus.head_state_root));
    let known = node.http.call("eth_getBlockByNumber", json!(["finalized", false])).await.unwrap();
    assert_eq!(known["hash"], json!(finalized));
    node.stop_and_verify().await;
}
