//! Sync from a real geth: headers and bodies over RLPx, executed here. Skipped, visibly, where geth
//! is not installed.

use alloy_primitives::B256;
use serde_json::json;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tandem_chain::{Block, Fork};
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node};
use tokio::time::sleep;

const BLOCKS: usize = 300;

/// Longest wait for anything.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A geth that serves a chain, ended with the test.
struct Server {
    process: Child,
    ipc: PathBuf,
}

impl Server {
    /// Imports the chain and starts geth on it.
    fn start(folder: &Path, genesis: &str, chain: &[Built]) -> Self {
        let (genesis_file, chain_file) = (folder.join("genesis.json"), folder.join("chain.rlp"));
        std::fs::write(&genesis_file, genesis).unwrap();
        let mut file = File::create(&chain_file).unwrap();
        for built in chain {
            let block = Block::from_payload(built.payload.clone(), &built.sidecar).unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_syncs_from_geth_over_a_restart() {
    if Command::new("geth").arg("version").output().is_err() {
        // Not by a macro: its output is captured in tests that pass.
        std::io::stderr().write_all(b"SKIPPED: geth is not installed\n").unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let chain = builder.chain(builder.genesis(), 76_000, BLOCKS, Contents::Random(5));
    let tip = &chain[BLOCKS - 1];
    let geth = Server::start(folder.path(), builder.genesis_json(), &chain);
    assert_eq!(geth.eval("eth.getBlock('latest').hash"), tip.hash.to_string(), "geth's head");
    let url = geth.eval("admin.nodeInfo.enode");
    let url = url.split('?').next().unwrap();

    let mut config = Config::default();
    config.with_sessions = true;
    config.peer_sessions.listen = ([127, 0, 0, 1], 0).into();
    config.peer_sessions.static_peers = vec![url.to_owned()];
    config.peer_sessions.redial_secs = 1;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let mut restarted = false;
    let end = Instant::now() + WAIT_MAX;
    loop {
        let status = node.forkchoice(tip.hash, B256::ZERO, chain[200].hash).await.unwrap();
        if status.verdict() == ("VALID", Some(tip.hash)) {
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
    node.assert_head(tip).await;
    let finalized = node.http.call("eth_getBlockByNumber", json!(["finalized", false])).await;
    assert_eq!(finalized.unwrap()["hash"], json!(chain[200].hash));
    node.stop_and_verify().await;
}
