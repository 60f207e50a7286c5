//! `tandem peer-table`: the table of peers in a process of its own.

use crate::{
    node::{TelemetryArgs, reactor},
    operations::OperationsArgs,
};
use anyhow::Context;
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};
use tandem_bus::Bus;
use tandem_cluster::operations_router;
use tandem_executor::rpc;
use tandem_peer_table::{Connected, Deps, PeerTable, grpc::Server};
use tandem_telemetry::Telemetry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

/// Options of `tandem peer-table`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the snapshot of the best nodes; made when missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Address that calls come to
    #[arg(long = "grpc.addr", value_name = "IP", default_value = "127.0.0.1")]
    grpc_addr: IpAddr,
    /// Port that calls come to, 0 for a free one
    #[arg(long = "grpc.port", value_name = "PORT", default_value_t = 9602)]
    grpc_port: u16,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Options of peer-table, shared by the commands that run it.
#[derive(clap::Args)]
pub struct TableArgs {
    /// Peers wanted [default: 50]
    #[arg(long = "peers.target", value_name = "N")]
    target_peers: Option<u32>,
    /// Who counts as a connected peer: those that are reported; proven, every node with a proven
    /// endpoint; or a number, that many. The last two stand in for sessions [default: reported]
    #[arg(long = "peers.connected", value_name = "WHO")]
    connected: Option<Connected>,
}

impl TableArgs {
    /// Whether there is anything to set.
    pub fn is_given(&self) -> bool {
        self.target_peers.is_some() || self.connected.is_some()
    }

    /// Sets what was given, over what the configuration says.
    pub fn apply(&self, config: &mut tandem_peer_table::Config) {
        config.target_peers = self.target_peers.unwrap_or(config.target_peers);
        config.connected = self.connected.unwrap_or(config.connected);
    }
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    reactor()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.operations.settings(&args.datadir)?;
    args.table.apply(&mut config.peer_table);
    let telemetry = args.telemetry.start("info")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    // Ports before threads: what is taken is known at once.
    let listener = listen("grpc", SocketAddr::new(args.grpc_addr, args.grpc_port)).await?;
    let (stop, fatal) = (CancellationToken::new(), CancellationToken::new());
    let mut servers = JoinSet::new();
    if let Some(address) = args.operations.metrics() {
        let listener = listen("metrics", address).await?;
        let router = operations_router(Telemetry::clone(&telemetry));
        servers.spawn(rpc::serve(listener, router, stop.clone()));
    }
    let bus = Bus::default();
    let deps = Deps { bus: bus.clone(), fatal: fatal.clone() };
    let (datadir, settings) = (args.datadir, config.peer_table);
    let start = move || {
        std::fs::create_dir_all(&datadir).with_context(|| format!("make {}", datadir.display()))?;
        PeerTable::start(settings, deps).context("start peer-table")
    };
    let table = tokio::task::spawn_blocking(start).await??;
    servers.spawn(Server::new(table.clone(), bus).serve(listener, stop.clone()));
    let code = tokio::select! {
        _ = terminate.recv() => ExitCode::SUCCESS,
        _ = interrupt.recv() => ExitCode::SUCCESS,
        () = fatal.cancelled() => {
            error!("peer-table has failed");
            ExitCode::FAILURE
        }
        ended = servers.join_next() => {
            error!(?ended, "a listener ended");
            ExitCode::FAILURE
        }
    };
    info!("stopping");
    stop.cancel();
    while servers.join_next().await.is_some() {}
    tokio::task::spawn_blocking(move || {
        table.stop();
        telemetry.shutdown();
    })
    .await?;
    Ok(code)
}

async fn listen(port: &'static str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("listen on {address}"))?;
    info!(port, address = %listener.local_addr()?, "listening");
    Ok(listener)
}
