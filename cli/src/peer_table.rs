//! `tandem peer-table`: runs the table of peers in its own process.

use crate::service::{GrpcArgs, ServiceArgs};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role;

/// Options of `tandem peer-table`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the snapshot of the best nodes; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Options of peer-table, shared by the commands that run it.
#[derive(clap::Args)]
pub struct TableArgs {
    /// Number of peers wanted [default: 50]
    #[arg(long = "peers.target", value_name = "N")]
    target_peers: Option<u32>,
}

impl TableArgs {
    /// Returns whether a flag was given.
    pub fn is_given(&self) -> bool {
        self.target_peers.is_some()
    }

    /// Overrides the configuration by the flag, if it was given.
    pub fn apply(&self, config: &mut tandem_peer_table::Config) {
        config.target_peers = self.target_peers.unwrap_or(config.target_peers);
    }
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.settings(&args.datadir)?;
    args.table.apply(&mut config.peer_table);
    let grpc = args.grpc.address(9602);
    args.service.run(config, async |process, config| role::peer_table(process, config, grpc).await)
}
