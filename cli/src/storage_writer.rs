//! `tandem storage-writer`: the database, in a process of its own.

use crate::service::{GrpcArgs, ServiceArgs};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role;

/// Options of `tandem storage-writer`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory with the database; see `tandem init`
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.service.settings(&args.datadir)?;
    let grpc = args.grpc.address(9600);
    args.service
        .run(config, async |process, config, _| role::storage_writer(process, config, grpc).await)
}
