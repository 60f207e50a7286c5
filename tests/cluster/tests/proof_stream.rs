//! A node that offers its workers to executors of other processes.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Contents, Forks, Node};
use tandem_multiproof_workers::grpc::{Client, ClientConfig};
use tandem_proto::multiproof::ProofApi;
use tokio::{runtime::Handle, task::spawn_blocking};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_offers_its_proof_stream_where_it_is_asked_to() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Cancun));
    let mut config = Config::small();
    config.multiproof_workers.grpc_addr = Some("127.0.0.1:0".parse().unwrap());
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let block = builder.build(builder.genesis(), 1, Contents::Random(4));
    node.extend(&block).await;
    let endpoint = format!("http://{}", node.proof_address().unwrap());
    let runtime = Handle::current();
    let client = Client::connect(&endpoint, ClientConfig::default(), &runtime).unwrap();
    let asked = spawn_blocking(move || {
        let started = Instant::now();
        while !client.is_connected() && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(2));
        }
        client.status()
    });
    let status = asked.await.unwrap().unwrap();
    assert_eq!((status.threads, status.shards.len(), status.tip), (1, 16, Some(block.hash)));
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_it_offers_none() {
    let builder = Builder::new(Forks::at_genesis(Fork::Cancun));
    let node = Node::start(builder.genesis_json()).await;
    assert_eq!(node.proof_address(), None);
    node.stop_and_verify().await;
}
