//! The pool as a gRPC service.

use super::SyncNote;
use std::{future::Future, io, pin::Pin, sync::Arc, time::Instant};
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::{
    access::permits,
    convert::ContentParts,
    limits::POOL_MESSAGE_BYTES_MAX,
    tx_pool::{BestQuery, TxPoolApi},
    wire::{
        DESCRIPTORS,
        tx_pool::v1::{
            self,
            tx_pool_server::{self as generated, TxPoolServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits, Listener};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Limits of a connection. A transaction with blobs takes up to 8.5 MiB, most take a few hundred
/// bytes.
const LIMITS: Limits =
    Limits { calls_max: 1024, stream_window: 256 << 10, connection_window: 4 << 20 };

/// Server that offers a [`TxPoolApi`] to clients in other processes.
pub struct Server {
    api: Arc<dyn TxPoolApi>,
    sync: Arc<SyncNote>,
    identity: Identity,
}

impl Server {
    /// Makes a server of this pool. What callers say of the head goes to `sync`.
    pub fn new(api: Arc<dyn TxPoolApi>, sync: Arc<SyncNote>) -> Self {
        Self { api, sync, identity: Identity::default() }
    }

    /// Sets the identity of the server. If it is proven, callers must prove theirs too.
    #[must_use]
    pub fn offered_as(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    /// Answers calls until `stop` is cancelled. Its health is "not serving" until `ready` ends.
    ///
    /// # Errors
    /// Error of the listener.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        ready: impl Future<Output = ()>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let Self { api, sync, identity } = self;
        let service = TxPoolServer::new(Service { api, sync })
            .max_decoding_message_size(POOL_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(POOL_MESSAGE_BYTES_MAX);
        let host = Host {
            service,
            descriptors: DESCRIPTORS,
            limits: LIMITS,
            identity,
            access: permits,
            direct: None,
            ready,
            ended: CancellationToken::new(),
        };
        host.serve(listener, stop).await
    }
}

#[derive(Clone)]
struct Service {
    api: Arc<dyn TxPoolApi>,
    sync: Arc<SyncNote>,
}

type Parts = Pin<Box<dyn Stream<Item = Result<v1::ListContentResponse, Status>> + Send>>;

#[tonic::async_trait]
impl generated::TxPool for Service {
    async fn add(
        &self,
        request: Request<v1::AddRequest>,
    ) -> Result<Response<v1::AddResponse>, Status> {
        let raw = Vec::<Bytes>::try_from(request.into_inner())?;
        Ok(Response::new(self.api.add(raw).await.into()))
    }

    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        let hash = B256::try_from(request.into_inner())?;
        Ok(Response::new(self.api.get(hash).await?.into()))
    }

    async fn get_next_nonce(
        &self,
        request: Request<v1::GetNextNonceRequest>,
    ) -> Result<Response<v1::GetNextNonceResponse>, Status> {
        let sender = Address::try_from(request.into_inner())?;
        let nonce = self.api.next_nonce(sender).await?;
        Ok(Response::new(v1::GetNextNonceResponse { nonce }))
    }

    async fn get_counts(
        &self,
        _request: Request<v1::GetCountsRequest>,
    ) -> Result<Response<v1::GetCountsResponse>, Status> {
        Ok(Response::new(self.api.counts().await?.into()))
    }

    async fn list_best(
        &self,
        request: Request<v1::ListBestRequest>,
    ) -> Result<Response<v1::ListBestResponse>, Status> {
        let query = BestQuery::try_from(request.into_inner())?;
        Ok(Response::new(self.api.best(query).await?.into()))
    }

    async fn list_arrivals(
        &self,
        request: Request<v1::ListArrivalsRequest>,
    ) -> Result<Response<v1::ListArrivalsResponse>, Status> {
        let after = request.into_inner().after;
        Ok(Response::new(self.api.arrivals(after).await?.into()))
    }

    type ListContentStream = Parts;

    async fn list_content(
        &self,
        request: Request<v1::ListContentRequest>,
    ) -> Result<Response<Parts>, Status> {
        let sender = Option::<Address>::try_from(request.into_inner())?;
        let parts = ContentParts::from(self.api.content(sender).await?);
        Ok(Response::new(Box::pin(tokio_stream::iter(parts).map(Ok))))
    }

    async fn note_sync(
        &self,
        request: Request<v1::NoteSyncRequest>,
    ) -> Result<Response<v1::NoteSyncResponse>, Status> {
        self.sync.set(Instant::now(), request.into_inner().syncing);
        Ok(Response::new(v1::NoteSyncResponse {}))
    }
}
