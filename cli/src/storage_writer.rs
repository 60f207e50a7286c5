//! `tandem storage-writer`: runs the database in its own process.

use crate::service::{GrpcArgs, ServiceArgs};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role;

/// Options of `tandem storage-writer`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory with the database; see `tandem init`
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Start although the database has lost acknowledged blocks, which must be sent again
    #[arg(long)]
    accept_lost_blocks: bool,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.settings(&args.datadir)?;
    config.storage_writer.accept_lost_blocks = args.accept_lost_blocks;
    let grpc = args.grpc.address(9600);
    args.service
        .run(config, async |process, config| role::storage_writer(process, config, grpc).await)
}
