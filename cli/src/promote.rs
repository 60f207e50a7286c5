//! `tandem promote`: makes a follower the leading storage-writer.

use crate::{certificates::Files, output::print, serve::block_on, service::TlsArgs};
use anyhow::Context;
use std::{path::PathBuf, process::ExitCode};
use tandem_cluster::{Identity, TlsConfig, install_ring};
use tandem_proto::{access::OPERATOR, storage::Promotion};
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::runtime::Handle;

/// Options of `tandem promote`.
#[derive(clap::Args)]
pub struct Args {
    /// The follower's address for calls (its --grpc.port), such as https://10.0.0.8:9600
    #[arg(long, value_name = "URL")]
    follower: String,
    /// Promote it although its leader is in reach, it lacks blocks, or another storage-writer leads in a
    /// later term. Make sure that the old leader has stopped: an executor that reaches only that one
    /// would go on to write there
    #[arg(long)]
    force: bool,
    /// Directory of certificates that `tandem certificates` made, for https; the operator's is used
    /// [default: the files of --tls.ca, --tls.cert and --tls.key]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ca", "cert", "key"])]
    certificates: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Promotes the follower, and prints the term in which it leads and its head.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    install_ring();
    let Promotion { term, head } = block_on(promote(args))?;
    print(&format!("{} leads in term {}, its head is {head}\n", args.follower, term.0))?;
    Ok(ExitCode::SUCCESS)
}

async fn promote(args: &Args) -> anyhow::Result<Promotion> {
    let mut tls = TlsConfig::default();
    args.tls.apply(&mut tls);
    if let Some(folder) = &args.certificates {
        let Files { ca, cert, key } = Files::of(folder, OPERATOR);
        tls = TlsConfig { ca: Some(ca), cert: Some(cert), key: Some(key), ..tls };
    }
    let identity = Identity::load(OPERATOR, &tls)?;
    let config = ClientConfig { connection: identity.into(), ..ClientConfig::default() };
    let client = Client::connect(&args.follower, config, &Handle::current())?;
    let url = &args.follower;
    client.promote(args.force).await.with_context(|| format!("the follower at {url}"))
}
