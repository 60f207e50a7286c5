//! The table in another process, as discovery sees it.

use crate::metrics as names;
use metrics::counter;
use std::{sync::Arc, time::Duration};
use tandem_bus::{Bus, Subscription};
use tandem_primitives::B256;
use tandem_proto::{
    access::PEER_TABLE,
    convert::ERROR_METADATA,
    event::{Contact, PEERS_DISCOVERED, PEERS_TARGET, PeersDiscovered, PeersTarget},
    limits::{DISCOVERED_CONTACTS_MAX, PEERS_MESSAGE_BYTES_MAX},
    peer_table::{Error, PeerTableApi, Result, Stats},
    wire::peer_table::v1::{
        self, peer_table_client::PeerTableClient, peer_table_server::SERVICE_NAME,
    },
};
use tandem_rpc::{ClientConnection, ConnectionConfig, EndpointError, ServerDescription, traced};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming, transport::Channel};
use tracing::{debug, warn};

const SERVER: ServerDescription = ServerDescription {
    role: PEER_TABLE,
    service: SERVICE_NAME,
    error_metadata: ERROR_METADATA,
    connections: names::CONNECTIONS,
    lost: names::CONNECTIONS_LOST,
    stream_window: 1 << 20,
    direct_connections: 0,
};

/// Settings of a [`Client`]. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Settings of the connection.
    pub connection: ConnectionConfig,
    /// Longest wait for an answer.
    pub answer_ms_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { connection: ConnectionConfig::default(), answer_ms_max: 1_000 }
    }
}

/// Client of one peer-table, and bridge between its bus and that of this process.
/// Events on `peers.discovered` here are sent there. Changes of the target there are published on
/// `peers.target` here.
///
/// Calls block until the answer arrives (see [`ClientConfig`]). They must not be made in async
/// code, where they panic.
pub struct Client {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    config: ClientConfig,
    runtime: Handle,
    bus: Bus,
    connection: ClientConnection<PeerTableClient<Channel>>,
}

impl Client {
    /// Makes a client that serves `bus`. It connects in the background, on `runtime`, to an
    /// endpoint such as `http://10.0.0.7:9602`, or `https://…` if the identity is proven.
    ///
    /// # Errors
    /// [`EndpointError`]. An unreachable server is not an error: see [`PeerTableApi`].
    pub fn connect(
        endpoint: &str,
        config: ClientConfig,
        bus: Bus,
        runtime: &Handle,
    ) -> Result<Arc<Self>, EndpointError> {
        names::describe_metrics();
        let connection = ClientConnection::new(endpoint, SERVER, &config.connection)?;
        let discovered = bus.subscribe(PEERS_DISCOVERED);
        let shared = Arc::new(Shared { config, runtime: runtime.clone(), bus, connection });
        let kept = shared.clone();
        let task = runtime.spawn(async move {
            tokio::select! {
                () = kept.connection.keep_connected(open, |opened| live(&kept, opened)) => {}
                () = forward(&kept, discovered) => {}
            }
        });
        Ok(Arc::new(Self { shared, _task: AbortOnDropHandle::new(task) }))
    }

    /// Returns whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.shared.connection.is_connected()
    }

    /// Makes one call and waits for its answer.
    fn call<R>(&self, call: impl AsyncFnOnce(PeerTableClient<Channel>) -> Result<R>) -> Result<R> {
        let Some(live) = self.shared.connection.live() else {
            return Err(Error::Unavailable("no connection to peer-table".to_owned()));
        };
        let answer = async { timeout(self.shared.answer_wait(), call(live.client)).await };
        self.shared.runtime.block_on(answer).unwrap_or_else(|_| Err(late()))
    }
}

fn late() -> Error {
    Error::Unavailable("peer-table did not answer in time".to_owned())
}

impl Shared {
    fn answer_wait(&self) -> Duration {
        Duration::from_millis(self.config.answer_ms_max)
    }
}

/// Connection, with the stream that watches the target over it.
type Opened = (PeerTableClient<Channel>, Streaming<v1::WatchTargetResponse>);

async fn open(channel: Channel) -> Result<Opened, Status> {
    let mut calls = PeerTableClient::new(channel)
        .max_decoding_message_size(PEERS_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(PEERS_MESSAGE_BYTES_MAX);
    let target = calls.watch_target(v1::WatchTargetRequest {}).await?.into_inner();
    Ok((calls, target))
}

/// Runs one connection until it ends, and returns the reason.
async fn live(shared: &Shared, (calls, mut target): Opened) -> Status {
    let _live = shared.connection.set_live(calls);
    loop {
        match target.message().await {
            Ok(Some(message)) => match PeersTarget::try_from(message) {
                Ok(target) => shared.bus.publish(PEERS_TARGET, target.encode()),
                Err(error) => return Status::data_loss(error.to_string()),
            },
            Ok(None) => return Status::unavailable("peer-table ended the stream"),
            Err(status) => return status,
        }
    }
}

/// Forwards published events, one message after the other; waiting events share a message. A batch
/// is lost if its connection is lost: sent again, its failures might count twice.
async fn forward(shared: &Shared, mut discovered: Subscription) {
    let mut next_batch = None;
    loop {
        let mut contacts = match next_batch.take() {
            Some(contacts) => contacts,
            None => match discovered.next().await {
                Some(payload) => decode(&payload),
                None => return,
            },
        };
        let mut calls = shared.connection.newer_than(0).await.client;
        while let Some(payload) = discovered.try_next() {
            let mut more = decode(&payload);
            if contacts.len() + more.len() > DISCOVERED_CONTACTS_MAX {
                next_batch = Some(more);
                break;
            }
            contacts.append(&mut more);
        }
        if contacts.is_empty() {
            continue;
        }
        let sent =
            timeout(shared.answer_wait(), calls.apply_batch(v1::ApplyBatchRequest::from(contacts)))
                .await;
        if let Err(error) = sent.map_or_else(|_| Err(late()), |sent| sent.map_err(Error::from)) {
            counter!(names::LOST_BATCHES).increment(1);
            debug!(%error, "peer-table did not take a batch");
        }
    }
}

fn decode(payload: &[u8]) -> Vec<Contact> {
    let Some(event) = PeersDiscovered::decode(payload) else {
        counter!(names::LOST_BATCHES).increment(1);
        warn!(bytes = payload.len(), "malformed event of discovered peers");
        return Vec::new();
    };
    event.contacts
}

impl PeerTableApi for Client {
    fn apply_batch(&self, contacts: Vec<Contact>) -> Result<()> {
        self.call(async |mut calls| {
            calls.apply_batch(traced(v1::ApplyBatchRequest::from(contacts))).await?;
            Ok(())
        })
    }

    fn sample_for_lookup(&self) -> Result<Option<Contact>> {
        self.call(async |mut calls| {
            let answer = calls.sample_for_lookup(traced(v1::SampleForLookupRequest {})).await?;
            Ok(answer.into_inner().try_into()?)
        })
    }

    fn sample_for_enr(&self) -> Result<Option<Contact>> {
        self.call(async |mut calls| {
            let answer = calls.sample_for_enr(traced(v1::SampleForEnrRequest {})).await?;
            Ok(answer.into_inner().try_into()?)
        })
    }

    fn closest(&self, target: B256, count: usize) -> Result<Vec<Contact>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        self.call(async |mut calls| {
            let answer = calls.closest(traced(v1::ClosestRequest::from((target, count)))).await?;
            Ok(answer.into_inner().try_into()?)
        })
    }

    fn stats(&self) -> Result<Stats> {
        self.call(async |mut calls| {
            Ok(calls.get_stats(traced(v1::GetStatsRequest {})).await?.into_inner().into())
        })
    }

    fn set_connected(&self, count: u32) -> Result<()> {
        self.call(async |mut calls| {
            calls.set_connected(traced(v1::SetConnectedRequest::from(count))).await?;
            Ok(())
        })
    }
}
