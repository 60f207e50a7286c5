//! Client of workers on another machine, for the executor.

use super::{
    connection::{Connection, Outgoing, discard, without_session},
    session::RemoteSession,
};
use crate::metrics as names;
use metrics::counter;
use serde::Deserialize;
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_actor::{TaskSender, task_queue};
use tandem_primitives::B256;
use tandem_proto::{
    access::MULTIPROOF_WORKER,
    convert::{Command, SessionAnswer, SessionCommand},
    limits::PROOF_MESSAGE_BYTES_MAX,
    multiproof::{Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, Status},
    wire::multiproof_workers::v1::{self, multiproof_workers_client::MultiproofWorkersClient},
};
use tandem_rpc::{EndpointError, Identity, Peer, Server};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Streaming, transport::Channel};

const SERVER: Server = Server {
    name: MULTIPROOF_WORKER,
    connections: names::CONNECTIONS,
    lost: names::CONNECTIONS_LOST,
    stream_window: 2 << 20,
};

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    /// Commands that may wait for the connection before the executor must wait.
    pub queue_capacity: usize,
    /// Longest time that opening a connection and its stream may take.
    pub connect_ms_max: u64,
    /// Time that a new block waits for a connection that is being remade.
    pub reconnect_wait_ms: u64,
    /// Longest wait for room in the queue, and for the roots after the last update.
    pub answer_ms_max: u64,
    /// Interval between two HTTP/2 pings, and the longest wait for the answer to one.
    pub keep_alive_ms: u64,
    /// Identity with which to connect.
    #[serde(skip)]
    pub identity: Identity,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            queue_capacity: 1024,
            connect_ms_max: 1_000,
            reconnect_wait_ms: 2_000,
            answer_ms_max: 10_000,
            keep_alive_ms: 2_000,
            identity: Identity::default(),
        }
    }
}

impl ClientConfig {
    pub(super) fn answer_wait(&self) -> Duration {
        Duration::from_millis(self.answer_ms_max)
    }
}

/// Client of one [`Server`].
///
/// One connection, made at once and remade when it is lost, carries block after block.
///
/// Calls may wait (see [`ClientConfig`]), so they do not belong in async code, where they panic
/// when they would have to wait.
pub struct Client {
    shared: Arc<Shared>,
    stop: CancellationToken,
}

pub struct Shared {
    pub config: ClientConfig,
    pub runtime: Handle,
    link: Mutex<Option<Arc<Connection>>>,
    /// Notified when `link` is set.
    connected: Condvar,
    /// Number of connections made.
    made: AtomicU64,
    /// Number of the next session; never 0.
    next: AtomicU64,
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
        let (connect, alive) = (config.connect_ms_max, config.keep_alive_ms);
        let peer = Peer::new(endpoint, SERVER, &config.identity, connect, alive)?;
        let shared = Arc::new(Shared {
            config,
            runtime: runtime.clone(),
            link: Mutex::new(None),
            connected: Condvar::new(),
            made: AtomicU64::new(0),
            next: AtomicU64::new(1),
        });
        let stop = CancellationToken::new();
        let (keeper, stopped) = (shared.clone(), stop.clone());
        runtime.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = peer.keep(|channel| open(&keeper, channel), |opened| live(&keeper, opened)) => {}
            }
        });
        Ok(Arc::new(Self { shared, stop }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.shared.link().is_some()
    }

    /// Returns the number of connections made so far. A new connection may lead to another process.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.made.load(Relaxed)
    }

    /// Opens a block over the current connection, `None` without one. `waits` tells whether the
    /// session waits for room in the queue.
    pub(crate) fn open(&self, begin: Begin, waits: bool) -> Option<RemoteSession> {
        let connection = self.shared.link().clone()?;
        RemoteSession::begin(&self.shared, connection, begin, waits)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    /// Returns the number of a new session.
    pub fn next_session(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    fn link(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends advice if there is room for it.
    fn advise(&self, command: Command) {
        let link = self.link().clone();
        let sent = link.map(|connection| {
            // Half of the queue is kept free: advice must not make an update wait.
            connection.try_send(without_session(command), self.config.queue_capacity / 2)
        });
        if !matches!(sent, Some(Ok(()))) {
            counter!(names::ADVICE_DROPPED).increment(1);
        }
    }

    /// Returns the connection, and waits for it until the deadline.
    fn connection(&self, until: Instant) -> Option<Arc<Connection>> {
        let mut link = self.link();
        loop {
            if let Some(connection) = &*link {
                return Some(connection.clone());
            }
            let wait = until.checked_duration_since(Instant::now())?;
            (link, _) =
                self.connected.wait_timeout(link, wait).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Guard that removes the connection when it is lost, or when the client is dropped.
struct Link<'a> {
    shared: &'a Shared,
    connection: Arc<Connection>,
    error: Error,
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        *self.shared.link() = None;
        self.connection.close(&self.error);
    }
}

/// Connection with an open stream.
struct Opened {
    /// Sender into the stream.
    commands: TaskSender<SessionCommand>,
    answers: Streaming<v1::ProcessBlockResponse>,
    calls: MultiproofWorkersClient<Channel>,
}

async fn open(shared: &Shared, channel: Channel) -> Result<Opened, tonic::Status> {
    let (commands, queue) = task_queue("proof-commands", shared.config.queue_capacity.max(2));
    let mut calls = MultiproofWorkersClient::new(channel)
        .max_decoding_message_size(PROOF_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(PROOF_MESSAGE_BYTES_MAX);
    let answers = calls.process_block(Outgoing::new(queue)).await?.into_inner();
    Ok(Opened { commands, answers, calls })
}

/// Keeps one connection until it ends. Returns the reason.
async fn live(shared: &Shared, opened: Opened) -> tonic::Status {
    let Opened { commands, mut answers, calls } = opened;
    let connection = Arc::new(Connection::new(&commands, calls));
    let mut link = Link { shared, connection: connection.clone(), error: Error::Unavailable };
    shared.made.fetch_add(1, Relaxed);
    *shared.link() = Some(connection.clone());
    shared.connected.notify_all();
    loop {
        match answers.message().await {
            Ok(Some(message)) => match SessionAnswer::try_from(message) {
                Ok(answer) => connection.deliver(answer),
                Err(error) => {
                    let status = tonic::Status::data_loss(error.to_string());
                    link.error = error.into();
                    return status;
                }
            },
            Ok(None) => return tonic::Status::unavailable("the workers ended the stream"),
            Err(status) => {
                link.error = status.clone().into();
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
        let until = Instant::now() + Duration::from_millis(shared.config.reconnect_wait_ms);
        loop {
            let connection = shared.connection(until).ok_or(Error::Unavailable)?;
            if let Some(session) = RemoteSession::begin(shared, connection, begin, true) {
                return Ok(Box::new(session));
            }
            // Lost meanwhile: in a moment it is no longer the current connection.
            if Instant::now() >= until {
                return Err(Error::Unavailable);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn discard(&self, block: B256) {
        // Without a connection, there is nothing to discard: a worker drops tries that do not fit
        // the parent of the next block.
        let link = self.shared.link().clone();
        if let Some(connection) = link {
            let config = &self.shared.config;
            let _ = connection.send(discard(block), &self.shared.runtime, config.answer_wait());
        }
    }

    fn status(&self) -> Result<Status, Error> {
        let config = &self.shared.config;
        let connection = self.shared.link().clone().ok_or(Error::Unavailable)?;
        let asked = async { timeout(config.answer_wait(), connection.status()).await };
        self.shared.runtime.block_on(asked).unwrap_or(Err(Error::Unavailable))
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        self.shared.advise(Command::Prefetch { block, keys });
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        self.shared.advise(Command::Foresee { block, foresight });
    }
}
