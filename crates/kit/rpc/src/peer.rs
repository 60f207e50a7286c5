use crate::backoff::Backoff;
use metrics::counter;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tracing::{info, warn};

/// Not an address that one can connect to.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint} is no endpoint: {error}")]
pub struct EndpointError {
    endpoint: String,
    error: tonic::transport::Error,
}

/// What kind of server a client connects to.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// The service, for logs.
    pub name: &'static str,
    /// Counter of connections made.
    pub connections: &'static str,
    /// Counter of connections that were lost.
    pub lost: &'static str,
    /// Bytes that may come on one stream before they are read, so that a large answer need not wait
    /// for the window to open again. The connection has room for two.
    pub stream_window: u32,
}

/// A server that a client connects to.
#[derive(Debug)]
pub struct Peer {
    endpoint: Endpoint,
    connect_max: Duration,
    server: Server,
}

impl Peer {
    /// The server at an endpoint such as `http://10.0.0.7:9601`. Nothing is connected yet. Opening
    /// a connection, with what is opened over it, may take `connect_ms_max` milliseconds;
    /// `keep_alive_ms` are between two HTTP/2 pings, and the longest wait for the answer to one.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn new(
        endpoint: &str,
        server: Server,
        connect_ms_max: u64,
        keep_alive_ms: u64,
    ) -> Result<Self, EndpointError> {
        let connect_max = Duration::from_millis(connect_ms_max);
        let keep_alive = Duration::from_millis(keep_alive_ms);
        let endpoint = Endpoint::from_shared(endpoint.to_owned())
            .map_err(|error| EndpointError { endpoint: endpoint.to_owned(), error })?
            .connect_timeout(connect_max)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(keep_alive)
            .keep_alive_timeout(keep_alive)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(server.stream_window)
            .initial_connection_window_size(server.stream_window.saturating_mul(2));
        Ok(Self { endpoint, connect_max, server })
    }

    /// Connects, again and again; never ends. `open` opens what the client needs over a new
    /// connection, `live` has it until it ends and says why.
    pub async fn keep<T, O, L>(&self, open: impl Fn(Channel) -> O, live: impl Fn(T) -> L)
    where
        O: Future<Output = Result<T, Status>>,
        L: Future<Output = Status>,
    {
        let Server { name: server, connections, lost, .. } = self.server;
        let mut backoff = Backoff::default();
        let mut reported = false;
        loop {
            let lived = match self.open(&open).await {
                Ok(opened) => {
                    counter!(connections).increment(1);
                    info!(server, endpoint = %self.endpoint.uri(), "connected");
                    let since = Instant::now();
                    let status = live(opened).await;
                    counter!(lost).increment(1);
                    warn!(server, %status, "connection lost");
                    reported = false;
                    Some(since.elapsed())
                }
                Err(status) => {
                    if !reported {
                        warn!(server, endpoint = %self.endpoint.uri(), %status, "no connection");
                        reported = true;
                    }
                    None
                }
            };
            sleep(backoff.wait(lived)).await;
        }
    }

    async fn open<T, O>(&self, open: impl Fn(Channel) -> O) -> Result<T, Status>
    where
        O: Future<Output = Result<T, Status>>,
    {
        let opened = async {
            let channel = self.endpoint.connect().await.map_err(|error| {
                let reason = std::error::Error::source(&error).unwrap_or(&error);
                Status::unavailable(reason.to_string())
            })?;
            open(channel).await
        };
        let late = || Status::deadline_exceeded("no answer to a new connection");
        timeout(self.connect_max, opened).await.unwrap_or_else(|_| Err(late()))
    }
}
