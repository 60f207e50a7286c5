//! `tandem executor`: the Engine API and the EVM, in a process of their own.

use crate::{
    node::{EngineArgs, PolicyArgs, client_info},
    service::{ServiceArgs, endpoint},
};
use std::{path::Path, process::ExitCode};
use tandem_cluster::role::{self, ExecutorLinks};

/// Options of `tandem executor`.
#[derive(clap::Args)]
pub struct Args {
    /// The storage-writer that keeps the chain [default: http://127.0.0.1:9600, https with --tls.ca]
    #[arg(long, value_name = "URL")]
    storage_writer: Option<String>,
    /// A worker that computes state roots; may be given several times, or with commas between them
    /// [default: those that are heard of over NATS]
    #[arg(long = "worker", value_name = "URL", value_delimiter = ',')]
    workers: Vec<String>,
    /// A blob-validator that verifies blobs; may be given several times, or with commas between them. A
    /// name with several addresses stands for as many, which share the work [default:
    /// http://127.0.0.1:9603, https with --tls.ca]
    #[arg(long = "blob-validator", value_name = "URL", value_delimiter = ',')]
    blob_validators: Vec<String>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.service.load()?;
    args.policies.apply(&mut config.policies)?;
    args.engine.apply(&mut config.executor);
    let ports = args.engine.ports(Path::new(""), None);
    let mut blob_validators = args.blob_validators;
    if blob_validators.is_empty() {
        blob_validators.push(endpoint(None, 9603, &config.tls));
    }
    let links = ExecutorLinks {
        storage_writer: endpoint(args.storage_writer, 9600, &config.tls),
        workers: args.workers,
        blob_validators,
    };
    let calls = [&links.storage_writer].into_iter().chain(&links.workers);
    let calls: Vec<_> = calls.chain(&links.blob_validators).cloned().collect();
    args.service.calling(calls).run(config, async move |process, config, _| {
        role::executor(process, config, &ports, &links, client_info()).await
    })
}
