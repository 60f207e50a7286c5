//! `tandem blob-validator`: runs KZG verification in its own process.

use crate::service::{GrpcArgs, ServiceArgs};
use std::process::ExitCode;
use tandem_cluster::role;

/// Options of `tandem blob-validator`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.service.load()?;
    let grpc = args.grpc.address(9603);
    args.service
        .run(config, async |process, config| role::blob_validator(process, config, grpc).await)
}
