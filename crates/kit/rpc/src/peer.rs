use crate::{backoff::Backoff, dial::Dial, identity::Identity, log_once::LogOnce};
use metrics::counter;
use std::{
    error::Error,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;
use tracing::{info, warn};

/// Reason why an endpoint cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint is invalid.
    #[error("invalid endpoint `{endpoint}`: {error}")]
    Malformed {
        /// Text given as the endpoint.
        endpoint: String,
        /// Fault in it.
        error: tonic::transport::Error,
    },
    /// The endpoint has no encryption, but this process has a certificate.
    #[error("{0} is not encrypted, but `tls` is set up here; expected an endpoint https://…")]
    Plaintext(String),
    /// The endpoint has encryption, but this process has no certificate.
    #[error(
        "{0} is encrypted, but `tls` is not set up here; set `tls.ca`, `tls.cert` and `tls.key`"
    )]
    NoTls(String),
}

/// Checks that a client with certificates (`proven`), or one without, could connect to this
/// endpoint. Nothing is connected.
///
/// # Errors
/// [`EndpointError`].
pub fn check_endpoint(endpoint: &str, proven: bool) -> Result<(), EndpointError> {
    parse(endpoint, proven).map(drop)
}

/// Returns the address as it was given, and as tonic connects to it.
fn parse(endpoint: &str, proven: bool) -> Result<(Uri, Endpoint), EndpointError> {
    let malformed = |error| EndpointError::Malformed { endpoint: endpoint.to_owned(), error };
    let given = Endpoint::from_shared(endpoint.to_owned()).map_err(malformed)?;
    let uri = given.uri().clone();
    let endpoint = match (proven, endpoint.strip_prefix("https://")) {
        // Tonic sees an endpoint without TLS, as the connector encrypts it.
        (true, Some(rest)) => {
            let plain = Endpoint::from_shared(format!("http://{rest}")).map_err(malformed)?;
            plain.origin(uri.clone())
        }
        (true, None) => return Err(EndpointError::Plaintext(endpoint.to_owned())),
        (false, Some(_)) => return Err(EndpointError::NoTls(endpoint.to_owned())),
        (false, None) => given,
    };
    Ok((uri, endpoint))
}

/// Kind of server that a client connects to.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Role of the service, which its certificate, if any, must name.
    pub name: &'static str,
    /// Name of the counter of connections made.
    pub connections: &'static str,
    /// Name of the counter of connections lost.
    pub lost: &'static str,
    /// Bytes that may arrive on one stream before they are read. A large answer then need not wait
    /// for the window to reopen. The connection has room for two such streams.
    pub stream_window: u32,
}

/// Server that a client connects to.
#[derive(Debug)]
pub struct Peer {
    /// Address as it was given.
    uri: Uri,
    endpoint: Endpoint,
    dial: Dial,
    connect_max: Duration,
    server: Server,
}

impl Peer {
    /// Makes the client's side of a server at an endpoint such as `http://10.0.0.7:9601`, or
    /// `https://…` if `identity` is proven. Nothing is connected yet. Connecting, including what
    /// `open` does in [`Self::keep`], may take `connect_ms_max` milliseconds. `keep_alive_ms` is
    /// the time between two HTTP/2 pings, and the longest wait for the answer to one.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn new(
        endpoint: &str,
        server: Server,
        identity: &Identity,
        connect_ms_max: u64,
        keep_alive_ms: u64,
    ) -> Result<Self, EndpointError> {
        let connect_max = Duration::from_millis(connect_ms_max);
        let keep_alive = Duration::from_millis(keep_alive_ms);
        let (uri, endpoint) = parse(endpoint, identity.is_proven())?;
        let dial = Dial::new(uri.clone(), server.name, identity.clone(), connect_max);
        let endpoint = endpoint
            .http2_keep_alive_interval(keep_alive)
            .keep_alive_timeout(keep_alive)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(server.stream_window)
            .initial_connection_window_size(server.stream_window.saturating_mul(2));
        Ok(Self { uri, endpoint, dial, connect_max, server })
    }

    /// Connects and reconnects; never ends. `open` opens what the client needs over a new
    /// connection. `live` has it until it ends, and returns the reason.
    pub async fn keep<T, O, L>(&self, open: impl Fn(Channel) -> O, live: impl Fn(T) -> L)
    where
        O: Future<Output = Result<T, Status>>,
        L: Future<Output = Status>,
    {
        let Server { name: server, connections, lost, .. } = self.server;
        let mut backoff = Backoff::default();
        // Reasons logged since the last connection.
        let mut told = LogOnce::default();
        loop {
            let lived = match self.open(&open).await {
                Ok(opened) => {
                    counter!(connections).increment(1);
                    info!(server, endpoint = %self.uri, "connected");
                    let since = Instant::now();
                    let status = live(opened).await;
                    counter!(lost).increment(1);
                    warn!(server, %status, "connection lost");
                    told = LogOnce::default();
                    Some(since.elapsed())
                }
                Err(status) => {
                    let reason = explained(status.message(), &status);
                    if told.is_new(reason.clone()) {
                        warn!(server, endpoint = %self.uri, reason, "no connection");
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
            let dial = self.dial.clone();
            let connector = service_fn(move |_: Uri| dial.clone().connect());
            let connected = self.endpoint.connect_with_connector(connector).await;
            let channel = connected.map_err(|error| {
                let reason = error.source().unwrap_or(&error);
                Status::unavailable(explained(&reason.to_string(), reason))
            })?;
            open(channel).await
        };
        let late = || Status::deadline_exceeded("no answer to a new connection");
        timeout(self.connect_max, opened).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Returns an error's text, followed by the text of its sources as far as they say more.
fn explained(text: &str, error: &(dyn Error + 'static)) -> String {
    let mut text = text.to_owned();
    let mut behind = error.source();
    while let Some(error) = behind {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        behind = error.source();
    }
    text
}
