use std::{io, path::PathBuf};

/// Why discovery does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be bound, or a thread not be started.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The file of the node key does not hold 64 hex digits of a valid key.
    #[error("{0} does not hold a node key")]
    NodeKey(PathBuf),
    /// A bootnode is neither a node URL nor a record with an endpoint.
    #[error("bootnode {0:?} is neither enode:// nor enr: with an address")]
    Bootnode(String),
    /// The URL of a node list is none.
    #[error("node list {url:?}: {source}")]
    NodeList {
        /// What stood there.
        url: String,
        /// What is wrong with it.
        source: tandem_discv4::ListError,
    },
    /// discv5 is wanted of a build that does not have it.
    #[error("this build has no discv5: build with --features discv5")]
    NoDiscv5,
    /// The own record cannot be made.
    #[error(transparent)]
    Record(#[from] tandem_discv4::EnrError),
}

impl Error {
    /// Whether another process listens where discovery wants to.
    pub fn is_port_taken(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
