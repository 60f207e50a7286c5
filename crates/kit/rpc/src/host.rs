use crate::{
    connections::ListenerLimits,
    direct::{DirectCalls, DirectServer},
    guard::{Access, Guarded},
    identity::Identity,
    incoming::Incoming,
    listener::Listener,
    unread::UnreadWatch,
};
use std::{convert::Infallible, future::pending, io, sync::Arc, time::Duration};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};
use tonic_health::ServingStatus;

/// Longest time that an open connection may delay the end of the server.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings, so that calls of a vanished host are given up.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Bytes of an HTTP/2 frame. One frame holds a blob, as each frame takes a system call and packets
/// of its own.
pub(crate) const FRAME_BYTES: u32 = 128 << 10;
/// Largest size of a call's headers, decoded, in bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Number of calls that a client may begin and reset before the server has looked at them.
const RESETS_MAX: usize = 20;

/// Limits of one connection at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of calls and streams.
    pub calls_max: u32,
    /// Bytes that may arrive on one stream before they are read. A large message then need not wait
    /// for the window to reopen.
    pub stream_window: u32,
    /// Bytes that may arrive on all streams together before they are read.
    pub connection_window: u32,
}

/// Service as it is offered to other processes.
pub struct Host<S, R> {
    /// Generated server of the service, with its limits on messages.
    pub service: S,
    /// Its `.proto` files as an encoded `FileDescriptorSet`, for clients that list the methods by
    /// gRPC reflection.
    pub descriptors: &'static [u8],
    /// Limits of one connection.
    pub limits: Limits,
    /// Identity of the service. If it is proven, callers must prove theirs too.
    pub identity: Identity,
    /// Rule for the calls that each proven role may make.
    pub access: Access,
    /// Function that answers direct calls, if the service offers any. Only callers with a proven role
    /// get them.
    pub direct: Option<DirectCalls>,
    /// Future that ends when the service can do its work. Until then its health is "not serving".
    pub ready: R,
    /// Token cancelled when the server stops, for streams that would not end by themselves.
    pub ended: CancellationToken,
}

/// Guard that closes the direct connections when the server ends.
struct EndsWithHost(Arc<DirectServer>);

impl Drop for EndsWithHost {
    fn drop(&mut self) {
        self.0.close();
    }
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
    /// Answers calls until `stop` is cancelled, then pending calls for at most [`DRAIN_MAX`].
    /// Beside the service it offers gRPC's health and reflection services.
    ///
    /// # Errors
    /// Error of the listener.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        self.serve_while(listener, stop, watch::channel(()).1, |_| true).await
    }

    /// Like [`Self::serve`], for a service that does its work in some states only. In the others its
    /// health is "not serving", and calls are answered nevertheless.
    ///
    /// # Errors
    /// Error of the listener.
    pub async fn serve_while<T>(
        self,
        listener: impl Into<Listener>,
        stop: CancellationToken,
        mut state: watch::Receiver<T>,
        serves: impl Fn(&T) -> bool,
    ) -> io::Result<()> {
        let Self { service, descriptors, limits, identity, access, direct, ready, ended } = self;
        let _ends_streams = ended.clone().drop_guard();
        let tls = identity.tls().cloned();
        // Health and reflection are open to every caller with a certificate.
        let service = Guarded::new(service, tls.is_some().then_some(access));
        let direct = direct.map(|calls| DirectServer::new(S::NAME, access, calls));
        let _ends_direct = direct.clone().map(EndsWithHost);
        let incoming = Incoming::new(listener.into(), S::NAME, ListenerLimits::default(), tls)
            .with_direct(direct);
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status(S::NAME, ServingStatus::NotServing).await;
        let reflection_service = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .build_v1()
            .map_err(io::Error::other)?;
        let reporting = async {
            ready.await;
            loop {
                let status = match serves(&state.borrow_and_update()) {
                    true => ServingStatus::Serving,
                    false => ServingStatus::NotServing,
                };
                health.set_service_status(S::NAME, status).await;
                if state.changed().await.is_err() {
                    // The state stays as it is.
                    pending::<()>().await;
                }
            }
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
            .add_service(UnreadWatch(health_service))
            .add_service(UnreadWatch(reflection_service))
            .add_service(UnreadWatch(service))
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
