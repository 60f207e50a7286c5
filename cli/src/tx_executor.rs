//! `tandem tx-executor`: executes transactions of blocks for an executor on another machine.

use crate::service::{GrpcArgs, ServiceArgs};
use std::process::ExitCode;
use tandem_cluster::role;

/// Options of `tandem tx-executor`.
#[derive(clap::Args)]
pub struct Args {
    /// Number of threads that execute [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.load()?;
    if let Some(threads) = args.threads {
        config.tx_executor.threads = threads.into();
    }
    let grpc = args.grpc.address(9605);
    args.service
        .run(config, async move |process, config| role::tx_executor(process, config, grpc).await)
}
