use crate::stream::{ByteStream, name_beside};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    task::{Context, Poll},
};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either;
use tracing::warn;

/// Listener of a gRPC server: a TCP port, and if it is reached over loopback, a Unix socket beside it
/// for clients of the same machine.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    unix: Option<UnixListener>,
    /// Socket that is asked first; they take turns, so that neither starves.
    unix_first: bool,
}

impl Listener {
    /// Binds the port, and the Unix socket beside it. Without the latter, clients use TCP.
    ///
    /// # Errors
    /// When the port cannot be bound.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind(address).await?;
        let unix = tcp.local_addr().ok().and_then(name_beside).and_then(|name| {
            UnixListener::bind(name)
                .inspect_err(|error| warn!(%address, %error, "no Unix socket beside the port"))
                .ok()
        });
        Ok(Self { tcp, unix, unix_first: false })
    }

    /// Returns the address of the port.
    ///
    /// # Errors
    /// Error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    fn poll_tcp(&self, cx: &mut Context<'_>) -> Poll<io::Result<(ByteStream, SocketAddr)>> {
        self.tcp.poll_accept(cx).map_ok(|(stream, address)| {
            // An error means that the connection is gone already.
            let _ = stream.set_nodelay(true);
            (Either::Left(stream), address)
        })
    }

    /// A client over the Unix socket has the address of loopback, and no port.
    fn poll_unix(&self, cx: &mut Context<'_>) -> Poll<io::Result<(ByteStream, SocketAddr)>> {
        let Some(unix) = &self.unix else { return Poll::Pending };
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        unix.poll_accept(cx).map_ok(|(stream, _)| (Either::Right(stream), address))
    }
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self { tcp, unix: None, unix_first: false }
    }
}

/// Source of new connections: the operating system, or a test.
pub trait Accept: Unpin {
    /// Returns the next connection with its client's address.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(ByteStream, SocketAddr)>>;
}

impl Accept for Listener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(ByteStream, SocketAddr)>> {
        self.unix_first = !self.unix_first;
        let first = if self.unix_first { self.poll_unix(cx) } else { self.poll_tcp(cx) };
        match first {
            Poll::Pending if self.unix_first => self.poll_tcp(cx),
            Poll::Pending => self.poll_unix(cx),
            ready => ready,
        }
    }
}
