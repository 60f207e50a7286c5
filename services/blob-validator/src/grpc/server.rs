//! The service over gRPC.

use super::{
    incoming::Incoming,
    timeout::{self, shorter},
};
use crate::metrics as names;
use futures_util::stream::{FuturesUnordered, StreamExt};
use metrics::gauge;
use std::{io, pin::Pin, sync::Arc, time::Duration};
use tandem_primitives::B256;
use tandem_proto::{
    access::permits,
    blob_validator::{BlobApi, Content, Error, Verdict},
    convert::{BlobRequest, BlobStreamAnswer, BlobStreamRequest},
    limits::BLOB_MESSAGE_BYTES_MAX,
    wire::{
        DESCRIPTORS,
        blob_validator::v1::{
            self,
            blob_validator_server::{self as generated, BlobValidatorServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits, Listener, continued};
use tokio::{
    sync::{Semaphore, mpsc},
    time::sleep,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap};
use tracing::{Instrument, Span, debug, info_span};

/// Limits of a connection; a sidecar of six blobs arrives without waiting for the window to reopen.
const LIMITS: Limits =
    Limits { calls_max: 512, stream_window: 1 << 20, connection_window: 8 << 20 };
/// Number of streams at a time.
const STREAMS_MAX: usize = 64;
/// Number of unanswered sidecars of one stream; the next is read only after an answer.
const STREAM_SIDECARS_MAX: usize = 64;
/// Time between two checks whether the trusted setup is loaded, which takes about a second.
const READY_POLL: Duration = Duration::from_millis(20);
/// Metadata that tells clients of any kind when to retry, in milliseconds (gRPC proposal A6).
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Server that offers a [`BlobApi`] to clients on other machines.
pub struct Server {
    api: Arc<dyn BlobApi>,
    incoming_bytes_max: usize,
    identity: Identity,
}

impl Server {
    /// Makes a server of this service. Arriving messages may take `incoming_bytes_max` bytes
    /// together, at least one of the largest.
    pub fn new(api: Arc<dyn BlobApi>, incoming_bytes_max: usize) -> Self {
        names::describe_server();
        let incoming_bytes_max = incoming_bytes_max.max(BLOB_MESSAGE_BYTES_MAX);
        Self { api, incoming_bytes_max, identity: Identity::default() }
    }

    /// Sets the identity of the server. If it is proven, callers must prove theirs too.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled, then pending calls for at most two seconds.
    ///
    /// # Errors
    /// Error of the listener.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let ended = CancellationToken::new();
        let service = Service {
            api: self.api.clone(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            ended: ended.clone(),
        };
        let service = BlobValidatorServer::new(service)
            .max_decoding_message_size(BLOB_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(BLOB_MESSAGE_BYTES_MAX);
        let ready = async {
            while !self.api.status().await.is_ok_and(|status| status.ready) {
                sleep(READY_POLL).await;
            }
        };
        let service = Incoming::new(service, self.api.clone(), self.incoming_bytes_max);
        let host = Host {
            service,
            descriptors: DESCRIPTORS,
            limits: LIMITS,
            identity: self.identity,
            access: permits,
            direct: None,
            ready,
            ended,
        };
        host.serve(listener, stop).await
    }
}

/// Returns the status of an error, with the time until a retry if there is one.
pub fn refusal(error: Error) -> Status {
    let pushback = match &error {
        Error::Overloaded { retry_after } => Some(retry_after.as_millis().to_string()),
        _ => None,
    };
    let mut status = Status::from(error);
    if let Some(Ok(value)) = pushback.map(|text| text.parse()) {
        status.metadata_mut().insert(PUSHBACK, value);
    }
    status
}

/// Returns a span that continues the caller's.
fn remote_span(metadata: &MetadataMap) -> Span {
    continued(info_span!("validate_sidecar", otel.kind = "server"), metadata)
}

#[derive(Clone)]
struct Service {
    api: Arc<dyn BlobApi>,
    streams: Arc<Semaphore>,
    ended: CancellationToken,
}

impl Service {
    /// Reads sidecars and writes answers until one side ends.
    async fn converse(
        &self,
        mut requests: Streaming<v1::ValidateStreamRequest>,
        answers: mpsc::Sender<Result<v1::ValidateStreamResponse, Status>>,
    ) -> Result<(), Status> {
        let mut pending = FuturesUnordered::new();
        let mut open = true;
        while open || !pending.is_empty() {
            tokio::select! {
                message = requests.message(), if open && pending.len() < STREAM_SIDECARS_MAX => {
                    let Some(message) = message? else {
                        open = false;
                        continue;
                    };
                    let BlobStreamRequest { id, request } = message.try_into()?;
                    let verdict = self.api.validate(request.bundle, request.timeout);
                    pending.push(async move { BlobStreamAnswer { id, result: verdict.await } });
                }
                Some(answer) = pending.next() => {
                    if answers.send(Ok(answer.into())).await.is_err() {
                        return Ok(());
                    }
                }
                () = answers.closed() => return Ok(()),
                () = self.ended.cancelled() => {
                    return Err(Error::Unavailable("stopping".to_owned()).into());
                }
            }
        }
        Ok(())
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl generated::BlobValidator for Service {
    type ValidateStreamStream = Answers<v1::ValidateStreamResponse>;
    type GetBlobsStream = Answers<v1::GetBlobsResponse>;

    async fn validate(
        &self,
        request: Request<v1::ValidateRequest>,
    ) -> Result<Response<v1::ValidateResponse>, Status> {
        let given = timeout::of(request.metadata());
        let span = remote_span(request.metadata());
        let BlobRequest { bundle, timeout } = request.into_inner().try_into()?;
        let verdict = span.in_scope(|| self.api.validate(bundle, shorter(timeout, given)));
        let verdict: Verdict = verdict.instrument(span).await.map_err(refusal)?;
        Ok(Response::new(verdict.into()))
    }

    async fn validate_stream(
        &self,
        request: Request<Streaming<v1::ValidateStreamRequest>>,
    ) -> Result<Response<Self::ValidateStreamStream>, Status> {
        let permit = self.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many streams"))?;
        let (answers, receiver) = mpsc::channel(STREAM_SIDECARS_MAX);
        let service = self.clone();
        let span = remote_span(request.metadata());
        let conversation = async move {
            gauge!(names::STREAMS).increment(1);
            let requests = request.into_inner();
            if let Err(status) = service.converse(requests, answers.clone()).await {
                debug!(%status, "a stream of sidecars ends");
                let _ = answers.try_send(Err(status));
            }
            gauge!(names::STREAMS).decrement(1);
            drop(permit);
        };
        tokio::spawn(conversation.instrument(span));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn recall(
        &self,
        request: Request<v1::RecallRequest>,
    ) -> Result<Response<v1::RecallResponse>, Status> {
        let content: Content = request.into_inner().try_into()?;
        let valid = self.api.recall(content).await.map_err(refusal)?;
        Ok(Response::new(v1::RecallResponse { valid }))
    }

    async fn get_blobs(
        &self,
        request: Request<v1::GetBlobsRequest>,
    ) -> Result<Response<Self::GetBlobsStream>, Status> {
        let hashes: Vec<B256> = request.into_inner().try_into()?;
        let found = self.api.get_blobs(&hashes).await.map_err(refusal)?;
        let blobs = found.into_iter().map(|blob| Ok(blob.as_deref().into()));
        Ok(Response::new(Box::pin(tokio_stream::iter(blobs))))
    }

    async fn forget(
        &self,
        request: Request<v1::ForgetRequest>,
    ) -> Result<Response<v1::ForgetResponse>, Status> {
        let hashes: Vec<B256> = request.into_inner().try_into()?;
        self.api.forget(&hashes);
        Ok(Response::new(v1::ForgetResponse {}))
    }

    async fn get_status(
        &self,
        _request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(self.api.status().await.map_err(refusal)?.into()))
    }
}
