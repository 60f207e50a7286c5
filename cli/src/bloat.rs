//! `tandem bloat`: states that are larger than memory, and payloads on them.

mod payloads;
mod workload;

use crate::{
    output::print,
    progress::{Report, Unit},
    spam::Wallet,
};
use alloy_primitives::U256;
use anyhow::Context;
use indicatif::HumanCount;
use serde_json::json;
use std::{path::PathBuf, process::ExitCode, time::Instant};
use tandem_bloat::{
    Base, MEMORY_BYTES, MEMORY_BYTES_PER_THREAD, Plan, StateAt, load, write_genesis,
};

/// Genesis without an account of its own, by the rules of Osaka.
const GENESIS: &str = include_str!("devnet/genesis.json");

/// Accounts that send the transactions of payloads.
const SENDERS: u64 = 64;

/// Money of each of them, in wei: more than any number of blocks costs.
const FUNDS: U256 = U256::from_limbs([0, 1 << 36, 0, 0]);

/// Options of `tandem bloat`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a state in an empty data directory; with the same options, go on where it ended
    #[command(after_help = memory_help())]
    State(StateArgs),
    /// Make blocks that read and write random cold slots of such a state, as a corpus of payloads
    Payloads(payloads::Args),
}

fn memory_help() -> String {
    format!(
        "Memory: about {} MiB, and {} MiB for each processor, however large the state is.",
        MEMORY_BYTES >> 20,
        MEMORY_BYTES_PER_THREAD >> 20
    )
}

/// Options of `tandem bloat state`.
#[derive(clap::Args)]
struct StateArgs {
    /// Data directory for the database; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Number of accounts; up to a tenth of them are contracts
    #[arg(long, value_name = "N")]
    accounts: u64,
    /// Number of slots of all contracts together
    #[arg(long, value_name = "N")]
    slots: u64,
    /// Seed of addresses and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Genesis in geth's format (.json, .json.gz) with the configuration and further accounts
    /// [default: the rules of Osaka and the contracts that they need]
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    /// Make it the state of block 1 on an empty genesis, for clients that download a state (snap) and could
    /// not read a genesis of this size; geth does so once the chain is 65 blocks longer
    #[arg(long)]
    block_1: bool,
    /// Also write the genesis in geth's format (.json, .json.gz): the whole state, about 100 bytes a slot,
    /// or none with --block-1
    #[arg(long, value_name = "FILE")]
    genesis_out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Makes a state, or payloads.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::State(args) => state(&args),
        Command::Payloads(args) => payloads::run(&args),
    }
}

fn state(args: &StateArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan::new(args.accounts, args.slots, args.seed)?;
    let mut base = match &args.genesis {
        Some(path) => Base::open(path)?,
        None => Base::parse(GENESIS)?,
    };
    for sender in senders(&plan) {
        base.fund(sender.address, FUNDS);
    }
    let at = if args.block_1 { StateAt::Block1 } else { StateAt::Genesis };
    if let Some(path) = &args.genesis_out {
        write_genesis(&plan, &base, at, path)?;
    }
    let begin = Instant::now();
    let report = Report::new(Unit::Records);
    let made = load(&plan, &base, at, &args.datadir, &|done, total| report.show(done, total))
        .with_context(|| format!("make a state in {}", args.datadir.display()))?;
    report.finish();
    let seconds = begin.elapsed().as_secs_f64();
    print(&match args.json {
        true => format!(
            "{}\n",
            json!({
                "genesis": made.genesis.hash, "head": made.head.hash,
                "accounts": made.accounts, "slots": made.slots,
                "contracts": plan.contracts(), "seconds": seconds,
            })
        ),
        false => format!(
            "genesis {}, head {}: {} accounts, {} of them contracts, and {} slots in {seconds:.0} s\n",
            made.genesis.hash,
            made.head,
            HumanCount(made.accounts),
            HumanCount(plan.contracts()),
            HumanCount(made.slots),
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the accounts that pay for the payloads on a state.
fn senders(plan: &Plan) -> impl Iterator<Item = Wallet> {
    let seed = plan.seed();
    (0..SENDERS).map(move |number| Wallet::derived(seed, number))
}
