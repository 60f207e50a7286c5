//! `tandem bloat payloads`: a corpus on a state of `tandem bloat state`.
//!
//! A node builds each block to order on a copy of the database, and takes it as a payload. The files of
//! the copy are those of the database, by hard links, so the state itself stays at genesis. A link in
//! the corpus leads to it.

use super::{
    senders,
    workload::{GAS_MAX, Workload},
};
use crate::{
    lab::{Launched, launch},
    output,
    replay::{DATADIR, Mismatch, parse_line},
    rpc::Rpc,
    serve::{self, Signals},
    spam::Wallet,
};
use alloy_primitives::{B256, Bytes};
use anyhow::{Context, anyhow, bail, ensure};
use flate2::{Compression, write::GzEncoder};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_bloat::Plan;
use tandem_storage_writer::copy_database;

/// Receiver of the fees.
const FEE_RECIPIENT: &str = "0x00000000000000000000000000000000000000fe";

/// Settings of the node that builds.
const CONFIG: &str = "[executor]\ntesting_methods = true\n";

/// Options of `tandem bloat payloads`.
#[derive(clap::Args)]
pub struct Args {
    /// Data directory that `tandem bloat state` made; it is not changed
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Folder for the corpus; must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of blocks
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    blocks: u32,
    /// Gas that a block is filled up to
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    gas: u64,
    /// Seed of the slots that are chosen
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    workload: Workload,
    /// Folder for the copy of the database while payloads are made, on the volume of the data directory
    /// [default: beside the data directory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

/// Makes a corpus.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Plan::of_database(&args.datadir)?;
    ensure!(plan.slots() > 0, "{} has a state without slots", args.datadir.display());
    let gas = args.workload.gas();
    ensure!(gas <= GAS_MAX, "a transaction needs {gas} gas: expected {GAS_MAX} or less");
    ensure!(gas <= args.gas, "a transaction needs {gas} gas: expected blocks of {gas} gas or more");
    ensure!(!args.out.exists(), "{} exists already", args.out.display());
    let beside = args.datadir.canonicalize().ok().and_then(|it| Some(it.parent()?.to_owned()));
    let scratch = args.scratch.clone().or(beside).context("the data directory has no parent")?;
    let scratch = tempfile::Builder::new().prefix("tandem-bloat-").tempdir_in(&scratch);
    let scratch = scratch.context("create a folder for the copy of the database")?;
    copy_database(&args.datadir, &scratch.path().join("data")).context("copy the database")?;
    fs::create_dir_all(&args.out).with_context(|| format!("create {}", args.out.display()))?;
    let datadir = args.datadir.canonicalize()?;
    std::os::unix::fs::symlink(&datadir, args.out.join(DATADIR)).context("link the database")?;
    serve::block_on(async {
        let mut signals = Signals::listen()?;
        // Dropping the future ends the node.
        tokio::select! {
            made = make(args, &plan, scratch.path()) => made,
            () = signals.any() => bail!("interrupted"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn make(args: &Args, plan: &Plan, folder: &Path) -> anyhow::Result<()> {
    let config = toml::from_str(CONFIG).context("settings of the node")?;
    let node = launch(folder, &config).await?;
    let mut session = node.session()?;
    let mut maker = Maker::new(args, plan, &node).await?;
    let path = args.out.join("payloads.jsonl.gz");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let mut lines = GzEncoder::new(BufWriter::new(file), Compression::default());
    let bar = ProgressBar::with_draw_target(
        Some(u64::from(args.blocks)),
        ProgressDrawTarget::stderr_with_hz(5),
    );
    if let Ok(style) =
        ProgressStyle::with_template("{bar:32} {pos} of {len} blocks  {elapsed}, {eta} left")
    {
        bar.set_style(style);
    }
    for number in 1..=args.blocks {
        let built = maker.block().await;
        let line = built.with_context(|| format!("build block {number}"))?;
        let entry = parse_line(&line)?.context("the node built no payload")?;
        if let Err(Mismatch { method, expected, got, .. }) = session.block(&entry).await? {
            let refused = anyhow!("{method} of block {number}: expected {expected}, got {got}");
            return Err(node.explain(refused));
        }
        lines.write_all(line.as_bytes()).and_then(|()| lines.write_all(b"\n"))?;
        maker.head = serde_json::from_value(json!(entry.hash)).context("blockHash")?;
        maker.gas_used += entry.gas;
        maker.transactions += entry.transactions as u64;
        bar.inc(1);
    }
    lines.finish()?.flush().with_context(|| format!("write {}", path.display()))?;
    bar.finish_and_clear();
    let description = maker.description(args);
    output::write(&args.out.join("corpus.json"), format!("{description:#}\n"))?;
    output::print(&format!(
        "{} blocks with {} transactions and {:.1} Mgas each in {}\n",
        args.blocks,
        maker.transactions / u64::from(args.blocks),
        maker.gas_used as f64 / f64::from(args.blocks) / 1e6,
        args.out.display()
    ))
}

/// Maker of blocks.
struct Maker<'a> {
    plan: &'a Plan,
    workload: Workload,
    gas: u64,
    rpc: Rpc,
    rng: StdRng,
    chain_id: u64,
    senders: Vec<(Wallet, u64)>,
    /// Place of the next sender.
    next: usize,
    genesis: B256,
    head: B256,
    timestamp: u64,
    number: u64,
    gas_used: u64,
    transactions: u64,
}

impl<'a> Maker<'a> {
    async fn new(args: &Args, plan: &'a Plan, node: &Launched) -> anyhow::Result<Self> {
        let mut rpc = node.rpc()?;
        let genesis = rpc.call("eth_getBlockByNumber", json!(["0x0", false])).await?;
        let head = rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
        let timestamp = crate::rpc::quantity(&head["timestamp"]).context("timestamp")?;
        let limit = crate::rpc::quantity(&head["gasLimit"]).context("gasLimit")?;
        ensure!(
            u128::from(args.gas) <= limit,
            "blocks of the chain have {limit} gas at most: expected --gas {limit} or less"
        );
        if !head["blockAccessListHash"].is_null() || head["parentBeaconBlockRoot"].is_null() {
            bail!("payloads are made by the rules of Cancun, Prague and Osaka only");
        }
        Ok(Self {
            plan,
            workload: args.workload,
            gas: args.gas,
            chain_id: rpc.quantity("eth_chainId", json!([])).await?.try_into()?,
            rpc,
            rng: StdRng::seed_from_u64(args.seed),
            senders: senders(plan).map(|wallet| (wallet, 0)).collect(),
            next: 0,
            genesis: serde_json::from_value(genesis["hash"].clone())?,
            head: serde_json::from_value(head["hash"].clone())?,
            timestamp: timestamp.try_into()?,
            number: 0,
            gas_used: 0,
            transactions: 0,
        })
    }

    /// Has the next block built. Returns its line of a payload file.
    async fn block(&mut self) -> anyhow::Result<String> {
        self.number += 1;
        self.timestamp += 12;
        let transactions = self.transactions();
        let beacon_root = B256::with_last_byte(self.number as u8);
        let attributes = json!({
            "timestamp": format!("{:#x}", self.timestamp),
            "prevRandao": B256::repeat_byte(self.number as u8),
            "suggestedFeeRecipient": FEE_RECIPIENT,
            "withdrawals": [],
            "parentBeaconBlockRoot": beacon_root,
        });
        let order = json!([self.head, attributes, transactions, null]);
        let mut built = self.rpc.call("testing_buildBlockV1", order).await?;
        let requests = built["executionRequests"].take();
        let version = if requests.is_null() { 3 } else { 4 };
        let line = json!({
            "method": format!("engine_newPayloadV{version}"),
            "executionPayload": built["executionPayload"].take(),
            "versionedHashes": [],
            "parentBeaconBlockRoot": beacon_root,
            "executionRequests": requests,
        });
        Ok(line.to_string())
    }

    fn transactions(&mut self) -> Vec<Bytes> {
        let count = (self.gas / self.workload.gas()) as usize;
        let mut transactions = Vec::with_capacity(count);
        for _ in 0..count {
            let (wallet, nonce) = &mut self.senders[self.next];
            transactions.push(self.workload.transaction(
                self.plan,
                wallet,
                *nonce,
                self.chain_id,
                &mut self.rng,
            ));
            *nonce += 1;
            self.next = (self.next + 1) % self.senders.len();
        }
        transactions
    }

    /// Returns what the folder says about itself.
    fn description(&self, args: &Args) -> Value {
        let Workload { reads, writes, balances } = self.workload;
        json!({
            "parameters": {
                "blocks": args.blocks, "gas": self.gas, "seed": args.seed, "reads": reads,
                "writes": writes, "balances": balances,
            },
            "state": {
                "accounts": self.plan.accounts(), "slots": self.plan.slots(),
                "seed": self.plan.seed(), "genesis": self.genesis,
            },
            "transactions": self.transactions, "gasUsed": self.gas_used,
        })
    }
}
