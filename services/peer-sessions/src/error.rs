//! Reasons why a session does not come about, or ends.

use crate::chain::StatusError;
use std::io;
use tandem_rlpx::DisconnectReason;

/// Error of the service's start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address for inbound sessions cannot be bound.
    #[error("accept sessions on {address}: {error}")]
    Listen {
        /// Address of the configuration.
        address: std::net::SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A peer of the configuration is not a node URL.
    #[error("peer {url:?} of `{key}`: {error}; expected enode://PUBLIC_KEY@IP:PORT")]
    Peer {
        /// Key of the configuration.
        key: &'static str,
        /// Text given as the URL.
        url: String,
        /// Fault in it.
        error: tandem_discv4::UrlError,
    },
    /// A limit of the configuration is beyond what the service can have.
    #[error("`{key}` is {got}; expected at most {max}")]
    Limit {
        /// Key of the configuration.
        key: &'static str,
        /// Value in the configuration.
        got: usize,
        /// Largest value.
        max: usize,
    },
    /// The operating system cannot create a thread.
    #[error("start the threads of peer-sessions: {0}")]
    Threads(#[from] io::Error),
}

/// Reason why a session ends.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection failed or was closed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// The peer took too long.
    #[error("{0} took too long")]
    Timeout(&'static str),
    /// Bytes of the peer break the transport.
    #[error("{0}")]
    Transport(#[from] tandem_rlpx::Error),
    /// A message of the peer breaks the protocol.
    #[error("{0}")]
    Wire(#[from] tandem_eth_wire::Error),
    /// A message came out of turn.
    #[error("unexpected message: {0}")]
    Unexpected(&'static str),
    /// The peer's chain is another one.
    #[error("{0}")]
    Chain(#[from] StatusError),
    /// This node refuses or ends the session.
    #[error("ended here: {0}")]
    Local(DisconnectReason),
    /// The peer refuses or ends the session.
    #[error("ended by the peer: {0}")]
    Remote(DisconnectReason),
}

impl Error {
    /// Returns whether another process listens on the address for sessions.
    pub fn is_port_taken(&self) -> bool {
        matches!(self, Self::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
    }
}

impl SessionError {
    /// Returns whether the peer broke the protocol, which no honest peer does.
    pub(crate) fn is_breach(&self) -> bool {
        matches!(self, Self::Transport(_) | Self::Wire(_) | Self::Unexpected(_))
    }

    /// Returns what the peer is told, `None` if it cannot or need not be told.
    pub fn reason(&self) -> Option<DisconnectReason> {
        match self {
            Self::Io(_) | Self::Remote(_) => None,
            Self::Timeout(_) => Some(DisconnectReason::Timeout),
            Self::Transport(_) | Self::Wire(_) | Self::Unexpected(_) => {
                Some(DisconnectReason::Protocol)
            }
            Self::Chain(_) => Some(DisconnectReason::Subprotocol),
            Self::Local(reason) => Some(*reason),
        }
    }

    /// Returns the word that metrics have for it.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Io(_) => "connection",
            Self::Timeout(_) => "timeout",
            Self::Transport(_) => "transport",
            Self::Wire(_) | Self::Unexpected(_) => "protocol",
            Self::Chain(_) => "chain",
            Self::Local(_) => "local",
            Self::Remote(_) => "remote",
        }
    }
}
