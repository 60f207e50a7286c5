//! Connections as a server accepts them: at once, or after a handshake that identifies the caller.
//! Handshakes are bounded in time and number, and none waits for another. The number of
//! connections, and the time one may send or take nothing, is bounded too ([`Connections`]).
//!
//! If the process has no descriptor left, the listener pauses, logs it, and closes a connection
//! that has sent nothing. Otherwise the server's loop would retry at once, for ever.

use crate::{
    connections::{Connections, ListenerLimits},
    direct::DirectServer,
    handshake::{Refusal, accept_tls},
    listener::{Accept, Listener},
    log_once::LogOnce,
    log_rate_limit::LogRateLimit,
    metrics as names,
    socket::{Caller, Socket, Wire},
    stream::ByteStream,
    tls::Tls,
};
use futures_util::Stream;
use metrics::counter;
use rustls::ServerConfig;
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::{Interval, MissedTickBehavior, Sleep, interval, sleep, timeout},
};
use tracing::{debug, warn};

/// Longest time that a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes at a time. If there is one more, the oldest is aborted: an honest one takes
/// milliseconds.
const HANDSHAKES_MAX: usize = 128;
/// Interval at which connections are checked.
const SWEEP: Duration = Duration::from_millis(500);
/// First backoff after the operating system could not give a connection, doubled each time.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Accepted connection.
pub type Accepted = Socket<Wire<ByteStream>>;

/// Usable connections of a listener.
pub struct Incoming<A = Listener> {
    listener: A,
    tls: Option<Arc<Tls>>,
    direct: Option<Arc<DirectServer>>,
    connections: Arc<Connections>,
    sweeps: Interval,
    backoff: AcceptBackoff,
    handshakes: JoinSet<Option<Accepted>>,
    /// Handshakes that may not be over, in the order in which they began.
    under_way: VecDeque<AbortHandle>,
    logged: Arc<LogOnce<IpAddr>>,
}

impl<A: Accept> Incoming<A> {
    /// Makes the stream of this listener's connections to this service; plain without TLS. Must be
    /// called within a runtime.
    pub fn new(
        listener: A,
        service: &'static str,
        limits: ListenerLimits,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        names::describe_server();
        let mut sweeps = interval(SWEEP);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            listener,
            tls,
            direct: None,
            connections: Connections::new(service, limits),
            sweeps,
            backoff: AcceptBackoff::default(),
            handshakes: JoinSet::new(),
            under_way: VecDeque::new(),
            logged: Arc::default(),
        }
    }

    /// Passes connections for direct calls to this server; without one they are closed.
    #[must_use]
    pub fn with_direct(self, direct: Option<Arc<DirectServer>>) -> Self {
        Self { direct, ..self }
    }

    /// Returns the next connection of the listener, after a wait if none could be accepted.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<(ByteStream, SocketAddr)> {
        loop {
            ready!(self.backoff.poll(cx));
            match ready!(self.listener.poll_accept(cx)) {
                Ok(accepted) => {
                    self.backoff.reset();
                    return Poll::Ready(accepted);
                }
                Err(error) if is_client_error(&error) => {
                    debug!(%error, "a client went before its connection was taken");
                }
                Err(error) => {
                    counter!(names::ACCEPT_ERRORS).increment(1);
                    if let Some(kept_back) = self.backoff.log_limit.allow(Instant::now(), ()) {
                        warn!(%error, kept_back, "no connection can be taken; trying again");
                    }
                    self.connections.close_one_silent();
                    self.backoff.begin();
                }
            }
        }
    }

    fn begin(&mut self, stream: ByteStream, address: SocketAddr, config: Arc<ServerConfig>) {
        self.under_way.retain(|handshake| !handshake.is_finished());
        if self.under_way.len() >= HANDSHAKES_MAX
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.abort();
            counter!(names::REFUSED_CONNECTIONS, "reason" => "crowded").increment(1);
        }
        let (logged, connections) = (self.logged.clone(), self.connections.clone());
        let direct = self.direct.clone();
        let handshake = self.handshakes.spawn(async move {
            let accept = accept_tls(stream, address, config, &connections, direct.as_ref());
            let accepted = timeout(HANDSHAKE_MAX, accept).await;
            let refusal = match accepted.unwrap_or(Err(Refusal::Late)) {
                Ok(socket) => return socket,
                Err(refusal) => refusal,
            };
            counter!(names::REFUSED_CONNECTIONS, "reason" => refusal.name()).increment(1);
            // Keyed by host: each attempt has a port of its own.
            if logged.is_new(address.ip()) {
                warn!(peer = %address, reason = %refusal, "connection refused");
            } else {
                debug!(peer = %address, reason = %refusal, "connection refused");
            }
            None
        });
        self.under_way.push_back(handshake);
    }
}

impl<A: Accept> Stream for Incoming<A> {
    type Item = io::Result<Accepted>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while this.sweeps.poll_tick(cx).is_ready() {
            this.connections.sweep(Instant::now());
        }
        loop {
            while let Poll::Ready(Some(done)) = this.handshakes.poll_join_next(cx) {
                if let Ok(Some(socket)) = done {
                    return Poll::Ready(Some(Ok(socket)));
                }
            }
            let (stream, address) = ready!(this.poll_accept(cx));
            match &this.tls {
                None => {
                    let Some(slot) = this.connections.admit(address) else { continue };
                    let caller = Caller::at(&slot, Arc::default());
                    let socket = Socket::served(Wire::Left(stream), caller, Some(slot));
                    return Poll::Ready(Some(Ok(socket)));
                }
                Some(tls) => {
                    let config = tls.server();
                    this.begin(stream, address, config);
                }
            }
        }
    }
}

/// Returns whether the client caused the error, so that the next connection may well be there.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Time in which no connection is accepted.
struct AcceptBackoff {
    until: Option<Pin<Box<Sleep>>>,
    next: Duration,
    log_limit: LogRateLimit<()>,
}

impl Default for AcceptBackoff {
    fn default() -> Self {
        Self { until: None, next: BACKOFF_MIN, log_limit: LogRateLimit::minutely() }
    }
}

impl AcceptBackoff {
    fn begin(&mut self) {
        self.until = Some(Box::pin(sleep(self.next)));
        self.next = (self.next * 2).min(BACKOFF_MAX);
    }

    fn reset(&mut self) {
        self.next = BACKOFF_MIN;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(until) = &mut self.until {
            ready!(until.as_mut().poll(cx));
            self.until = None;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests;
