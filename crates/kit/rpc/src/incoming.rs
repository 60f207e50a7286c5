//! Connections as a server takes them: at once, or after a handshake that shows who calls. Handshakes
//! are bounded in time and number, and nobody waits for another's.

use crate::{
    metrics as names,
    roles::{list, roles_of},
    socket::{Caller, Socket, Wire},
    tls::Tls,
    told::Told,
};
use futures_util::Stream;
use metrics::counter;
use rustls::ServerConfig;
use std::{
    collections::VecDeque,
    fmt, io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Longest time that a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes at a time. When there is one more, the oldest is given up: an honest one takes
/// milliseconds.
const HANDSHAKES_MAX: usize = 128;
/// How long a client without TLS may take to hear that it is needed.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// The first byte of TLS: a record of a handshake (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// A connection that was taken.
type Accepted = Socket<Wire<TcpStream>>;

/// The connections of a listener, from when they can be used.
pub struct Incoming {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    handshakes: JoinSet<Option<Accepted>>,
    /// Those that may not be over, in the order in which they began.
    under_way: VecDeque<AbortHandle>,
    told: Arc<Told<IpAddr>>,
}

impl Incoming {
    /// Those of this listener; plain without TLS.
    pub fn new(listener: TcpListener, tls: Option<Arc<Tls>>) -> Self {
        let (handshakes, under_way) = (JoinSet::new(), VecDeque::new());
        Self { listener, tls, handshakes, under_way, told: Arc::default() }
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr, config: Arc<ServerConfig>) {
        self.under_way.retain(|handshake| !handshake.is_finished());
        if self.under_way.len() >= HANDSHAKES_MAX
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.abort();
            counter!(names::REFUSED_CONNECTIONS, "reason" => "crowded").increment(1);
        }
        let told = self.told.clone();
        let handshake = self.handshakes.spawn(async move {
            let shaken = timeout(HANDSHAKE_MAX, shake(stream, address, config)).await;
            let refusal = match shaken.unwrap_or(Err(Refusal::Late)) {
                Ok(socket) => return socket,
                Err(refusal) => refusal,
            };
            counter!(names::REFUSED_CONNECTIONS, "reason" => refusal.name()).increment(1);
            // By host: each attempt has a port of its own.
            if told.is_new(address.ip()) {
                warn!(peer = %address, reason = %refusal, "connection refused");
            } else {
                debug!(peer = %address, reason = %refusal, "connection refused");
            }
            None
        });
        self.under_way.push_back(handshake);
    }
}

impl Stream for Incoming {
    type Item = io::Result<Accepted>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            while let Poll::Ready(Some(done)) = this.handshakes.poll_join_next(cx) {
                if let Ok(Some(socket)) = done {
                    return Poll::Ready(Some(Ok(socket)));
                }
            }
            let (stream, address) = match ready!(this.listener.poll_accept(cx)) {
                Ok(accepted) => accepted,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            // An error means that it is gone already.
            let _ = stream.set_nodelay(true);
            match &this.tls {
                None => {
                    let socket = Socket::served(Wire::Left(stream), Caller::default());
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

/// Why a connection was not taken.
enum Refusal {
    /// It began with something else than TLS.
    Plaintext,
    /// It took too long.
    Late,
    /// It broke, or showed no certificate of the authority.
    Failed(io::Error),
}

impl Refusal {
    fn name(&self) -> &'static str {
        match self {
            Self::Plaintext => "plaintext",
            Self::Late => "late",
            Self::Failed(_) => "refused",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plaintext => f.write_str("the client speaks no TLS"),
            Self::Late => f.write_str("the handshake took too long"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// `None` for somebody who only wanted to see whether the port is open.
async fn shake(
    stream: TcpStream,
    address: SocketAddr,
    config: Arc<ServerConfig>,
) -> Result<Option<Accepted>, Refusal> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Ok(None);
    }
    if first != [HANDSHAKE_RECORD] {
        // That it does not hear it is its own loss.
        let _ = timeout(FAREWELL_MAX, say_what_is_needed(stream)).await;
        return Err(Refusal::Plaintext);
    }
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let roles = certificates.first().map(roles_of).unwrap_or_default();
    debug!(peer = %address, roles = list(&roles), "caller known by its certificate");
    let caller = Caller { roles: roles.into(), address: Some(address.ip()) };
    Ok(Some(Socket::served(Wire::Right(Box::new(stream.into())), caller)))
}

/// Tells a client that speaks HTTP/2 without TLS why it is sent away, in its own language (RFC 9113):
/// empty settings, then GOAWAY with "inadequate security".
async fn say_what_is_needed(mut stream: TcpStream) -> io::Result<()> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const TEXT: &[u8] = b"TLS with a certificate is needed here";
    const GOAWAY: [u8; 17] =
        [0, 0, 8 + TEXT.len() as u8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c];
    stream.write_all(&[&SETTINGS[..], &GOAWAY, TEXT].concat()).await?;
    stream.shutdown().await?;
    // What it sent and nobody read would make the system reset the connection, before it has read
    // this.
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
