//! The one connection of a client: made, watched, made again.

use super::client::ClientConfig;
use crate::metrics as names;
use metrics::counter;
use std::time::{Duration, Instant};
use tandem_proto::wire::blob_validator::v1::blob_validator_server::SERVICE_NAME;
use tokio::{
    sync::watch,
    time::{sleep, timeout, timeout_at},
};
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};
use tracing::{info, warn};

/// First wait before another attempt to connect; it doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest wait before another attempt.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// A connection that lived longer is followed by the next at once.
const SETTLED: Duration = Duration::from_secs(1);

/// A connection that stands.
#[derive(Clone)]
pub struct Link {
    pub channel: Channel,
    /// Rises with every connection.
    pub generation: u64,
}

/// Who wants the connection looks here.
pub type Links = watch::Sender<Option<Link>>;

/// The first connection after that generation, if it is there by then.
pub async fn after(links: &Links, generation: u64, until: Instant) -> Option<Link> {
    let mut links = links.subscribe();
    let newer =
        |link: &Option<Link>| link.as_ref().is_some_and(|link| link.generation > generation);
    let found = timeout_at(until.into(), links.wait_for(newer)).await.ok()?.ok()?;
    found.clone()
}

/// Connects, again and again.
pub async fn keep(links: &Links, to: &Endpoint, config: &ClientConfig) {
    let mut backoff = BACKOFF_MIN;
    let mut reported = false;
    for generation in 1.. {
        let (lived, status) = live(links, to, config, generation).await;
        if lived.is_some() {
            counter!(names::CONNECTIONS_LOST).increment(1);
            warn!(%status, "connection to blob-validator lost");
            reported = false;
        } else if !reported {
            warn!(%status, endpoint = %to.uri(), "no connection to blob-validator");
            reported = true;
        }
        if lived.is_some_and(|lived| lived >= SETTLED) {
            backoff = BACKOFF_MIN;
            continue;
        }
        // Many that lost the same server do not come back at the same moment.
        sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Takes the connection away when it is lost, or when the client is dropped.
struct Standing<'a>(&'a Links);

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// One connection from beginning to end: how long it lived, if it came to be, and why it ended.
async fn live(
    links: &Links,
    to: &Endpoint,
    config: &ClientConfig,
    generation: u64,
) -> (Option<Duration>, Status) {
    let wait = Duration::from_millis(config.connect_ms_max);
    let (channel, mut health, serving) = match timeout(wait, open(to)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(status)) => return (None, status),
        Err(_) => return (None, Status::deadline_exceeded("no answer in time")),
    };
    links.send_replace(Some(Link { channel, generation }));
    let _standing = Standing(links);
    counter!(names::CONNECTIONS).increment(1);
    info!(endpoint = %to.uri(), "connected to blob-validator");
    let since = Instant::now();
    let mut served = serving;
    let status = loop {
        match health.message().await {
            // What is under way is still answered, over the channel that its calls hold.
            Ok(Some(answer)) if served && answer.status() != ServingStatus::Serving => {
                break Status::unavailable("the server stops");
            }
            Ok(Some(answer)) => served = answer.status() == ServingStatus::Serving,
            Ok(None) => break Status::unavailable("the server ended"),
            Err(status) => break status,
        }
    };
    (Some(since.elapsed()), status)
}

/// A connection over which the server has said whether it serves, and goes on saying so.
async fn open(to: &Endpoint) -> Result<(Channel, Streaming<HealthCheckResponse>, bool), Status> {
    let channel = to.connect().await.map_err(|error| {
        Status::unavailable(std::error::Error::source(&error).unwrap_or(&error).to_string())
    })?;
    let request = HealthCheckRequest { service: SERVICE_NAME.to_owned() };
    let mut health = HealthClient::new(channel.clone()).watch(request).await?.into_inner();
    match health.message().await? {
        Some(first) => Ok((channel, health, first.status() == ServingStatus::Serving)),
        None => Err(Status::unavailable("the server ended")),
    }
}
