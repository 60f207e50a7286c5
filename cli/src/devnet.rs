//! `tandem devnet`: a test network on this machine. Tandem and geth propose blocks in turn, a driver
//! plays the consensus client, and transactions of all kinds keep the pools full.

mod client;
mod driver;

use crate::{
    output::print,
    serve,
    spam::{self, Kind, Wallet, spam},
};
use alloy_primitives::B256;
use anyhow::{Context, ensure};
use client::Client;
use driver::{Course, Happened, Proposed, drive};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tandem_chain::Fork;
use tandem_overlap::stats;
use tokio::time::sleep;

/// Genesis of a network with all forks up to Osaka, and the contracts that they and Amsterdam want.
const GENESIS: &str = include_str!("devnet/genesis.json");
/// Money of the account that pays for everything, in wei.
const FUNDS: &str = "0xc9f2c9cd04674edea40000000";
/// Number of the account that pays for everything.
const FUNDER: u64 = u64::MAX;

/// Fork of a test network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Rules {
    Osaka,
    Amsterdam,
}

/// Options of `tandem devnet`.
///
/// Needs geth 1.17.8 or newer. Exit code 0 if all clients have the same head at the end, and each has
/// said VALID of every block.
#[derive(clap::Args)]
pub struct Args {
    /// Fork of the network
    #[arg(long, value_name = "FORK", default_value = "amsterdam")]
    fork: Rules,
    /// Number of slots
    #[arg(long, value_name = "N", default_value_t = 200)]
    slots: u64,
    /// Milliseconds of a slot
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    slot_ms: u64,
    /// Percentage of slots without a block
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=99))]
    missed: u32,
    /// Percentage of blocks that are built on one of the last three parents of the head
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=50))]
    reorgs: u32,
    /// Transactions a second; 0 for empty blocks
    #[arg(long, value_name = "N", default_value_t = 50)]
    rate: u32,
    /// Seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Program of the other client
    #[arg(long, value_name = "PATH", default_value = "geth")]
    geth: PathBuf,
    /// Directory for data and logs, kept afterwards [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    datadir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the network. Exit code 1 if the clients do not agree.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    serve::block_on(network(args))
}

async fn network(args: Args) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::Builder::new().prefix("tandem-devnet-").tempdir()?;
    let folder = args.datadir.clone().unwrap_or_else(|| temporary.path().to_owned());
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let (genesis_file, genesis, gas_limit) = write_genesis(&folder, args.fork, args.seed)?;
    let mut geth = Client::geth(&args.geth, &folder, &genesis_file).await?;
    let peer = geth.enode().await?;
    let tandem = Client::tandem(&folder, &genesis_file, &peer).await?;
    let mut clients = [tandem, geth];
    let (hash, _) = clients[0].head().await?;
    let (other, _) = clients[1].head().await?;
    ensure!(hash == other, "the clients have different genesis blocks: {hash} and {other}");
    let slot = Duration::from_millis(args.slot_ms);
    let course = Course {
        fork: match args.fork {
            Rules::Osaka => Fork::Osaka,
            Rules::Amsterdam => Fork::Amsterdam,
        },
        slots: args.slots,
        slot,
        build: slot / 2,
        missed: args.missed,
        reorgs: args.reorgs,
        gas_limit,
        seed: args.seed,
    };
    let sending = (args.rate > 0).then(|| {
        let spam = spam(spam::Args {
            url: clients[0].url.clone(),
            key: folder.join("funder.key"),
            rate: args.rate,
            // It is ended with the network.
            seconds: u64::MAX,
            accounts: 64,
            seed: args.seed,
            kinds: [&Kind::USUAL[..], &[Kind::Blob]].concat(),
            json: false,
        });
        tokio::spawn(async move {
            // geth drops what peers send before its first block.
            sleep(3 * slot).await;
            spam.await
        })
    });
    let genesis =
        Proposed { hash, timestamp: genesis, proposer: 0, transactions: 0, blobs: 0, gas: 0 };
    let step = |slot: u64, happened: &Happened| {
        if slot.is_multiple_of(10) {
            let Happened { chain, missed, reorgs, .. } = happened;
            let transactions: usize = chain.iter().map(|block| block.transactions).sum();
            let blocks = chain.len() - 1;
            eprintln!(
                "slot {slot} of {}: {blocks} blocks, {transactions} transactions, {missed} missed, {reorgs} reorgs",
                args.slots
            );
        }
    };
    let driven = drive(&course, &mut clients, genesis, step).await;
    if let Some(sending) = sending {
        match sending.is_finished() {
            true => {
                sending.await?.context("send transactions")?;
            }
            false => sending.abort(),
        }
    }
    let happened = driven.with_context(|| {
        let logs = clients.iter().map(|it| format!("log of {}: {}", it.name, it.last_lines()));
        logs.collect::<Vec<_>>().join("\n")
    })?;
    let mut heads = Vec::new();
    for client in &mut clients {
        heads.push(client.head().await?);
    }
    let expected = happened.chain.last().map(|head| &head.hash);
    let agree = heads.iter().all(|(hash, root)| Some(hash) == expected && *root == heads[0].1);
    let names: Vec<_> = clients.iter().map(|client| client.name).collect();
    let result = summary(&happened, &names, agree);
    print(&if args.json { format!("{result}\n") } else { text(&result, &names) })?;
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the genesis file, and the key of the account that pays. Returns the file, its timestamp,
/// and its gas limit.
fn write_genesis(folder: &Path, rules: Rules, seed: u64) -> anyhow::Result<(PathBuf, u64, u64)> {
    let funder = Wallet::derived(seed, FUNDER);
    fs::write(folder.join("funder.key"), funder.key_text()).context("write the key")?;
    let mut genesis: Value = serde_json::from_str(GENESIS)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    genesis["timestamp"] = json!(format!("{now:#x}"));
    genesis["alloc"][funder.address.to_string()] = json!({"balance": FUNDS});
    if rules == Rules::Amsterdam {
        genesis["config"]["amsterdamTime"] = json!(0);
        genesis["slotNumber"] = json!("0x0");
    }
    let gas_limit = crate::rpc::quantity(&genesis["gasLimit"]).context("no gas limit")?;
    let file = folder.join("genesis.json");
    fs::write(&file, genesis.to_string()).with_context(|| file.display().to_string())?;
    Ok((file, now, gas_limit.try_into()?))
}

/// Returns the result as JSON.
fn summary(happened: &Happened, names: &[&str], agree: bool) -> Value {
    let Happened { chain, left, missed, reorgs, get_payload, new_payload } = happened;
    let clients = names.iter().enumerate().map(|(at, name)| {
        let own: Vec<_> = chain[1..].iter().filter(|block| block.proposer == at).collect();
        let transactions: usize = own.iter().map(|block| block.transactions).sum();
        let gas: u64 = own.iter().map(|block| block.gas).sum();
        let blobs: usize = own.iter().map(|block| block.blobs).sum();
        let client = json!({
            "blocks": own.len(), "transactions": transactions, "gas": gas, "blobs": blobs,
            "getPayload_ms": {"p50": quantile(&get_payload[at], 0.5), "p99": quantile(&get_payload[at], 0.99)},
            "newPayload_ms": {"p50": quantile(&new_payload[at], 0.5), "p99": quantile(&new_payload[at], 0.99)},
        });
        ((*name).to_owned(), client)
    });
    let clients: serde_json::Map<String, Value> = clients.collect();
    let head = chain.last().map_or(json!(B256::ZERO), |head| head.hash.clone());
    json!({
        "agree": agree, "head": head, "blocks": chain.len() - 1, "left": left, "missed": missed,
        "reorgs": reorgs, "clients": clients,
    })
}

/// Returns the result in words.
fn text(result: &Value, names: &[&str]) -> String {
    let said = if result["agree"] == true { "the same head" } else { "DIFFERENT HEADS" };
    let mut text = format!(
        "{said}: {} blocks, {} missed slots, {} reorganisations that left {} blocks\n",
        result["blocks"], result["missed"], result["reorgs"], result["left"]
    );
    text += &format!(
        "{:8} {:>7} {:>13} {:>6} {:>10} {:>22} {:>22}\n",
        "client",
        "blocks",
        "transactions",
        "blobs",
        "Mgas",
        "getPayload p50, p99 ms",
        "newPayload p50, p99 ms"
    );
    for name in names {
        let client = &result["clients"][name];
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let pair =
            |times: &Value| format!("{:.1}, {:.1}", number(&times["p50"]), number(&times["p99"]));
        text += &format!(
            "{:8} {:>7} {:>13} {:>6} {:>10.1} {:>22} {:>22}\n",
            name,
            number(&client["blocks"]),
            number(&client["transactions"]),
            number(&client["blobs"]),
            number(&client["gas"]) / 1e6,
            pair(&client["getPayload_ms"]),
            pair(&client["newPayload_ms"]),
        );
    }
    text
}

/// Returns a quantile, 0 without any value.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    stats::quantile(&sorted, share).unwrap_or_default()
}
