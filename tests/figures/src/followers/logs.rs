//! `eth_getLogs` through a long chain of small blocks: a follower beside geth.

use super::{Copy, SMALL_TRANSACTIONS, hash_of_head, leader, rpc::compare};
use crate::{
    Setting,
    corpus::Corpus,
    figure::Figure,
    node::{CALL_TIME_MAX, Kind, Node},
};
use anyhow::{Context as _, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{fs, path::Path, time::Duration};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Contents, Forks};

/// Blocks of the chain, of a full run and of a quick one. A node searches 10,000 in one call by default.
const BLOCKS: [usize; 2] = [10_000, 1_000];
/// Blocks from one with transactions of all kinds to the next. The others move and store values, and have no logs.
const OTHERS_BETWEEN: u64 = 8;
/// Transactions of all kinds in such a block.
const WITH_LOGS: usize = 12;
/// Searches, of a full run and of a quick one.
const SEARCHES: [usize; 2] = [400, 100];

/// Measures searches by address and topics of a log that the chain has, through all of its blocks.
pub fn measure(setting: &Setting, geth: &Path) -> anyhow::Result<Vec<Figure>> {
    let quick = usize::from(setting.quick);
    let count = BLOCKS[quick];
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, builder.genesis_json())?;
    let mut blocks = Vec::with_capacity(count);
    let mut parent = builder.genesis();
    for number in 0..count as u64 {
        let contents = match number % OTHERS_BETWEEN {
            0 => Contents::Random(WITH_LOGS),
            _ => Contents::Bounded(SMALL_TRANSACTIONS),
        };
        let block = builder.build(parent, setting.seed.wrapping_mul(1_000_003) + number, contents);
        parent = block.hash;
        blocks.push((block.payload, block.sidecar));
        builder.forget_all_but_ancestors(parent);
    }
    let payloads = blocks.iter().map(|(payload, sidecar)| (payload, sidecar));
    let name = format!("{count} small blocks");
    let corpus = Corpus::of(&name, genesis, Fork::Osaka, payloads);
    drop((blocks, builder));
    let leader = leader(setting, &corpus.genesis)?;
    let mut copy = Copy::start(&setting.tandem, &leader, false)?;
    let other = Node::start_kind(Kind::Geth, geth, &corpus.genesis, "")?;
    corpus.replay(&leader, Duration::ZERO)?;
    corpus.replay(&other, Duration::ZERO)?;
    copy.reach(&hash_of_head(&mut leader.engine()?)?)?;
    let (mut this, mut that) = (copy.public(), other.public(CALL_TIME_MAX));
    let mut random = StdRng::seed_from_u64(setting.seed);
    let (mut questions, mut found) = (Vec::new(), 0);
    for _ in 0..100 * SEARCHES[quick] {
        if questions.len() == SEARCHES[quick] {
            break;
        }
        let at = format!("{:#x}", random.random_range(1..=count));
        let receipts = this.call("eth_getBlockReceipts", &json!([at]))?;
        let receipts = receipts.as_array().context("no receipts")?;
        let logs = receipts.iter().filter_map(|it| it["logs"].as_array()).flatten();
        let Some(log) = logs.collect::<Vec<&Value>>().choose(&mut random).copied() else {
            continue;
        };
        let range = json!([{"fromBlock": "0x1", "toBlock": format!("{count:#x}"),
            "address": log["address"], "topics": log["topics"]}]);
        let all = this.call("eth_getLogs", &range)?;
        found += all.as_array().context("no logs")?.len();
        questions.push(range);
    }
    ensure!(questions.len() == SEARCHES[quick], "{} blocks with logs", questions.len());
    ensure!(found >= questions.len(), "a search does not find the log that it was made of");
    let mut figures = compare(&mut this, &mut that, "eth_getLogs", &questions, &name)?;
    let note = format!("{:.1} logs found by each", found as f64 / questions.len() as f64);
    if let Some(last) = figures.pop() {
        figures.push(last.note(note));
    }
    Ok(figures)
}
