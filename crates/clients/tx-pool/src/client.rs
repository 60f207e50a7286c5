//! tx-pool in another process, as JSON-RPC and the builder of blocks see it.

use crate::metrics as names;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::{
    access::TX_POOL,
    convert::ERROR_METADATA,
    limits::{POOL_ADD_TRANSACTIONS_MAX, POOL_MESSAGE_BYTES_MAX},
    tx_pool::{
        Added, Arrivals, BestPage, BestQuery, Content, Counts, Error, Pending, PooledTransaction,
        Result, TxPoolApi,
    },
    wire::tx_pool::v1::{self, tx_pool_client::TxPoolClient, tx_pool_server::SERVICE_NAME},
};
use tandem_rpc::{
    CallError, CallPolicy, ClientConnection, ConnectionConfig, EndpointError, ServerDescription,
};
use tokio::{runtime::Handle, sync::Semaphore, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, transport::Channel};

const SERVER: ServerDescription = ServerDescription {
    role: TX_POOL,
    service: SERVICE_NAME,
    error_metadata: ERROR_METADATA,
    connections: names::CONNECTIONS,
    lost: names::CONNECTIONS_LOST,
    stream_window: 2 << 20,
    direct_connections: 0,
};

/// Bytes of transactions after which the next ones go into a message of their own.
const POOL_ADD_BYTES_MAX: usize = POOL_MESSAGE_BYTES_MAX - (64 << 10);

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Settings of the connection.
    pub connection: ConnectionConfig,
    /// Longest wait for the answer to a look-up.
    pub answer_ms_max: u64,
    /// Longest wait for the verdict on a transaction. It includes the verdict on its blobs.
    pub add_ms_max: u64,
    /// Longest wait for the content of the pool, the calls before included.
    pub content_ms_max: u64,
    /// Bytes of transactions beyond which the content of the pool is refused.
    pub content_bytes_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionConfig::default(),
            answer_ms_max: 5_000,
            add_ms_max: 15_000,
            content_ms_max: 10_000,
            content_bytes_max: 512 << 20,
        }
    }
}

/// Client of one tx-pool.
pub struct Client {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    config: ClientConfig,
    connection: ClientConnection<Channel>,
    /// Held by the call for the content.
    content: Semaphore,
}

/// Generated client that makes the calls.
type Calls = TxPoolClient<Channel>;

impl Client {
    /// Makes a client that connects in the background, on `runtime`, to an endpoint such as
    /// `http://10.0.0.7:9605`, or `https://…` if the identity is proven.
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
        let shared = Arc::new(Shared { config, connection, content: Semaphore::new(1) });
        let kept = shared.clone();
        let task = runtime.spawn(async move { kept.connection.keep_serving().await });
        Ok(Arc::new(Self { shared, _task: AbortOnDropHandle::new(task) }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.shared.connection.is_connected()
    }

    /// Tells the pool whether the head is known to be behind, for the next 30 s.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn note_sync(&self, syncing: bool) -> Result<()> {
        let shared = &self.shared;
        let told = shared.call(shared.config.answer_ms_max, |mut calls| async move {
            calls.note_sync(v1::NoteSyncRequest { syncing }).await
        });
        told.await.map(drop)
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

    /// Adds transactions that fit into one message.
    async fn add(&self, raw: &[Bytes]) -> Result<Vec<Result<B256>>> {
        let request = v1::AddRequest::from(raw);
        let answer = self.call(self.config.add_ms_max, |mut calls| {
            let request = request.clone();
            async move { calls.add(request).await }
        });
        let outcomes = Vec::try_from(answer.await?.into_inner())?;
        if outcomes.len() != raw.len() {
            let text = format!("it answered {} of {} transactions", outcomes.len(), raw.len());
            return Err(unavailable(&text));
        }
        Ok(outcomes)
    }

    async fn content(&self, sender: Option<Address>) -> Result<Content> {
        let _turn = self.content.acquire().await.map_err(|_| unavailable("it is stopping"))?;
        let opened = self.call(self.config.answer_ms_max, |mut calls| async move {
            calls.list_content(v1::ListContentRequest::from(sender)).await
        });
        let mut parts = opened.await?.into_inner();
        let (mut content, mut bytes) = (Content::default(), 0);
        while let Some(part) = parts.message().await? {
            let Content { pending, queued } = part.try_into()?;
            bytes += pending.iter().chain(&queued).map(|tx| tx.raw.len()).sum::<usize>();
            if bytes > self.config.content_bytes_max {
                let max = self.config.content_bytes_max;
                return Err(unavailable(&format!("its content has more than {max} bytes")));
            }
            content.pending.extend(pending);
            content.queued.extend(queued);
        }
        Ok(content)
    }
}

/// Divides transactions into parts that fit into one message each, if a transaction does.
fn parts(raw: &[Bytes]) -> impl Iterator<Item = &[Bytes]> {
    let mut rest = raw;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |raw: &&Bytes| {
            bytes += raw.len();
            bytes <= POOL_ADD_BYTES_MAX
        };
        let count = rest.iter().take(POOL_ADD_TRANSACTIONS_MAX).take_while(fits).count();
        let (part, after) = rest.split_at_checked(count.max(1))?;
        rest = after;
        Some(part)
    })
}

fn calls(channel: Channel) -> Calls {
    TxPoolClient::new(channel)
        .max_decoding_message_size(POOL_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(POOL_MESSAGE_BYTES_MAX)
}

fn unavailable(reason: &str) -> Error {
    Error::Unavailable(reason.to_owned())
}

impl TxPoolApi for Client {
    fn add(&self, raw: Vec<Bytes>) -> Added {
        let shared = self.shared.clone();
        Box::pin(async move {
            let mut added = Vec::with_capacity(raw.len());
            for part in parts(&raw) {
                let outcomes = shared.add(part).await;
                added.extend(outcomes.unwrap_or_else(|error| vec![Err(error); part.len()]));
            }
            added
        })
    }

    fn get(&self, hash: B256) -> Pending<Option<PooledTransaction>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.get(v1::GetRequest::from(hash)).await
            });
            Ok(answer.await?.into_inner().try_into()?)
        })
    }

    fn next_nonce(&self, sender: Address) -> Pending<Option<u64>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.get_next_nonce(v1::GetNextNonceRequest::from(sender)).await
            });
            Ok(answer.await?.into_inner().nonce)
        })
    }

    fn counts(&self) -> Pending<Counts> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.get_counts(v1::GetCountsRequest {}).await
            });
            Ok(answer.await?.into_inner().into())
        })
    }

    fn best(&self, query: BestQuery) -> Pending<BestPage> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.list_best(v1::ListBestRequest::from(query)).await
            });
            Ok(answer.await?.into_inner().try_into()?)
        })
    }

    fn arrivals(&self, after: Option<u64>) -> Pending<Arrivals> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let answer = shared.call(shared.config.answer_ms_max, |mut calls| async move {
                calls.list_arrivals(v1::ListArrivalsRequest { after }).await
            });
            Ok(answer.await?.into_inner().try_into()?)
        })
    }

    fn content(&self, sender: Option<Address>) -> Pending<Content> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let wait = Duration::from_millis(shared.config.content_ms_max);
            let content = timeout(wait, shared.content(sender)).await;
            content.unwrap_or_else(|_| Err(unavailable("it did not answer in time")))
        })
    }
}
