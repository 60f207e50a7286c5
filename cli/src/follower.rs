//! `tandem follower`: keeps a verified copy of a leader's chain and serves JSON-RPC from it, until it is
//! promoted.

use crate::{
    node::{HttpArgs, client_info},
    service::{GrpcArgs, ServiceArgs},
};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role;

/// Options of `tandem follower`.
#[derive(clap::Args)]
pub struct Args {
    /// The storage-writer to follow, such as http://10.0.0.7:9600; may be given several times, or with
    /// commas between them. Another one is followed when the first is out of reach or lies
    #[arg(long = "leader", value_name = "URL", value_delimiter = ',', required = true)]
    leaders: Vec<String>,
    /// Directory for the copy. Without a database, one is made with the leader's genesis
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.settings(&args.datadir)?;
    args.http.apply(&mut config.executor);
    let (http, grpc) = (args.http.address(), args.grpc.given());
    let leaders = args.leaders;
    let calls = leaders.clone();
    args.service.calling(calls).run(config, async move |process, config| {
        role::follower(process, config, http, grpc, &leaders, client_info()).await
    })
}
