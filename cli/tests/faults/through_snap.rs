//! Faults while a node downloads a state from two geth peers whose chain goes on: the node dies, a peer
//! dies, connections are reset. The pivot moves on the way.

use crate::{
    binary,
    table::Table,
    through_sync::{Fault, Peer, serve},
};
use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Built, Client, Contents, Forks, Process, decode_status, driver::geth_engine, send_head,
};
use tandem_testkit::{geth::run as run_geth, network::Network};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

/// Blocks that the peers have when a node begins.
const BLOCKS_BEFORE: usize = 80;
/// Blocks that the peers get while a node downloads. geth has the states of the last 128, so every pivot
/// is gone at their end.
const BLOCKS_MEANWHILE: usize = 240;
/// Pause before each of them.
const GAP: Duration = Duration::from_millis(8);
/// Time that the network adds in each direction, so that a download of this small state takes a second.
const DELAY: Duration = Duration::from_millis(60);
/// Longest time from a fault to the next one.
const FAULT_PAUSE_MAX: Duration = Duration::from_millis(700);
/// Longest time until a node has the head.
const RECOVERY_MAX: Duration = Duration::from_secs(120);

/// File with the genesis.
const GENESIS: &str = "genesis.json";
/// Settings with which so few blocks are enough for a download.
const CONFIG: &str = "[peer_sessions]\nredial_secs = 1\ndial_ms = 500\n\
                      [sync]\nsnap_blocks_min = 32\npivot_depth = 16\n";

/// Returns the words for a fault in the table.
fn name_of(fault: Fault) -> &'static str {
    match fault {
        Fault::KillNode => "a node that downloads a state killed",
        Fault::KillPeer(_) => "its peer killed",
        Fault::Reset => "its connections to peers reset",
    }
}

/// A block as the Engine API takes it.
struct Sent {
    hash: B256,
    state_root: B256,
    method: &'static str,
    params: Value,
}

impl Sent {
    fn new(built: &Built) -> Self {
        let (method, params) = built.new_payload();
        Self { hash: built.hash, state_root: built.header.state_root, method, params }
    }
}

/// A geth behind a slow network, which follows a chain.
struct Follower {
    peer: Peer,
    /// Sends the blocks to it.
    follows: JoinHandle<()>,
}

impl Follower {
    async fn start(
        folder: &Path,
        name: &str,
        chain: &Arc<[Sent]>,
        height: &watch::Receiver<usize>,
    ) -> Self {
        let peer = Peer::start(folder, name);
        peer.proxy.set(Network::Slow(DELAY));
        let engine = geth_engine(folder, name).await;
        let follows = tokio::spawn(follow(engine, chain.clone(), height.clone()));
        Self { peer, follows }
    }

    /// Kills geth, and starts it again without its blocks, which it gets once more. (With those that are left after a
    /// SIGKILL, but without their states, geth 1.17.8 would itself download a state.)
    async fn kill(&mut self, folder: &Path, chain: &Arc<[Sent]>, height: &watch::Receiver<usize>) {
        self.follows.abort();
        let Peer { geth, name, port, .. } = &mut self.peer;
        geth.kill();
        fs::remove_dir_all(folder.join(&*name).join("geth/chaindata")).unwrap();
        run_geth(folder, name, "init", &[&folder.join(GENESIS)]);
        *geth = serve(folder, name, port);
        let engine = geth_engine(folder, name).await;
        self.follows = tokio::spawn(follow(engine, chain.clone(), height.clone()));
    }
}

/// Sends a geth the blocks up to a height that rises.
async fn follow(mut engine: Client, chain: Arc<[Sent]>, mut height: watch::Receiver<usize>) {
    let mut done = 0;
    loop {
        while done < *height.borrow_and_update() {
            let block = &chain[done];
            let status = engine.call(block.method, block.params.clone()).await.unwrap();
            assert_eq!(decode_status(status).verdict(), ("VALID", Some(block.hash)));
            send_head(&mut engine, block.hash).await.unwrap();
            done += 1;
        }
        if height.changed().await.is_err() {
            return;
        }
    }
}

/// Lets a node download a state, with each fault on the way. Returns how many pivots were left for a newer one,
/// as far as the logs of nodes say.
pub async fn run(seed: u64, fork: Fork, table: &mut Table) -> usize {
    eprintln!("seed {seed}, through the download of a state on the rules of {fork:?}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let blocks = BLOCKS_BEFORE + BLOCKS_MEANWHILE;
    let chain = builder.chain(builder.genesis(), seed, blocks, Contents::Random(6));
    let chain: Arc<[Sent]> = chain.iter().map(Sent::new).collect();
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let (genesis, config) = (folder.join(GENESIS), folder.join("tandem.toml"));
    fs::write(&genesis, builder.genesis_json()).unwrap();
    fs::write(&config, CONFIG).unwrap();
    let (raise, height) = watch::channel(BLOCKS_BEFORE);
    let mut peers = Vec::new();
    for name in ["geth-0", "geth-1"] {
        run_geth(folder, name, "init", &[&genesis]);
        peers.push(Follower::start(folder, name, &chain, &height).await);
    }
    let urls = peers.iter().map(|it| &*it.peer.url).collect::<Vec<_>>().join(",");
    let args = ["--sessions.addr", "127.0.0.1", "--sessions.port", "0", "--sessions.peers", &urls];
    let args = [&args[..], &["--config", config.to_str().unwrap()]].concat();
    let start = || Process::start_with(binary(), folder, &genesis, &args);
    let mut node = start().await;
    let mut moves = 0;
    let mut faults =
        [Fault::KillNode, Fault::KillPeer(rng.random_range(0..peers.len())), Fault::Reset];
    faults.shuffle(&mut rng);
    let mut faults = faults.into_iter();
    let mut times = Vec::new();
    let mut next = Instant::now() + rng.random_range(Duration::ZERO..FAULT_PAUSE_MAX);
    while *height.borrow() < blocks || faults.len() > 0 {
        if *height.borrow() < blocks {
            raise.send_modify(|height| *height += 1);
        }
        node.choose(chain[*height.borrow() - 1].hash).await;
        sleep(GAP).await;
        if Instant::now() < next {
            continue;
        }
        let Some(fault) = faults.next() else { continue };
        times.push((fault, Instant::now()));
        match fault {
            Fault::KillNode => {
                moves += pivots_left(&node);
                node.kill();
                node = start().await;
            }
            Fault::KillPeer(index) => peers[index].kill(folder, &chain, &height).await,
            Fault::Reset => peers.iter().for_each(|it| {
                it.peer.proxy.reset();
            }),
        }
        next = Instant::now() + rng.random_range(Duration::ZERO..FAULT_PAUSE_MAX);
    }
    let head = &chain[blocks - 1];
    reach(&node, head).await;
    let end = Instant::now();
    for (fault, begin) in times {
        table.add(name_of(fault), end - begin);
    }
    moves += pivots_left(&node);
    let latest = json!(["latest", false]);
    let latest = node.client().call("eth_getBlockByNumber", latest).await.unwrap();
    assert_eq!(latest["stateRoot"], json!(head.state_root), "seed {seed}");
    let reports = node.logged("misconduct=");
    assert!(reports.is_empty(), "honest peers were reported, seed {seed}: {reports:#?}");
    node.kill();
    let (status, text) = Process::verify(binary(), folder);
    assert!(status.success(), "{status}, seed {seed}\n{text}");
    for Follower { peer, follows } in peers {
        assert!(!follows.is_finished(), "{} no longer follows, seed {seed}", peer.name);
        follows.abort();
    }
    moves
}

/// Returns how many pivots a node has left for a newer one since it started.
fn pivots_left(node: &Process) -> usize {
    node.logged("state is downloaded pivot=").len().saturating_sub(1)
}

async fn reach(node: &Process, head: &Sent) {
    let begin = Instant::now();
    while !node.choose(head.hash).await {
        assert!(begin.elapsed() < RECOVERY_MAX, "no state of {}\n{}", head.hash, node.log());
        sleep(Duration::from_millis(20)).await;
    }
}
