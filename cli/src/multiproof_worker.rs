//! `tandem multiproof-worker`: runs the tries in their own process.

use crate::{
    node::PolicyArgs,
    service::{GrpcArgs, ServiceArgs, storage_writers},
    telemetry::host_name,
};
use std::process::ExitCode;
use tandem_cluster::role::{self, WorkerIdentity};
use tandem_multiproof_workers::membership::WorkerId;

/// Options of `tandem multiproof-worker`.
#[derive(clap::Args)]
pub struct Args {
    /// The storage-writer to read from; may be given several times, or with commas between them, and the
    /// one that leads is called [default: http://127.0.0.1:9600, https with --tls.ca]
    #[arg(long = "storage-writer", value_name = "URL", value_delimiter = ',')]
    storage_writers: Vec<String>,
    /// Name of this worker; a worker keeps its shards with its name [default: the host's name and
    /// the port]
    #[arg(long, value_name = "NAME")]
    worker_id: Option<WorkerId>,
    /// URL at which executors reach this worker, as announced on the bus [default: the address and
    /// port of its calls, the host's name instead of 0.0.0.0]
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    #[command(flatten)]
    grpc: GrpcArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.load()?;
    args.policies.apply(&mut config.policies)?;
    let grpc = args.grpc.address(9601);
    let storage_writers = storage_writers(args.storage_writers, &config.tls);
    let identity =
        WorkerIdentity { id: args.worker_id, advertise: args.advertise, host: reachable_name() };
    let service = args.service.calling(storage_writers.clone());
    service.run(config, async move |process, config| {
        role::multiproof_worker(process, config, grpc, &storage_writers, identity).await
    })
}

/// Returns the host's name, or `localhost` if it is unknown.
pub fn reachable_name() -> String {
    match host_name() {
        name if name.is_empty() => "localhost".to_owned(),
        name => name,
    }
}
