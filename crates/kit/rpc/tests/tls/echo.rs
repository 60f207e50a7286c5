//! A service that returns the bytes it gets, and a client of it.

use super::logs::PATIENCE;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread,
};
use tandem_rpc::{
    ClientConnection, ConnectionConfig, DirectCall, Host, Identity, Limits, Listener,
    ServerDescription,
};
use tokio::time::timeout;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
    transport::Channel,
};
use tower::ServiceExt;

#[derive(Clone)]
pub struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        ready(Ok(http::Response::new(request.into_body())))
    }
}

/// Allows `Write` to the executor, and `Read` to the worker too.
fn access(role: &str, service: &str, method: &str) -> bool {
    let roles: &[&str] = match (service, method) {
        ("test.Echo", "Write") => &["executor"],
        ("test.Echo", "Read") => &["executor", "multiproof-worker"],
        _ => &[],
    };
    roles.contains(&role)
}

/// Bytes to which a direct call has no answer.
pub const UNANSWERED: &[u8] = b"unanswered";
/// Bytes that are answered after a while.
pub const SLOW: &[u8] = b"slow";
/// Slow calls that have begun.
pub static SLOW_CALLS: AtomicUsize = AtomicUsize::new(0);

fn echo_directly(call: &DirectCall<'_>, answer: &mut Vec<u8>) -> bool {
    if call.request == SLOW {
        SLOW_CALLS.fetch_add(1, Relaxed);
        thread::sleep(2 * PATIENCE);
    }
    answer.extend_from_slice(call.context.unwrap_or_default().as_bytes());
    answer.extend_from_slice(&call.request);
    call.request != UNANSWERED
}

/// Service on a port of its own, until it is dropped.
pub struct Served {
    pub address: SocketAddr,
    _stop: DropGuard,
}

impl Served {
    pub async fn start(identity: Identity) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        Self::at(listener, identity)
    }

    pub fn at(listener: Listener, identity: Identity) -> Self {
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let followed = identity.clone();
        tokio::spawn(async move { followed.follow().await });
        let limits = Limits { calls_max: 16, stream_window: 1 << 20, connection_window: 1 << 20 };
        let host = Host {
            service: Echo,
            descriptors: &[],
            limits,
            identity,
            access,
            direct: Some(Arc::new(echo_directly)),
            ready: ready(()),
            ended: CancellationToken::new(),
        };
        tokio::spawn(host.serve(listener, stop.clone()));
        Self { address, _stop: stop.drop_guard() }
    }
}

pub const SERVER: ServerDescription = ServerDescription {
    role: "storage-writer",
    service: Echo::NAME,
    error_metadata: "test-error-bin",
    connections: "tandem_test_connections_total",
    lost: "tandem_test_connections_lost_total",
    stream_window: 1 << 20,
    direct_connections: 0,
};

/// Client that keeps a connection to the service until it is dropped.
pub struct Caller {
    pub connection: Arc<ClientConnection<Channel>>,
    _task: AbortOnDropHandle<()>,
}

impl Caller {
    pub fn start(address: SocketAddr, identity: &Identity) -> Self {
        Self::start_to(SERVER, address, identity)
    }

    pub fn start_to(server: ServerDescription, address: SocketAddr, identity: &Identity) -> Self {
        let scheme = if identity.is_proven() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let wait = PATIENCE.as_millis() as u64;
        let identity = identity.clone();
        let config = ConnectionConfig { connect_ms_max: wait, keep_alive_ms: wait, identity };
        let connection = Arc::new(ClientConnection::new(&url, server, &config).unwrap());
        let kept = connection.clone();
        let task = tokio::spawn(async move { kept.keep_serving().await });
        Self { connection, _task: AbortOnDropHandle::new(task) }
    }

    pub async fn connected(&self) -> Channel {
        timeout(PATIENCE, self.connection.newer_than(0)).await.expect("a connection").client
    }
}

/// Calls a method with these bytes. Returns the bytes of the answer, or the gRPC status and its
/// text.
pub async fn call(channel: &Channel, method: &str, bytes: Bytes) -> Result<Bytes, (u8, String)> {
    let body = Body::new(Full::new(bytes));
    let path = format!("/test.Echo/{method}");
    let request = http::Request::post(path).body(body).unwrap();
    let answer = channel.clone().oneshot(request).await.unwrap();
    if let Some(status) = Status::from_header_map(answer.headers()) {
        return Err((status.code() as u8, status.message().to_owned()));
    }
    Ok(answer.into_body().collect().await.unwrap().to_bytes())
}
