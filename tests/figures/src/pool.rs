//! Blocks from the pool: whether geth finds them valid, what they earn beside geth's own, and how soon
//! they are there.
//!
//! Both clients get the same transactions and build on the same head. Tandem's block then becomes the
//! head of both, so that the next pools hold what it left.

use crate::{
    Setting,
    both::Both,
    driven::{Driven, Genesis, with_limit},
    figure::{Figure, Limit, Report},
    node::{Kind, Node},
};
use alloy_primitives::{Bytes, U256};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    GENESIS_TIME, Mixed, Transfer,
    contracts::{BURNER, STORE, store_calldata},
    driver::attributes,
    signed_call,
};

/// Pools of a full run on each fork, and of a quick one.
const POOLS: [u64; 2] = [1_000, 40];
/// Transactions that come to a pool before each block.
const TRANSACTIONS: u64 = 30;
/// Gas limit of the genesis with a few transactions a block, so that they do not all fit.
const SMALL_GAS_LIMIT: &str = "0x4c4b40";
/// Gas limit of the genesis for large blocks.
const LARGE_GAS_LIMIT: &str = "0x3938700";
/// Pending transactions of a full block.
const PENDING: u64 = 5_000;
/// Senders of the pending transactions.
const SENDERS: u64 = 40;
/// Gas that each pending call may use, so that all together have 500 million.
const CALL_GAS: u64 = 100_000;
/// Slots that a call writes, each for the first time. More would need more gas than it has.
const CALL_SLOTS: u64 = 3;
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
    for pending in [Pending::Transfers, Pending::Calls] {
        let name = format!("first full block, {}", pending.name());
        report.measure(&name, || first_block(setting, geth()?, pending));
    }
}

/// Transactions in the pool when a build begins.
#[derive(Clone, Copy)]
enum Pending {
    /// Transfers, with 105 million gas together.
    Transfers,
    /// Calls that execution takes time for, with 500 million gas together: half of them run until their
    /// gas is used up, the others write slots.
    Calls,
}

impl Pending {
    fn name(self) -> &'static str {
        match self {
            Self::Transfers => "105 Mgas of transfers",
            Self::Calls => "500 Mgas of calls",
        }
    }

    /// Returns the transaction of this number.
    fn write(self, number: u64) -> Bytes {
        let (key, nonce) = ((number % SENDERS) as usize, number / SENDERS);
        let tip = 1_000_000_000 + u128::from(number * 7_919 % 10_007);
        match self {
            Self::Transfers => Transfer::new(key, nonce, tip).raw,
            Self::Calls if number.is_multiple_of(2) => {
                signed_call(key, nonce, tip, BURNER, Bytes::new(), CALL_GAS).0
            }
            Self::Calls => {
                let first = (number + 1) << 8;
                let pairs = (first..first + CALL_SLOTS).map(|slot| (U256::from(slot), U256::ONE));
                signed_call(key, nonce, tip, STORE, store_calldata(pairs), CALL_GAS).0
            }
        }
    }

    /// Returns the least number of transactions of a full block.
    fn full(self) -> usize {
        match self {
            Self::Transfers => 2_000,
            Self::Calls => 550,
        }
    }
}

fn percentile(values: &mut [f64], part: f64) -> anyhow::Result<f64> {
    values.sort_by(f64::total_cmp);
    let index = ((values.len() as f64 * part).ceil() as usize).saturating_sub(1);
    values.get(index).copied().context("no value")
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
    let mut both =
        Both::new(Driven::new(tandem.engine()?, fork), Driven::new(other.engine()?, fork));
    let mut head = both.tandem.genesis()?;
    both.geth.choose(head, &Value::Null)?;
    let mut mixed = Mixed::new(setting.seed, &genesis.builder, fork);
    let (mut base_fee, mut invalid, mut empty) = (1_000_000_000, 0_u32, 0_u32);
    let (mut tips, mut same, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut taken, mut different) = (0, 0_u32);
    for number in 1..=count {
        for sender in Mixed::senders() {
            mixed.set_nonce(sender, both.tandem.next_nonce(sender)?);
        }
        for _ in 0..TRANSACTIONS {
            let (raw, sender) = mixed.write(number, base_fee);
            if both.add(&raw, number) {
                mixed.set_nonce(sender, both.tandem.next_nonce(sender)?);
            }
        }
        let is_same = both.are_same(number)?;
        let Both { tandem: own, geth, .. } = &mut both;
        let asked = attributes(fork, GENESIS_TIME + 12 * number, number as u8);
        let asked = with_limit(asked, SMALL_GAS_LIMIT);
        let id = own.choose(head, &asked)?.context("no payload id")?;
        let geth_id = geth.choose(head, &asked)?.context("no payload id of geth")?;
        sleep(BUILD_TIME);
        let built = own.take(&id)?;
        let geths = geth.take(&geth_id)?;
        times.push(built.took.as_secs_f64() * 1e3);
        empty += u32::from(
            built.payload.transactions.is_empty() && !geths.payload.transactions.is_empty(),
        );
        different += u32::from(!is_same);
        if geths.value > 0 {
            let ratio = built.value as f64 / geths.value as f64;
            tips.push(ratio);
            if is_same {
                let lengths = [&built, &geths].map(|it| it.payload.transactions.len());
                same.push((ratio, number, lengths));
            }
        }
        taken += built.payload.transactions.len();
        invalid += u32::from(!geth.send(&built)?);
        ensure!(own.send(&built)?, "Tandem refuses its own block {number}");
        head = built.payload.block_hash;
        base_fee = built.payload.base_fee_per_gas.to();
        own.choose(head, &Value::Null)?;
        geth.choose(head, &Value::Null)?;
    }
    let note = format!("{} pools, median {:.4}", tips.len(), percentile(&mut tips, 0.5)?);
    let least = same.iter().min_by(|a, b| a.0.total_cmp(&b.0)).context("no pool is the same")?;
    let (least, block, [own, other]) = least;
    let least_note = format!(
        "{} pools; block {block}: {own} transactions, {other} of geth's; of all pools {:.3}",
        same.len(),
        percentile(&mut tips, 0.0)?,
    );
    let (refused, reasons) = both.refusals();
    let name = |what: &str| format!("{fork}: {what}");
    let sent = (count * TRANSACTIONS) as f64;
    Ok(vec![
        Figure::new(
            name("transactions that Tandem alone refuses, share"),
            f64::from(refused) / sent,
            Limit::None,
        )
        .note(reasons),
        Figure::new(
            name("pools that differ, share"),
            f64::from(different) / count as f64,
            Limit::AtMost(0.1),
        )
        .note(both.lacks()),
        Figure::new(name("blocks that geth refuses"), invalid.into(), Limit::Exactly(0.0))
            .note(format!("{count} blocks, {taken} transactions")),
        Figure::new(name("empty blocks where geth's is not"), empty.into(), Limit::Exactly(0.0)),
        Figure::new(
            name("tips / geth, 5th percentile"),
            percentile(&mut tips, 0.05)?,
            Limit::AtLeast(0.995),
        )
        .note(note),
        Figure::new(name("tips / geth, least of equal pools"), *least, Limit::AtLeast(0.95))
            .note(least_note),
        Figure::new(name("getPayload p99, ms"), percentile(&mut times, 0.99)?, Limit::AtMost(5.0)),
    ])
}

/// Measures the time from forkchoiceUpdated to a full block in a large pool.
fn first_block(setting: &Setting, geth: &Path, pending: Pending) -> anyhow::Result<Vec<Figure>> {
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
        let raw = pending.write(number);
        own.add(&raw).and_then(|_| geth.add(&raw)).context("send a transaction")?;
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
        ensure!(transactions > pending.full(), "the block has {transactions} transactions");
        sleep(Duration::from_millis(100));
    }
    // geth answers with an empty block until the full one is there.
    let mut geths = None;
    for (round, wait) in (0..100).map(|step| 5 + 5 * step).enumerate() {
        let id = geth.choose(head, &asked(1_000 + round as u64))?.context("no id of geth")?;
        sleep(Duration::from_millis(wait));
        if geth.take(&id)?.payload.transactions.len() > pending.full() {
            geths = Some(wait as f64);
            break;
        }
    }
    let note = format!("{PENDING} pending, {transactions} in the block");
    let name = |what: &str| format!("first full block, {}: {what}", pending.name());
    let median = percentile(&mut times, 0.5)?;
    let mut figures = vec![
        Figure::new(name("p50, ms"), median, Limit::AtMost(150.0)).note(note),
        Figure::new(name("latest, ms"), percentile(&mut times, 1.0)?, Limit::AtMost(1_000.0)),
    ];
    figures.extend(geths.map(|geths| {
        Figure::new(name("geth, ms"), geths, Limit::None)
            .note("the shortest wait that brought it, in steps of 5")
    }));
    Ok(figures)
}
