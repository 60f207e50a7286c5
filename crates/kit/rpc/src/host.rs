use crate::{
    connections::Terms,
    guard::{Access, Guarded},
    identity::Identity,
    incoming::Incoming,
    unread::Watched,
};
use std::{convert::Infallible, io, time::Duration};
use tokio::{net::TcpListener, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};
use tonic_health::ServingStatus;

/// How long a connection that does not end may hold up the end of the server.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);
/// HTTP/2 pings, so that what a host asked that vanished is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Bytes of an HTTP/2 frame: one for a blob, as each takes a system call and packets of its own.
pub(crate) const FRAME_BYTES: u32 = 128 << 10;
/// Bytes of a call's headers, decoded.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Calls that a client may have begun and reset before the server has looked at them.
const RESETS_MAX: usize = 20;

/// What one connection may ask at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Calls and streams.
    pub calls_max: u32,
    /// Bytes that may come on one stream before they are read, so that a large message need not
    /// wait for the window to open again.
    pub stream_window: u32,
    /// The same on all streams together.
    pub connection_window: u32,
}

/// A service as it is offered to other processes.
pub struct Host<S, R> {
    /// The server that was generated for it, with its limits on messages.
    pub service: S,
    /// Its `.proto` files as an encoded `FileDescriptorSet`, for those who ask by gRPC's
    /// reflection what there is to call.
    pub descriptors: &'static [u8],
    /// What one connection may ask.
    pub limits: Limits,
    /// As what it is offered. Where that is proven, callers must prove who they are.
    pub identity: Identity,
    /// Who may call what then.
    pub access: Access,
    /// Ends when the service can do its work. Until then its health is "not serving".
    pub ready: R,
    /// Cancelled when the server stops, for streams that would not end by themselves.
    pub ended: CancellationToken,
}

impl<S, R> Host<S, R>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Unpin + Send + 'static,
    R: Future<Output = ()>,
{
    /// Answers calls until `stop` is cancelled, then those under way for [`DRAIN_MAX`] at most.
    /// Beside the service it offers gRPC's health and reflection services.
    ///
    /// # Errors
    /// The listener's.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> io::Result<()> {
        let Self { service, descriptors, limits, identity, access, ready, ended } = self;
        let _ends_streams = ended.clone().drop_guard();
        let tls = identity.tls().cloned();
        // Health and reflection are for everybody who has a certificate.
        let service = Guarded::new(service, tls.is_some().then_some(access));
        let incoming = Incoming::new(listener, S::NAME, Terms::default(), tls);
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status(S::NAME, ServingStatus::NotServing).await;
        let reflection_service = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .build_v1()
            .map_err(io::Error::other)?;
        let reporting = async {
            ready.await;
            health.set_service_status(S::NAME, ServingStatus::Serving).await;
            std::future::pending::<()>().await;
        };
        let stopping = async {
            stop.cancelled().await;
            health.set_service_status(S::NAME, ServingStatus::NotServing).await;
            ended.cancel();
        };
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window)
            .max_frame_size(FRAME_BYTES)
            .max_concurrent_streams(limits.calls_max)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
            .add_service(Watched(health_service))
            .add_service(Watched(reflection_service))
            .add_service(Watched(service))
            .serve_with_incoming_shutdown(incoming, stopping);
        let overdue = async {
            stop.cancelled().await;
            sleep(DRAIN_MAX).await;
        };
        tokio::select! {
            result = server => result.map_err(io::Error::other),
            () = overdue => Ok(()),
            () = reporting => Ok(()),
        }
    }
}
