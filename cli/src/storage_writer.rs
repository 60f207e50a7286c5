//! `tandem storage-writer`: runs the database in its own process.

use crate::service::{GrpcArgs, ServiceArgs, called};
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
    /// Another storage-writer of the same chain, such as http://10.0.0.8:9600; may be given several times, or
    /// with commas between them. While one of them leads, this one keeps a verified copy of its chain, and can
    /// be promoted, by hand or by lease (`storage_writer.lead`). `jetstream` is the stream in NATS to which a
    /// leader publishes its blocks
    #[arg(long = "leader", value_name = "URL", value_delimiter = ',')]
    leaders: Vec<String>,
    /// URL of this storage-writer, which is ignored among those of `--leader`, so that all may get the same list
    #[arg(long, value_name = "URL", requires = "leaders")]
    advertise: Option<String>,
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
    let is_other = |url: &String| Some(url) != args.advertise.as_ref();
    let others: Vec<String> = args.leaders.into_iter().filter(is_other).collect();
    args.service.calling(called(&others)).run(config, async move |process, config| {
        role::storage_writer(process, config, grpc, &others).await
    })
}
