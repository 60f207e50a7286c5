//! `tandem follower`: keeps a verified copy of a leader's chain and serves JSON-RPC from it, until it is
//! promoted.

use crate::{
    node::{HttpArgs, client_info},
    service::{GrpcArgs, ServiceArgs, called},
};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role::{self, FollowerLinks};

/// Options of `tandem follower`.
#[derive(clap::Args)]
pub struct Args {
    /// The storage-writer to follow, such as http://10.0.0.7:9600; may be given several times, or with
    /// commas between them. Another one is followed when the first is out of reach or lies. `jetstream`
    /// is the stream in NATS to which a leader publishes its blocks
    #[arg(long = "leader", value_name = "URL", value_delimiter = ',', required = true)]
    leaders: Vec<String>,
    /// Directory for the copy. Without a database, one is made with the leader's genesis
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Directory or bucket with snapshots, as of `tandem snapshot`. A data directory without a database gets
    /// that of the newest one after which a leader has the changes [default: `follower.snapshot` of the
    /// settings, otherwise the state is copied from a leader]
    #[arg(long, value_name = "PATH|URL")]
    snapshot: Option<String>,
    /// The tx-pool to which users' transactions go, such as http://10.0.0.8:9605 [default: none, transactions
    /// are refused]
    #[arg(long, value_name = "URL")]
    tx_pool: Option<String>,
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
    config.follower.snapshot = args.snapshot.or(config.follower.snapshot);
    let (http, grpc) = (args.http.address(), args.grpc.given());
    let links = FollowerLinks { leaders: args.leaders, tx_pool: args.tx_pool };
    let mut calls = called(&links.leaders);
    calls.extend(links.tx_pool.clone());
    args.service.calling(calls).run(config, async move |process, config| {
        role::follower(process, config, http, grpc, links, client_info()).await
    })
}
