use crate::{backoff::Backoff, dial::Dial, identity::Identity, told::Told};
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

/// Not an address that one can connect to.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It is none at all.
    #[error("{endpoint} is no endpoint: {error}")]
    Malformed {
        /// What was given.
        endpoint: String,
        /// What is wrong with it.
        error: tonic::transport::Error,
    },
    /// It is one without encryption, and this process has a certificate.
    #[error("{0} is not encrypted, but `tls` is set up here: an endpoint https://… is wanted")]
    Plaintext(String),
    /// It is one with encryption, and this process has no certificate.
    #[error(
        "{0} is encrypted, but `tls` is not set up here: its files ca, cert and key are wanted"
    )]
    NoTls(String),
}

/// Looks whether a client with certificates (`proven`), or one without, could connect to this endpoint.
/// Nothing is connected.
///
/// # Errors
/// [`EndpointError`].
pub fn check_endpoint(endpoint: &str, proven: bool) -> Result<(), EndpointError> {
    parse(endpoint, proven).map(drop)
}

/// The address as it was given, and as tonic connects to it.
fn parse(endpoint: &str, proven: bool) -> Result<(Uri, Endpoint), EndpointError> {
    let malformed = |error| EndpointError::Malformed { endpoint: endpoint.to_owned(), error };
    let given = Endpoint::from_shared(endpoint.to_owned()).map_err(malformed)?;
    let uri = given.uri().clone();
    let endpoint = match (proven, endpoint.strip_prefix("https://")) {
        // To tonic it is one without TLS: what encrypts it is the connector.
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

/// What kind of server a client connects to.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// The role of the service, which its certificate must name where there are any.
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
    /// As it was given.
    uri: Uri,
    endpoint: Endpoint,
    dial: Dial,
    connect_max: Duration,
    server: Server,
}

impl Peer {
    /// The server at an endpoint such as `http://10.0.0.7:9601`, or `https://…` where `identity` is
    /// proven. Nothing is connected yet. Opening a connection, with what is opened over it, may take
    /// `connect_ms_max` milliseconds; `keep_alive_ms` are between two HTTP/2 pings, and the longest
    /// wait for the answer to one.
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

    /// Connects, again and again; never ends. `open` opens what the client needs over a new
    /// connection, `live` has it until it ends and says why.
    pub async fn keep<T, O, L>(&self, open: impl Fn(Channel) -> O, live: impl Fn(T) -> L)
    where
        O: Future<Output = Result<T, Status>>,
        L: Future<Output = Status>,
    {
        let Server { name: server, connections, lost, .. } = self.server;
        let mut backoff = Backoff::default();
        // Why there is none, since there was one.
        let mut told = Told::default();
        loop {
            let lived = match self.open(&open).await {
                Ok(opened) => {
                    counter!(connections).increment(1);
                    info!(server, endpoint = %self.uri, "connected");
                    let since = Instant::now();
                    let status = live(opened).await;
                    counter!(lost).increment(1);
                    warn!(server, %status, "connection lost");
                    told = Told::default();
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

/// What an error says of itself, and what lies behind it as far as that says more.
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
