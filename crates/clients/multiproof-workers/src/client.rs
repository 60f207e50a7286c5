//! Client of workers on another machine, for the executor.

use super::{
    proof_stream::{CommandStream, ProofStream, Urgency, discard, without_session},
    session::RemoteSession,
};
use crate::metrics as names;
use metrics::counter;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_actor::{TaskSender, task_queue};
use tandem_primitives::B256;
use tandem_proto::{
    access::MULTIPROOF_WORKER,
    convert::{Command, ERROR_METADATA, SessionAnswer, SessionCommand},
    limits::PROOF_MESSAGE_BYTES_MAX,
    multiproof::{Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, Status},
    wire::multiproof_workers::v1::{
        self, multiproof_workers_client::MultiproofWorkersClient,
        multiproof_workers_server::SERVICE_NAME,
    },
};
use tandem_rpc::{
    ClientConnection, ConnectionConfig, EndpointError, LiveConnection, ServerDescription,
};
use tokio::{
    runtime::Handle,
    time::{timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Streaming, transport::Channel};

const SERVER: ServerDescription = ServerDescription {
    role: MULTIPROOF_WORKER,
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
    /// Commands that may wait for the connection before the executor must wait.
    pub queue_capacity: usize,
    /// Time that a new block waits for a connection that is being remade.
    pub reconnect_wait_ms: u64,
    /// Longest wait for room in the queue, and for the roots after the last update.
    pub answer_ms_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionConfig::default(),
            queue_capacity: 1024,
            reconnect_wait_ms: 2_000,
            answer_ms_max: 10_000,
        }
    }
}

impl ClientConfig {
    pub(super) fn answer_wait(&self) -> Duration {
        Duration::from_millis(self.answer_ms_max)
    }
}

/// Client of the workers behind one endpoint.
///
/// One connection, made at once and remade when it is lost, carries block after block.
///
/// Calls may wait (see [`ClientConfig`]), so they do not belong in async code, where they panic
/// when they would have to wait.
pub struct Client {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

pub struct Shared {
    pub config: ClientConfig,
    pub runtime: Handle,
    connection: ClientConnection<Arc<ProofStream>>,
    /// Number of the next session; never 0.
    next_session: AtomicU64,
}

impl Client {
    /// Creates a client that connects in the background, on `runtime`, to an endpoint. An example
    /// is `http://10.0.0.7:9601`, or `https://…` where the identity is proven.
    ///
    /// # Errors
    /// [`EndpointError`]. An unreachable server is not an error here: see [`ProofApi::begin`].
    pub fn connect(
        endpoint: &str,
        config: ClientConfig,
        runtime: &Handle,
    ) -> Result<Arc<Self>, EndpointError> {
        names::describe_client();
        let connection = ClientConnection::new(endpoint, SERVER, &config.connection)?;
        let next_session = AtomicU64::new(1);
        let shared =
            Arc::new(Shared { config, runtime: runtime.clone(), connection, next_session });
        let kept = shared.clone();
        let task = runtime.spawn(async move {
            let open = |channel| open(&kept, channel);
            kept.connection.keep_connected(open, |opened| live(&kept, opened)).await;
        });
        Ok(Arc::new(Self { shared, _task: AbortOnDropHandle::new(task) }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.shared.connection.is_connected()
    }

    /// Returns the number of connections made so far. A new connection may lead to another process.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connection.generation()
    }

    /// Opens a block over the current connection, `None` without one. `waits` tells whether the
    /// session waits for room in the queue.
    pub(crate) fn open(&self, begin: Begin, waits_for_room: bool) -> Option<RemoteSession> {
        let live = self.shared.connection.live()?;
        RemoteSession::begin(&self.shared, live.client, begin, waits_for_room)
    }
}

impl Shared {
    /// Returns the number of a new session.
    pub fn next_session(&self) -> u64 {
        self.next_session.fetch_add(1, Relaxed)
    }

    /// Sends advice if there is room for it.
    fn advise(&self, command: Command) {
        let sent = self.connection.live().map(|live| {
            // Half of the queue is kept free: advice must not make an update wait.
            live.client.try_send(without_session(command), self.config.queue_capacity / 2)
        });
        if !matches!(sent, Some(Ok(()))) {
            counter!(names::ADVICE_DROPPED).increment(1);
        }
    }

    /// Waits until the deadline for a connection after that generation.
    fn wait_newer_than(
        &self,
        generation: u64,
        deadline: Instant,
    ) -> Option<LiveConnection<Arc<ProofStream>>> {
        let newer = async {
            timeout_at(deadline.into(), self.connection.newer_than(generation)).await.ok()
        };
        self.runtime.block_on(newer)
    }
}

/// Guard that fails the sessions when their stream is lost, or when the client is dropped.
struct CloseOnDrop {
    stream: Arc<ProofStream>,
    error: Error,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.stream.close(&self.error);
    }
}

/// Both directions of a stream that was just opened.
struct Opened {
    /// Sender into the stream.
    commands: TaskSender<SessionCommand>,
    answers: Streaming<v1::ProcessBlockResponse>,
    calls: MultiproofWorkersClient<Channel>,
    urgency: Arc<Urgency>,
}

async fn open(shared: &Shared, channel: Channel) -> Result<Opened, tonic::Status> {
    let urgency = Arc::<Urgency>::default();
    let (commands, queue) = task_queue("proof-commands", shared.config.queue_capacity.max(2));
    let mut calls = MultiproofWorkersClient::new(channel)
        .max_decoding_message_size(PROOF_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(PROOF_MESSAGE_BYTES_MAX);
    let answers =
        calls.process_block(CommandStream::new(queue, urgency.clone())).await?.into_inner();
    Ok(Opened { commands, answers, calls, urgency })
}

/// Keeps one connection until it ends. Returns the reason.
async fn live(shared: &Shared, opened: Opened) -> tonic::Status {
    let Opened { commands, mut answers, calls, urgency } = opened;
    let stream = Arc::new(ProofStream::new(&commands, calls, urgency));
    let mut close = CloseOnDrop { stream: stream.clone(), error: Error::Unavailable };
    // Drops first: once the sessions fail, their stream is no longer the current one.
    let _live = shared.connection.set_live(stream.clone());
    loop {
        match answers.message().await {
            Ok(Some(message)) => match SessionAnswer::try_from(message) {
                Ok(answer) => stream.deliver(answer),
                Err(error) => {
                    let status = tonic::Status::data_loss(error.to_string());
                    close.error = error.into();
                    return status;
                }
            },
            Ok(None) => return tonic::Status::unavailable("the workers ended the stream"),
            Err(status) => {
                close.error = status.clone().into();
                return status;
            }
        }
    }
}

impl ProofApi for Client {
    /// Begins a block. Waits for a connection for [`ClientConfig::reconnect_wait_ms`] while there
    /// is none.
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        let shared = &self.shared;
        let deadline = Instant::now() + Duration::from_millis(shared.config.reconnect_wait_ms);
        let mut live = shared.connection.live().or_else(|| shared.wait_newer_than(0, deadline));
        while let Some(LiveConnection { client: stream, generation }) = live {
            if let Some(session) = RemoteSession::begin(shared, stream, begin, true) {
                return Ok(Box::new(session));
            }
            // Lost meanwhile.
            live = shared.wait_newer_than(generation, deadline);
        }
        Err(Error::Unavailable)
    }

    fn discard(&self, block: B256) {
        // Without a connection, there is nothing to discard: a worker drops tries that do not fit
        // the parent of the next block.
        if let Some(live) = self.shared.connection.live() {
            let config = &self.shared.config;
            let _ = live.client.send(discard(block), &self.shared.runtime, config.answer_wait());
        }
    }

    fn status(&self) -> Result<Status, Error> {
        let config = &self.shared.config;
        let live = self.shared.connection.live().ok_or(Error::Unavailable)?;
        let asked = async { timeout(config.answer_wait(), live.client.status()).await };
        self.shared.runtime.block_on(asked).unwrap_or(Err(Error::Unavailable))
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        self.shared.advise(Command::Prefetch { block, keys });
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        self.shared.advise(Command::Foresee { block, foresight });
    }
}
