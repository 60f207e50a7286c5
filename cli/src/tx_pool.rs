//! `tandem tx-pool`: holds the transactions that are in no block yet in a process of its own.

use crate::service::{GrpcArgs, ServiceArgs, endpoint, storage_writers};
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::role::{self, PoolLinks};

/// Options of `tandem tx-pool`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory of the journal with the transactions of this node's users; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// The storage-writer with whose chain transactions are checked; may be given several times, or with
    /// commas between them, and the one that leads is called [default: http://127.0.0.1:9600, https with
    /// --tls.ca]
    #[arg(long = "storage-writer", value_name = "URL", value_delimiter = ',')]
    storage_writers: Vec<String>,
    /// A blob-validator that verifies and holds blobs; may be given several times, or with commas
    /// between them [default: http://127.0.0.1:9603, https with --tls.ca]
    #[arg(long = "blob-validator", value_name = "URL", value_delimiter = ',')]
    blob_validators: Vec<String>,
    /// The peer-sessions with whose peers transactions are exchanged [default: none]
    #[arg(long, value_name = "URL")]
    peer_sessions: Option<String>,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM, at a low priority: on a machine that it shares, what strangers send must
/// not take the time of blocks.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Threads have the priority of the one that starts them.
    tandem_actor::take_background_priority();
    let config = args.service.settings(&args.datadir)?;
    let grpc = args.grpc.address(9605);
    let mut blob_validators = args.blob_validators;
    if blob_validators.is_empty() {
        blob_validators.push(endpoint(None, 9603, &config.tls));
    }
    let links = PoolLinks {
        storage_writers: storage_writers(args.storage_writers, &config.tls),
        blob_validators,
        peer_sessions: args.peer_sessions,
    };
    let calls = links.storage_writers.iter().chain(&links.blob_validators);
    let calls: Vec<_> = calls.chain(&links.peer_sessions).cloned().collect();
    args.service.calling(calls).run(config, async move |process, config| {
        role::tx_pool(process, config, grpc, &links).await
    })
}
