//! `tandem health`: asks services whether they are ready, for container images without any other
//! program that can ask.

use crate::http_client::get_within;
use anyhow::Context;
use bytes::Bytes;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::{runtime::Builder, time::sleep};

/// Options of `tandem health`.
#[derive(clap::Args)]
pub struct Args {
    /// URL to ask, such as http://127.0.0.1:9100/livez; several are asked in turn [default: /readyz
    /// on the metrics port of this machine]
    #[arg(value_name = "URL")]
    urls: Vec<String>,
    /// The metrics port, if no URL is given
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
    /// Retry for this long, until the answer is a success
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

/// Pause between two attempts.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Asks all URLs, each once or until time is up. Any answer except a success fails.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut urls = args.urls;
    if urls.is_empty() {
        urls.push(format!("http://127.0.0.1:{}/readyz", args.metrics_port));
    }
    let reactor =
        Builder::new_current_thread().enable_all().build().context("start the reactor")?;
    let end = Instant::now() + Duration::from_secs(args.wait);
    for url in urls {
        let asked = ask(&url, Duration::from_secs(args.timeout), end);
        let answer = reactor.block_on(asked)?;
        eprintln!("{url}: {:.100}", String::from_utf8_lossy(&answer).trim());
    }
    Ok(ExitCode::SUCCESS)
}

/// Retries until the answer is a success or the time is up. Returns the last answer.
async fn ask(url: &str, time_max: Duration, end: Instant) -> anyhow::Result<Bytes> {
    loop {
        let answer = get_within(url, time_max).await;
        if answer.is_ok() || Instant::now() + AGAIN_AFTER > end {
            return answer;
        }
        sleep(AGAIN_AFTER).await;
    }
}
