use crate::{
    backoff::Backoff,
    connector::Connector,
    direct::DirectConnections,
    endpoint::{EndpointError, parse},
    identity::Identity,
    log_once::LogOnce,
};
use metrics::counter;
use std::{
    error::Error,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;
use tracing::{info, warn};

/// Settings of a client's connection. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Longest time that opening a connection may take, with the streams that the client needs.
    pub connect_ms_max: u64,
    /// Interval between two HTTP/2 pings, and the longest wait for the answer to one.
    pub keep_alive_ms: u64,
    /// Identity with which to connect.
    pub identity: Identity,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self { connect_ms_max: 1_000, keep_alive_ms: 2_000, identity: Identity::default() }
    }
}

impl From<Identity> for ConnectionConfig {
    fn from(identity: Identity) -> Self {
        Self { identity, ..Self::default() }
    }
}

/// Kind of server that a client connects to.
#[derive(Clone, Copy, Debug)]
pub struct ServerDescription {
    /// Role of the service, which its certificate, if any, must name.
    pub role: &'static str,
    /// Name of the service in its `.proto` file, with the package, by which it reports its health.
    pub service: &'static str,
    /// Name of the binary metadata with which the service marks its own errors. Such an error is
    /// never the loss of a connection.
    pub error_metadata: &'static str,
    /// Name of the counter of connections made.
    pub connections: &'static str,
    /// Name of the counter of connections lost.
    pub lost: &'static str,
    /// Bytes that may arrive on one stream before they are read. A large answer then need not wait
    /// for the window to reopen. The connection has room for two such streams.
    pub stream_window: u32,
    /// Number of connections for direct calls; 0 if the server offers none.
    pub direct_connections: usize,
}

/// One connection of a client to its server, made in the background and remade after a loss.
/// Callers use `C` while the connection is live, for example a generated client.
#[derive(Debug)]
pub struct ClientConnection<C> {
    /// Servers of which one is connected to, at least one.
    targets: Vec<Target>,
    connect_max: Duration,
    pub(crate) server: ServerDescription,
    pub(crate) current: watch::Sender<Option<LiveConnection<C>>>,
    made: AtomicU64,
    /// Connections for direct calls to the current server.
    direct: DirectConnections,
}

/// Server that may be connected to.
#[derive(Debug)]
struct Target {
    /// Address as it was given.
    uri: Uri,
    endpoint: Endpoint,
    connector: Connector,
}

/// Live connection.
#[derive(Clone, Debug)]
pub struct LiveConnection<C> {
    /// Handle through which callers use it.
    pub client: C,
    /// Number that rises with every connection; the first has 1.
    pub generation: u64,
}

impl Target {
    fn new(
        endpoint: &str,
        server: ServerDescription,
        config: &ConnectionConfig,
    ) -> Result<Self, EndpointError> {
        let ConnectionConfig { connect_ms_max, keep_alive_ms, identity } = config;
        let connect_max = Duration::from_millis(*connect_ms_max);
        let keep_alive = Duration::from_millis(*keep_alive_ms);
        let (uri, endpoint) = parse(endpoint, identity.is_proven())?;
        let connector = Connector::new(uri.clone(), server.role, identity.clone(), connect_max);
        let endpoint = endpoint
            .http2_keep_alive_interval(keep_alive)
            .keep_alive_timeout(keep_alive)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(server.stream_window)
            .initial_connection_window_size(server.stream_window.saturating_mul(2));
        Ok(Self { uri, endpoint, connector })
    }
}

impl<C: Clone> ClientConnection<C> {
    /// Creates the connection to an endpoint such as `http://10.0.0.7:9601`, or `https://…` if the
    /// identity is proven. Nothing is connected yet.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn new(
        endpoint: &str,
        server: ServerDescription,
        config: &ConnectionConfig,
    ) -> Result<Self, EndpointError> {
        Self::to_one_of(&[endpoint], server, config)
    }

    /// Like [`Self::new`], for several servers of which one serves at a time. They are tried in turn,
    /// and the connection stays while that one serves.
    ///
    /// # Errors
    /// [`EndpointError`], also when there is no endpoint.
    pub fn to_one_of(
        endpoints: &[impl AsRef<str>],
        server: ServerDescription,
        config: &ConnectionConfig,
    ) -> Result<Self, EndpointError> {
        if endpoints.is_empty() {
            return Err(EndpointError::Missing);
        }
        let targets = endpoints.iter().map(|it| Target::new(it.as_ref(), server, config));
        Ok(Self {
            targets: targets.collect::<Result<_, _>>()?,
            connect_max: Duration::from_millis(config.connect_ms_max),
            server,
            current: watch::Sender::new(None),
            made: AtomicU64::new(0),
            direct: DirectConnections::default(),
        })
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Returns the connection, `None` while there is none.
    pub fn live(&self) -> Option<LiveConnection<C>> {
        self.current.borrow().clone()
    }

    /// Returns the connections for direct calls. A call that they leave goes over the live connection.
    pub fn direct(&self) -> &DirectConnections {
        &self.direct
    }

    /// Returns the number of connections made so far. A new connection may lead to another process.
    pub fn generation(&self) -> u64 {
        self.made.load(Relaxed)
    }

    /// Returns whether there are several servers, of which one serves at a time.
    pub(crate) fn has_choice(&self) -> bool {
        self.targets.len() > 1
    }

    /// Waits for a connection after that generation; 0 stands for any connection.
    pub async fn newer_than(&self, generation: u64) -> LiveConnection<C> {
        let mut current = self.current.subscribe();
        loop {
            let live = current.borrow_and_update().clone();
            if let Some(live) = live.filter(|live| live.generation > generation) {
                return live;
            }
            // Never fails: the sender lives in `self`.
            let _ = current.changed().await;
        }
    }

    /// Makes this the current connection until the guard is dropped.
    pub fn set_live(&self, client: C) -> LiveGuard<'_, C> {
        let generation = self.made.fetch_add(1, Relaxed) + 1;
        self.current.send_replace(Some(LiveConnection { client, generation }));
        LiveGuard(&self.current)
    }

    /// Connects and reconnects; never ends. `open` opens what the client needs over a new
    /// connection. `live` calls [`Self::set_live`], waits until the connection ends, and returns
    /// the reason.
    pub async fn keep_connected<T, O, L>(&self, open: impl Fn(Channel) -> O, live: impl Fn(T) -> L)
    where
        O: Future<Output = Result<T, Status>>,
        L: Future<Output = Status>,
    {
        let ServerDescription { role: server, connections, lost, direct_connections, .. } =
            self.server;
        let mut backoff = Backoff::default();
        // Reasons logged since the last connection.
        let mut logged = LogOnce::default();
        // Attempts that failed since the last connection. Each round of the servers ends with a wait.
        let (mut at, mut failed) = (0, 0);
        loop {
            let target = &self.targets[at];
            let lived = match self.open(target, &open).await {
                Ok(opened) => {
                    counter!(connections).increment(1);
                    info!(server, endpoint = %target.uri, "connected");
                    let since = Instant::now();
                    let _open = self.direct.open(&target.connector, direct_connections).await;
                    let status = live(opened).await;
                    counter!(lost).increment(1);
                    warn!(server, %status, "connection lost");
                    logged = LogOnce::default();
                    failed = 0;
                    Some(since.elapsed())
                }
                Err(status) => {
                    let reason = with_sources(status.message(), &status);
                    if logged.is_new((at, reason.clone())) {
                        warn!(server, endpoint = %target.uri, reason, "no connection");
                    }
                    at = (at + 1) % self.targets.len();
                    failed += 1;
                    if failed % self.targets.len() != 0 {
                        continue;
                    }
                    None
                }
            };
            sleep(backoff.wait(lived)).await;
        }
    }

    async fn open<T, O>(&self, target: &Target, open: impl Fn(Channel) -> O) -> Result<T, Status>
    where
        O: Future<Output = Result<T, Status>>,
    {
        let opened = async {
            let connector = target.connector.clone();
            let connector = service_fn(move |_: Uri| connector.clone().connect());
            let connected = target.endpoint.connect_with_connector(connector).await;
            let channel = connected.map_err(|error| {
                let reason = error.source().unwrap_or(&error);
                Status::unavailable(with_sources(&reason.to_string(), reason))
            })?;
            open(channel).await
        };
        let late = || Status::deadline_exceeded("no answer to a new connection");
        timeout(self.connect_max, opened).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Guard of the current connection, which it removes on drop: after a loss, or with the client.
#[must_use]
pub struct LiveGuard<'a, C>(&'a watch::Sender<Option<LiveConnection<C>>>);

impl<C> Drop for LiveGuard<'_, C> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// Returns an error's text, followed by the text of its sources as far as they say more.
fn with_sources(text: &str, error: &(dyn Error + 'static)) -> String {
    let mut text = text.to_owned();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
