//! The bytes of a connection: plain or encrypted, counted where a client sends them.

use metrics::Counter;
use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;
use tonic::transport::server::Connected;

/// Who calls, as its certificate says. A server has it in the extensions of each request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// None without TLS.
    pub roles: Arc<[String]>,
    pub address: Option<IpAddr>,
}

/// A connection.
pub enum Socket<S> {
    Plain(S),
    /// With who is at the other end, for a server.
    Tls(Box<TlsStream<S>>, Caller),
}

impl Connected for Socket<TcpStream> {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        match self {
            Self::Plain(_) => Caller::default(),
            Self::Tls(_, caller) => caller.clone(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream, _) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream, _) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream, _) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream, _) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream, _) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream, _) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}

/// Counts what passes: one addition for each system call, on a handle that the connection holds.
pub struct Counted<S> {
    pub stream: S,
    pub sent: Counter,
    pub received: Counter,
}

impl<S> Counted<S> {
    fn written(&self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = result {
            self.sent.increment(*bytes as u64);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            this.received.increment(bytes as u64);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
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
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn all_bytes_are_counted_in_their_direction() {
        let (near, mut far) = duplex(64);
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut counted = Counted {
            stream: near,
            sent: Counter::from_arc(sent.clone()),
            received: Counter::from_arc(received.clone()),
        };
        let echo = tokio::spawn(async move {
            let mut bytes = [0; 100];
            far.read_exact(&mut bytes).await.unwrap();
            far.write_all(&bytes[..30]).await.unwrap();
        });
        // More than fits at once, and in pieces.
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
}
