use std::{io, path::PathBuf};

/// Reason why discovery does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be bound, or a thread cannot be started.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed.
        what: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file of the node key does not hold 64 hex digits of a valid key.
    #[error("{0} does not hold a node key")]
    NodeKey(PathBuf),
    /// A bootnode is neither a node URL nor a record with an endpoint.
    #[error("bootnode {0:?} is neither enode:// nor enr: with an address")]
    Bootnode(String),
    /// The URL of a node list is invalid.
    #[error("node list {url:?}: {source}")]
    NodeList {
        /// Text given as the URL.
        url: String,
        /// Fault in it.
        source: tandem_discv4::ListError,
    },
    /// discv5 is requested of a build without it.
    #[error("this build has no discv5: build with --features discv5")]
    NoDiscv5,
    /// The own record cannot be made.
    #[error(transparent)]
    Record(#[from] tandem_discv4::EnrError),
}

impl Error {
    /// Returns whether another process listens on the address of discovery.
    pub fn is_port_taken(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
