//! `tandem node`: all services in this process.

use crate::{
    discovery::DiscoveryArgs, init, operations::OperationsArgs, peer_table::TableArgs,
    telemetry::TelemetryArgs,
};
use anyhow::Context;
use std::{
    net::{IpAddr, SocketAddr},
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_cluster::{ClientInfo, Cluster, Config, Ports};
use tokio::signal::unix::{SignalKind, signal};

/// Options of `tandem node`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory with the database; see `tandem init`
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Genesis to write first when the data directory is empty (geth's format, .json or .json.gz)
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Do not look for peers
    #[arg(long)]
    disable_discovery: bool,
    #[command(flatten)]
    discovery: DiscoveryArgs,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

impl Args {
    /// The data directory.
    pub fn datadir(&self) -> &Path {
        &self.datadir
    }

    /// The genesis to write first.
    pub fn genesis(&self) -> Option<&Path> {
        self.genesis.as_deref()
    }

    /// Where the node is to be reached.
    pub fn ports(&self) -> Ports {
        self.engine.ports(&self.datadir, self.operations.metrics())
    }

    /// Whether peers are not looked for.
    pub fn disables_discovery(&self) -> bool {
        self.disable_discovery
    }

    /// Whether discovery's port was given as a flag.
    pub fn asks_for_discovery_port(&self) -> bool {
        self.discovery.port.is_some()
    }

    /// The settings as they hold, with those of the flags.
    pub fn settings(&self) -> anyhow::Result<Config> {
        let mut config = self.operations.settings(&self.datadir)?;
        self.policies.apply(&mut config.policies)?;
        config.with_discovery = !self.disable_discovery;
        // Several nodes on one machine are no mistake; a port asked for and taken is.
        config.discovery_port_moves = self.discovery.port.is_none();
        self.discovery.clone().apply(&mut config.discovery);
        self.table.apply(&mut config.peer_table);
        self.telemetry.apply(&mut config.traces);
        Ok(config)
    }

    /// Prints the settings if that is asked for, and nothing else is to be done then.
    pub fn prints(&self) -> anyhow::Result<bool> {
        self.operations.prints(&self.settings()?)
    }
}

/// Where the Engine API and JSON-RPC are, shared by the commands that run an executor.
#[derive(clap::Args)]
pub struct EngineArgs {
    /// Address of the Engine API
    #[arg(long = "authrpc.addr", value_name = "IP", default_value = "127.0.0.1")]
    authrpc_addr: IpAddr,
    /// Port of the Engine API, 0 for a free one
    #[arg(long = "authrpc.port", value_name = "PORT", default_value_t = 8551)]
    authrpc_port: u16,
    /// File with the secret of the Engine API's tokens, made when missing [default: jwt.hex in
    /// the data directory, or in the working directory of a process that has none]
    #[arg(long = "authrpc.jwtsecret", value_name = "FILE")]
    authrpc_jwtsecret: Option<PathBuf>,
    /// Address of the JSON-RPC port
    #[arg(long = "http.addr", value_name = "IP", default_value = "127.0.0.1")]
    http_addr: IpAddr,
    /// JSON-RPC port, 0 for a free one
    #[arg(long = "http.port", value_name = "PORT", default_value_t = 8545)]
    http_port: u16,
}

impl EngineArgs {
    /// The ports, the secret by default in this directory.
    pub fn ports(&self, datadir: &Path, metrics: Option<SocketAddr>) -> Ports {
        let secret = || datadir.join("jwt.hex");
        Ports {
            engine: SocketAddr::new(self.authrpc_addr, self.authrpc_port),
            http: SocketAddr::new(self.http_addr, self.http_port),
            metrics,
            jwt_secret: self.authrpc_jwtsecret.clone().unwrap_or_else(secret),
        }
    }
}

/// Options that choose policies, shared by the commands that run services.
#[derive(clap::Args)]
pub struct PolicyArgs {
    /// How the proof pipeline works, such as --policy chunking=while-idle; may be given several times.
    /// Keys and values are those of the table policies in docs/configuration.md; shells want braces quoted:
    /// --policy 'batching=fixed{16,500}'
    #[arg(long = "policy", value_name = "KEY=VALUE", value_parser = check_policy)]
    policies: Vec<String>,
}

fn check_policy(text: &str) -> Result<String, tandem_policy::Error> {
    tandem_policy::Policies::default().assign(text)?;
    Ok(text.to_owned())
}

impl PolicyArgs {
    /// Sets what was given, over what the configuration says.
    pub fn apply(&self, policies: &mut tandem_policy::Policies) -> anyhow::Result<()> {
        for text in &self.policies {
            policies.assign(text)?;
        }
        Ok(())
    }
}

/// How this build names itself to consensus clients.
pub fn client_info() -> ClientInfo {
    let commit = u32::from_str_radix(env!("TANDEM_COMMIT"), 16).unwrap_or(0).to_be_bytes();
    ClientInfo { version: env!("CARGO_PKG_VERSION").to_owned(), commit }
}

/// A reactor for the listeners; the work itself runs on threads of its own.
pub fn reactor() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Two on two cores would wake each other more than they help.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    builder
        .worker_threads((cores / 2).clamp(1, 2))
        .event_interval(tandem_cluster::EVENT_INTERVAL)
        .enable_all()
        .build()
        .context("start the reactor")
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    reactor()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    if args.prints()? {
        return Ok(ExitCode::SUCCESS);
    }
    let (config, ports) = (args.settings()?, args.ports());
    let telemetry = args.telemetry.start("info", &config.traces)?;
    let (genesis, datadir) = (args.genesis, args.datadir);
    let start = move || {
        if let Some(genesis) = genesis {
            init::write(&genesis, &datadir)?;
        }
        Cluster::start(config).context("start the services")
    };
    let mut cluster = tokio::task::spawn_blocking(start).await??;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    cluster.serve(&ports, client_info(), &telemetry).await?;
    let code = tokio::select! {
        _ = terminate.recv() => ExitCode::SUCCESS,
        _ = interrupt.recv() => ExitCode::SUCCESS,
        () = cluster.failed() => ExitCode::FAILURE,
    };
    tracing::info!("stopping");
    cluster.stop().await;
    tokio::task::spawn_blocking(move || telemetry.shutdown()).await?;
    Ok(code)
}
