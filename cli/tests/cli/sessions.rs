//! Tests peer-sessions in a process of its own: sessions, blocks for peers, and sync from them.

use crate::binary;
use alloy_primitives::B256;
use serde_json::{Value, json};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};
use tandem_chain::Fork;
use tandem_cluster::{Config, load_or_create_node_key};
use tandem_cluster_tests::{
    Builder, Built, Client, Contents, Forks, Node, Process, Running, Six, signal, wait,
};
use tandem_discv4::node_id;
use tandem_peer_sessions_client as peer_sessions;
use tandem_proto::peer_sessions::{Error, Fetch, Fetched, PeerSessionsApi};
use tempfile::TempDir;

/// Returns the settings of a node that dials only this peer.
fn dialling(peer: String) -> Config {
    let mut config = Config::small();
    config.with_sessions = true;
    config.peer_sessions.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.peer_sessions.static_peers = vec![peer];
    config.peer_sessions.range_update_secs = 1;
    config.peer_sessions.redial_secs = 1;
    config
}

async fn send(engine: &mut Client, built: &Built) -> Value {
    let (method, params) = built.new_payload();
    engine.call(method, params).await.unwrap()["status"].clone()
}

async fn choose(engine: &mut Client, built: &Built) -> Value {
    let state = json!({
        "headBlockHash": built.hash,
        "safeBlockHash": B256::ZERO,
        "finalizedBlockHash": B256::ZERO,
    });
    let answer = engine.call("engine_forkchoiceUpdatedV3", json!([state, null])).await.unwrap();
    answer["payloadStatus"]["status"].clone()
}

async fn peer_count(http: &mut Client) -> Option<Value> {
    http.call("net_peerCount", json!([])).await.ok()
}

fn gauge(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.split([' ', '{']).next() == Some(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_serves_blocks_to_a_peer_and_syncs_from_it() {
    let folder = TempDir::new().unwrap();
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let chain = builder.chain(builder.genesis(), 71, 12, Contents::Everything);
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json()).unwrap();
    let config = folder.path().join("tandem.toml");
    fs::write(&config, "[peer_sessions]\nrange_update_secs = 1\n").unwrap();
    let more = ["--nats", "none", "--config", config.to_str().unwrap()];
    let mut six = Six::start(binary(), folder.path(), &genesis, &more);
    let (mut engine, mut http) = (six.endpoints.engine(), six.endpoints.http());
    for built in &chain[..3] {
        assert_eq!(send(&mut engine, built).await, "VALID");
        assert_eq!(choose(&mut engine, built).await, "VALID");
    }
    assert_eq!(peer_count(&mut http).await, Some(json!("0x0")));
    assert_eq!(http.call("net_listening", json!([])).await.unwrap(), json!(true));

    let id = *load_or_create_node_key(&folder.path().join("data")).unwrap().public();
    let peer = format!("enode://{id:x}@127.0.0.1:{}", six.port("peer-sessions", "sessions"));
    let mut node = Node::start_with(builder.genesis_json(), dialling(peer)).await;
    let sessions = node.peer_sessions().unwrap();
    // The session tells the newest block of the cluster, whose executor has told storage-writer.
    wait("a session, with the cluster's head", async || {
        let session = sessions.sessions().await.unwrap().pop()?;
        assert_eq!(session.id, id);
        (session.range.latest_hash == chain[2].hash).then_some(())
    })
    .await;
    let hashes: Vec<_> = chain[..3].iter().map(|built| built.hash).collect();
    let fetched = sessions.fetch(id, Fetch::Bodies(hashes)).await;
    let Ok(Fetched::Bodies(bodies)) = fetched else { panic!("{fetched:?}") };
    assert_eq!(bodies.len(), 3);

    // All who ask in the cluster see it: people, and peer-table.
    assert_eq!(peer_count(&mut http).await, Some(json!("0x1")));
    let peers = engine.call("admin_peers", json!([])).await.unwrap();
    let own = sessions_id(&node);
    assert_eq!((&peers[0]["id"], &peers[0]["network"]["inbound"]), (&json!(own), &json!(true)));
    wait("peer-table", async || {
        let connected = gauge(&six.metrics("peer-table"), "tandem_peer_table_connected_peers");
        (connected == Some(1.0)).then_some(())
    })
    .await;

    // The node has blocks that the consensus client of the cluster chooses.
    for built in &chain {
        node.extend(built).await;
    }
    let head = chain.last().unwrap();
    assert_eq!(choose(&mut engine, head).await, "SYNCING");
    reaches(&mut http, head).await;

    // A process that does not answer is no reason to say that there are no peers.
    let pid = six.running("peer-sessions");
    signal(pid, rustix::process::Signal::STOP);
    // A call that is on its way when the process stops may still be answered.
    let away = wait("a refusal", async || http.call("net_peerCount", json!([])).await.err()).await;
    signal(pid, rustix::process::Signal::CONT);
    assert!(away.message.contains("peer-sessions is not available"), "{away:?}");

    // A killed one costs its sessions, until peers dial again.
    six.kill("peer-sessions");
    wait("another session", async || {
        let is_new = six.pid("peer-sessions").is_some_and(|it| it != pid);
        (is_new && peer_count(&mut http).await == Some(json!("0x1"))).then_some(())
    })
    .await;
    let more = builder.chain(head.hash, 72, 3, Contents::Everything);
    for built in &more {
        node.extend(built).await;
    }
    let head = more.last().unwrap();
    assert_eq!(choose(&mut engine, head).await, "SYNCING");
    reaches(&mut http, head).await;

    drop(sessions);
    node.stop_and_verify().await;
    let (status, _) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_downloads_the_state_of_a_recent_block() {
    let folder = TempDir::new().unwrap();
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let chain = builder.chain(builder.genesis(), 73, 60, Contents::Random(6));
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json()).unwrap();
    let mut serving = dialling(String::new());
    serving.peer_sessions.static_peers.clear();
    serving.with_discovery = true;
    (serving.discovery.addr, serving.discovery.port) = (Ipv4Addr::LOCALHOST.into(), 0);
    let mut node = Node::start_with(builder.genesis_json(), serving).await;
    for built in &chain {
        node.extend(built).await;
    }
    let config = folder.path().join("tandem.toml");
    let peer = node.discovery().unwrap().enode;
    let text = format!(
        "[peer_sessions]\nstatic_peers = [\"{peer}\"]\nredial_secs = 1\n\
         [sync]\nsnap_blocks_min = 32\npivot_depth = 8\n"
    );
    fs::write(&config, text).unwrap();
    let more = ["--nats", "none", "--config", config.to_str().unwrap()];
    let mut six = Six::start(binary(), folder.path(), &genesis, &more);
    let (mut engine, mut http) = (six.endpoints.engine(), six.endpoints.http());
    wait("a session", async || (peer_count(&mut http).await == Some(json!("0x1"))).then_some(()))
        .await;
    let head = chain.last().unwrap();
    assert_eq!(choose(&mut engine, head).await, "SYNCING");
    reaches(&mut http, head).await;
    // Only the blocks above the pivot were executed.
    let log = |process| fs::read_to_string(folder.path().join("data/logs").join(process)).unwrap();
    let (writer, executor) = (log("storage-writer.log"), log("executor.log"));
    assert!(writer.contains("downloaded state adopted"), "{writer}\n{executor}");
    assert!(executor.matches("block executed").count() <= 8, "{executor}");

    // The cluster goes on as any other, and after a kill of the service that has the state.
    let more = builder.chain(head.hash, 74, 4, Contents::Everything);
    for built in &more[..2] {
        assert_eq!(send(&mut engine, built).await, "VALID");
        assert_eq!(choose(&mut engine, built).await, "VALID");
    }
    let pid = six.running("storage-writer");
    six.kill("storage-writer");
    wait("the next storage-writer", async || six.pid("storage-writer").filter(|it| *it != pid))
        .await;
    for built in &more[2..] {
        wait("a verdict", async || (send(&mut engine, built).await == "VALID").then_some(())).await;
        assert_eq!(choose(&mut engine, built).await, "VALID");
    }
    node.stop_and_verify().await;
    let (status, _) = six.stop();
    assert!(status.success(), "{status}: {}", six.log());
    let (status, text) = Process::verify(binary(), folder.path());
    assert!(status.success(), "{status}\n{text}");
}

/// Returns the id of a node, as `admin_peers` shows it.
fn sessions_id(node: &Node) -> String {
    let key = load_or_create_node_key(&node.datadir()).unwrap();
    format!("{:x}", node_id(key.public()))
}

async fn reaches(http: &mut Client, head: &Built) {
    wait("the head that the consensus client chose", async || {
        let latest = http.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
        (latest["hash"] == json!(head.hash)).then_some(())
    })
    .await;
}

fn process(folder: &Path) -> (Running, SocketAddr) {
    let datadir = folder.join("peers");
    let arguments = [
        "peer-sessions",
        "--datadir",
        datadir.to_str().unwrap(),
        "--grpc.port=0",
        "--metrics.port=0",
        "--sessions.addr=127.0.0.1",
        "--sessions.port=0",
        // No process listens there.
        "--storage-writer=http://127.0.0.1:9",
        "--peer-table=http://127.0.0.1:9",
    ];
    let mut process = Running::start(binary(), folder, "peer-sessions", arguments);
    let address = process.says("listening port=\"grpc\" address=").parse().unwrap();
    (process, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_chain_calls_say_so_and_the_process_waits_for_it() {
    let folder = TempDir::new().unwrap();
    let (mut process, address) = process(folder.path());
    let runtime = tokio::runtime::Handle::current();
    let settings = peer_sessions::ClientConfig::default();
    let client = peer_sessions::Client::connect(&format!("http://{address}"), settings, &runtime);
    let client: Arc<peer_sessions::Client> = client.unwrap();
    wait("a connection", async || client.is_connected().then_some(())).await;
    let reason = "it waits for the chain of storage-writer".to_owned();
    assert_eq!(client.sessions().await, Err(Error::Unavailable(reason)));
    process.says("waiting for the chain");
    let (status, _) = process.terminate();
    assert!(status.success(), "{}", process.log());
}
