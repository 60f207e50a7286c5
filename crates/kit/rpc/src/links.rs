use crate::Peer;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::{sync::watch, time::timeout_at};
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

/// Longest delay between a call's failure and the news that its connection is lost.
const LOSS_KNOWN_MAX: Duration = Duration::from_secs(1);

/// Established connection.
#[derive(Clone, Debug)]
struct Link {
    channel: Channel,
    /// Counter that rises with every connection.
    generation: u64,
}

/// One connection of a client whose server has gRPC's health service.
#[derive(Debug)]
pub struct Links {
    current: watch::Sender<Option<Link>>,
    made: AtomicU64,
    error_metadata: &'static str,
}

/// Deadline and retry policy of a call.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Deadline for the answer.
    pub until: Instant,
    /// Longest wait for a connection that is being made.
    pub reconnect_wait: Duration,
    /// Whether the call may be retried if the connection was lost before its answer arrived. The
    /// server may already have executed it.
    pub repeat: bool,
}

/// Reason why a call has no answer.
#[derive(Debug)]
pub enum Failure {
    /// There was no connection for too long.
    NotConnected,
    /// The deadline has passed.
    DeadlineExceeded,
    /// The connection was lost before the answer arrived; the server may have executed the call.
    Lost(Status),
    /// The server answered with an error, or the client itself refused to send the call.
    Status(Status),
}

impl Links {
    /// Makes a client without a connection. A status with the metadata `error_metadata` comes from
    /// the service itself, never from the loss of a connection.
    pub fn new(error_metadata: &'static str) -> Self {
        Self { current: watch::Sender::new(None), made: AtomicU64::new(0), error_metadata }
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Connects and reconnects; never ends. A connection stays while the server reports that
    /// `service` (such as `tandem.blob_validator.v1.BlobValidator`) serves, or will serve.
    pub async fn keep(&self, peer: &Peer, service: &'static str) {
        peer.keep(|channel| watch_health(channel, service), |watched| self.live(watched)).await;
    }

    async fn live(&self, (channel, mut health, mut served): Watched) -> Status {
        let generation = self.made.fetch_add(1, Relaxed) + 1;
        self.current.send_replace(Some(Link { channel, generation }));
        let _standing = Standing(self);
        loop {
            match health.message().await {
                // Pending calls are still answered, over the channel that they hold.
                Ok(Some(answer)) if served && answer.status() != ServingStatus::Serving => {
                    return Status::unavailable("the server stops");
                }
                Ok(Some(answer)) => served = answer.status() == ServingStatus::Serving,
                Ok(None) => return Status::unavailable("the server ended"),
                Err(status) => return status,
            }
        }
    }

    /// Makes a call, and retries it once if the connection was lost meanwhile. `call` gets the time
    /// that is left.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn call<T, F>(
        &self,
        terms: Terms,
        call: impl Fn(Channel, Duration) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let Terms { until, reconnect_wait, repeat } = terms;
        let mut lost = None;
        loop {
            let wait = Instant::now() + reconnect_wait;
            let Some(link) = self.after(lost.unwrap_or(0), wait.min(until)).await else {
                let late = until <= wait;
                return Err(if late { Failure::DeadlineExceeded } else { Failure::NotConnected });
            };
            let Link { channel, generation } = link;
            let left = until.saturating_duration_since(Instant::now());
            let Ok(answer) = timeout_at(until.into(), call(channel, left)).await else {
                return Err(Failure::DeadlineExceeded);
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(status) if self.is_loss(&status, generation, until).await => {
                    if !repeat || lost.is_some() {
                        return Err(Failure::Lost(status));
                    }
                    lost = Some(generation);
                }
                Err(status) => return Err(Failure::Status(status)),
            }
        }
    }

    /// Returns the first connection after that generation, if there is one by the deadline.
    async fn after(&self, generation: u64, until: Instant) -> Option<Link> {
        let mut links = self.current.subscribe();
        let newer =
            |link: &Option<Link>| link.as_ref().is_some_and(|link| link.generation > generation);
        let found = timeout_at(until.into(), links.wait_for(newer)).await.ok()?.ok()?;
        found.clone()
    }

    /// Returns whether a call failed because its connection was lost.
    async fn is_loss(&self, status: &Status, generation: u64, until: Instant) -> bool {
        let said = status.metadata().get_bin(self.error_metadata).is_some();
        let codes = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
        if said || !codes.contains(&status.code()) {
            return false;
        }
        // The call may learn of the loss a moment before the watch of the connection does.
        let gone =
            |link: &Option<Link>| link.as_ref().is_none_or(|link| link.generation > generation);
        let until = until.min(Instant::now() + LOSS_KNOWN_MAX);
        let mut links = self.current.subscribe();
        timeout_at(until.into(), links.wait_for(gone)).await.is_ok()
    }
}

/// Guard that removes the connection when it is lost, or when the client is dropped.
struct Standing<'a>(&'a Links);

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.0.current.send_replace(None);
    }
}

/// Connection with the server's stream of health reports, and whether the first says it serves.
type Watched = (Channel, Streaming<HealthCheckResponse>, bool);

async fn watch_health(channel: Channel, service: &str) -> Result<Watched, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let mut health = HealthClient::new(channel.clone()).watch(request).await?.into_inner();
    let first = health.message().await?;
    let first = first.ok_or_else(|| Status::unavailable("the server ended"))?;
    let serves = first.status() == ServingStatus::Serving;
    Ok((channel, health, serves))
}
