//! The TLS handshake of a server, and its answer to a client that speaks no TLS.

use crate::{
    connections::Connections,
    direct::{self, DirectServer},
    incoming::Accepted,
    roles::{format_roles, roles_of},
    socket::{Caller, Socket, Wire},
    stream::{ByteStream, peek},
};
use rustls::ServerConfig;
use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

/// Longest time for telling a client without TLS that TLS is needed.
const REJECTION_MAX: Duration = Duration::from_secs(1);
/// First byte of TLS: a record of a handshake (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Reason why a connection was not accepted.
pub enum Refusal {
    /// It began with something other than TLS.
    Plaintext,
    /// It took too long.
    Late,
    /// It broke, or showed no certificate of the authority.
    Failed(io::Error),
}

impl Refusal {
    /// Returns its label in the metrics.
    pub fn name(&self) -> &'static str {
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

/// Returns the connection once it is encrypted. Returns `None` for a client that only checked
/// whether the port is open, if there is no room, and for a connection for direct calls.
pub async fn accept_tls(
    stream: ByteStream,
    address: SocketAddr,
    config: Arc<ServerConfig>,
    connections: &Arc<Connections>,
    direct_server: Option<&Arc<DirectServer>>,
) -> Result<Option<Accepted>, Refusal> {
    let Some(first) = peek(&stream).await? else { return Ok(None) };
    if first != HANDSHAKE_RECORD {
        // A client that does not read the answer only misses it.
        let _ = timeout(REJECTION_MAX, reject_plaintext(stream)).await;
        return Err(Refusal::Plaintext);
    }
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let roles = certificates.first().map(roles_of).unwrap_or_default();
    debug!(peer = %address, roles = format_roles(&roles), "caller known by its certificate");
    if stream.get_ref().1.alpn_protocol() == Some(direct::PROTOCOL) {
        let caller = Caller { roles: roles.into(), address: Some(address.ip()), connection: None };
        if let Some(server) = direct_server {
            server.take(stream, caller)?;
        }
        return Ok(None);
    }
    let Some(slot) = connections.admit(address) else { return Ok(None) };
    let caller = Caller::at(&slot, roles.into());
    Ok(Some(Socket::served(Wire::Right(Box::new(stream.into())), caller, Some(slot))))
}

/// Tells a client that speaks HTTP/2 without TLS why it is rejected, in HTTP/2 itself (RFC 9113):
/// empty settings, then GOAWAY with "inadequate security".
async fn reject_plaintext(mut stream: ByteStream) -> io::Result<()> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const TEXT: &[u8] = b"TLS with a certificate is needed here";
    const GOAWAY: [u8; 17] =
        [0, 0, 8 + TEXT.len() as u8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c];
    stream.write_all(&[&SETTINGS[..], &GOAWAY, TEXT].concat()).await?;
    stream.shutdown().await?;
    // Unread bytes would make the system reset the connection before the client has read this.
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
