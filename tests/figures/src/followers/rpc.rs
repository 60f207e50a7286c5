//! JSON-RPC of a follower: how long its answers take beside geth's on the same chain, and what newPayload
//! notices of many calls: to a follower, to a node, and to geth.

use super::{Copy, IDLE_GAP, leader, load};
use crate::{
    Setting,
    callers::{Called, Callers},
    client::{Client, request},
    corpus::{in_turn, name_of, ratio},
    figure::{Figure, Limit, Report},
    node::{CALL_TIME_MAX, Kind, Node},
    sides::WARMUP,
};
use anyhow::{Context as _, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{path::Path, sync::Arc, time::Duration};
use tandem_overlap::stats::quantile;

/// Questions of each method, of a full run and of a quick one.
const QUESTIONS: [usize; 2] = [2_000, 400];
/// Blocks below the head whose state is asked for.
const RECENT: u64 = 12;
/// Slots of a proof, at most.
const SLOTS_MAX: usize = 4;
/// `eth_call`s a second beside newPayload, and the threads that send them.
const CALLS: u64 = 500;
const THREADS: usize = 4;
/// Least share of the calls that must have been answered.
const ANSWERED_MIN: f64 = 0.6;
/// Largest time of newPayload meanwhile, as a ratio to the time without.
const RATIO_MAX: f64 = 1.05;

/// Measures the figures of one corpus.
pub fn measure(setting: &Setting, geth: Option<&Path>, folder: &Path, report: &mut Report) {
    let name = name_of(folder);
    let geth_or = || geth.context("no --geth: the client to compare with");
    report.measure(&format!("JSON-RPC / geth's, {name}"), || state(setting, geth_or()?, folder));
    let figure = format!("newPayload with {CALLS} eth_call/s");
    let kinds = [("follower", Kind::Six, setting.tandem.as_path(), Limit::AtMost(RATIO_MAX))];
    let others = [("one process", Kind::One, setting.tandem.as_path(), Limit::None)];
    let geth = geth.map(|geth| ("geth", Kind::Geth, geth, Limit::None));
    for (to, kind, binary, limit) in kinds.into_iter().chain(others).chain(geth) {
        let figure = format!("{figure} to {to} / without, {name}");
        report.measure(&figure, || beside(setting, &figure, folder, kind, binary, limit));
    }
}

/// Measures questions about the state of recent blocks, and searches for logs through the whole chain.
fn state(setting: &Setting, geth: &Path, folder: &Path) -> anyhow::Result<Vec<Figure>> {
    let corpus = load(setting, folder)?;
    let leader = leader(setting, &corpus.genesis)?;
    let mut copy = Copy::start(&setting.tandem, &leader, false)?;
    let other = Node::start_kind(Kind::Geth, geth, &corpus.genesis, "")?;
    corpus.replay(&leader, Duration::ZERO)?;
    corpus.replay(&other, Duration::ZERO)?;
    copy.reach(&super::hash_of_head(&mut leader.engine()?)?)?;
    let (mut this, mut that) = (copy.public(), other.public(CALL_TIME_MAX));
    let mut random = StdRng::seed_from_u64(setting.seed);
    let head = corpus.len() as u64;
    let [mut balances, mut calls, mut proofs, mut logs] = [const { Vec::new() }; 4];
    for _ in 0..QUESTIONS[usize::from(setting.quick)] {
        let at = format!("{:#x}", random.random_range(1..=head));
        let recent = format!("{:#x}", head - random.random_range(0..RECENT));
        let block = this.call("eth_getBlockByNumber", &json!([at, true]))?;
        let transactions = block["transactions"].as_array().context("no transactions")?;
        let Some(transaction) = transactions.choose(&mut random) else { continue };
        let call = call_of(transaction);
        let touched = this.post(&request("eth_createAccessList", &json!([call, recent])))?.value;
        let lists = touched["result"]["accessList"].as_array();
        let entry = lists.and_then(|lists| lists.choose(&mut random));
        let (account, keys) = entry.map_or((&transaction["from"], &Value::Null), |entry| {
            (&entry["address"], &entry["storageKeys"])
        });
        let keys: Vec<&Value> = keys.as_array().into_iter().flatten().take(SLOTS_MAX).collect();
        balances.push(json!([transaction["from"], recent]));
        proofs.push(json!([account, keys, recent]));
        calls.push(json!([call, recent]));
        let receipts = this.call("eth_getBlockReceipts", &json!([at]))?;
        let found = receipts.as_array().into_iter().flatten().flat_map(|it| it["logs"].as_array());
        let found: Vec<&Value> = found.flatten().collect();
        if let Some(log) = found.choose(&mut random) {
            logs.push(json!([{"fromBlock": "0x1", "toBlock": format!("{head:#x}"),
                "address": log["address"], "topics": log["topics"]}]));
        }
    }
    let mut figures = Vec::new();
    for (method, questions) in [
        ("eth_getBalance", balances),
        ("eth_call", calls),
        ("eth_getProof", proofs),
        ("eth_getLogs", logs),
    ] {
        figures.extend(compare(&mut this, &mut that, method, &questions, &corpus.name)?);
    }
    Ok(figures)
}

/// Returns the call that does what a transaction did.
fn call_of(transaction: &Value) -> Value {
    json!({"from": transaction["from"], "to": transaction["to"], "input": transaction["input"]})
}

/// Asks both the same questions in turn, each first equally often, and compares times and results.
pub fn compare(
    this: &mut Client,
    that: &mut Client,
    method: &str,
    questions: &[Value],
    of: &str,
) -> anyhow::Result<Vec<Figure>> {
    let (mut times, mut differ) = ([Vec::new(), Vec::new()], 0);
    // The first tenth once more than the others: connections and caches are new.
    let warm_up = questions.len() / 10;
    for (index, params) in questions[..warm_up].iter().chain(questions).enumerate() {
        let body = request(method, params);
        let answers = if index % 2 == 0 {
            let first = this.post(&body)?;
            [first, that.post(&body)?]
        } else {
            let first = that.post(&body)?;
            [this.post(&body)?, first]
        };
        if index < warm_up {
            continue;
        }
        let [ours, theirs] = [&answers[0].value, &answers[1].value];
        // Each has its own texts of errors.
        differ += usize::from(ours.get("result") != theirs.get("result"));
        for (times, answer) in times.iter_mut().zip(&answers) {
            times.push(answer.elapsed.as_secs_f64() * 1e3);
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let mut figures = Vec::new();
    for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
        let [ours, theirs] =
            [&times[0], &times[1]].map(|times| quantile(times, q).unwrap_or(f64::NAN));
        let figure = format!("{method} {name} / geth's, {of}");
        let note = format!("{ours:.3} and {theirs:.3} ms, {} questions", questions.len());
        figures.push(Figure::new(figure, ours / theirs, Limit::None).note(note));
    }
    let figure = format!("{method}: results that differ from geth's, {of}");
    figures.push(Figure::new(figure, differ as f64, Limit::Exactly(0.0)));
    Ok(figures)
}

/// Measures newPayload while threads have calls executed, by a follower of the node if it is a cluster,
/// and else by the node itself.
fn beside(
    setting: &Setting,
    figure: &str,
    folder: &Path,
    kind: Kind,
    binary: &Path,
    limit: Limit,
) -> anyhow::Result<Vec<Figure>> {
    let corpus = load(setting, folder)?;
    let rounds = if setting.quick { 2 } else { 6 };
    let replay = |with_calls: bool| {
        let is_cluster = kind == Kind::Six;
        let node = match is_cluster {
            true => leader(setting, &corpus.genesis)?,
            false => Node::start_kind(kind, binary, &corpus.genesis, "")?,
        };
        let copy = is_cluster.then(|| Copy::start(&setting.tandem, &node, true)).transpose()?;
        let to = copy.as_ref().map_or(node.ports()[1], Copy::http);
        let mut callers = None;
        let mut times = corpus.replay_with(&node, IDLE_GAP, |block| {
            if with_calls && block.index + 1 == WARMUP.min(corpus.len() / 2) {
                let bodies = calls(&mut node.engine()?, block.index + 1)?;
                callers = Some(Callers::start(to, &bodies, CALLS));
            }
            Ok(())
        })?;
        let called = callers.map(Callers::end).transpose()?;
        anyhow::Ok((times.split_off(WARMUP.min(times.len() / 2)), called))
    };
    let (with, without) = in_turn(rounds, || replay(true), || replay(false))?;
    let mut answered: Vec<f64> = Vec::new();
    for Called { per_second, taken } in with.iter().filter_map(|(_, called)| called.as_ref()) {
        ensure!(*taken > 0.0, "no call had a result");
        answered.push(*per_second);
    }
    let least = answered.iter().copied().fold(f64::INFINITY, f64::min);
    ensure!(
        least >= ANSWERED_MIN * CALLS as f64,
        "{least:.0} calls a second were answered; expected {CALLS}"
    );
    let times = |rounds: Vec<(Vec<f64>, _)>| rounds.into_iter().map(|(times, _)| times).collect();
    let (with, without): (Vec<_>, Vec<_>) = (times(with), times(without));
    let estimate = ratio(&with, &without, setting.seed)?;
    let note = format!(
        "{rounds} rounds of {} blocks, at least {least:.0} calls a second answered",
        estimate.blocks
    );
    Ok(vec![Figure::estimate(figure, estimate, limit).note(note)])
}

/// Returns the calls of the transactions of the first blocks, on the latest state, for each thread.
fn calls(engine: &mut Client, blocks: usize) -> anyhow::Result<Arc<[Vec<String>]>> {
    let mut bodies = vec![Vec::new(); THREADS];
    for number in 1..=blocks {
        let block = engine.call("eth_getBlockByNumber", &json!([format!("{number:#x}"), true]))?;
        let transactions = block["transactions"].as_array().context("no transactions")?;
        for (place, transaction) in transactions.iter().enumerate() {
            let params = json!([call_of(transaction), "latest"]);
            bodies[place % THREADS].push(request("eth_call", &params));
        }
    }
    ensure!(bodies.iter().all(|bodies| !bodies.is_empty()), "the first blocks are empty");
    Ok(bodies.into())
}
