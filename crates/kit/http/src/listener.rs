//! Listening socket: accepts, watches and ends connections.

use crate::connection::{Connection, End, Running};
use crate::limits::ConnectionLimits;
use crate::metrics::describe_metrics;
use crate::refusals::{Reason, Refusals};
use crate::socket::Watched;
use crate::table::{Seat, Table};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::debug;

/// First pause after a failure to accept connections, for example for lack of file descriptors.
/// Doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Number of evicted connections that have not ended yet, in addition to the open ones.
const ENDING_MAX: usize = 64;

/// Serves until `shutdown` is cancelled, then lets the running requests finish, within 10 s.
///
/// # Errors
/// None: a failing connection only ends itself.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    serve_within(listener, router, ConnectionLimits::default(), shutdown).await
}

/// Serves like [`serve`], with a shutdown in two steps. Once `leaving` is cancelled, open
/// connections end, idle ones at once. New connections are accepted until `shutdown`.
///
/// # Errors
/// Same as [`serve`].
pub async fn serve_lingering(
    listener: TcpListener,
    router: Router,
    leaving: CancellationToken,
    shutdown: CancellationToken,
) -> io::Result<()> {
    run(listener, router, ConnectionLimits::default(), leaving, shutdown).await
}

/// Serves like [`serve`], within these limits.
///
/// # Errors
/// Same as [`serve`].
pub async fn serve_within(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    run(listener, router, limits, CancellationToken::new(), shutdown).await
}

async fn run(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    leaving: CancellationToken,
    shutdown: CancellationToken,
) -> io::Result<()> {
    describe_metrics();
    let port = listener.local_addr().map_or_else(|_| "closed".to_owned(), |it| it.to_string());
    let mut server = Server {
        table: Table::new(limits.clone()),
        limits,
        refusals: Arc::new(Refusals::new(port)),
        router,
        connections: JoinSet::new(),
        pause: PAUSE_MIN,
        leaving,
        shutdown: shutdown.clone(),
    };
    shutdown.run_until_cancelled(server.accept(&listener)).await;
    drop(listener);
    let connections = &mut server.connections;
    let ended = async { while connections.join_next().await.is_some() {} };
    // Dropping the set gives up the remaining connections.
    let _ = timeout(server.limits.shutdown_time_max, ended).await;
    Ok(())
}

struct Server {
    table: Arc<Table>,
    limits: ConnectionLimits,
    refusals: Arc<Refusals>,
    router: Router,
    connections: JoinSet<()>,
    pause: Duration,
    leaving: CancellationToken,
    shutdown: CancellationToken,
}

impl Server {
    /// Accepts connections forever.
    async fn accept(&mut self, listener: &TcpListener) {
        loop {
            while self.connections.try_join_next().is_some() {}
            // Evicted connections end as soon as they are polled.
            if self.connections.len() >= self.limits.connections_max + ENDING_MAX {
                self.connections.join_next().await;
                continue;
            }
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = self.connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, address)) => {
                    self.pause = PAUSE_MIN;
                    self.begin(stream, address);
                }
                Err(error) if is_of_one_connection(&error) => debug!(%error, "connection lost"),
                Err(error) => {
                    let freed = self.table.evict_stranger();
                    let text = format!(
                        "accept: {error}; made room by closing an idle connection: {freed}"
                    );
                    self.refusals.count(Reason::Accept, text);
                    sleep(self.pause).await;
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr) {
        let Some(seat) = self.table.admit(address.ip(), &self.refusals) else { return };
        // Answers are one small write: waiting for more to send would cost up to 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "could not set TCP_NODELAY");
        }
        let served = serve_connection(
            Watched::new(stream, seat.connection.clone()),
            seat,
            self.router.clone(),
            (self.limits.streams_max, self.limits.look_every()),
            self.refusals.clone(),
            self.ending(),
        );
        self.connections.spawn(served);
    }
}

impl Server {
    /// Completes when a connection that begins now must end after its running answer.
    fn ending(&self) -> impl Future<Output = ()> + Send + use<> {
        let (leaving, shutdown) = (self.leaving.clone(), self.shutdown.clone());
        // A connection that begins after `leaving` is answered first.
        let lingers = leaving.is_cancelled();
        async move {
            tokio::select! {
                () = leaving.cancelled(), if !lingers => {}
                () = shutdown.cancelled() => {}
            }
        }
    }
}

/// Returns whether a failure to accept concerns one connection only.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionRefused | ConnectionAborted | ConnectionReset)
}

/// Serves one connection to its end, which a limit may bring early.
async fn serve_connection(
    socket: Watched,
    seat: Seat,
    router: Router,
    (streams_max, look_every): (u32, Duration),
    refusals: Arc<Refusals>,
    ending: impl Future<Output = ()> + Send,
) {
    let connection = &seat.connection;
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(streams_max);
    let known = connection.clone();
    let service = service_fn(move |request: Request<Incoming>| handle(&router, &known, request));
    let mut served = pin!(builder.serve_connection_with_upgrades(TokioIo::new(socket), service));
    let (mut evicted, mut closing) =
        (pin!(connection.evicted.notified()), pin!(connection.closing.notified()));
    let mut stopping = pin!(ending);
    let (mut is_closing, mut kept) = (false, None);
    let mut looks = interval(look_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            result = served.as_mut() => {
                if let Err(error) = result {
                    debug!(error, "connection ended");
                }
                return;
            }
            () = evicted.as_mut() => return,
            () = async { tokio::select! { () = closing.as_mut() => {} () = stopping.as_mut() => {} } },
                if !is_closing =>
            {
                is_closing = true;
                served.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => match connection.look(Instant::now(), &mut kept) {
                None => {}
                Some(End::Idle) => return,
                Some(End::Refused(reason)) => {
                    refusals.count(reason, format_args!("{} is too slow", connection.group()));
                    return;
                }
            },
        }
    }
}

/// Passes a request to the router, with the state of its connection.
fn handle(
    router: &Router,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    let running = Running::begin(connection);
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(connection.clone());
    let answer = router.clone().call(request);
    async move {
        let answer = answer.await;
        drop(running);
        answer
    }
}
