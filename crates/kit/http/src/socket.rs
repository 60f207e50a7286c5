//! Socket of a connection. It reports the bytes received and sent to the connection.

use crate::connection::Connection;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// Time for reading and dropping a caller's input after the last answer.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);

/// Maximum bytes of such input.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// Beginning of HTTP/2 (RFC 9113, 3.4). No HTTP/1 method begins like this.
const PREFACE_START: &[u8] = b"PRI";

/// Socket that reports to its connection.
pub(crate) struct Watched {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Whether the connection uses HTTP/2, known after the first bytes. Its frames between
    /// requests, such as pings, do not begin requests.
    is_http2: Option<bool>,
    linger: Option<Linger>,
}

struct Linger {
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        Self { stream, connection, is_http2: None, linger: None }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.stream)
    }

    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.connection.sent(*bytes);
        }
    }

    /// Reads the caller's remaining input, within bounds. Closing a socket with unread bytes resets
    /// the connection, and a caller that is still sending would not see the answer.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(linger) = &mut self.linger else { return Poll::Ready(()) };
        let mut space = [0; 16 << 10];
        loop {
            if linger.end.as_mut().poll(cx).is_ready() || linger.bytes > LINGER_BYTES_MAX {
                return Poll::Ready(());
            }
            let mut read = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => linger.bytes += read.filled().len(),
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(self.stream().poll_read(cx, buf));
        let came = &buf.filled()[before..];
        if !came.is_empty()
            && !*self.is_http2.get_or_insert_with(|| came.starts_with(PREFACE_START))
        {
            self.connection.received();
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write(cx, buf);
        self.count(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(self.stream().poll_shutdown(cx))?;
            if self.connection.lingers() {
                self.linger = Some(Linger { end: Box::pin(sleep(LINGER_TIME_MAX)), bytes: 0 });
            }
        }
        self.poll_linger(cx).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write_vectored(cx, bufs);
        self.count(&written);
        written
    }
}
