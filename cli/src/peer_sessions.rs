//! `tandem peer-sessions`: holds the sessions with peers in a process of its own.

use crate::{
    service::{GrpcArgs, ServiceArgs, endpoint},
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
    /// The storage-writer whose chain peers are served [default: http://127.0.0.1:9600, https with
    /// --tls.ca]
    #[arg(long, value_name = "URL")]
    storage_writer: Option<String>,
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
        storage_writer: endpoint(args.storage_writer, 9600, &config.tls),
        peer_table: endpoint(args.peer_table, 9602, &config.tls),
    };
    let calls = [links.storage_writer.clone(), links.peer_table.clone()];
    args.service.calling(calls).run(config, async move |process, config| {
        role::peer_sessions(process, config, grpc, &links).await
    })
}
