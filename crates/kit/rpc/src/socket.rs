//! Byte stream of a connection, plain or encrypted. A client counts its bytes; a server reads them
//! in portions.

use crate::{
    connections::{Connection, ConnectionSlot},
    guard::Access,
    roles::format_roles,
};
use metrics::Counter;
use std::{
    fmt,
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;

/// Bytes that a server reads without a pause: some tens of microseconds of HTTP/2. With megabytes
/// in the socket, a connection would otherwise read for milliseconds and block the others on its
/// thread.
const READ_MAX: usize = 128 << 10;

/// Number of tasks after which a reactor that serves connections should check its timers and
/// sockets (`event_interval` of tokio's builder). A task here may read 128 KiB, so tokio's default
/// of 61 tasks would take milliseconds.
pub const EVENT_INTERVAL: u32 = 8;

/// Caller as its certificate identifies it. A server has it in the extensions of each request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Roles that its certificate names; none without TLS.
    pub roles: Arc<[String]>,
    /// Address of the caller.
    pub address: Option<IpAddr>,
    /// Connection of the caller.
    pub(crate) connection: Option<Arc<Connection>>,
}

impl Caller {
    /// Makes the caller at the other end of a connection, with the roles of its certificate.
    pub(crate) fn at(slot: &ConnectionSlot, roles: Arc<[String]>) -> Self {
        let connection = slot.connection().clone();
        Self { roles, address: Some(connection.address.ip()), connection: Some(connection) }
    }

    /// Returns whether one of the caller's roles may call a method of a service.
    pub(crate) fn may_call(&self, access: Access, service: &str, method: &str) -> bool {
        self.roles.iter().any(|role| access(role, service, method))
    }

    /// Returns a number that no other connection of the same listener has.
    pub fn connection(&self) -> Option<u64> {
        self.connection.as_ref().map(|connection| connection.id())
    }

    /// Returns how many pieces of answers, of at most 128 KiB, the caller has taken over this
    /// connection.
    pub fn taken(&self) -> u64 {
        self.connection.as_ref().map_or(0, |connection| connection.taken())
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.connection, self.address) {
            (Some(connection), _) => connection.address.fmt(f)?,
            (None, Some(address)) => address.fmt(f)?,
            (None, None) => f.write_str("an unknown address")?,
        }
        if self.roles.is_empty() { Ok(()) } else { write!(f, " ({})", format_roles(&self.roles)) }
    }
}

/// Plain or encrypted stream.
pub type Wire<S> = Either<S, Box<TlsStream<S>>>;

/// Socket of a connection. A client's socket is below the encryption, so its bytes are those on the
/// wire. A server's is above it.
pub struct Socket<S> {
    stream: S,
    /// Counter on a handle that the connection holds: one addition for each system call.
    sent: Counter,
    received: Counter,
    /// Bytes after which it returns pending and wakes its task at once.
    read_max: usize,
    /// Bytes read since it last had nothing to give.
    read: usize,
    caller: Caller,
    /// Slot of a server's connection among its others.
    slot: Option<ConnectionSlot>,
}

impl<S> Socket<S> {
    /// Makes a client's socket, whose bytes are counted.
    pub fn counted(stream: S, sent: Counter, received: Counter) -> Self {
        let (read_max, caller) = (usize::MAX, Caller::default());
        Self { stream, sent, received, read_max, read: 0, caller, slot: None }
    }

    /// Makes a server's socket of this caller. It yields its thread now and then.
    pub fn served(stream: S, caller: Caller, slot: Option<ConnectionSlot>) -> Self {
        let (sent, received) = (Counter::noop(), Counter::noop());
        Self { stream, sent, received, read_max: READ_MAX, read: 0, caller, slot }
    }

    fn written(&self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = result {
            self.sent.increment(*bytes as u64);
        }
        if let Some(slot) = &self.slot {
            slot.connection().record_write(result.is_pending());
        }
    }

    /// Ready once the server has given the connection up.
    fn poll_end(&self, cx: &Context<'_>) -> Poll<io::Error> {
        self.slot.as_ref().map_or(Poll::Pending, |slot| slot.connection().poll_end(cx))
    }
}

impl<S> Connected for Socket<S> {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = this.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        if this.read >= this.read_max {
            this.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            this.received.increment(bytes as u64);
            if let Some(slot) = &this.slot {
                slot.connection().record_received(bytes);
            }
        }
        this.read = if polled.is_pending() { 0 } else { this.read.saturating_add(bytes) };
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = this.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        let result = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(&result);
        result
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = this.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        let result = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.written(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        task::{Wake, Waker},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        net::{TcpListener, TcpStream},
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test]
    async fn all_bytes_are_counted_in_their_direction() {
        let (near, mut far) = duplex(64);
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let handles = [&sent, &received].map(|count| Counter::from_arc(count.clone()));
        let [to, from] = handles;
        let mut counted = Socket::counted(near, to, from);
        let echo = tokio::spawn(async move {
            let mut bytes = [0; 100];
            far.read_exact(&mut bytes).await.unwrap();
            far.write_all(&bytes[..30]).await.unwrap();
        });
        // This is more than fits at once, written in pieces.
        counted.write_all(&[1; 90]).await.unwrap();
        let mut rest = &[2; 10][..];
        while !rest.is_empty() {
            let written = counted.write_vectored(&[IoSlice::new(rest)]).await.unwrap();
            rest = &rest[written..];
        }
        let mut answer = [0; 30];
        counted.read_exact(&mut answer).await.unwrap();
        echo.await.unwrap();
        assert_eq!((sent.load(Relaxed), received.load(Relaxed)), (100, 30));
    }

    #[tokio::test]
    async fn a_reader_pauses_after_its_share_and_goes_on_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut paced = Socket::served(listener.accept().await.unwrap().0, Caller::default(), None);
        let sending = tokio::spawn(async move {
            far.write_all(&vec![7; 4 * READ_MAX]).await.unwrap();
        });
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let (mut bytes, mut buffer) = (0, vec![0; READ_MAX / 4]);
        let mut since_pause = 0;
        while bytes < 4 * READ_MAX {
            paced.stream.readable().await.unwrap();
            let mut read = ReadBuf::new(&mut buffer);
            let before = woken.0.load(Relaxed);
            // Each read is in a poll of its own, without the runtime's budget.
            let polled = poll_fn(|_| {
                let mut context = Context::from_waker(&waker);
                Poll::Ready(Pin::new(&mut paced).poll_read(&mut context, &mut read))
            });
            match polled.await {
                Poll::Ready(result) => {
                    result.unwrap();
                    assert!(read.filled().iter().all(|byte| *byte == 7));
                    bytes += read.filled().len();
                    since_pause += read.filled().len();
                    assert!(since_pause < READ_MAX + READ_MAX / 4);
                }
                Poll::Pending => {
                    let full = since_pause >= READ_MAX;
                    assert!(!full || woken.0.load(Relaxed) > before, "nobody would ask again");
                    since_pause = 0;
                }
            }
        }
        sending.await.unwrap();
    }
}
