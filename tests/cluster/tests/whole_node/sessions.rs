//! Nodes that find each other, hold a session, and serve each other's blocks.

use alloy_primitives::{B256, keccak256};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use tandem_chain::{Fork, decode_header, decode_receipts, receipts_root};
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node, wait};
use tandem_proto::{
    peer_sessions::{Direction, Fetch, Fetched, PeerId, PeerSessionsApi, Session},
    storage::BlockRef,
};

/// Settings of a node, which are the defaults except for addresses and the pace of news.
fn config(bootnodes: Vec<String>) -> Config {
    let mut config = Config::small();
    (config.with_discovery, config.with_sessions) = (true, true);
    (config.discovery.addr, config.discovery.port) = (Ipv4Addr::LOCALHOST.into(), 0);
    config.discovery.bootnodes = bootnodes;
    config.peer_sessions.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.peer_sessions.range_update_secs = 1;
    config
}

async fn ask(node: &mut Node, method: &str) -> Value {
    node.http.call(method, json!([])).await.unwrap()
}

/// Returns the session of a node that has one.
async fn session(node: &Node) -> Session {
    let sessions = node.peer_sessions().unwrap();
    wait("a session", async || sessions.sessions().await.unwrap().pop()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_find_each_other_and_serve_their_blocks() {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut a = Node::start_with(builder.genesis_json(), config(Vec::new())).await;
    let chain = builder.chain(builder.genesis(), 61, 4, Contents::Everything);
    for built in &chain[..3] {
        a.extend(built).await;
    }
    let enode = a.discovery().unwrap().enode;
    let mut b = Node::start_with(builder.genesis_json(), config(vec![enode])).await;
    let (at_a, at_b) = (session(&a).await, session(&b).await);
    assert_ne!(at_a.direction, at_b.direction);
    assert_eq!((at_a.eth_version, at_a.range.latest), (72, 0));
    assert!(at_b.client.starts_with("Tandem/v"), "{}", at_b.client);
    assert_eq!((at_a.id, at_b.id), (b.discovery().unwrap().id, a.discovery().unwrap().id));

    // Both sides see it: people, and discovery.
    for node in [&mut a, &mut b] {
        assert_eq!(ask(node, "net_peerCount").await, json!("0x1"));
        assert_eq!(ask(node, "net_listening").await, json!(true));
        assert!(node.http.call("admin_peers", json!([])).await.is_err(), "needs a token");
    }
    let peers = b.engine.call("admin_peers", json!([])).await.unwrap();
    let is_inbound = at_b.direction == Direction::Inbound;
    assert_eq!(peers[0]["network"]["inbound"], json!(is_inbound));
    assert_eq!(peers[0]["protocols"]["eth"]["latestBlock"], json!(3));
    wait("the share of wanted peers", async || {
        b.discovery().filter(|status| status.completion_permille == 20)
    })
    .await;

    let sessions = b.peer_sessions().unwrap();
    fetch(&*sessions, at_b.id, builder.genesis(), &chain[..3]).await;

    // A block that is not canonical yet is no peer's business.
    a.import(&chain[3]).await;
    let unknown = Fetch::Bodies(vec![chain[3].hash]);
    assert_eq!(sessions.fetch(at_b.id, unknown).await, Ok(Fetched::Bodies(Vec::new())));
    a.set_head(chain[3].hash).await;
    wait("the new head", async || {
        let latest = session(&b).await.range.latest;
        (latest == chain[3].header.number).then_some(())
    })
    .await;
    fetch(&*sessions, at_b.id, builder.genesis(), &chain).await;

    // It holds on to the database.
    drop(sessions);
    b.stop_and_verify().await;
    wait("the end of the session", async || {
        (ask(&mut a, "net_peerCount").await == json!("0x0")).then_some(())
    })
    .await;
    a.stop_and_verify().await;
}

/// Fetches a whole chain from a peer and checks it.
async fn fetch(sessions: &dyn PeerSessionsApi, peer: PeerId, genesis: B256, chain: &[Built]) {
    let limit = chain.len() as u32 + 9;
    let start = BlockRef::Number(0);
    let request = Fetch::Headers { start, limit, skip: 0, reverse: false };
    let Ok(Fetched::Headers(headers)) = sessions.fetch(peer, request).await else { panic!() };
    let hashes: Vec<_> = chain.iter().map(|built| built.hash).collect();
    let fetched: Vec<_> = headers.iter().map(keccak256).collect();
    assert_eq!(fetched, [&[genesis], &hashes[..]].concat());
    let request = Fetch::Bodies(hashes.clone());
    let Ok(Fetched::Bodies(bodies)) = sessions.fetch(peer, request).await else { panic!() };
    for (built, (header, body)) in chain.iter().zip(headers[1..].iter().zip(bodies)) {
        let block = tandem_chain::Block::decode(header.clone(), body).unwrap();
        assert_eq!(block.transactions.len(), built.payload.transactions.len());
        assert!(block.check_roots().is_ok());
    }
    let request = Fetch::Receipts { first: 0, hashes: hashes.clone() };
    let answer = sessions.fetch(peer, request).await;
    let Ok(Fetched::Receipts { incomplete: false, blocks }) = answer else { panic!() };
    for (header, receipts) in headers[1..].iter().zip(&blocks) {
        let header = decode_header(header).unwrap();
        let receipts = decode_receipts(receipts).unwrap();
        assert_eq!(receipts_root(&receipts).0, header.receipts_root);
    }
    assert_eq!(blocks.len(), chain.len());
    let lists = Ok(Fetched::AccessLists(vec![None; chain.len()]));
    assert_eq!(sessions.fetch(peer, Fetch::AccessLists(hashes)).await, lists);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sessions_there_are_no_peers() {
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), Config::small()).await;
    assert!(node.peer_sessions().is_none());
    assert_eq!(ask(&mut node, "net_peerCount").await, json!("0x0"));
    assert_eq!(ask(&mut node, "net_listening").await, json!(false));
    node.stop_and_verify().await;
}
