//! peer-sessions in another process, as sync and the RPC methods about peers see it.

use crate::{exchange::Exchange, metrics as names};
use std::{
    future::ready,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_proto::{
    access::PEER_SESSIONS,
    convert::ERROR_METADATA,
    limits::SESSIONS_MESSAGE_BYTES_MAX,
    peer_sessions::{
        Error, Fetch, Fetched, Misconduct, PeerId, PeerSessionsApi, Pending, Result, Session,
        TransactionExchange,
    },
    wire::peer_sessions::v1::{
        self, peer_sessions_client::PeerSessionsClient, peer_sessions_server::SERVICE_NAME,
    },
};
use tandem_rpc::{
    CallError, CallPolicy, ClientConnection, ConnectionConfig, EndpointError, ServerDescription,
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, transport::Channel};

const SERVER: ServerDescription = ServerDescription {
    role: PEER_SESSIONS,
    service: SERVICE_NAME,
    error_metadata: ERROR_METADATA,
    connections: names::CONNECTIONS,
    lost: names::CONNECTIONS_LOST,
    stream_window: 2 << 20,
    direct_connections: 0,
};

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Settings of the connection.
    pub connection: ConnectionConfig,
    /// Longest wait for the answer to a call that asks no peer.
    pub answer_ms_max: u64,
    /// Longest wait for the answer of a peer. The service's own deadline is shorter by default, and
    /// ends the session of a slow peer.
    pub fetch_ms_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { connection: ConnectionConfig::default(), answer_ms_max: 5_000, fetch_ms_max: 30_000 }
    }
}

/// Client of one peer-sessions.
pub struct Client {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

pub(crate) struct Shared {
    config: ClientConfig,
    pub(crate) connection: ClientConnection<Channel>,
}

/// Generated client that makes the calls.
pub(crate) type Calls = PeerSessionsClient<Channel>;

impl Client {
    /// Makes a client that connects in the background, on `runtime`, to an endpoint such as
    /// `http://10.0.0.7:9604`, or `https://…` if the identity is proven.
    ///
    /// # Errors
    /// [`EndpointError`]. An unreachable server is an error of the calls, not of this function.
    pub fn connect(
        endpoint: &str,
        config: ClientConfig,
        runtime: &Handle,
    ) -> std::result::Result<Arc<Self>, EndpointError> {
        names::describe_metrics();
        let connection = ClientConnection::new(endpoint, SERVER, &config.connection)?;
        let shared = Arc::new(Shared { config, connection });
        let kept = shared.clone();
        let task = runtime.spawn(async move { kept.connection.keep_serving().await });
        Ok(Arc::new(Self { shared, _task: AbortOnDropHandle::new(task) }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.shared.connection.is_connected()
    }

    /// Exchanges transactions between this pool and the peers, until the result is dropped. Of two
    /// pools at one peer-sessions, the last one to call has the peers.
    #[must_use]
    pub fn exchange(&self, pool: Arc<dyn TransactionExchange>, runtime: &Handle) -> Exchange {
        Exchange::start(self.shared.clone(), pool, runtime)
    }
}

impl Shared {
    /// Makes one call, over the connection that is there now.
    async fn call<T, F>(&self, ms_max: u64, call: impl Fn(Calls) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let deadline = Instant::now() + Duration::from_millis(ms_max);
        let policy = CallPolicy { deadline, reconnect_wait: Duration::ZERO, retry: false };
        let answer = self.connection.call(policy, |channel, _| call(calls(channel))).await;
        answer.map_err(|error| match error {
            CallError::NotConnected => unavailable("no connection to it"),
            CallError::DeadlineExceeded => unavailable("it did not answer in time"),
            CallError::Lost(status) | CallError::Status(status) => status.into(),
        })
    }
}

pub(crate) fn calls(channel: Channel) -> Calls {
    PeerSessionsClient::new(channel)
        .max_decoding_message_size(SESSIONS_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(SESSIONS_MESSAGE_BYTES_MAX)
}

fn unavailable(reason: &str) -> Error {
    Error::Unavailable(reason.to_owned())
}

impl PeerSessionsApi for Client {
    fn sessions(&self) -> Pending<Vec<Session>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.list_sessions(v1::ListSessionsRequest {}).await
            });
            Ok(answer.await?.into_inner().try_into()?)
        })
    }

    fn fetch(&self, peer: PeerId, fetch: Fetch) -> Pending<Fetched> {
        if let Err(refused) = fetch.check_items() {
            // No message carries it, and the session would answer the same.
            return Box::pin(ready(Err(refused)));
        }
        let shared = self.shared.clone();
        Box::pin(async move {
            let request = v1::FetchRequest::from((peer, fetch));
            let answer = shared.call(shared.config.fetch_ms_max, |mut calls| {
                let request = request.clone();
                async move { calls.fetch(request).await }
            });
            Ok(answer.await?.into_inner().try_into()?)
        })
    }

    fn report(&self, peer: PeerId, misconduct: Misconduct) -> Pending<()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.report(v1::ReportRequest::from((peer, misconduct))).await
            });
            answer.await.map(|_| ())
        })
    }
}
