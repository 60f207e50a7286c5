//! `tandem follower`: keeps a verified copy of a leader's chain and serves JSON-RPC from it.

use crate::{node::client_info, service::ServiceArgs};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};
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
    /// Address of JSON-RPC
    #[arg(long = "http.addr", value_name = "IP", default_value = "127.0.0.1")]
    http_addr: IpAddr,
    /// Port of JSON-RPC, 0 for a free one
    #[arg(long = "http.port", value_name = "PORT", default_value_t = 8545)]
    http_port: u16,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.service.settings(&args.datadir)?;
    let http = SocketAddr::new(args.http_addr, args.http_port);
    let leaders = args.leaders;
    let calls = leaders.clone();
    args.service.calling(calls).run(config, async move |process, config| {
        role::follower(process, config, http, &leaders, client_info()).await
    })
}
