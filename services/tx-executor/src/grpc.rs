//! gRPC service of tx-executor.

use crate::{
    answers::{Answers, answers},
    assembly::{Assembly, Effect},
    metrics as names,
    service::TxExecutor,
    worker::{Block, Work},
};
use metrics::gauge;
use std::{
    future::ready,
    io,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_proto::{
    access::permits,
    convert::TxRequest,
    limits::TX_MESSAGE_BYTES_MAX,
    tx_executor::{RangeTransaction, TxReply},
    wire::{
        DESCRIPTORS,
        tx_executor::v1::{
            self,
            tx_executor_server::{self as generated, TxExecutorServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits, Listener};
use tandem_telemetry::set_remote_parent;
use tokio::{runtime::Handle, sync::Semaphore, time::sleep};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::{Span, debug, info_span};

/// Streams at a time. One executor needs one; the others belong to connections that are dying.
const STREAMS_MAX: usize = 16;
/// Pause before another look for room in the queue of the threads.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Windows large enough for the values of a block to be in flight without a wait.
const LIMITS: Limits = Limits {
    calls_max: 2 * STREAMS_MAX as u32,
    stream_window: 8 << 20,
    connection_window: 16 << 20,
};

/// Server of a [`TxExecutor`].
pub struct Server {
    service: Service,
    identity: Identity,
}

impl Server {
    /// Creates the server.
    pub fn new(executor: Arc<TxExecutor>) -> Self {
        let inner = Inner {
            executor,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            stop: CancellationToken::new(),
        };
        Self { service: Service(Arc::new(inner)), identity: Identity::default() }
    }

    /// Sets the identity of the server. If it is proven, callers must prove theirs.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled. Open blocks are then given up.
    ///
    /// # Errors
    /// Errors of the listener.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let Self { service, identity } = self;
        let inner = service.0.clone();
        let api = TxExecutorServer::new(service)
            .max_decoding_message_size(TX_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(TX_MESSAGE_BYTES_MAX);
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
        result
    }
}

struct Inner {
    executor: Arc<TxExecutor>,
    streams: Arc<Semaphore>,
    stop: CancellationToken,
}

#[derive(Clone)]
struct Service(Arc<Inner>);

/// One stream.
struct Connection {
    inner: Arc<Inner>,
    answers: Answers,
    assembly: Assembly,
    span: Span,
    block: Option<Arc<Block>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_block();
        self.answers.end.cancel();
    }
}

impl Connection {
    /// Reads the stream until it ends.
    async fn read(&mut self, mut requests: Streaming<v1::ExecuteBlocksRequest>) {
        let end = self.answers.end.clone();
        loop {
            let message = tokio::select! {
                message = requests.message() => message,
                () = end.cancelled() => return,
            };
            let request = match message {
                Ok(Some(message)) => TxRequest::try_from(message),
                Ok(None) => return,
                Err(status) => {
                    debug!(%status, "a stream broke");
                    return;
                }
            };
            match request {
                Ok(request) => {
                    let effect = self.assembly.step(request);
                    tokio::select! {
                        () = self.apply(effect) => {}
                        () = end.cancelled() => return,
                    }
                }
                Err(error) => {
                    debug!(%error, "malformed command, the stream ends");
                    return;
                }
            }
        }
    }

    async fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Nothing => {}
            Effect::Begin { block_number, traceparent } => {
                self.end_block();
                self.span = info_span!(
                    "execute_transactions",
                    otel.kind = "server",
                    block.number = block_number
                );
                set_remote_parent(&self.span, &traceparent);
            }
            Effect::Open { session, block } => {
                let (answers, span) = (self.answers.clone(), self.span.clone());
                let held = self.inner.executor.held().clone();
                self.block = Some(Arc::new(Block::new(session, block, answers, span, held)));
                self.queue([None]).await;
            }
            Effect::Fill(values) => {
                let Some(block) = &self.block else { return };
                block.fill(values);
                // For each thread, as all take part in what waited.
                self.queue((0..self.inner.executor.threads()).map(|_| None)).await;
            }
            Effect::Slots(slots) => {
                let Some(block) = &self.block else { return };
                if let Err(reason) = block.set_slots(slots) {
                    let session = block.session;
                    self.refuse(session, reason).await;
                }
            }
            Effect::Execute(transactions) => {
                self.queue(transactions.into_iter().map(Some)).await;
            }
            Effect::Refuse { session, reason } => self.refuse(session, reason.to_owned()).await,
            Effect::End => self.end_block(),
            Effect::Pong(number) => {
                self.inner.executor.utilization().expire(Instant::now());
                let threads = u32::try_from(self.inner.executor.threads()).unwrap_or(u32::MAX);
                self.answers.answer(0, TxReply::Pong(number, threads)).await;
            }
        }
    }

    async fn refuse(&mut self, session: u64, reason: String) {
        self.end_block();
        self.answers.answer(session, TxReply::Refused(reason)).await;
    }

    fn end_block(&mut self) {
        if let Some(block) = self.block.take() {
            block.end();
            let ((open, busy), executor) = (block.times(), &self.inner.executor);
            executor.utilization().note(Instant::now(), open, busy, executor.threads());
        }
        self.span = Span::none();
    }

    /// Hands work to the threads, as soon as there is room for each piece.
    async fn queue(&self, work: impl IntoIterator<Item = Option<RangeTransaction>>) {
        let Some(block) = &self.block else { return };
        let queue = self.inner.executor.work();
        for transaction in work {
            // Another stream may take the last place meanwhile.
            while queue.room() <= STREAMS_MAX {
                sleep(ROOM_PAUSE).await;
            }
            let (block, came) = (block.clone(), Instant::now());
            if queue.try_send(Work { block, transaction, came }).is_err() {
                return self.answers.end.cancel();
            }
        }
    }
}

type AnswerStream = Pin<Box<dyn Stream<Item = Result<v1::ExecuteBlocksResponse, Status>> + Send>>;

#[tonic::async_trait]
impl generated::TxExecutor for Service {
    type ExecuteBlocksStream = AnswerStream;

    async fn execute_blocks(
        &self,
        request: Request<Streaming<v1::ExecuteBlocksRequest>>,
    ) -> Result<Response<AnswerStream>, Status> {
        let permit = self.0.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many streams"))?;
        let end = self.0.stop.child_token();
        let (answers, stream) = answers(self.0.executor.clone(), Handle::current(), end);
        let mut connection = Connection {
            inner: self.0.clone(),
            answers,
            assembly: Assembly::default(),
            span: Span::none(),
            block: None,
        };
        tokio::spawn(async move {
            gauge!(names::STREAMS).increment(1);
            connection.read(request.into_inner()).await;
            gauge!(names::STREAMS).decrement(1);
            drop(permit);
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
