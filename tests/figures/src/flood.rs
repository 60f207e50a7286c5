//! newPayload while users flood the pool with transactions of all kinds: the time as a ratio to the time
//! without, in one process, in a cluster, where the pool is a process of its own, and in geth.

use crate::{
    Setting,
    client::Client,
    corpus::ratio_of_medians,
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
};
use alloy_primitives::{B256, hex};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Transfer};
use tandem_overlap::stats::Estimate;

/// Largest time of newPayload meanwhile, as a ratio to the time without.
const RATIO_MAX: f64 = 1.2;
/// Transactions a second.
const RATE: u64 = 5_000;
/// Blocks of a full run, and of a quick one.
const BLOCKS: [usize; 2] = [150, 40];
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
/// Longest wait of a thread for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Least share of the transactions of the rate that a client must have answered.
const ANSWERED_MIN: f64 = 0.5;
/// Settings of geth.
const GETH: &str = "--rpc.batch-request-limit 1000 --cache 256";

/// Measures the figures.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    report.measure("newPayload in a flood", || compare(setting, geth));
}

fn compare(setting: &Setting, geth: Option<&Path>) -> anyhow::Result<Vec<Figure>> {
    let count = BLOCKS[usize::from(setting.quick)];
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let blocks = builder.chain(builder.genesis(), setting.seed, count, Contents::Random(IN_BLOCK));
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json())?;
    let requests: Arc<[Vec<String>]> = (0..THREADS).map(requests).collect();
    let mut figures = Vec::new();
    let kinds = [
        ("one process", Kind::One, setting.tandem.as_path(), "", Limit::None),
        ("cluster", Kind::Six, &setting.tandem, "", Limit::AtMost(RATIO_MAX)),
    ];
    let geth = geth.map(|geth| ("geth", Kind::Geth, geth, GETH, Limit::None));
    for (name, kind, binary, config, limit) in kinds.into_iter().chain(geth) {
        let start = || Node::start_kind(kind, binary, &genesis, config);
        let (without, _) = times(&start()?, &blocks, None)?;
        let (with, flood) = times(&start()?, &blocks, Some(requests.clone()))?;
        let Flooded { per_second, taken } = flood.context("no flood")?;
        ensure!(
            per_second >= ANSWERED_MIN * RATE as f64,
            "{name}: {per_second:.0} transactions a second were answered; expected {RATE}"
        );
        let ratio: Estimate = ratio_of_medians(&with, &without, setting.seed)?;
        let name = format!("flood, {name}: newPayload p50 / without");
        let taken = taken * 100.0;
        let note = format!("{per_second:.0} transactions a second, {taken:.0} % of them taken");
        figures.push(Figure::estimate(name, ratio, limit).note(note));
    }
    Ok(figures)
}

/// Outcome of a flood.
struct Flooded {
    /// Transactions a second that were answered.
    per_second: f64,
    /// Share of them that was taken.
    taken: f64,
}

/// Executes the blocks, in a flood if there are requests. Returns the milliseconds of newPayload.
fn times(
    node: &Node,
    blocks: &[Built],
    requests: Option<Arc<[Vec<String>]>>,
) -> anyhow::Result<(Vec<f64>, Option<Flooded>)> {
    let mut engine = node.engine()?;
    let flood = requests.map(|requests| Flood::start(node.ports()[1], &requests));
    let mut times = Vec::with_capacity(blocks.len());
    for built in blocks {
        thread::sleep(GAP);
        let (method, params) = built.new_payload();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = engine.post(&body.to_string())?;
        let status = &answer.value["result"]["status"];
        ensure!(status == "VALID", "newPayload: {}", answer.value);
        times.push(answer.elapsed.as_secs_f64() * 1e3);
        choose(&mut engine, built.hash)?;
    }
    Ok((times.split_off(WARM_UP), flood.map(Flood::end).transpose()?))
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

/// Threads that send transactions at a rate.
struct Flood {
    begin: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Flood {
    fn start(to: SocketAddr, requests: &Arc<[Vec<String>]>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (sent, taken) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let send = |thread: usize| {
            let (requests, stop) = (requests.clone(), stop.clone());
            let (sent, taken) = (sent.clone(), taken.clone());
            thread::spawn(move || {
                // Senders have machines of their own.
                tandem_actor::take_lowest_priority();
                let mut client = Client::public(to, ANSWER_TIME_MAX);
                let pause = Duration::from_secs(1) * (BATCH * THREADS) as u32 / RATE as u32;
                let mut next = Instant::now();
                for request in requests[thread].iter().cycle() {
                    if stop.load(Relaxed) {
                        break;
                    }
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    // A client that is behind is not sent all at once what it missed.
                    next = (next + pause).max(Instant::now());
                    let answer = client.post(request)?.value;
                    let answers = answer.as_array().context("no answer to a batch")?;
                    let good = answers.iter().filter(|it| it["result"].is_string()).count();
                    sent.fetch_add(answers.len() as u64, Relaxed);
                    taken.fetch_add(good as u64, Relaxed);
                }
                Ok(())
            })
        };
        let threads = (0..THREADS).map(send).collect();
        Self { begin: Instant::now(), stop, sent, taken, threads }
    }

    fn end(self) -> anyhow::Result<Flooded> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let (sent, taken) = (self.sent.load(Relaxed) as f64, self.taken.load(Relaxed) as f64);
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the flood panicked"))??;
        }
        Ok(Flooded { per_second: sent / seconds, taken: taken / sent.max(1.0) })
    }
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
    let call = |raw: &Vec<u8>| {
        let params = [hex::encode_prefixed(raw)];
        json!({"jsonrpc": "2.0", "id": 1, "method": "eth_sendRawTransaction", "params": params})
    };
    let body = |batch: &[Vec<u8>]| Value::from_iter(batch.iter().map(call)).to_string();
    transactions.chunks(BATCH).map(body).collect()
}
