//! A node among peers that lie, over TCP, with one honest peer: each liar loses its session for the
//! right reason, the node's memory stays bounded, and the node reaches the head.

mod flood;
mod liar;

use crate::binary;
use flood::Flood;
use liar::Lie;
use serde_json::{Value, json};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster::{Config, load_or_create_node_key};
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node, Process, wait};
use tandem_discv4::{NodeUrl, PublicKey};
use tandem_rlpx::DisconnectReason as Reason;
use tempfile::TempDir;
use tokio::{task::spawn_blocking, time::sleep};

/// The lies, each with the reason that the liar is told.
const LIES: [(Lie, Reason); 10] = [
    (Lie::WrongRange, Reason::Protocol),
    (Lie::MissingProofs, Reason::Protocol),
    (Lie::ChangedAccount, Reason::Protocol),
    (Lie::EndlessHeaders, Reason::Protocol),
    (Lie::SnappyBomb, Reason::Protocol),
    (Lie::LargestZeros, Reason::Protocol),
    (Lie::HugeAnnouncement, Reason::Protocol),
    (Lie::BackwardRange, Reason::Protocol),
    (Lie::ByteByByte, Reason::Timeout),
    (Lie::Silence, Reason::Timeout),
];

/// Number of blocks. The node downloads the state of a late one.
const BLOCKS: usize = 120;

/// Longest wait for the head.
const HEAD_TIME_MAX: Duration = Duration::from_secs(120);

/// Memory that all liars together may cost, over that of a node with the honest peer alone. Most of
/// it is for messages as large as the largest, compressed and not.
const EXTRA_BYTES_MAX: u64 = 64 << 20;

/// Settings of the node: it downloads a state, and peers soon have had enough time.
const CONFIG: &str = "
[sync]
snap_blocks_min = 32
pivot_depth = 8

[peer_sessions]
request_ms = 5000
handshake_ms = 2000
redial_secs = 1
dial_ms = 100
";

/// Inbound handshakes that the node has under way at most, and admits in a second, by default.
const HANDSHAKES: f64 = 50.0;

/// Place of a peer.
type Place = (SocketAddr, PublicKey);

/// Starts a node with the whole chain.
async fn honest(genesis: &str, chain: &[Built]) -> Node {
    let mut config = Config { with_sessions: true, with_discovery: true, ..Config::small() };
    (config.discovery.addr, config.discovery.port) = (Ipv4Addr::LOCALHOST.into(), 0);
    config.peer_sessions.listen = (Ipv4Addr::LOCALHOST, 0).into();
    let mut node = Node::start_with(genesis, config).await;
    for built in chain {
        node.extend(built).await;
    }
    node
}

async fn peer_count(node: &Process) -> Value {
    node.public_client().call("net_peerCount", json!([])).await.unwrap()
}

/// Has a node sync from the honest peer, among the liars of this table if there are any. Returns the
/// peak of its memory, in bytes.
async fn sync(folder: &Path, honest: &str, tip: &Built, lies: &[(Lie, Reason)]) -> u64 {
    let [genesis, config] = ["../genesis.json", "../tandem.toml"].map(|file| folder.join(file));
    fs::create_dir_all(folder).unwrap();
    let args = ["--sessions.addr", "127.0.0.1", "--sessions.port", "0", "--sessions.peers", honest];
    let args = [&args[..], &["--config", config.to_str().unwrap()]].concat();
    let node = Process::start_with(binary(), folder, &genesis, &args).await;
    let id = *load_or_create_node_key(&folder.join("data")).unwrap().public();
    let listens = wait("the port for sessions", async || node.address("sessions")).await;
    let at: Place = (listens, id);
    let honest: NodeUrl = honest.parse().unwrap();
    let honest: Place = ((honest.0.endpoint.ip, honest.0.endpoint.tcp_port).into(), honest.0.key);
    let start = |(key, (lie, _)): (u8, &(Lie, Reason))| {
        let lie = *lie;
        spawn_blocking(move || liar::start(lie, key, at, honest))
    };
    let mut liars = Vec::new();
    for starting in (0..).zip(lies).map(start) {
        liars.push(starting.await.unwrap());
    }
    // All of them are there before the node is told of a head.
    let all = json!(format!("{:#x}", liars.len() + 1));
    wait("all sessions", async || (peer_count(&node).await == all).then_some(())).await;
    let flood = (!lies.is_empty()).then(|| Flood::start(at.0, at.1));

    let begin = Instant::now();
    while !node.choose(tip.hash).await {
        assert!(begin.elapsed() < HEAD_TIME_MAX, "the head was not reached\n{}", node.log());
        sleep(Duration::from_millis(50)).await;
    }
    let reached = begin.elapsed();
    for (liar, (lie, expected)) in liars.into_iter().zip(lies) {
        let what = format!("the end of the session with {lie:?}");
        wait(&what, async || liar.is_finished().then_some(())).await;
        let told = liar.join().unwrap();
        assert_eq!(told, Some(*expected), "{lie:?}\n{}", node.log());
    }
    if let Some(flood) = flood {
        let counts = spawn_blocking(|| flood.end()).await.unwrap();
        eprintln!("head after {reached:?}; {counts:?}");
        let admitted_max = HANDSHAKES * (counts.seconds + 2.0);
        assert!(counts.begun > 1000, "{counts:?}");
        assert!((1.0..=admitted_max).contains(&(counts.answered as f64)), "{counts:?}");
        assert!(counts.refused > counts.begun / 2, "{counts:?}");
    }
    assert!(node.has_logged("state downloaded"), "no state was asked for\n{}", node.log());
    // The node forgets a session shortly after it has told the liar why.
    let only_honest = async || (peer_count(&node).await == json!("0x1")).then_some(());
    wait("the honest peer alone", only_honest).await;
    let latest = json!(["latest", false]);
    let latest = node.public_client().call("eth_getBlockByNumber", latest).await.unwrap();
    assert_eq!(latest["stateRoot"], json!(tip.header.state_root));
    let peak = node.peak_bytes();
    drop(node);
    let (status, text) = Process::verify(binary(), folder);
    assert!(status.success(), "{status}\n{text}");
    peak
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn liars_lose_their_sessions_and_the_node_reaches_the_head_through_the_honest_peer() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let chain = builder.chain(builder.genesis(), 81, BLOCKS, Contents::Random(6));
    fs::write(folder.join("genesis.json"), builder.genesis_json()).unwrap();
    fs::write(folder.join("tandem.toml"), CONFIG).unwrap();
    let honest = honest(builder.genesis_json(), &chain).await;
    let enode = honest.discovery().unwrap().enode;
    let tip = chain.last().unwrap();
    let alone = sync(&folder.join("alone"), &enode, tip, &[]).await;
    let among = sync(&folder.join("among"), &enode, tip, &LIES).await;
    eprintln!("peak: {} MiB alone, {} MiB among liars", alone >> 20, among >> 20);
    assert!(among <= alone + EXTRA_BYTES_MAX, "{among} bytes, {alone} without liars");
    honest.stop_and_verify().await;
}
