//! A node that offers its workers to executors of other processes.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant, SystemTime},
};
use tandem_chain::Fork;
use tandem_cluster::{
    Config, Identity, TlsConfig,
    certificates::{Authority, Pem},
};
use tandem_cluster_tests::{Builder, Contents, Forks, Node};
use tandem_multiproof_workers_client::{Client, ClientConfig};
use tandem_proto::multiproof::ProofApi;
use tokio::{runtime::Handle, task::spawn_blocking};

/// Asks a node with these certificates, or none, for the status of its workers.
async fn ask(tls: TlsConfig, identity: Identity) {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Cancun));
    let mut config = Config::small();
    config.multiproof_workers.grpc_addr = Some("127.0.0.1:0".parse().unwrap());
    config.tls = tls;
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let block = builder.build(builder.genesis(), 1, Contents::Random(4));
    node.extend(&block).await;
    let scheme = if identity.is_proven() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", node.proof_address().unwrap());
    let config = ClientConfig { connection: identity.into(), ..ClientConfig::default() };
    let client = Client::connect(&endpoint, config, &Handle::current()).unwrap();
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
async fn a_node_offers_its_proof_stream_where_it_is_asked_to() {
    ask(TlsConfig::default(), Identity::default()).await;
}

/// Writes a certificate for these roles, with the authority.
fn certificate(folder: &Path, Pem { certificate, key }: &Pem, roles: &[&str]) -> TlsConfig {
    let now = SystemTime::now();
    let issued = Authority::of_key(key).unwrap().issue(roles, now, 1).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(format!("{}-{name}", roles[0]));
        fs::write(&path, text).unwrap();
        Some(path)
    };
    TlsConfig {
        ca: write("ca.crt", certificate),
        cert: write("tls.crt", &issued.certificate),
        key: write("tls.key", &issued.key),
        reload_seconds: 1,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_certificate_of_its_services_offers_them_to_who_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::make(SystemTime::now(), 2).unwrap();
    let node = certificate(folder.path(), &authority, &["multiproof-worker", "blob-validator"]);
    let executor = certificate(folder.path(), &authority, &["executor"]);
    ask(node, Identity::load("executor", &executor).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_it_offers_none() {
    let builder = Builder::new(Forks::at_genesis(Fork::Cancun));
    let node = Node::start(builder.genesis_json()).await;
    assert_eq!(node.proof_address(), None);
    node.stop_and_verify().await;
}
