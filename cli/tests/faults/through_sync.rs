//! Faults while a node syncs from two geth peers: it dies, a peer dies, connections are reset.

use crate::{binary, table::Table};
use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tandem_chain::{Block, Fork};
use tandem_cluster_tests::{Builder, Contents, Forks, Process};
use tandem_testkit::{
    geth::{Geth, import},
    network::Proxy,
};
use tempfile::TempDir;
use tokio::{runtime::Handle, time::sleep};

/// Number of blocks that are fetched while a fault strikes.
const BLOCKS: usize = 24;

/// Longest recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// Time after which a peer that was lost is dialled again.
const CONFIG: &str = "[peer_sessions]\nredial_secs = 1\ndial_ms = 100\n";

/// A fault to inject.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    KillNode,
    KillPeer(usize),
    Reset,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::KillNode => "a node that syncs killed",
            Self::KillPeer(_) => "its peer killed",
            Self::Reset => "its connections to peers reset",
        }
    }
}

/// A geth behind a network that can be disturbed.
pub struct Peer {
    pub geth: Geth,
    pub name: String,
    pub port: String,
    pub proxy: Proxy,
    pub url: String,
}

impl Peer {
    pub fn start(folder: &Path, name: &str) -> Self {
        let geth = serve(folder, name, "0");
        let enode = geth.enode();
        let (id, address) = enode.split_once('@').unwrap();
        let port = address.rsplit(':').next().unwrap().to_owned();
        let target = format!("127.0.0.1:{port}").parse().unwrap();
        let proxy = Proxy::start(target, &Handle::current());
        let url = format!("{id}@{}", proxy.address);
        Self { geth, name: name.to_owned(), port, proxy, url }
    }
}

/// Starts a geth that executes all blocks.
pub fn serve(folder: &Path, name: &str, port: &str) -> Geth {
    Geth::start(folder, name, &["--port", port, "--syncmode", "full", "--cache", "64"])
}

/// Lets a node sync, with each fault in each round while it fetches further blocks.
pub async fn run(seed: u64, rounds: usize, table: &mut Table) {
    eprintln!("seed {seed}, through sync");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    for _ in 0..rounds {
        let mut round = [Fault::KillNode, Fault::KillPeer(rng.random_range(0..2)), Fault::Reset];
        round.shuffle(&mut rng);
        faults.extend(round);
    }
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let blocks = (faults.len() + 1) * BLOCKS;
    let chain = builder.chain(builder.genesis(), seed, blocks, Contents::Bounded(8));
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let mut peers = Vec::new();
    for name in ["geth-0", "geth-1"] {
        let blocks = chain.iter().map(|built| {
            Block::from_payload(built.payload.clone(), &built.sidecar).unwrap().to_rlp()
        });
        import(folder, name, builder.genesis_json(), blocks);
        peers.push(Peer::start(folder, name));
    }
    let (genesis, config) = (folder.join("genesis.json"), folder.join("tandem.toml"));
    fs::write(&genesis, builder.genesis_json()).unwrap();
    fs::write(&config, CONFIG).unwrap();
    let urls = peers.iter().map(|peer| &*peer.url).collect::<Vec<_>>().join(",");
    let args = ["--sessions.addr", "127.0.0.1", "--sessions.port", "0", "--sessions.peers", &urls];
    let args = [&args[..], &["--config", config.to_str().unwrap()]].concat();
    let start = || Process::start_with(binary(), folder, &genesis, &args);
    let mut node = start().await;
    follow(&node, chain[BLOCKS - 1].hash).await;
    for (index, fault) in faults.into_iter().enumerate() {
        let head = chain[(index + 2) * BLOCKS - 1].hash;
        node.choose(head).await;
        // Most of these moments are within the sync of the blocks, some before, some after.
        sleep(Duration::from_micros(rng.random_range(0..150_000))).await;
        let begin = Instant::now();
        match fault {
            Fault::KillNode => {
                node.kill();
                node = start().await;
            }
            Fault::KillPeer(index) => {
                let peer = &mut peers[index];
                peer.geth.kill();
                peer.geth = serve(folder, &peer.name, &peer.port);
            }
            Fault::Reset => peers.iter().for_each(|peer| {
                peer.proxy.reset();
            }),
        }
        follow(&node, head).await;
        table.add(fault.name(), begin.elapsed());
    }
    let latest = json!(["latest", false]);
    let latest = node.client().call("eth_getBlockByNumber", latest).await.unwrap();
    let tip = &chain[chain.len() - 1];
    assert_eq!(latest["stateRoot"], json!(tip.header.state_root), "seed {seed}");
    node.kill();
    let (status, text) = Process::verify(binary(), folder);
    assert!(status.success(), "{status}, seed {seed}\n{text}");
}

async fn follow(node: &Process, head: B256) {
    let begin = Instant::now();
    while !node.choose(head).await {
        assert!(begin.elapsed() < RECOVERY_MAX, "no sync to {head}\n{}", node.log());
        sleep(Duration::from_millis(20)).await;
    }
}
