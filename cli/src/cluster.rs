//! `tandem cluster`: runs the services as processes on this machine under one command, with a
//! NATS server if there is one.

mod child;
mod flags;
mod nats;
mod plan;
mod ready;
mod traffic;
mod usage;

use crate::{certificates, init, node, serve::Signals};
use anyhow::{Context, ensure};
use child::{Child, stop_all};
use clap::ArgMatches;
use plan::Plan;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tokio::{runtime, time::interval};
use traffic::Traffic;
use usage::Usage;

/// Interval between two looks at the processes.
const LOOK: Duration = Duration::from_millis(100);

/// Validity of certificates in days: longer than a cluster runs.
const CERTIFICATE_DAYS: u32 = 3650;

/// Options of `tandem cluster`: those of `tandem node`, and more.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    node: node::Args,
    /// Number of multiproof-worker processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    workers: u16,
    /// Number of followers: processes that serve JSON-RPC from verified copies of the chain. The
    /// copies are in `followers` in the data directory
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=16))]
    followers: u16,
    /// Number of tx-executor processes, which execute transactions of blocks with access lists
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=16))]
    tx_executors: u16,
    /// Directory of the log files, one for each process [default: logs in the data directory]
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// URL of a running NATS server for the event bus, or none for no bus [default: one is started
    /// if there is a nats-server]
    #[arg(long, value_name = "URL|none", conflicts_with = "nats_server")]
    nats: Option<String>,
    /// The nats-server to start [default: the one on the PATH]
    #[arg(long, value_name = "FILE")]
    nats_server: Option<PathBuf>,
}

impl Args {
    /// Returns the directory in which the certificates of the services are made, if any are made.
    fn certificates(&self) -> anyhow::Result<Option<PathBuf>> {
        self.node.certificates(&self.node.settings()?.tls)
    }
}

/// Runs until SIGINT or SIGTERM. The options were made from `matches`. `program` knows the commands
/// of the services.
pub fn run(args: &Args, program: &clap::Command, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if args.node.prints()? {
        return Ok(ExitCode::SUCCESS);
    }
    let datadir = args.node.datadir();
    if let Some(genesis) = args.node.genesis() {
        init::write(genesis, datadir)?;
    }
    ensure!(datadir.is_dir(), "no database in {}: run `tandem init` first", datadir.display());
    let logs = args.logs.clone().unwrap_or_else(|| datadir.join("logs"));
    std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
    if let Some(folder) = args.certificates()? {
        certificates::write(&folder, CERTIFICATE_DAYS, true)?;
    }
    let plan = Plan::new(args, program, matches, &logs)?;
    // A single thread, because a child bound to this process ends with the thread that started it.
    let reactor = runtime::Builder::new_current_thread().enable_all().build()?;
    reactor.block_on(supervise(plan))
}

#[allow(clippy::print_stdout, reason = "the answer of the command")]
async fn supervise(plan: Plan) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let Plan { roles, summary } = plan;
    let mut children = Vec::with_capacity(roles.len());
    for role in roles {
        children.push(Child::start(role)?);
    }
    print!("{}", table(&children));
    let mut ticks = interval(LOOK);
    let mut ready = false;
    let mut used = Usage::default();
    let code = loop {
        tokio::select! {
            () = signals.any() => break ExitCode::SUCCESS,
            _ = ticks.tick() => {}
        }
        let mut failed = false;
        for child in &mut children {
            failed |= !child.look(ready)?;
        }
        if failed {
            break ExitCode::FAILURE;
        }
        if !ready && ready::all(&children).await {
            ready = true;
            used = Usage::of(&children);
            println!("ready: {summary}");
        }
    };
    let traffic = Traffic::of(&children).await;
    print!("{}{}", traffic.table(), used.table(&children, traffic.blocks));
    println!("stopping");
    stop_all(children).await;
    Ok(code)
}

/// Returns a table of the processes and their ports.
fn table(children: &[Child]) -> String {
    let mut text = format!("{:<20} {:>8}  {:<44} log\n", "process", "pid", "where");
    for child in children {
        let ports: Vec<_> =
            child.role.ports.iter().map(|(name, port)| format!("{name} {port}")).collect();
        let log: &Path = &child.role.log;
        text += &format!(
            "{:<20} {:>8}  {:<44} {}\n",
            child.role.name,
            child.pid(),
            ports.join(", "),
            log.display()
        );
    }
    text
}
