//! `tandem health`: asks a service on this machine whether it is ready, for container runtimes whose
//! images have no other program to ask with.

use crate::http_client::get_within;
use anyhow::Context;
use std::{process::ExitCode, time::Duration};
use tokio::runtime::Builder;

/// Options of `tandem health`.
#[derive(clap::Args)]
pub struct Args {
    /// What to ask, such as http://127.0.0.1:9100/livez [default: /readyz on the metrics port of
    /// this machine]
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// The metrics port, where no URL is given
    #[arg(
        long = "metrics.port",
        value_name = "PORT",
        env = "TANDEM_METRICS_PORT",
        default_value_t = 9100
    )]
    metrics_port: u16,
    /// Longest wait for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    timeout: u64,
}

/// Asks once. Anything but an answer with a status of success fails.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let ready = || format!("http://127.0.0.1:{}/readyz", args.metrics_port);
    let url = args.url.unwrap_or_else(ready);
    let reactor =
        Builder::new_current_thread().enable_all().build().context("start the reactor")?;
    let answer = reactor.block_on(get_within(&url, Duration::from_secs(args.timeout)))?;
    eprintln!("{url}: {:.100}", String::from_utf8_lossy(&answer).trim());
    Ok(ExitCode::SUCCESS)
}
