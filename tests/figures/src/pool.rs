//! Blocks from the pool: whether geth finds them valid, what they earn beside geth's own, and how soon
//! they are there.
//!
//! Both clients get the same transactions and build on the same head. Tandem's block then becomes the
//! head of both, so that the next pools hold what it left.

use crate::{
    Setting,
    driven::Driven,
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Forks, GENESIS_TIME, Mixed, Transfer, driver::attributes};
use tempfile::TempDir;

/// Pools of a full run on each fork, and of a quick one.
const POOLS: [u64; 2] = [1_000, 40];
/// Transactions that come to a pool before each block.
const TRANSACTIONS: u64 = 30;
/// Gas limit of the genesis with a few transactions a block, so that they do not all fit.
const SMALL_GAS_LIMIT: &str = "0x4c4b40";
/// Gas limit of the genesis for large blocks.
const LARGE_GAS_LIMIT: &str = "0x3938700";
/// Pending transactions of the first full block.
const PENDING: u64 = 5_000;
/// Senders of the pending transactions.
const SENDERS: u64 = 40;
/// Time that both clients have for a block.
const BUILD_TIME: Duration = Duration::from_millis(400);
/// Settings of geth: tips of any size and transactions without a chain id, as in Tandem. Without
/// `nolocals`, geth would say yes to a user's transaction that its pool refuses for now, and add it later.
const GETH: &str = "--miner.gasprice 1 --rpc.allow-unprotected-txs --txpool.globalslots 6144 \
                    --txpool.nolocals --rpc.txfeecap 0 --cache 128";

/// Measures the figures. Without geth, none can be.
pub fn measure(setting: &Setting, geth: Option<&Path>, report: &mut Report) {
    let geth = || geth.context("no --geth: the client to compare with");
    for fork in [Fork::Osaka, Fork::Amsterdam] {
        let name = format!("pools, {fork}");
        report.measure(&name, || pools(setting, geth()?, fork));
    }
    report.measure("first full block", || first_block(setting, geth()?));
}

/// Genesis with funded senders, in a file.
struct Genesis {
    builder: Builder,
    file: PathBuf,
    _folder: TempDir,
}

impl Genesis {
    fn new(fork: Fork, gas_limit: &str) -> anyhow::Result<Self> {
        let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
        let mut genesis: Value = serde_json::from_str(builder.genesis_json())?;
        genesis["gasLimit"] = json!(gas_limit);
        if fork == Fork::Amsterdam {
            genesis["config"]["amsterdamTime"] = json!(GENESIS_TIME + 1);
        }
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        let file = folder.path().join("genesis.json");
        std::fs::write(&file, genesis.to_string())?;
        Ok(Self { builder, file, _folder: folder })
    }
}

fn with_limit(mut attributes: Value, gas_limit: &str) -> Value {
    if !attributes["targetGasLimit"].is_null() {
        attributes["targetGasLimit"] = json!(gas_limit);
    }
    attributes
}

fn percentile(values: &mut [f64], part: f64) -> anyhow::Result<f64> {
    values.sort_by(f64::total_cmp);
    let index = ((values.len() as f64 * part).ceil() as usize).saturating_sub(1);
    values.get(index).copied().context("no value")
}

/// Returns the message of an error that a client answered with, without what differs from one transaction
/// to the next.
fn message_of(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let message = text.split("\"message\":\"").nth(1).unwrap_or(&text);
    message.chars().take_while(|letter| !matches!(letter, ':' | '"')).collect()
}

/// Builds on random pools in both clients.
fn pools(setting: &Setting, geth: &Path, fork: Fork) -> anyhow::Result<Vec<Figure>> {
    let count = POOLS[usize::from(setting.quick)];
    let genesis = Genesis::new(fork, SMALL_GAS_LIMIT)?;
    let limit = u64::from_str_radix(SMALL_GAS_LIMIT.trim_start_matches("0x"), 16)?;
    // As geth with `nolocals`.
    let config = format!("[executor]\ngas_limit_target = {limit}\n[tx_pool]\nlocal_max = 0\n");
    let tandem = Node::start(&setting.tandem, &genesis.file, &config)?;
    let flags = format!("{GETH} --miner.gaslimit {limit}");
    let other = Node::start_kind(Kind::Geth, geth, &genesis.file, &flags)?;
    let (mut own, mut geth) =
        (Driven::new(tandem.engine()?, fork), Driven::new(other.engine()?, fork));
    let mut head = own.genesis()?;
    geth.choose(head, &Value::Null)?;
    let mut mixed = Mixed::new(setting.seed, &genesis.builder, fork);
    let (mut base_fee, mut invalid, mut empty) = (1_000_000_000, 0_u32, 0_u32);
    let (mut ratios, mut times, mut taken) = (Vec::new(), Vec::new(), 0);
    let mut least = String::new();
    // Refusals by one client alone, by client and reason.
    let mut reasons = BTreeMap::<String, u32>::new();
    for number in 1..=count {
        for sender in Mixed::senders() {
            mixed.set_nonce(sender, own.next_nonce(sender)?);
        }
        for _ in 0..TRANSACTIONS {
            let (raw, sender) = mixed.write(number, base_fee);
            // Few are taken by one of them alone, as their rules for delegated accounts differ.
            match (geth.add(&raw), own.add(&raw)) {
                (Ok(()), Ok(())) => mixed.set_nonce(sender, own.next_nonce(sender)?),
                (Err(_), Err(_)) => {}
                (Ok(()), Err(error)) => {
                    *reasons.entry(format!("Tandem: {}", message_of(&error))).or_default() += 1;
                }
                (Err(error), Ok(())) => {
                    *reasons.entry(format!("geth: {}", message_of(&error))).or_default() += 1;
                }
            }
        }
        let asked = attributes(fork, GENESIS_TIME + 12 * number, number as u8);
        let asked = with_limit(asked, SMALL_GAS_LIMIT);
        let id = own.choose(head, &asked)?.context("no payload id")?;
        let geth_id = geth.choose(head, &asked)?.context("no payload id of geth")?;
        std::thread::sleep(BUILD_TIME);
        let built = own.take(&id)?;
        let geths = geth.take(&geth_id)?;
        times.push(built.took.as_secs_f64() * 1e3);
        empty += u32::from(
            built.payload.transactions.is_empty() && !geths.payload.transactions.is_empty(),
        );
        if geths.value > 0 {
            let ratio = built.value as f64 / geths.value as f64;
            if ratios.iter().all(|other| ratio < *other) {
                let [own, other] = [&built, &geths].map(|it| it.payload.transactions.len());
                least = format!("block {number}: {own} transactions, {other} of geth's");
            }
            ratios.push(ratio);
        }
        taken += built.payload.transactions.len();
        invalid += u32::from(!geth.send(&built)?);
        ensure!(own.send(&built)?, "Tandem refuses its own block {number}");
        head = built.payload.block_hash;
        base_fee = built.payload.base_fee_per_gas.to();
        own.choose(head, &Value::Null)?;
        geth.choose(head, &Value::Null)?;
    }
    let compared = ratios.len();
    let note = format!("{compared} pools, median {:.4}", percentile(&mut ratios, 0.5)?);
    let differ: u32 = reasons.values().sum();
    let reasons: Vec<_> = reasons.iter().map(|(why, count)| format!("{count} by {why}")).collect();
    let name = |what: &str| format!("{fork}: {what}");
    let sent = (count * TRANSACTIONS) as f64;
    Ok(vec![
        Figure::new(
            name("transactions that one client refuses, share"),
            f64::from(differ) / sent,
            Limit::None,
        )
        .note(reasons.join("; ")),
        Figure::new(name("blocks that geth refuses"), invalid.into(), Limit::Exactly(0.0))
            .note(format!("{count} blocks, {taken} transactions")),
        Figure::new(name("empty blocks where geth's is not"), empty.into(), Limit::Exactly(0.0)),
        Figure::new(
            name("tips / geth, 5th percentile"),
            percentile(&mut ratios, 0.05)?,
            Limit::AtLeast(0.995),
        )
        .note(note),
        Figure::new(
            name("tips / geth, least"),
            percentile(&mut ratios, 0.0)?,
            Limit::AtLeast(0.95),
        )
        .note(least),
        Figure::new(name("getPayload p99, ms"), percentile(&mut times, 0.99)?, Limit::AtMost(5.0)),
    ])
}

/// Measures the time from forkchoiceUpdated to a full block in a large pool.
fn first_block(setting: &Setting, geth: &Path) -> anyhow::Result<Vec<Figure>> {
    let fork = Fork::Osaka;
    let rounds = if setting.quick { 10 } else { 40 };
    let genesis = Genesis::new(fork, LARGE_GAS_LIMIT)?;
    let tandem = Node::start(&setting.tandem, &genesis.file, "")?;
    let other = Node::start_kind(Kind::Geth, geth, &genesis.file, GETH)?;
    let (mut own, mut geth) =
        (Driven::new(tandem.engine()?, fork), Driven::new(other.engine()?, fork));
    let head = own.genesis()?;
    geth.choose(head, &Value::Null)?;
    for number in 0..PENDING {
        let (key, nonce) = ((number % SENDERS) as usize, number / SENDERS);
        let tip = 1_000_000_000 + u128::from(number * 7_919 % 10_007);
        let Transfer { raw, .. } = Transfer::new(key, nonce, tip);
        own.add(&raw).and_then(|()| geth.add(&raw)).context("send a transfer")?;
    }
    let (mut times, mut transactions) = (Vec::new(), 0);
    let asked = |round: u64| attributes(fork, GENESIS_TIME + 12 + round, round as u8);
    for round in 0..rounds {
        let began = Instant::now();
        let id = own.choose(head, &asked(round))?.context("no payload id")?;
        // The answer waits for the first full block.
        let built = own.take(&id)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        transactions = built.payload.transactions.len();
        ensure!(transactions > 2_000, "the block has {transactions} transactions");
        std::thread::sleep(Duration::from_millis(100));
    }
    // geth answers with an empty block until the full one is there.
    let mut geths = None;
    for (round, wait) in (0..60).map(|step| 5 + 5 * step).enumerate() {
        let id = geth.choose(head, &asked(1_000 + round as u64))?.context("no id of geth")?;
        std::thread::sleep(Duration::from_millis(wait));
        if geth.take(&id)?.payload.transactions.len() >= transactions {
            geths = Some(wait as f64);
            break;
        }
    }
    let note = format!("{PENDING} pending, {transactions} in the block");
    let mut figures = vec![
        Figure::new("first full block p50, ms", percentile(&mut times, 0.5)?, Limit::AtMost(150.0))
            .note(note),
        Figure::new(
            "first full block, latest, ms",
            percentile(&mut times, 1.0)?,
            Limit::AtMost(1_000.0),
        ),
    ];
    figures.extend(geths.map(|geths| {
        let name = "first full block of geth, ms";
        Figure::new(name, geths, Limit::None)
            .note("the shortest wait that brought it, in steps of 5")
    }));
    Ok(figures)
}
