//! newPayload while users flood the pool with transactions of all kinds: the time as a ratio to the time
//! without, in one process, in a cluster, where the pool is a process of its own, in a cluster whose
//! processes have the weights of `docker-compose.yml`, and in geth.

use crate::{
    Setting,
    callers::{Called, Callers},
    client::{Client, raw_transactions, request},
    corpus::ratio_of_medians,
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
    quota::Quota,
};
use alloy_primitives::B256;
use anyhow::{Context as _, ensure};
use serde_json::json;
use std::{fs, path::Path, sync::Arc, thread, time::Duration};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Transfer};
use tandem_overlap::stats::Estimate;

/// Largest time of newPayload meanwhile, as a ratio to the time without.
const RATIO_MAX: f64 = 1.2;
/// Transactions a second.
const RATE: u64 = 5_000;
/// Blocks of a replay. Senders have money for not many more.
const BLOCKS: usize = 40;
/// Replays of a full run, and of a quick one.
const REPLAYS: [usize; 2] = [4, 1];
/// Transactions of a block.
const IN_BLOCK: usize = 200;
/// Blocks at the start that do not count.
const WARM_UP: usize = 5;
/// Pause before each block.
const GAP: Duration = Duration::from_millis(100);
/// Threads that send, each with its own senders.
const THREADS: usize = 4;
/// Senders of a thread.
const SENDERS: usize = 8;
/// Transactions of one request.
const BATCH: usize = 25;
/// Least share of the transactions of the rate that a client must have answered.
const ANSWERED_MIN: f64 = 0.5;
/// Weight of tx-pool beside 1,024 of each other process, as in `docker-compose.yml`.
const POOL_WEIGHT: u64 = 256;
/// Settings of geth.
const GETH: &str = "--rpc.batch-request-limit 1000 --cache 256";

/// Measures the figures.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    report.measure("newPayload in a flood", || compare(setting, geth));
}

fn compare(setting: &Setting, geth: Option<&Path>) -> anyhow::Result<Vec<Figure>> {
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let blocks = builder.chain(builder.genesis(), setting.seed, BLOCKS, Contents::Random(IN_BLOCK));
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json())?;
    let requests: Arc<[Vec<String>]> = (0..THREADS).map(requests).collect();
    let mut figures = Vec::new();
    let tandem = setting.tandem.as_path();
    let at_most = Limit::AtMost(RATIO_MAX);
    let kinds = [
        ("one process", Kind::One, tandem, false, Limit::None),
        ("cluster", Kind::Six, tandem, false, at_most),
        ("cluster with weights", Kind::Six, tandem, true, at_most),
    ];
    let geth = geth.map(|geth| ("geth", Kind::Geth, geth, false, Limit::None));
    for (name, kind, binary, has_weights, limit) in kinds.into_iter().chain(geth) {
        let config = if kind == Kind::Geth { GETH } else { "" };
        let start = || {
            let node = Node::start_kind(kind, binary, &genesis, config)?;
            let groups = has_weights.then(|| weigh(&node)).transpose()?;
            anyhow::Ok(Weighted { node, _groups: groups })
        };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let mut answered = Called { per_second: f64::INFINITY, taken: 1.0 };
        for _ in 0..REPLAYS[usize::from(setting.quick)] {
            without.extend(times(&start()?.node, &blocks, None)?.0);
            let (meanwhile, flood) = times(&start()?.node, &blocks, Some(requests.clone()))?;
            with.extend(meanwhile);
            let Called { per_second, taken } = flood.context("no flood")?;
            ensure!(
                per_second >= ANSWERED_MIN * RATE as f64,
                "{name}: {per_second:.0} transactions a second were answered; expected {RATE}"
            );
            answered.per_second = answered.per_second.min(per_second);
            answered.taken = answered.taken.min(taken);
        }
        let Called { per_second, taken } = answered;
        let ratio: Estimate = ratio_of_medians(&with, &without, setting.seed)?;
        let name = format!("flood, {name}: newPayload p50 / without");
        let taken = taken * 100.0;
        let note =
            format!("at least {per_second:.0} transactions a second, {taken:.0} % of them taken");
        figures.push(Figure::estimate(name, ratio, limit).note(note));
    }
    Ok(figures)
}

/// Node, and then the groups of its processes, which can be removed only without these.
struct Weighted {
    node: Node,
    _groups: Option<Quota>,
}

/// Gives the processes of a cluster their weights.
fn weigh(node: &Node) -> anyhow::Result<Quota> {
    let weight = |name: &str| if name == "tx-pool" { POOL_WEIGHT } else { 1_024 };
    let processes = node.processes()?;
    ensure!(processes.iter().any(|(name, _)| name == "tx-pool"), "no process is named tx-pool");
    let weights: Vec<_> = processes.iter().map(|(name, pid)| (*pid, weight(name))).collect();
    Quota::of_weights(&weights).context("give the processes weights")
}

/// Executes the blocks, in a flood if there are requests. Returns the milliseconds of newPayload.
fn times(
    node: &Node,
    blocks: &[Built],
    requests: Option<Arc<[Vec<String>]>>,
) -> anyhow::Result<(Vec<f64>, Option<Called>)> {
    let mut engine = node.engine()?;
    let to = node.ports()[1];
    let bodies_per_second = RATE / BATCH as u64;
    let flood = requests.map(|requests| Callers::start(to, &requests, bodies_per_second));
    let mut times = Vec::with_capacity(blocks.len());
    for built in blocks {
        thread::sleep(GAP);
        let (method, params) = built.new_payload();
        let answer = engine.post(&request(method, &params))?;
        let status = &answer.value["result"]["status"];
        ensure!(status == "VALID", "newPayload: {}", answer.value);
        times.push(answer.elapsed.as_secs_f64() * 1e3);
        choose(&mut engine, built.hash)?;
    }
    Ok((times.split_off(WARM_UP), flood.map(Callers::end).transpose()?))
}

fn choose(engine: &mut Client, head: B256) -> anyhow::Result<()> {
    let state = json!({
        "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
    });
    let answer = engine.call("engine_forkchoiceUpdatedV3", &json!([state, null]))?;
    let status = &answer["payloadStatus"]["status"];
    ensure!(status == "VALID", "forkchoiceUpdated: {status}");
    Ok(())
}

/// Returns the requests of a thread for about half a minute. Of five transactions one is valid, one
/// replaces it, one pays too little to replace it, one skips nonces, and one has a wrong signature.
fn requests(thread: usize) -> Vec<String> {
    let count = (RATE * 30) as usize / THREADS;
    let mut transactions = Vec::with_capacity(count);
    for round in 0..count.div_ceil(5) {
        let key = thread * SENDERS + round % SENDERS;
        let nonce = (round / SENDERS) as u64;
        let raw = |nonce, tip| Transfer::new(key, nonce, tip).raw.to_vec();
        let mut wrong = raw(nonce, 1_000_000_000);
        if let Some(byte) = wrong.last_mut() {
            *byte ^= 1;
        }
        transactions.extend([
            raw(nonce, 1_000_000_000),
            raw(nonce, 2_000_000_000),
            raw(nonce, 2_000_000_001),
            raw(nonce + 5_000, 1_000_000_000),
            wrong,
        ]);
    }
    transactions.chunks(BATCH).map(raw_transactions).collect()
}
