//! `tandem executor`: runs the Engine API and the EVM in their own process.

use crate::{
    multiproof_worker::reachable_name,
    node::{EngineArgs, PolicyArgs, client_info},
    service::{ServiceArgs, endpoint, storage_writers},
};
use std::{path::Path, process::ExitCode};
use tandem_cluster::role::{self, ExecutorIdentity, ExecutorLinks};
use tandem_proto::storage::is_host;

/// Options of `tandem executor`.
#[derive(clap::Args)]
pub struct Args {
    /// The storage-writer that holds the chain; may be given several times, or with commas between them,
    /// and the one that leads is called [default: http://127.0.0.1:9600, https with --tls.ca]
    #[arg(long = "storage-writer", value_name = "URL", value_delimiter = ',')]
    storage_writers: Vec<String>,
    /// A worker that computes state roots; may be given several times, or with commas between them
    /// [default: workers announced over NATS]
    #[arg(long = "worker", value_name = "URL", value_delimiter = ',')]
    workers: Vec<String>,
    /// A tx-executor that executes transactions of blocks with access lists, beside this process; may be
    /// given several times, or with commas between them [default: none]
    #[arg(long = "tx-executor", value_name = "URL", value_delimiter = ',')]
    tx_executors: Vec<String>,
    /// A blob-validator that verifies blobs; may be given several times, or with commas between
    /// them. A name with several addresses stands for several validators, which share the work
    /// [default: http://127.0.0.1:9603, https with --tls.ca]
    #[arg(long = "blob-validator", value_name = "URL", value_delimiter = ',')]
    blob_validators: Vec<String>,
    /// The peer-sessions from whose peers missing blocks are fetched [default: no peers, and no sync]
    #[arg(long, value_name = "URL")]
    peer_sessions: Option<String>,
    /// The tx-pool with whose transactions blocks are built, and to which users' transactions go
    /// [default: a pool in this process, without a journal]
    #[arg(long, value_name = "URL")]
    tx_pool: Option<String>,
    /// Name of this executor, as logs and other executors know it [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = check_name)]
    executor_id: Option<String>,
    /// IP address or name of this host at which other executors reach the Engine API and JSON-RPC, on the
    /// ports where they listen [default: the address of the Engine API, the host's name instead of
    /// 0.0.0.0]
    #[arg(long, value_name = "HOST", value_parser = check_host)]
    advertise: Option<String>,
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
    config.executor.tx_executors.extend(args.tx_executors);
    let ports = args.engine.ports(Path::new(""), None);
    let mut blob_validators = args.blob_validators;
    if blob_validators.is_empty() {
        blob_validators.push(endpoint(None, 9603, &config.tls));
    }
    let links = ExecutorLinks {
        storage_writers: storage_writers(args.storage_writers, &config.tls),
        workers: args.workers,
        blob_validators,
        peer_sessions: args.peer_sessions,
        tx_pool: args.tx_pool,
    };
    let identity = ExecutorIdentity {
        id: args.executor_id,
        advertise: args.advertise,
        host: reachable_name(),
    };
    let calls = links.storage_writers.iter().chain(&links.workers);
    let calls = calls.chain(&links.blob_validators).chain(&links.peer_sessions);
    let calls = calls.chain(&links.tx_pool).chain(&config.executor.tx_executors);
    let calls: Vec<_> = calls.cloned().collect();
    args.service.calling(calls).run(config, async move |process, config| {
        role::executor(process, config, &ports, &links, identity, client_info()).await
    })
}

fn check_name(text: &str) -> Result<String, String> {
    const CHARACTERS_MAX: usize = 64;
    let is_name = (1..=CHARACTERS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_name.then(|| text.to_owned()).ok_or_else(|| {
        format!("invalid name `{text}`; expected 1 to {CHARACTERS_MAX} characters of visible ASCII")
    })
}

fn check_host(text: &str) -> Result<String, String> {
    is_host(text)
        .then(|| text.to_owned())
        .ok_or_else(|| format!("invalid host `{text}`; expected an IP address or a name, no port"))
}
