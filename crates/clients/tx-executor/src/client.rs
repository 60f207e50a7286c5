//! Client of one tx-executor.

use crate::metrics as names;
use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    thread::{self, Thread},
    time::{Duration, Instant},
};
use tandem_actor::{Queued, TaskSender, ThreadSender, WeakTaskSender, task_queue, thread_queue};
use tandem_proto::{
    access::TX_EXECUTOR,
    convert::{ERROR_METADATA, TxAnswer, TxRequest},
    limits::TX_MESSAGE_BYTES_MAX,
    tx_executor::{NotSent, TxCommand, TxExecutorApi, TxReply},
    wire::tx_executor::v1::{
        self, tx_executor_client::TxExecutorClient, tx_executor_server::SERVICE_NAME,
    },
};
use tandem_rpc::{ClientConnection, ConnectionConfig, EndpointError, ServerDescription};
use tokio::runtime::Handle;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming, transport::Channel};

const SERVER: ServerDescription = ServerDescription {
    role: TX_EXECUTOR,
    service: SERVICE_NAME,
    error_metadata: ERROR_METADATA,
    connections: names::CONNECTIONS,
    lost: names::CONNECTIONS_LOST,
    stream_window: 4 << 20,
    direct_connections: 0,
};

/// Answers that may wait for the executor's thread: more than it has transactions there.
const ANSWERS_MAX: usize = 4_096;

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Settings of the connection.
    pub connection: ConnectionConfig,
    /// Commands that may wait for the connection before the executor's thread must wait.
    pub queue_capacity: usize,
    /// Longest wait for room in that queue.
    pub room_ms_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { connection: ConnectionConfig::default(), queue_capacity: 64, room_ms_max: 100 }
    }
}

/// Client of one tx-executor.
pub struct Client {
    shared: Arc<Shared>,
    answers: Receiver<Queued<Incoming>>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    endpoint: String,
    config: ClientConfig,
    runtime: Handle,
    connection: ClientConnection<WeakTaskSender<TxRequest>>,
    answers: ThreadSender<Incoming>,
    /// Thread that waits for answers.
    waiting: Mutex<Option<Thread>>,
}

/// Message with the number of its connection.
struct Incoming {
    connection: u64,
    message: v1::ExecuteBlocksResponse,
}

impl Client {
    /// Creates a client that connects in the background, on `runtime`, to an endpoint such as
    /// `http://10.0.0.7:9607`, or `https://…` where the identity is proven.
    ///
    /// # Errors
    /// [`EndpointError`]. An unreachable server is not an error here.
    pub fn connect(
        endpoint: &str,
        config: ClientConfig,
        runtime: &Handle,
    ) -> Result<Arc<Self>, EndpointError> {
        names::describe_metrics();
        let connection = ClientConnection::new(endpoint, SERVER, &config.connection)?;
        let (sender, answers) = thread_queue("tx-executor-answers", ANSWERS_MAX);
        let shared = Arc::new(Shared {
            endpoint: endpoint.to_owned(),
            config,
            runtime: runtime.clone(),
            connection,
            answers: sender,
            waiting: Mutex::default(),
        });
        let kept = shared.clone();
        let task = runtime.spawn(async move {
            let open = |channel| open(&kept, channel);
            kept.connection.keep_connected(open, |opened| live(&kept, opened)).await;
        });
        Ok(Arc::new(Self { shared, answers, _task: AbortOnDropHandle::new(task) }))
    }
}

/// Both directions of a stream that was just opened.
struct Opened {
    commands: TaskSender<TxRequest>,
    answers: Streaming<v1::ExecuteBlocksResponse>,
}

async fn open(shared: &Shared, channel: Channel) -> Result<Opened, Status> {
    let (commands, queue) = task_queue("tx-executor-commands", shared.config.queue_capacity);
    let mut calls = TxExecutorClient::new(channel)
        .max_decoding_message_size(TX_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(TX_MESSAGE_BYTES_MAX);
    let requests = ReceiverStream::new(queue)
        .map(|request| v1::ExecuteBlocksRequest::from(Queued::take(request)));
    let answers = calls.execute_blocks(requests).await?.into_inner();
    Ok(Opened { commands, answers })
}

/// Keeps one connection until it ends. Returns the reason.
async fn live(shared: &Shared, opened: Opened) -> Status {
    let Opened { commands, mut answers } = opened;
    let _live = shared.connection.set_live(commands.downgrade());
    let connection = shared.connection.generation();
    loop {
        match answers.message().await {
            Ok(Some(message)) => {
                if shared.answers.try_send(Incoming { connection, message }).is_err() {
                    return Status::resource_exhausted("more answers than questions");
                }
                if let Some(thread) = &*shared.waiting.lock() {
                    thread.unpark();
                }
            }
            Ok(None) => return Status::unavailable("the tx-executor ended the stream"),
            Err(status) => return status,
        }
    }
}

impl Client {
    /// Waits for a message. The thread sleeps at once if there is none: the channel's own wait would
    /// spin and yield first, and the threads of many tx-executors wait often, and for long.
    fn next(&self, until: Instant) -> Option<Incoming> {
        // Before the look into the queue, so that no message is missed.
        *self.shared.waiting.lock() = Some(thread::current());
        loop {
            if let Ok(message) = self.answers.try_recv() {
                return Some(message.take());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    }
}

impl TxExecutorApi for Client {
    fn endpoint(&self) -> String {
        self.shared.endpoint.clone()
    }

    fn connection(&self) -> Option<u64> {
        self.shared.connection.live().map(|live| live.generation)
    }

    fn send(&self, connection: u64, session: u64, command: TxCommand) -> Result<(), NotSent> {
        let live = self.shared.connection.live().ok_or(NotSent)?;
        let commands = live.client.upgrade().filter(|_| live.generation == connection);
        let wait = Duration::from_millis(self.shared.config.room_ms_max);
        let request = TxRequest { session, command };
        commands
            .ok_or(NotSent)?
            .send_within(wait, &self.shared.runtime, request)
            .map_err(|_| NotSent)
    }

    fn receive(&self, wait: Duration) -> Option<(u64, TxReply)> {
        let until = Instant::now() + wait;
        loop {
            let Incoming { connection, message } = self.next(until)?;
            // An answer that an earlier connection left behind.
            if Some(connection) != self.connection() {
                continue;
            }
            let session = message.session;
            return Some(match TxAnswer::try_from(message) {
                Ok(TxAnswer { session, reply }) => (session, reply),
                Err(error) => (session, TxReply::Refused(error.to_string())),
            });
        }
    }
}
