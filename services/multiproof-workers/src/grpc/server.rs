//! gRPC service of the workers.

use super::bridge::{Answers, Bridge, Input};
use crate::metrics as names;
use metrics::gauge;
use prost::Message;
use std::{
    future::ready,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
};
use tandem_actor::{TaskSender, spawn, task_queue};
use tandem_primitives::B256;
use tandem_proto::{
    access::permits,
    limits::PROOF_MESSAGE_BYTES_MAX,
    multiproof::{Error, ProofApi},
    wire::{
        DESCRIPTORS,
        multiproof_workers::v1::{
            self,
            multiproof_workers_server::{self as generated, MultiproofWorkersServer},
        },
    },
};
use tandem_rpc::{DRAIN_MAX, Host, Identity, Limits, Listener};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, warn};

/// Messages that may wait for the thread that serves them.
const MESSAGES_MAX: usize = 1024;
/// Bytes of messages that may wait, in units of [`BYTES_UNIT`]: four of the largest.
const BYTES_MAX: usize = 4 * PROOF_MESSAGE_BYTES_MAX / BYTES_UNIT;
const BYTES_UNIT: usize = 1024;
/// Answers that a client may leave unread; each ends a block that it asked for.
const ANSWERS_MAX: usize = 16;
/// Streams at a time. One executor needs one; the others belong to connections that are dying.
const STREAMS_MAX: usize = 16;
/// Windows large enough for a block's updates to be in flight without waiting for one to open
/// again.
const LIMITS: Limits = Limits {
    calls_max: 2 * STREAMS_MAX as u32,
    stream_window: 4 << 20,
    connection_window: 8 << 20,
};

/// Server of a [`ProofApi`] for clients on other machines.
pub struct Server {
    service: Service,
    thread: JoinHandle<()>,
    identity: Identity,
}

impl Server {
    /// Starts the thread that serves all streams. `fatal` is cancelled when it panics.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn start(api: Arc<dyn ProofApi>, fatal: CancellationToken) -> io::Result<Self> {
        names::describe_server();
        let (bridge, inbox) = task_queue("proof-stream", MESSAGES_MAX);
        let worker = Bridge::new(api.clone());
        let thread = spawn("proof-stream", fatal, move || worker.run(inbox))?;
        let inner = Inner {
            api,
            bridge,
            room: Arc::new(Semaphore::new(BYTES_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            next: AtomicU64::new(0),
            stop: CancellationToken::new(),
        };
        let (service, identity) = (Service(Arc::new(inner)), Identity::default());
        Ok(Self { service, thread, identity })
    }

    /// Sets the identity of the server. If it is proven, callers must prove theirs.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled. Open blocks are then given up; their callers get
    /// [`Error::Unavailable`].
    ///
    /// # Errors
    /// Errors of the listener.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let Self { service, thread, identity } = self;
        let inner = service.0.clone();
        let api = MultiproofWorkersServer::new(service)
            .max_decoding_message_size(PROOF_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(PROOF_MESSAGE_BYTES_MAX);
        let host = Host {
            service: api,
            descriptors: DESCRIPTORS,
            limits: LIMITS,
            identity,
            access: permits,
            direct: None,
            ready: ready(()),
            ended: inner.stop.clone(),
        };
        let result = host.serve(listener, stop).await;
        inner.stop.cancel();
        let _ = timeout(DRAIN_MAX, inner.tell(Input::Stop)).await;
        let joined = tokio::task::spawn_blocking(move || thread.join());
        if timeout(DRAIN_MAX, joined).await.is_err() {
            warn!("a block is still open behind the proof stream");
        }
        result
    }
}

struct Inner {
    api: Arc<dyn ProofApi>,
    bridge: TaskSender<Input>,
    room: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    next: AtomicU64,
    stop: CancellationToken,
}

impl Inner {
    /// Sends an input to the thread, once it has room.
    async fn tell(&self, input: Input) -> Result<(), Error> {
        self.bridge.send(input).await.map_err(|_| Error::Unavailable)
    }
}

#[derive(Clone)]
struct Service(Arc<Inner>);

impl Service {
    /// Reads one stream until it ends, then reports the end.
    async fn read(
        &self,
        stream: u64,
        mut requests: Streaming<v1::ProcessBlockRequest>,
        answers: Answers,
    ) {
        loop {
            let message = tokio::select! {
                message = requests.message() => message,
                () = answers.closed() => break,
                () = self.0.stop.cancelled() => {
                    let _ = answers.try_send(Err(Error::Unavailable.into()));
                    break;
                }
            };
            match message {
                Ok(Some(message)) => {
                    if self.forward(stream, message, &answers).await.is_none() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(status) => {
                    debug!(%status, "a proof stream broke");
                    break;
                }
            }
        }
        let _ = self.0.tell(Input::Closed { stream }).await;
    }

    /// Forwards a message; `None` when the thread has ended. While this waits, the stream is not
    /// read.
    async fn forward(
        &self,
        stream: u64,
        message: v1::ProcessBlockRequest,
        answers: &Answers,
    ) -> Option<()> {
        let units = (message.encoded_len() / BYTES_UNIT + 1).min(BYTES_MAX);
        let room = self.0.room.clone().acquire_many_owned(units as u32).await.ok()?;
        let answers = answers.clone();
        let input = Input::Command { stream, message, answers, _room: room };
        self.0.tell(input).await.ok()
    }
}

type AnswerStream = Pin<Box<dyn Stream<Item = Result<v1::ProcessBlockResponse, Status>> + Send>>;

#[tonic::async_trait]
impl generated::MultiproofWorkers for Service {
    type ProcessBlockStream = AnswerStream;

    async fn process_block(
        &self,
        request: Request<Streaming<v1::ProcessBlockRequest>>,
    ) -> Result<Response<AnswerStream>, Status> {
        let permit = self.0.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many proof streams"))?;
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        let stream = self.0.next.fetch_add(1, Relaxed);
        let service = self.clone();
        tokio::spawn(async move {
            gauge!(names::STREAMS).increment(1);
            service.read(stream, request.into_inner(), answers).await;
            gauge!(names::STREAMS).decrement(1);
            drop(permit);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn discard(
        &self,
        request: Request<v1::DiscardRequest>,
    ) -> Result<Response<v1::DiscardResponse>, Status> {
        let block = B256::try_from(request.into_inner())?;
        let sent = self.0.tell(Input::Discard(block)).await;
        sent.map_err(Status::from)?;
        Ok(Response::new(v1::DiscardResponse {}))
    }

    async fn get_status(
        &self,
        _request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(self.0.api.status()?.into()))
    }
}
