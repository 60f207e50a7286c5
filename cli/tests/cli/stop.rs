//! SIGTERM ends a node in order and in time, whatever it is doing.

use crate::binary;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_cluster_tests::{Client, Corpus, Running};
use tempfile::TempDir;
use tokio::task::JoinSet;

const CALLERS: usize = 120;

/// Code that hashes 64 KiB for as long as there is gas: half a second.
const SLOW: &str = "0x5b61ffff5f20505f56";

/// Docker and Kubernetes kill a container after ten seconds. Other tests run beside this one.
const END_MAX: Duration = Duration::from_secs(25);

fn start(folder: &TempDir) -> Running {
    let binary = binary();
    let genesis = Corpus::demo().genesis();
    let datadir = folder.path().join("data");
    let mut arguments: Vec<_> =
        ["node", "--disable-discovery", "--authrpc.port", "0", "--http.port", "0"]
            .map(std::ffi::OsString::from)
            .to_vec();
    arguments.extend(["--datadir".into(), datadir.into(), "--genesis".into(), genesis.into()]);
    Running::start(binary, folder.path(), "node", arguments)
}

fn ends(mut node: Running) {
    let (status, took) = node.terminate();
    assert!(status.success(), "{status}\n{}", node.log());
    assert!(took < END_MAX, "{took:?}\n{}", node.log());
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

fn slow_call() -> Value {
    json!([{ "data": SLOW }, "latest"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_ends_in_time_while_calls_are_under_way() {
    let folder = TempDir::new().unwrap();
    let mut node = start(&folder);
    let address: SocketAddr = node.says("listening port=\"http\" address=").parse().unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let answered = answered.clone();
        callers.spawn(async move {
            let mut client = Client::new(address, None);
            // Until the node is gone.
            while client.try_call("eth_call", slow_call()).await.is_ok() {
                answered.fetch_add(1, Relaxed);
            }
        });
    }
    while answered.load(Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::task::spawn_blocking(move || ends(node)).await.unwrap();
    callers.shutdown().await;
}

#[test]
fn a_node_ends_in_time_while_it_loads_the_trusted_setup() {
    let folder = TempDir::new().unwrap();
    let mut node = start(&folder);
    node.says("listening port=\"engine\" address=");
    ends(node);
}
