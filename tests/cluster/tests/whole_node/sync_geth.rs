//! Sync from a real geth: headers and bodies over RLPx, executed here. Skipped, visibly, where geth
//! is not installed.

use alloy_primitives::B256;
use flate2::read::MultiGzDecoder;
use serde_json::json;
use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tandem_chain::{Block, Payload, PayloadSidecar};
use tandem_cluster::Config;
use tandem_cluster_tests::{Corpus, Node, Recorded};
use tokio::time::sleep;

/// Longest wait for anything.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A geth that serves a chain, ended with the test.
struct Server {
    process: Child,
    ipc: PathBuf,
}

impl Server {
    /// Imports the chain and starts geth on it.
    fn start(folder: &Path, genesis: &str, chain: &[Block]) -> Self {
        let (genesis_file, chain_file) = (folder.join("genesis.json"), folder.join("chain.rlp"));
        std::fs::write(&genesis_file, genesis).unwrap();
        let mut file = File::create(&chain_file).unwrap();
        for block in chain {
            file.write_all(&block.to_rlp()).unwrap();
        }
        for (command, input) in [("init", &genesis_file), ("import", &chain_file)] {
            let mut geth = Command::new("geth");
            geth.args([command, "--datadir"]).arg(folder.join("geth")).arg(input);
            let out = geth.stdin(Stdio::null()).output().unwrap();
            let text = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "geth {command}: {text}");
        }
        let ipc = folder.join("geth.ipc");
        let log = File::create(folder.join("geth.log")).unwrap();
        let process = Command::new("geth")
            .args(["--datadir".as_ref(), folder.join("geth").as_os_str()])
            .args(["--ipcpath".as_ref(), ipc.as_os_str()])
            .args(["--authrpc.port", "0", "--port", "0", "--nodiscover", "--nat", "none"])
            .args(["--syncmode", "full", "--cache", "64"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self { process, ipc };
        let end = Instant::now() + WAIT_MAX;
        while !server.ipc.exists() {
            assert!(Instant::now() < end, "geth does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Evaluates an expression in geth's console.
    fn eval(&self, expression: &str) -> String {
        let out = Command::new("geth")
            .args(["attach".as_ref(), "--exec".as_ref(), expression.as_ref(), self.ipc.as_os_str()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).trim().trim_matches('"').to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

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
    if Command::new("geth").arg("version").output().is_err() {
        // Not by a macro: its output is captured in tests that pass.
        std::io::stderr().write_all(b"SKIPPED: geth is not installed\n").unwrap();
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
    let geth = Server::start(folder.path(), &genesis, &chain);
    assert_eq!(geth.eval("eth.getBlock('latest').hash"), tip.to_string(), "geth's head");
    let url = geth.eval("admin.nodeInfo.enode");
    let url = url.split('?').next().unwrap();

    let mut config = Config { with_sessions: true, ..Config::default() };
    config.peer_sessions.listen = ([127, 0, 0, 1], 0).into();
    config.peer_sessions.static_peers = vec![url.to_owned()];
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
        assert!(Instant::now() < end, "{}", geth.eval("JSON.stringify(admin.peers)"));
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
