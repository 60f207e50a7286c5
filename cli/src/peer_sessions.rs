//! `tandem peer-sessions`: holds the sessions with peers in a process of its own.

use crate::{
    service::{GrpcArgs, ServiceArgs, endpoint, storage_writers},
    sessions::SessionsArgs,
};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role::{self, SessionsLinks};

/// Options of `tandem peer-sessions`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the node key, that of discovery, as a node has one identity; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// The storage-writer whose chain peers are served; may be given several times, or with commas between
    /// them, and the one that leads is called [default: http://127.0.0.1:9600, https with --tls.ca]
    #[arg(long = "storage-writer", value_name = "URL", value_delimiter = ',')]
    storage_writers: Vec<String>,
    /// The peer-table that gives candidates, and is told the number of sessions [default:
    /// http://127.0.0.1:9602, https with --tls.ca]
    #[arg(long, value_name = "URL")]
    peer_table: Option<String>,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    sessions: SessionsArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.settings(&args.datadir)?;
    args.sessions.apply(&mut config.peer_sessions);
    let grpc = args.grpc.address(9604);
    let links = SessionsLinks {
        storage_writers: storage_writers(args.storage_writers, &config.tls),
        peer_table: endpoint(args.peer_table, 9602, &config.tls),
    };
    let calls: Vec<_> = links.storage_writers.iter().chain([&links.peer_table]).cloned().collect();
    args.service.calling(calls).run(config, async move |process, config| {
        role::peer_sessions(process, config, grpc, &links).await
    })
}
