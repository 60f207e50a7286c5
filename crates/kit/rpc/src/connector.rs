//! Connecting as a client: bytes are counted, and encrypted if the client's identity is proven.

use crate::{
    direct::{self, CountedSocket, DirectStream},
    identity::Identity,
    metrics as names,
    socket::{Socket, Wire},
    stream::{ByteStream, connect_beside},
};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use metrics::{Counter, counter};
use rustls::pki_types::ServerName;
use std::{error::Error, io, sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tonic::transport::Uri;
use tower::ServiceExt;

/// Any error of the connection.
type BoxError = Box<dyn Error + Send + Sync>;

/// Byte stream in the form that tonic takes.
type Connected = TokioIo<Wire<Socket<ByteStream>>>;

/// Connector to one server.
#[derive(Clone, Debug)]
pub struct Connector {
    target: Uri,
    /// Role that the server must have.
    role: &'static str,
    identity: Identity,
    connect_max: Duration,
    tcp: HttpConnector,
}

impl Connector {
    /// Makes a connector to a server of this role. A connection may take `connect_max` in all.
    pub fn new(target: Uri, role: &'static str, identity: Identity, connect_max: Duration) -> Self {
        names::describe_client();
        let mut tcp = HttpConnector::new();
        // This connector need not handle `https`.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // The time is shared among the addresses if there are several.
        tcp.set_connect_timeout(Some(connect_max));
        Self { target, role, identity, connect_max, tcp }
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// No server answers, or it does not have the expected role.
    pub async fn connect(self) -> Result<Connected, BoxError> {
        timeout(self.connect_max, self.dial()).await?
    }

    /// Connects to the server for direct calls. Returns `None` where it has no Unix socket beside its
    /// port, or no identity is proven.
    ///
    /// # Errors
    /// The server offers no direct calls, or does not have the expected role.
    pub async fn connect_directly(self) -> io::Result<Option<DirectStream>> {
        timeout(self.connect_max, self.dial_directly()).await?
    }

    async fn dial_directly(self) -> io::Result<Option<DirectStream>> {
        let Some(tls) = self.identity.tls() else { return Ok(None) };
        let Some(socket) = connect_beside(&self.target).await else { return Ok(None) };
        let mut config = tls.client(self.role).map_err(io::Error::other)?;
        config.alpn_protocols = vec![direct::PROTOCOL.to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(self.server_name()?, socket).await?;
        let (socket, tls) = stream.into_inner();
        if tls.alpn_protocol() != Some(direct::PROTOCOL) {
            return Err(io::Error::other("the server offers no direct calls"));
        }
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        let (sent, received) = self.counters();
        Ok(Some(DirectStream::new(tls, CountedSocket::new(socket, sent, received))))
    }

    /// Returns the counters of bytes sent and received.
    fn counters(&self) -> (Counter, Counter) {
        let (here, there) = (self.identity.name(), self.role);
        let sent = counter!(names::BYTES, "from" => here, "to" => there);
        (sent, counter!(names::BYTES, "from" => there, "to" => here))
    }

    /// Returns a name for proxies that route by it; the role is what identifies the server.
    fn server_name(&self) -> io::Result<ServerName<'static>> {
        let host = self.target.host().unwrap_or(self.role).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned());
        name.or_else(|_| ServerName::try_from(self.role)).map_err(io::Error::other)
    }

    async fn dial(self) -> Result<Connected, BoxError> {
        let stream = match connect_beside(&self.target).await {
            Some(unix) => Either::Right(unix),
            None => Either::Left(self.tcp.clone().oneshot(self.target.clone()).await?.into_inner()),
        };
        let (sent, received) = self.counters();
        let stream = Socket::counted(stream, sent, received);
        let Some(tls) = self.identity.tls() else {
            return Ok(TokioIo::new(Wire::Left(stream)));
        };
        let connector = TlsConnector::from(Arc::new(tls.client(self.role)?));
        let stream =
            connector.connect(self.server_name()?, stream).await.map_err(explain_plaintext)?;
        Ok(TokioIo::new(Wire::Right(Box::new(stream.into()))))
    }
}

/// Explains the most likely meaning of an answer that is not TLS.
fn explain_plaintext(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => {
            io::Error::new(io::ErrorKind::InvalidData, "the server speaks no TLS")
        }
        _ => error,
    }
}
