use crate::client::{ClientConnection, LiveConnection};
use std::time::{Duration, Instant};
use tokio::time::timeout_at;
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

/// Longest delay between the failure of a call and the notice that its connection is lost.
const LOSS_NOTICE_MAX: Duration = Duration::from_secs(1);

/// Deadline and retry policy of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallPolicy {
    /// Deadline for the answer.
    pub deadline: Instant,
    /// Longest wait for a connection that is being made.
    pub reconnect_wait: Duration,
    /// Whether the call may be retried if the connection was lost before its answer arrived. The
    /// server may already have executed it.
    pub retry: bool,
}

/// Reason why a call has no answer.
#[derive(Debug)]
pub enum CallError {
    /// There was no connection for too long.
    NotConnected,
    /// The deadline has passed.
    DeadlineExceeded,
    /// The connection was lost before the answer arrived; the server may have executed the call.
    Lost(Status),
    /// The server answered with an error, or the client itself refused to send the call.
    Status(Status),
}

impl ClientConnection<Channel> {
    /// Connects and reconnects; never ends. A connection stays while the service reports that it
    /// serves, or will serve. Of several servers only one that serves is taken.
    pub async fn keep_serving(&self) {
        let open = |channel| async move {
            let watched = watch_health(channel, self.server.service).await?;
            match watched.2 || !self.has_choice() {
                true => Ok(watched),
                false => Err(Status::unavailable("the server does not serve")),
            }
        };
        self.keep_connected(open, |watched| self.watch_until_lost(watched)).await;
    }

    async fn watch_until_lost(&self, (channel, mut health, mut served): HealthWatch) -> Status {
        let _live = self.set_live(channel);
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
    /// [`CallError`].
    pub async fn call<T, F>(
        &self,
        policy: CallPolicy,
        call: impl Fn(Channel, Duration) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let CallPolicy { deadline, reconnect_wait, retry } = policy;
        let mut lost = None;
        loop {
            let wait = Instant::now() + reconnect_wait;
            let newer = self.newer_than(lost.unwrap_or(0));
            let Ok(live) = timeout_at(wait.min(deadline).into(), newer).await else {
                let late = deadline <= wait;
                return Err(if late {
                    CallError::DeadlineExceeded
                } else {
                    CallError::NotConnected
                });
            };
            let LiveConnection { client: channel, generation } = live;
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(answer) = timeout_at(deadline.into(), call(channel, left)).await else {
                return Err(CallError::DeadlineExceeded);
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(status) if self.is_loss(&status, generation, deadline).await => {
                    if !retry || lost.is_some() {
                        return Err(CallError::Lost(status));
                    }
                    lost = Some(generation);
                }
                Err(status) => return Err(CallError::Status(status)),
            }
        }
    }

    /// Returns whether a call failed because its connection was lost.
    async fn is_loss(&self, status: &Status, generation: u64, deadline: Instant) -> bool {
        let by_service = status.metadata().get_bin(self.server.error_metadata).is_some();
        let codes = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
        if by_service || !codes.contains(&status.code()) {
            return false;
        }
        // The call may learn of the loss a moment before the watch of the connection does.
        let is_gone = |live: &Option<LiveConnection<_>>| {
            live.as_ref().is_none_or(|live| live.generation > generation)
        };
        let deadline = deadline.min(Instant::now() + LOSS_NOTICE_MAX);
        let mut current = self.current.subscribe();
        timeout_at(deadline.into(), current.wait_for(is_gone)).await.is_ok()
    }
}

/// Connection with the server's stream of health reports, and whether the first says it serves.
type HealthWatch = (Channel, Streaming<HealthCheckResponse>, bool);

async fn watch_health(channel: Channel, service: &str) -> Result<HealthWatch, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let mut health = HealthClient::new(channel.clone()).watch(request).await?.into_inner();
    let first = health.message().await?;
    let first = first.ok_or_else(|| Status::unavailable("the server ended"))?;
    let serves = first.status() == ServingStatus::Serving;
    Ok((channel, health, serves))
}
