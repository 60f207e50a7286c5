//! Followers: what a copy costs, how fresh and how true it is, how fast it catches up, what the leader
//! notices of it, and how fast one takes the place of a leader that died.

mod copy;
mod failover;
mod logs;
mod questions;
mod rpc;

use crate::{
    Setting,
    client::{Client, quantity, sum_of},
    corpus::{Corpus, in_turn, name_of, ratio},
    figure::{Figure, Limit, Report},
    node::{CALL_TIME_MAX, Kind, Node},
    sides::WARMUP,
};
use anyhow::{Context as _, ensure};
use copy::{Copy, cpu_seconds, hash_of_head};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Contents, Forks};
use tandem_overlap::stats::{Estimate, quantile};

/// Corpora with limits; without them the demo corpus is taken.
const CORPORA: [&str; 3] = ["mixed-30m", "erc20-30m", "amsterdam-mixed-30m"];
/// Blocks of a corpus in a quick run.
const QUICK_BLOCKS: usize = 64;
/// Pause before each block.
const GAP: Duration = Duration::from_millis(20);
/// Pause before each block whose way to the follower is timed.
const IDLE_GAP: Duration = Duration::from_millis(100);
/// Time between two looks at a process that starts, and the longest wait for it.
const SETTLE: Duration = Duration::from_millis(500);
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Normal pause divided by that at high load.
const HIGH_LOAD: u32 = 4;
/// Processes of a cluster that take part in a block.
const EXECUTING: [&str; 3] = ["executor", "multiproof", "storage-writer"];
/// Followers beside newPayload.
const FOLLOWERS: usize = 4;
/// Small blocks to catch up with, of a full run and of a quick one, and transactions of each.
const SMALL_BLOCKS: [usize; 2] = [3_000, 600];
const SMALL_TRANSACTIONS: usize = 6;
/// Distance in blocks from the head to the finalized block.
const FINALITY: usize = 64;
/// Rounds of questions, of a full run and of a quick one.
const QUESTIONS: [usize; 2] = [200, 40];

/// Starts a cluster whose services may be called without a certificate, for followers.
fn leader(setting: &Setting, genesis: &Path) -> anyhow::Result<Node> {
    Node::start_with_flags(Kind::Six, &setting.tandem, genesis, vec!["--insecure".to_owned()])
}

/// Measures the figures.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    let folders = corpora(setting);
    let names: Vec<_> = folders.iter().map(|folder| name_of(folder)).collect();
    report.say(&format!("corpora: {}", names.join(", ")));
    for folder in &folders {
        let name = name_of(folder);
        report.measure(&format!("processor time and feed, {name}"), || cost(setting, folder));
        report.measure(&format!("lag and answers, {name}"), || freshness(setting, folder));
        let figure = format!("blocks behind at {HIGH_LOAD} times the load, {name}");
        report.measure(&figure, || behind(setting, &figure, folder));
        let figure = format!("newPayload with {FOLLOWERS} followers / without, {name}");
        report.measure(&figure, || beside(setting, &figure, folder));
        rpc::measure(setting, geth, folder, report);
    }
    let geth_or = || geth.context("no --geth: the client to compare with");
    report.measure("eth_getLogs through a long chain", || logs::measure(setting, geth_or()?));
    report.measure("catch-up", || catch_up(setting));
    report.measure("failover, blocks lost under stream", || failover::measure(setting));
}

fn corpora(setting: &Setting) -> Vec<PathBuf> {
    let folders = setting.corpora.iter().flat_map(|all| CORPORA.map(|name| all.join(name)));
    let found: Vec<_> = folders.filter(|folder| folder.is_dir()).collect();
    if found.is_empty() { vec![setting.demo.clone()] } else { found }
}

fn load(setting: &Setting, folder: &Path) -> anyhow::Result<Corpus> {
    Corpus::load(folder, if setting.quick { QUICK_BLOCKS } else { usize::MAX })
}

/// Returns the processor time of the processes of a node, in seconds.
fn used(node: &Node, names: &[&str]) -> anyhow::Result<f64> {
    let processes = node.processes()?.into_iter();
    let wanted = processes.filter(|(name, _)| names.iter().any(|want| name.starts_with(want)));
    wanted.map(|(_, pid)| cpu_seconds(pid)).sum()
}

/// Returns the processor time of a process once it has loaded what it loads at its start, such as
/// the trusted setup of KZG.
fn settled(used: impl Fn() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let (end, mut before) = (Instant::now() + SETTLE_MAX, used()?);
    loop {
        thread::sleep(SETTLE);
        let now = used()?;
        if now - before < 0.1 * SETTLE.as_secs_f64() || Instant::now() > end {
            return Ok(now);
        }
        before = now;
    }
}

/// Waits until followers and the cluster that they follow have loaded what they load at their start.
fn settle(leader: &Node, copies: &[Copy]) -> anyhow::Result<()> {
    settled(|| {
        let own = copies.iter().map(Copy::cpu_seconds).sum::<anyhow::Result<f64>>()?;
        Ok(own + used(leader, &EXECUTING)?)
    })?;
    Ok(())
}

/// Returns the bytes that a follower has exchanged with its leader, and those of the blocks that it has
/// stored with their changes.
fn fed(copy: &Copy) -> anyhow::Result<[f64; 2]> {
    let metrics = copy.metrics()?;
    let bytes = |name: &str| sum_of(&metrics, name).with_context(|| format!("no {name}"));
    Ok([
        bytes("tandem_rpc_bytes_total")?,
        // Absent before the first block.
        sum_of(&metrics, "tandem_follower_block_bytes_total").unwrap_or_default(),
    ])
}

/// Measures the processor time of a follower beside that of executing the same blocks, and what it
/// reads.
fn cost(setting: &Setting, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = load(setting, folder)?;
    let name = &corpus.name;
    let rounds = if setting.quick { 1 } else { 4 };
    let (mut ratios, mut of_cluster, mut feed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut follower_ms, mut node_ms) = (0.0, 0.0);
    let milliseconds = |seconds: f64| seconds * 1e3 / corpus.len() as f64;
    for _ in 0..rounds {
        let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
        let before = settled(|| used(&node, &["node"]))?;
        corpus.replay(&node, GAP)?;
        let executing = used(&node, &["node"])? - before;
        drop(node);
        let leader = leader(setting, &corpus.genesis)?;
        let mut copy = Copy::start(&setting.tandem, &leader, false)?;
        let cluster_before = settled(|| used(&leader, &EXECUTING))?;
        let (before, fed_before) = (settled(|| copy.cpu_seconds())?, fed(&copy)?);
        corpus.replay(&leader, GAP)?;
        copy.reach(&hash_of_head(&mut leader.engine()?)?)?;
        let following = copy.cpu_seconds()? - before;
        let cluster = used(&leader, &EXECUTING)? - cluster_before;
        ratios.push(vec![following / executing]);
        of_cluster.push(vec![following / cluster]);
        (follower_ms, node_ms) = (milliseconds(following), milliseconds(executing));
        let [bytes, blocks] = fed(&copy)?;
        feed.push(vec![(bytes - fed_before[0]) / (blocks - fed_before[1])]);
    }
    let estimate = |values: &[Vec<f64>]| Estimate::of(values, setting.seed).context("no round");
    let limit = if *name == CORPORA[0] { Limit::AtMost(0.15) } else { Limit::None };
    let text = format!(
        "{rounds} rounds of {} blocks; {follower_ms:.1} and {node_ms:.1} ms a block",
        corpus.len()
    );
    Ok(vec![
        Figure::estimate(
            format!("CPU of a follower / of tandem node, {name}"),
            estimate(&ratios)?,
            limit,
        )
        .note(text),
        Figure::estimate(
            format!("CPU of a follower / of its cluster, {name}"),
            estimate(&of_cluster)?,
            Limit::None,
        ),
        Figure::estimate(
            format!("bytes of the feed / of blocks and changes, {name}"),
            estimate(&feed)?,
            Limit::AtMost(1.1),
        ),
    ])
}

/// Measures the time from VALID to the follower's head, then compares answers and the copy itself.
fn freshness(setting: &Setting, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = load(setting, folder)?;
    let name = &corpus.name;
    let leader = leader(setting, &corpus.genesis)?;
    let mut copy = Copy::start(&setting.tandem, &leader, false)?;
    settle(&leader, std::slice::from_ref(&copy))?;
    let mut lags = Vec::with_capacity(corpus.len());
    corpus.replay_with(&leader, IDLE_GAP, |block| {
        let lag = copy.reach(block.hash)? - block.valid;
        if block.index >= WARMUP {
            lags.push(lag.as_secs_f64() * 1e3);
        }
        Ok(())
    })?;
    lags.sort_by(f64::total_cmp);
    let mut random = StdRng::seed_from_u64(setting.seed);
    let count = QUESTIONS[usize::from(setting.quick)];
    let (asked, differ) = questions::compare(
        &mut leader.public(CALL_TIME_MAX),
        &mut copy.public(),
        count,
        &mut random,
    )?;
    copy.stop()?;
    let mut verify = Command::new(&setting.tandem);
    let verified = verify.args(["verify", "--datadir"]).arg(copy.data()).output()?;
    let first = differ.first().map_or(String::new(), |first| format!(", such as {first:.120}"));
    let lag = |q| quantile(&lags, q).context("no block");
    let forkchoice =
        "from newPayload's answer, through forkchoiceUpdated, to the head on the follower";
    Ok(vec![
        Figure::new(format!("lag after VALID p50, ms, {name}"), lag(0.5)?, Limit::None)
            .note(forkchoice),
        Figure::new(format!("lag after VALID p99, ms, {name}"), lag(0.99)?, Limit::AtMost(50.0)),
        Figure::new(
            format!("answers that differ, {name}"),
            differ.len() as f64,
            Limit::Exactly(0.0),
        )
        .note(format!("of {asked}{first}")),
        Figure::new(
            format!("copies that tandem verify refuses, {name}"),
            f64::from(u8::from(!verified.status.success())),
            Limit::Exactly(0.0),
        ),
    ])
}

/// Measures how many blocks the follower is behind when the leader has made a block its head, and blocks come
/// at a multiple of the rate at which the lag is measured.
fn behind(setting: &Setting, figure: &str, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = load(setting, folder)?;
    let leader = leader(setting, &corpus.genesis)?;
    let mut copy = Copy::start(&setting.tandem, &leader, false)?;
    settle(&leader, std::slice::from_ref(&copy))?;
    let (mut ahead, mut after) = (leader.public(CALL_TIME_MAX), copy.public());
    let (mut most, mut sum) = (0, 0);
    corpus.replay_with(&leader, IDLE_GAP / HIGH_LOAD, |_| {
        // The follower first, so that it gets no time while the leader is asked.
        let [has, head] = [number_of_head(&mut after)?, number_of_head(&mut ahead)?];
        let blocks = head.saturating_sub(has);
        most = most.max(blocks);
        sum += blocks;
        Ok(())
    })?;
    copy.reach(&hash_of_head(&mut leader.engine()?)?)?;
    let mean = sum as f64 / corpus.len() as f64;
    let note = format!("{mean:.2} on average, of {} blocks", corpus.len());
    Ok(vec![Figure::new(figure, most as f64, Limit::AtMost(1.0)).note(note)])
}

/// Returns the number of the head that a client serves.
fn number_of_head(client: &mut Client) -> anyhow::Result<u64> {
    quantity(&client.call("eth_blockNumber", &json!([]))?)
}

/// Measures newPayload with followers beside it, in the scheduling class `idle`, and without.
fn beside(setting: &Setting, figure: &str, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = load(setting, folder)?;
    let rounds = if setting.quick { 2 } else { 6 };
    let replay = |followers: usize| {
        let leader = leader(setting, &corpus.genesis)?;
        let copies = (0..followers).map(|_| Copy::start(&setting.tandem, &leader, true));
        let copies = copies.collect::<anyhow::Result<Vec<_>>>()?;
        settle(&leader, &copies)?;
        let mut times = corpus.replay(&leader, IDLE_GAP)?;
        anyhow::Ok(times.split_off(WARMUP.min(times.len() / 2)))
    };
    let (with, without) = in_turn(rounds, || replay(FOLLOWERS), || replay(0))?;
    let estimate = ratio(&with, &without, setting.seed)?;
    let note = format!("{rounds} rounds of {} blocks", estimate.blocks);
    Ok(vec![Figure::estimate(figure, estimate, Limit::AtMost(1.03)).note(note)])
}

/// Measures how fast a follower takes in the blocks that came while it was away.
fn catch_up(setting: &Setting) -> anyhow::Result<Vec<Figure>> {
    let count = SMALL_BLOCKS[usize::from(setting.quick)];
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json())?;
    let leader = leader(setting, &genesis)?;
    let mut copy = Copy::start(&setting.tandem, &leader, false)?;
    copy.stop()?;
    let contents = Contents::Bounded(SMALL_TRANSACTIONS);
    let blocks = builder.chain(builder.genesis(), setting.seed, count, contents);
    let mut engine = leader.engine()?;
    let (mut bytes, mut head) = (0, String::new());
    for (index, block) in blocks.iter().enumerate() {
        let (method, params) = block.new_payload();
        bytes += block.payload.transactions.iter().map(|raw| raw.len()).sum::<usize>();
        let answer = engine.call(method, &params)?;
        ensure!(answer["status"] == "VALID", "newPayload {index}: {answer}");
        let finalized =
            index.checked_sub(FINALITY).map_or(Value::Null, |at| json!(blocks[at].hash));
        head = block.hash.to_string();
        forkchoice(&mut engine, &head, &finalized)?;
    }
    let begun = Instant::now();
    copy.run()?;
    let took = (copy.reach(&head)? - begun).as_secs_f64();
    let seconds = copy.cpu_seconds()?;
    let note = format!(
        "{count} blocks of {} bytes of transactions, in {took:.1} s from the start of the process; \
         its processor time {seconds:.1} s",
        bytes / count
    );
    let rate = count as f64 / took;
    Ok(vec![Figure::new("catch-up, blocks a second", rate, Limit::AtLeast(200.0)).note(note)])
}

/// Makes a block the head.
fn forkchoice(engine: &mut Client, head: &str, finalized: &Value) -> anyhow::Result<()> {
    let zero = json!(format!("0x{}", "00".repeat(32)));
    let finalized = if finalized.is_null() { &zero } else { finalized };
    let state = json!({
        "headBlockHash": head, "safeBlockHash": finalized, "finalizedBlockHash": finalized,
    });
    let answer = engine.call("engine_forkchoiceUpdatedV3", &json!([state, null]))?;
    ensure!(answer["payloadStatus"]["status"] == "VALID", "forkchoiceUpdated: {answer}");
    Ok(())
}
