//! Random trees of blocks: branches grow anywhere, the head jumps, and the node restarts. Meanwhile
//! a client reads the states of recent blocks.

use alloy_primitives::{B256, U256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Client, Contents, Forks, Node, is_full_run};

const STEPS: usize = 120;

/// Number of walks of each fork in a full run.
const SEEDS_FULL: u64 = 20;

/// Blocks that were answered VALID, in order.
type Known = Arc<Mutex<Vec<Built>>>;

struct Walk {
    label: String,
    rng: StdRng,
    builder: Builder,
    /// All blocks ever made.
    blocks: HashMap<B256, Built>,
    known: Known,
    node: Node,
    head: Built,
}

impl Walk {
    async fn new(fork: Fork, seed: u64) -> Self {
        let builder = Builder::new(Forks::at_genesis(fork));
        let node = Node::start(builder.genesis_json()).await;
        let head = builder.get(builder.genesis()).clone();
        Self {
            label: format!("{fork}, seed {seed}"),
            rng: StdRng::seed_from_u64(seed),
            builder,
            blocks: HashMap::from([(head.hash, head.clone())]),
            known: Arc::new(Mutex::new(vec![head.clone()])),
            node,
            head,
        }
    }

    /// Returns a block to build on: mostly the head or a recent one, sometimes one far below.
    fn pick(&mut self) -> Built {
        let known = self.known.lock().unwrap();
        let reach = match self.rng.random_range(0..10) {
            0..5 => return self.head.clone(),
            5..8 => 8,
            _ => 80,
        };
        known[known.len().saturating_sub(reach)..].choose(&mut self.rng).unwrap().clone()
    }

    /// Sends a block. Sends its ancestors first if the node says that it lacks them.
    async fn import(&mut self, built: &Built) {
        if built.header.number == 0 {
            return;
        }
        let mut missing = vec![built.clone()];
        while let Some(next) = missing.last().cloned() {
            let status = self.node.new_payload(&next).await;
            match status.status.as_str() {
                "VALID" => missing.pop(),
                "SYNCING" => {
                    missing.push(self.blocks[&next.header.parent_hash].clone());
                    None
                }
                _ => panic!("{}: block {}: {status:?}", self.label, next.header.number),
            };
        }
    }

    async fn step(&mut self, step: usize) {
        let label = format!("{}, step {step}", self.label);
        let parent = self.pick();
        let count = self.rng.random_range(1..=3);
        let mut tip = parent;
        for _ in 0..count {
            let seed = self.rng.random();
            let built = self.builder.build(tip.hash, seed, Contents::Random(5));
            self.blocks.insert(built.hash, built.clone());
            self.import(&built).await;
            self.known.lock().unwrap().push(built.clone());
            tip = built;
        }
        if self.rng.random_bool(0.6) {
            let target = if self.rng.random_bool(0.8) { tip } else { self.pick() };
            self.import(&target).await;
            let status = self.node.forkchoice(target.hash, B256::ZERO, B256::ZERO).await;
            let status = status.unwrap_or_else(|error| panic!("{label}: {error:?}"));
            assert_eq!(status.verdict(), ("VALID", Some(target.hash)), "{label}: {status:?}");
            // No block is final here, so the head goes back to its ancestors too.
            self.head = target;
        }
        if step % 10 == 9 {
            let head = self.head.clone();
            self.node.assert_head(&head).await;
        }
    }
}

/// Reads random accounts in the states of recent blocks until told to stop. Each answer is either
/// that block's or an error, never another block's. Counts the answers.
fn read(
    node: &Node,
    known: Known,
    seed: u64,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
) -> tokio::task::JoinHandle<()> {
    let mut client = Client::new(node.http_address(), None);
    let mut rng = StdRng::seed_from_u64(seed);
    tokio::spawn(async move {
        while !stop.load(Relaxed) {
            let block = {
                let known = known.lock().unwrap();
                known[known.len().saturating_sub(30)..].choose(&mut rng).unwrap().clone()
            };
            let (address, account) =
                block.world.0.iter().nth(rng.random_range(0..block.world.0.len())).unwrap();
            let tag = json!({ "blockHash": block.hash });
            let slot = U256::from(rng.random_range(0..64_u64));
            let value = account.storage.get(&slot).copied().unwrap_or_default();
            for (method, params, want) in [
                ("eth_getBalance", json!([address, tag]), json!(format!("{:#x}", account.balance))),
                (
                    "eth_getStorageAt",
                    json!([address, format!("{slot:#x}"), tag]),
                    json!(B256::from(value)),
                ),
            ] {
                let answer = client.call(method, params.clone()).await;
                let number = block.header.number;
                match answer {
                    Ok(got) => {
                        assert_eq!(got, want, "{method} {params} at block {number}");
                        answers.fetch_add(1, Relaxed);
                    }
                    // A block on another branch, or one whose state is too old.
                    Err(error) => {
                        assert!(
                            [-32000, 4444].contains(&error.code),
                            "{method} {params}: {error:?}"
                        );
                    }
                }
            }
        }
    })
}

async fn walk(fork: Fork, seed: u64) {
    let mut walk = Walk::new(fork, seed).await;
    let answers = Arc::new(AtomicUsize::new(0));
    for leg in 0..4 {
        let stop = Arc::new(AtomicBool::new(false));
        let reader =
            read(&walk.node, walk.known.clone(), seed + leg, stop.clone(), answers.clone());
        for step in 0..STEPS / 4 {
            walk.step(leg as usize * STEPS / 4 + step).await;
        }
        stop.store(true, Relaxed);
        reader.await.unwrap_or_else(|error| panic!("{}: a reader met {error}", walk.label));
        walk.node = walk.node.restart().await;
        walk.node.assert_head(&walk.head).await;
    }
    let answers = answers.load(Relaxed);
    assert!(answers > 50, "{}: only {answers} reads were answered", walk.label);
    walk.node.stop_and_verify().await;
}

macro_rules! walks {
    ($($name:ident: $fork:expr, $seed:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let seeds = if is_full_run() { SEEDS_FULL } else { 1 };
            for seed in 0..seeds {
                walk($fork, $seed + 1_000 * seed).await;
            }
        }
    )*};
}

walks! {
    a_random_tree_of_paris_holds_together: Fork::Paris, 30_001;
    a_random_tree_of_cancun_holds_together: Fork::Cancun, 30_002;
    a_random_tree_of_osaka_holds_together: Fork::Osaka, 30_003;
}
