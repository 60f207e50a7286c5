//! The listening socket with a bound on connections and on their silence.

use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tracing::debug;

/// Accepts while fewer than the allowed connections are open; further callers wait in the
/// operating system's queue.
pub(super) struct BoundedListener {
    listener: TcpListener,
    connections: Arc<Semaphore>,
    idle_time_max: Duration,
}

impl BoundedListener {
    pub(super) fn new(
        listener: TcpListener,
        connections_max: usize,
        idle_time_max: Duration,
    ) -> Self {
        let connections = Arc::new(Semaphore::new(connections_max));
        Self { listener, connections, idle_time_max }
    }
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = loop {
            // The semaphore is never closed.
            if let Ok(permit) = self.connections.clone().acquire_owned().await {
                break permit;
            }
        };
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Answers are one small write: waiting for more to send would cost up to 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "could not set TCP_NODELAY");
        }
        let idle = Box::pin(sleep(self.idle_time_max));
        (Connection { stream, idle, idle_time_max: self.idle_time_max, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing is read or written for too long.
pub(super) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    idle_time_max: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.stream)
    }

    fn touch(&mut self) {
        let deadline = Instant::now() + self.idle_time_max;
        self.idle.as_mut().reset(deadline);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = self.stream().poll_read(cx, buf) {
            self.touch();
            return Poll::Ready(result);
        }
        ready!(self.idle.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.stream().poll_write(cx, buf));
        self.touch();
        Poll::Ready(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.stream().poll_write_vectored(cx, bufs));
        self.touch();
        Poll::Ready(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    #[tokio::test]
    async fn further_connections_wait_and_silent_ones_end() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut listener = BoundedListener::new(socket, 1, Duration::from_millis(50));
        let mut first = TcpStream::connect(address).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();

        let (mut connection, _) = listener.accept().await;
        let blocked = timeout(Duration::from_millis(10), listener.accept()).await;
        assert!(blocked.is_err());
        first.write_all(b"x").await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'x');
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(connection);
        listener.accept().await;
    }
}
