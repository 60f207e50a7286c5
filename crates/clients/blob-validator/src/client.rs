//! blob-validator on another machine, as its callers see it.

use super::zero_copy::{AnswerCodec, ZeroCopyChannel};
use crate::{VALIDATE, bundle, metrics as names, verdicts::Verdicts};
use metrics::counter;
use parking_lot::Mutex;
use std::{
    future::ready,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Queued, TaskSender, task_queue};
use tandem_primitives::B256;
use tandem_proto::{
    access::BLOB_VALIDATOR,
    blob_validator::{
        BlobApi, Bundle, Content, Error, Pending, Result, Status, StoredBlob, Verdict,
    },
    convert::{BlobRequest, ERROR_METADATA, OutgoingBlobRequest},
    limits::{BLOB_MESSAGE_BYTES_MAX, GET_BLOBS_MAX},
    wire::blob_validator::v1::{
        self, blob_validator_client::BlobValidatorClient, blob_validator_server::SERVICE_NAME,
    },
};
use tandem_rpc::{
    CallError, CallPolicy, ClientConnection, ConnectionConfig, EndpointError, ServerDescription,
    set_traceparent,
};
use tandem_telemetry::traceparent;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tracing::Span;

const SERVER: ServerDescription = ServerDescription {
    role: BLOB_VALIDATOR,
    service: SERVICE_NAME,
    error_metadata: ERROR_METADATA,
    connections: names::CONNECTIONS,
    lost: names::CONNECTIONS_LOST,
    stream_window: 4 << 20,
    direct_connections: 0,
};

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Settings of the connection.
    pub connection: ConnectionConfig,
    /// Longest wait of a call for a connection that is being made, if it has the time.
    pub reconnect_wait_ms: u64,
    /// Longest wait for an answer that needs no verification.
    pub answer_ms_max: u64,
    /// Number of messages about unneeded blobs that may wait for the connection; further ones are
    /// dropped.
    pub advice_capacity: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionConfig::default(),
            reconnect_wait_ms: 2_000,
            answer_ms_max: 5_000,
            advice_capacity: 64,
        }
    }
}

/// Number of recently validated blobs whose names a client keeps, to guess which sidecars the
/// service knows.
const VALID_MAX: usize = 8_192;

/// Client of one blob-validator.
///
/// If the client has seen all blobs of a sidecar to be valid, it first asks for the sidecar by
/// content ([`Content`]). It sends the sidecar only if the service does not know it. Known names
/// are only a guess: the content key covers every byte.
///
/// The client has one connection, made at once and made again when it is lost. A call that was
/// pending when the connection was lost is retried once over the next one, if there is time. This
/// is safe because a verdict on some content does not depend on how often it is requested.
pub struct Client {
    shared: Arc<Shared>,
    advice: TaskSender<Vec<B256>>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    config: ClientConfig,
    runtime: Handle,
    connection: ClientConnection<Channel>,
    /// Verdicts by versioned hash.
    valid: Mutex<Verdicts>,
}

impl Client {
    /// Makes a client that connects in the background, on `runtime`, to an endpoint such as
    /// `http://10.0.0.7:9602`.
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
        let (advice, queue) = task_queue("blob-advice", config.advice_capacity);
        let valid = Mutex::new(Verdicts::new(VALID_MAX, usize::MAX, 0, Duration::ZERO));
        let shared = Arc::new(Shared { config, runtime: runtime.clone(), connection, valid });
        let kept = shared.clone();
        let task = runtime.spawn(async move {
            tokio::select! {
                () = kept.connection.keep_serving() => {}
                () = kept.send_advice(queue) => {}
            }
        });
        Ok(Arc::new(Self { shared, advice, _task: AbortOnDropHandle::new(task) }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.shared.connection.is_connected()
    }
}

impl Shared {
    /// Makes a call, and retries it once if the connection was lost meanwhile. `call` gets the time
    /// that is left.
    async fn call<T, F>(&self, until: Instant, call: impl Fn(Channel, Duration) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, tonic::Status>>,
    {
        let reconnect_wait = Duration::from_millis(self.config.reconnect_wait_ms);
        let policy = CallPolicy { deadline: until, reconnect_wait, retry: true };
        self.connection.call(policy, call).await.map_err(|error| match error {
            CallError::NotConnected => Error::Unavailable("no connection".to_owned()),
            CallError::DeadlineExceeded => Error::DeadlineExceeded,
            CallError::Lost(status) | CallError::Status(status) => error_of(status, until),
        })
    }

    async fn validate(
        &self,
        bundle: Arc<Bundle>,
        until: Instant,
        context: Option<&str>,
    ) -> Result<Verdict> {
        if self.seems_known(&bundle) && self.knows(&bundle, until).await {
            return Ok(Verdict::Valid);
        }
        let answer = self.call(until, |channel, timeout| {
            let request = BlobRequest { bundle: bundle.clone(), timeout };
            validate(channel, request, context)
        });
        let verdict = answer.await?.try_into()?;
        if verdict == Verdict::Valid {
            let mut valid = self.valid.lock();
            for hash in &bundle.versioned_hashes {
                valid.insert(Instant::now(), *hash, Ok(()));
            }
        }
        Ok(verdict)
    }

    fn seems_known(&self, bundle: &Bundle) -> bool {
        let mut valid = self.valid.lock();
        bundle.versioned_hashes.iter().all(|hash| valid.get(Instant::now(), hash).is_some())
    }

    /// Returns whether the service knows a sidecar that passed [`bundle::check`]. After a failure
    /// it returns false: the sidecar is then sent, and reports its own error if that fails.
    async fn knows(&self, bundle: &Arc<Bundle>, until: Instant) -> bool {
        let hashed = bundle.clone();
        // Hashing a large sidecar takes most of a millisecond, too long for a thread that serves
        // sockets.
        let keys = self.runtime.spawn_blocking(move || bundle::keys(&hashed)).await;
        let Ok(Ok(keys)) = keys else { return false };
        let versioned_hashes = bundle.versioned_hashes.clone();
        let content = Content { form: bundle.form, keys, versioned_hashes };
        let known = self.recall(&content, until).await.unwrap_or(false);
        if known {
            counter!(names::RECALLED).increment(bundle.blobs.len() as u64);
        }
        known
    }

    async fn recall(&self, content: &Content, until: Instant) -> Result<bool> {
        let answer = self.call(until, |channel, _| async move {
            client(channel).recall(v1::RecallRequest::from(content)).await
        });
        Ok(answer.await?.into_inner().valid)
    }

    fn answer_until(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config.answer_ms_max)
    }

    async fn send_advice(&self, mut queue: mpsc::Receiver<Queued<Vec<B256>>>) {
        while let Some(hashes) = queue.recv().await.map(Queued::take) {
            let hashes = &hashes[..];
            let sent = self.call(self.answer_until(), |channel, _| async move {
                client(channel).forget(v1::ForgetRequest::from(hashes)).await
            });
            if sent.await.is_err() {
                counter!(names::ADVICE_DROPPED).increment(1);
            }
        }
    }
}

/// Converts a status. If the time is up, a cancellation becomes a missed deadline: which side
/// notices first decides what it is called.
fn error_of(status: tonic::Status, until: Instant) -> Error {
    if status.code() == Code::Cancelled && Instant::now() + Duration::from_millis(1) >= until {
        return Error::DeadlineExceeded;
    }
    status.into()
}

fn client(channel: Channel) -> BlobValidatorClient<Channel> {
    BlobValidatorClient::new(channel)
        .max_decoding_message_size(BLOB_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(BLOB_MESSAGE_BYTES_MAX)
}

async fn validate(
    channel: Channel,
    request: BlobRequest,
    context: Option<&str>,
) -> std::result::Result<v1::ValidateResponse, tonic::Status> {
    let timeout = request.timeout;
    let outgoing = OutgoingBlobRequest::from(request);
    let len = outgoing.encoded_len();
    let fitting = u32::try_from(len).ok().filter(|_| len <= BLOB_MESSAGE_BYTES_MAX);
    let Some(fitting) = fitting else {
        let text = format!("{len} bytes are too large for a message");
        return Err(tonic::Status::out_of_range(text));
    };
    let mut grpc = Grpc::new(ZeroCopyChannel::new(channel, outgoing, fitting));
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let mut request = Request::new(());
    request.set_timeout(timeout);
    if let Some(context) = context {
        set_traceparent(&mut request, context);
    }
    let path = PathAndQuery::from_static(VALIDATE);
    Ok(grpc.unary(request, path, AnswerCodec).await?.into_inner())
}

/// Returns blobs in the order of the hashes.
async fn get_blobs(
    channel: Channel,
    hashes: &[B256],
) -> std::result::Result<Vec<Option<Arc<StoredBlob>>>, tonic::Status> {
    let mut blobs = Vec::with_capacity(hashes.len());
    for part in hashes.chunks(GET_BLOBS_MAX) {
        let request = v1::GetBlobsRequest::from(part);
        let mut answers = client(channel.clone()).get_blobs(request).await?.into_inner();
        for _ in part {
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| tonic::Status::data_loss("too few answers"))?;
            let blob = Option::<StoredBlob>::try_from(answer);
            let blob = blob.map_err(|error| tonic::Status::data_loss(error.to_string()))?;
            blobs.push(blob.map(Arc::new));
        }
    }
    Ok(blobs)
}

impl BlobApi for Client {
    fn validate(&self, bundle: Arc<Bundle>, timeout: Duration) -> Pending<Verdict> {
        if let Err(refusal) = bundle::check(&bundle) {
            // The service would give the same answer, so the sidecar need not be sent.
            return Box::pin(ready(Ok(Verdict::Invalid(refusal))));
        }
        let shared = self.shared.clone();
        let until = Instant::now() + timeout.min(crate::TIMEOUT_MAX);
        let context = traceparent(&Span::current());
        Box::pin(async move { shared.validate(bundle, until, context.as_deref()).await })
    }

    /// Never refuses: only the service knows its load.
    fn refuse(&self, _blobs: usize) -> Option<Error> {
        None
    }

    fn recall(&self, content: Content) -> Pending<bool> {
        let shared = self.shared.clone();
        let until = shared.answer_until();
        Box::pin(async move { shared.recall(&content, until).await })
    }

    fn get_blobs(&self, versioned_hashes: &[B256]) -> Pending<Vec<Option<Arc<StoredBlob>>>> {
        let (shared, hashes) = (self.shared.clone(), versioned_hashes.to_vec());
        let until = shared.answer_until();
        Box::pin(async move { shared.call(until, |channel, _| get_blobs(channel, &hashes)).await })
    }

    /// Sends advice. It is dropped and counted if too many messages wait for the connection.
    fn forget(&self, versioned_hashes: &[B256]) {
        if self.advice.try_send(versioned_hashes.to_vec()).is_err() {
            counter!(names::ADVICE_DROPPED).increment(1);
        }
    }

    fn status(&self) -> Pending<Status> {
        let shared = self.shared.clone();
        let until = shared.answer_until();
        Box::pin(async move {
            let answer = shared.call(until, |channel, _| async move {
                client(channel).get_status(v1::GetStatusRequest {}).await
            });
            Ok(answer.await?.into_inner().into())
        })
    }
}
