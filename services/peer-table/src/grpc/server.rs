//! The table as a gRPC service.

use crate::{PeerTable, actor::Message, metrics as names};
use metrics::gauge;
use std::{future::ready, io, pin::Pin, sync::Arc};
use tandem_bus::{Bus, Subscription};
use tandem_primitives::B256;
use tandem_proto::{
    access::permits,
    event::{Contact, PEERS_TARGET, PeersTarget},
    limits::PEERS_MESSAGE_BYTES_MAX,
    peer_table::{Error, PeerTableApi},
    wire::{
        DESCRIPTORS,
        peer_table::v1::{
            self,
            peer_table_server::{self as generated, PeerTableServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits, Listener};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tracing::{Instrument, Span, info_span};

/// Number of clients that may watch the target at a time. One discovery needs one; the others
/// belong to dying connections.
const WATCHERS_MAX: usize = 64;
const LIMITS: Limits = Limits { calls_max: 64, stream_window: 1 << 20, connection_window: 2 << 20 };

/// Server that offers a [`PeerTable`] to clients in other processes.
pub struct Server {
    service: Service,
    identity: Identity,
}

impl Server {
    /// Makes a server of this table. `bus` is the bus on which the table publishes `peers.target`.
    pub fn new(table: Arc<PeerTable>, bus: Bus) -> Self {
        names::describe_server();
        let watchers = Arc::new(Semaphore::new(WATCHERS_MAX));
        let stop = CancellationToken::new();
        let service = Service(Arc::new(Inner { table, bus, watchers, stop }));
        Self { service, identity: Identity::default() }
    }

    /// Sets the identity of the server. If it is proven, callers must prove theirs too.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled.
    ///
    /// # Errors
    /// Error of the listener.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let ended = self.service.0.stop.clone();
        let api = PeerTableServer::new(self.service)
            .max_decoding_message_size(PEERS_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(PEERS_MESSAGE_BYTES_MAX);
        let host = Host {
            service: api,
            descriptors: DESCRIPTORS,
            limits: LIMITS,
            identity: self.identity,
            access: permits,
            direct: None,
            // The snapshot was loaded before there was a table to offer.
            ready: ready(()),
            ended,
        };
        host.serve(listener, stop).await
    }
}

struct Inner {
    table: Arc<PeerTable>,
    bus: Bus,
    watchers: Arc<Semaphore>,
    /// Token that ends the streams.
    stop: CancellationToken,
}

/// Returns the span of a call, if its caller has one that continues here.
fn remote_span(metadata: &MetadataMap, method: &'static str) -> Span {
    tandem_rpc::remote_span(metadata, || {
        info_span!("peer_table_call", otel.kind = "server", rpc.method = method)
    })
}

#[derive(Clone)]
struct Service(Arc<Inner>);

type Answers = mpsc::Sender<Result<v1::WatchTargetResponse, Status>>;
type TargetStream = Pin<Box<dyn Stream<Item = Result<v1::WatchTargetResponse, Status>> + Send>>;

impl Service {
    /// Sends the completion of the target until the receiver is gone.
    async fn watch(&self, mut target: Subscription, answers: &Answers) -> Result<(), Error> {
        let mut next = Some(self.0.table.ask_async(Message::Target).await?);
        loop {
            if let Some(target) = next.take()
                && answers.send(Ok(target.into())).await.is_err()
            {
                return Ok(());
            }
            let payload = tokio::select! {
                payload = target.next() => payload,
                () = answers.closed() => return Ok(()),
                () = self.0.stop.cancelled() => None,
            };
            let Some(mut payload) = payload else {
                return Err(Error::Unavailable("peer-table is stopping".to_owned()));
            };
            // Only the last one counts.
            while let Some(later) = target.try_next() {
                payload = later;
            }
            next = PeersTarget::decode(&payload);
        }
    }
}

#[tonic::async_trait]
impl generated::PeerTable for Service {
    type WatchTargetStream = TargetStream;

    async fn apply_batch(
        &self,
        request: Request<v1::ApplyBatchRequest>,
    ) -> Result<Response<v1::ApplyBatchResponse>, Status> {
        let span = remote_span(request.metadata(), "ApplyBatch");
        let contacts = Vec::<Contact>::try_from(request.into_inner())?;
        span.in_scope(|| self.0.table.apply_batch(contacts))?;
        Ok(Response::new(v1::ApplyBatchResponse {}))
    }

    async fn sample_for_lookup(
        &self,
        request: Request<v1::SampleForLookupRequest>,
    ) -> Result<Response<v1::SampleForLookupResponse>, Status> {
        let span = remote_span(request.metadata(), "SampleForLookup");
        let sample = self.0.table.ask_async(Message::SampleForLookup).instrument(span);
        Ok(Response::new(sample.await?.into()))
    }

    async fn sample_for_enr(
        &self,
        request: Request<v1::SampleForEnrRequest>,
    ) -> Result<Response<v1::SampleForEnrResponse>, Status> {
        let span = remote_span(request.metadata(), "SampleForEnr");
        let sample = self.0.table.ask_async(Message::SampleForEnr).instrument(span);
        Ok(Response::new(sample.await?.into()))
    }

    async fn closest(
        &self,
        request: Request<v1::ClosestRequest>,
    ) -> Result<Response<v1::ClosestResponse>, Status> {
        let span = remote_span(request.metadata(), "Closest");
        let (target, count) = <(B256, usize)>::try_from(request.into_inner())?;
        let ask = |reply| Message::Closest(target, count, reply);
        Ok(Response::new(self.0.table.ask_async(ask).instrument(span).await?.into()))
    }

    async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Result<Response<v1::GetStatsResponse>, Status> {
        let span = remote_span(request.metadata(), "GetStats");
        Ok(Response::new(self.0.table.ask_async(Message::Stats).instrument(span).await?.into()))
    }

    async fn set_connected(
        &self,
        request: Request<v1::SetConnectedRequest>,
    ) -> Result<Response<v1::SetConnectedResponse>, Status> {
        let span = remote_span(request.metadata(), "SetConnected");
        span.in_scope(|| self.0.table.set_connected(request.into_inner().into()))?;
        Ok(Response::new(v1::SetConnectedResponse {}))
    }

    async fn watch_target(
        &self,
        _request: Request<v1::WatchTargetRequest>,
    ) -> Result<Response<TargetStream>, Status> {
        let permit = self.0.watchers.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many watch the target"))?;
        // The subscription begins before the table is asked, so nothing is missed.
        let target = self.0.bus.subscribe_here(PEERS_TARGET);
        let (answers, receiver) = mpsc::channel(1);
        let service = self.clone();
        tokio::spawn(async move {
            gauge!(names::WATCHERS).increment(1);
            if let Err(error) = service.watch(target, &answers).await {
                let _ = answers.try_send(Err(error.into()));
            }
            gauge!(names::WATCHERS).decrement(1);
            drop(permit);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
