//! Sessions as a gRPC service.

use super::exchange::{RemotePool, ToPool};
use futures_util::{StreamExt as _, stream::TakeUntil};
use std::{future::Future, io, sync::Arc};
use tandem_proto::{
    access::permits,
    limits::SESSIONS_MESSAGE_BYTES_MAX,
    peer_sessions::{Fetch, Misconduct, PeerId, PeerSessionsApi},
    wire::{
        DESCRIPTORS,
        peer_sessions::v1::{
            self,
            peer_sessions_server::{self as generated, PeerSessionsServer},
        },
    },
};
use tandem_rpc::{Host, Identity, Limits, Listener};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Request, Response, Status, Streaming};

/// Limits of a connection. Answers are large and requests small, so small windows do; tx-pool sends
/// transactions.
const LIMITS: Limits =
    Limits { calls_max: 64, stream_window: 256 << 10, connection_window: 1 << 20 };

/// Server that offers a [`PeerSessionsApi`] to clients in other processes.
pub struct Server {
    api: Arc<dyn PeerSessionsApi>,
    pool: Arc<RemotePool>,
    identity: Identity,
}

impl Server {
    /// Makes a server of these sessions.
    pub fn new(api: Arc<dyn PeerSessionsApi>) -> Self {
        Self { api, pool: Arc::default(), identity: Identity::default() }
    }

    /// Sets the pool with which the sessions exchange transactions. A tx-pool that calls is attached
    /// to it.
    #[must_use]
    pub fn exchanging(self, pool: Arc<RemotePool>) -> Self {
        Self { pool, ..self }
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
        let ended = CancellationToken::new();
        let service = Service { api: self.api, pool: self.pool, ended: ended.clone() };
        let service = PeerSessionsServer::new(service)
            .max_decoding_message_size(SESSIONS_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(SESSIONS_MESSAGE_BYTES_MAX);
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

#[derive(Clone)]
struct Service {
    api: Arc<dyn PeerSessionsApi>,
    pool: Arc<RemotePool>,
    /// Cancelled when the server stops.
    ended: CancellationToken,
}

#[tonic::async_trait]
impl generated::PeerSessions for Service {
    async fn list_sessions(
        &self,
        _request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        Ok(Response::new(self.api.sessions().await?.into()))
    }

    async fn fetch(
        &self,
        request: Request<v1::FetchRequest>,
    ) -> Result<Response<v1::FetchResponse>, Status> {
        let (peer, fetch) = <(PeerId, Fetch)>::try_from(request.into_inner())?;
        Ok(Response::new(self.api.fetch(peer, fetch).await?.into()))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportResponse>, Status> {
        let (peer, misconduct) = <(PeerId, Misconduct)>::try_from(request.into_inner())?;
        self.api.report(peer, misconduct).await?;
        Ok(Response::new(v1::ReportResponse {}))
    }

    type ExchangeTransactionsStream = TakeUntil<ToPool, WaitForCancellationFutureOwned>;

    async fn exchange_transactions(
        &self,
        request: Request<Streaming<v1::ExchangeTransactionsRequest>>,
    ) -> Result<Response<Self::ExchangeTransactionsStream>, Status> {
        let messages = self.pool.attach(request.into_inner());
        Ok(Response::new(messages.take_until(self.ended.clone().cancelled_owned())))
    }
}
