//! `tandem discover`: a crawler for people. It looks for nodes until it finds no more, and counts
//! them by fork and client.

mod census;
mod networks;

use crate::serve::{Signals, reactor};
use anyhow::{Context, ensure};
use census::Census;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};
use tandem_cluster::{Config, DiscoveryConfig, Network, Peers, Surroundings};
use tandem_proto::event::{PEERS_DISCOVERED, PeersDiscovered};
use tokio::task::spawn_blocking;

/// Options of `tandem discover`.
#[derive(clap::Args)]
pub struct Args {
    /// Public network to crawl: mainnet, sepolia, holesky or hoodi; its bootnodes are asked first
    #[arg(long, value_name = "NAME")]
    network: Option<Network>,
    /// Nodes to begin with, enode:// or enr: [default: the network's]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    bootnodes: Vec<String>,
    /// Address to listen on [default: 0.0.0.0]
    #[arg(long = "discovery.addr", value_name = "IP")]
    addr: Option<IpAddr>,
    /// UDP port to listen on, 0 for a free one
    #[arg(long = "discovery.port", value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    time_limit: u64,
    /// End earlier if nothing new was found for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    idle: u64,
    /// Write each node found as a line of JSON; - for standard output, without the table then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Count only nodes that answered
    #[arg(long)]
    answered: bool,
}

/// Interval between two lookups, in ms. A guest in the network must not look harder.
const LOOKUP_MS: u64 = 50;
/// Intervals at which progress is shown: redrawn on a terminal, and printed as lines elsewhere.
const SHOW_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Crawls until nothing new is found, the time is over, or a signal comes.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.network.is_some() || !args.bootnodes.is_empty(),
        "nobody to ask: give --network or --bootnodes"
    );
    // Opened before the crawl, which takes long.
    let json = args.json.as_deref().map(open).transpose()?;
    let (json_here, answered) = (args.json.as_deref() == Some(Path::new("-")), args.answered);
    let census = reactor()?.block_on(crawl(args))?;
    if let Some(mut json) = json {
        let written = census.write_json(&mut json, answered).and_then(|()| json.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.context("write the nodes")?,
        }
    }
    let table = census.table(answered);
    if json_here {
        eprint!("{table}");
    } else if let Err(error) = io::stdout().write_all(table.as_bytes())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(error).context("write the table");
    }
    // No node answered: the answer of the command is no.
    Ok(if census.answered() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufWriter::new(io::stdout())));
    }
    let file = File::create(path).with_context(|| format!("write {}", path.display()))?;
    Ok(Box::new(BufWriter::new(file)))
}

/// Starts the services of the crawl over this folder.
fn start(args: Args, datadir: &Path, within: Surroundings) -> anyhow::Result<Peers> {
    let peer_table = tandem_peer_table::Config {
        // Every node is counted, whatever its address.
        contacts_max: 1 << 20,
        subnet_contacts_max: u32::MAX,
        subnet_answer_max: usize::MAX,
        ..tandem_peer_table::Config::default()
    };
    let defaults = DiscoveryConfig::default();
    let discovery = DiscoveryConfig {
        datadir: datadir.to_owned(),
        addr: args.addr.unwrap_or(defaults.addr),
        port: args.port,
        tcp_port: 0,
        network: args.network,
        bootnodes: args.bootnodes,
        lookup_fast_ms: LOOKUP_MS,
        lookup_base_ms: LOOKUP_MS,
        lookup_maintenance_ms: LOOKUP_MS,
        maintenance_asked_max: defaults.lookup_asked_max,
        ..defaults
    };
    let config = Config { peer_table, discovery, ..Config::default() };
    let peers = Peers::start(config, None, within).context("start discovery")?;
    // The search goes on, however many nodes answer: none of them counts as a peer.
    peers.table().set_connected(0).context("report that there are no peers")?;
    Ok(peers)
}

async fn crawl(args: Args) -> anyhow::Result<Census> {
    let limit = Duration::from_secs(args.time_limit);
    let idle = Duration::from_secs(args.idle);
    let within = Surroundings::default();
    let (mut discovered, fatal) = (within.bus.subscribe(PEERS_DISCOVERED), within.fatal.clone());
    // Holds the node key during the crawl, so that no other node recognises it later.
    let datadir = tempfile::tempdir().context("make a folder for the node key")?;
    let folder = datadir.path().to_owned();
    let peers = spawn_blocking(move || start(args, &folder, within)).await??;
    let mut signals = Signals::listen()?;
    let mut census = Census::default();
    let progress = Progress::new();
    let (begin, mut news) = (Instant::now(), Instant::now());
    let mut ticks = tokio::time::interval(progress.every());
    while begin.elapsed() < limit && news.elapsed() < idle {
        tokio::select! {
            payload = discovered.next() => {
                let event = payload.as_deref().and_then(PeersDiscovered::decode);
                if event.is_some_and(|event| census.learn(event.contacts)) {
                    news = Instant::now();
                }
            }
            _ = ticks.tick() => {
                progress.show(&census, peers.status().packets_sent, begin.elapsed());
            }
            () = signals.any() => break,
            () = fatal.cancelled() => anyhow::bail!("discovery has failed"),
        }
    }
    progress.finish();
    spawn_blocking(move || peers.stop()).await?;
    Ok(census)
}

/// Progress on standard error: a changing line on a terminal, otherwise separate lines.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self(bar)
    }

    fn every(&self) -> Duration {
        if self.0.is_some() { SHOW_EVERY } else { LINE_EVERY }
    }

    fn show(&self, census: &Census, sent: u64, elapsed: Duration) {
        let (known, answered, records) = (census.known(), census.answered(), census.records());
        let text =
            format!("{known} nodes, {answered} answered, {records} records, {sent} packets sent");
        match &self.0 {
            Some(bar) => {
                bar.set_message(text);
                bar.tick();
            }
            None => eprintln!("{:>4} s: {text}", elapsed.as_secs()),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
