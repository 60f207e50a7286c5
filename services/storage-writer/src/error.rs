use crate::{Loss, config::DATABASE_FOLDER};
use std::path::{Path, PathBuf};
use tandem_primitives::{B256, BlockId};
use tandem_proto::storage;

/// Why storage-writer cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database.
    #[error(transparent)]
    Store(#[from] tandem_store::Error),
    /// A trie node in the database is wrong or missing.
    #[error("trie: {0}")]
    Trie(#[from] tandem_trie::Error),
    /// A record that must be there is not.
    #[error("the database has no {what}")]
    Absent {
        /// Which.
        what: String,
    },
    /// A record that is there cannot be.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The state that a block leaves is not the one in its header.
    #[error("block {block} leaves the state root {got}, its header says {want}")]
    StateRoot {
        /// The block.
        block: BlockId,
        /// The root computed.
        got: B256,
        /// The root in the header.
        want: B256,
    },
    /// Acknowledged blocks are gone that must be there.
    #[error(
        "the database in {path} has lost blocks: {loss}. Restore a backup of the folder, or start \
         once with --accept-lost-blocks and let the consensus client send the blocks from {first} on \
         again",
        path = path.display(), first = loss.head.number + 1
    )]
    LostBlocks {
        /// Where.
        path: PathBuf,
        /// What is lost.
        loss: Box<Loss>,
    },
    /// The genesis file is no genesis.
    #[error("genesis: {0}")]
    Genesis(String),
    /// The data directory was made from another genesis.
    #[error("{datadir} holds another chain, with genesis block {have}: {reason}")]
    OtherGenesis {
        /// The data directory.
        datadir: PathBuf,
        /// Hash of the genesis block it has.
        have: B256,
        /// What differs.
        reason: &'static str,
    },
    /// The file system.
    #[error("{context} {path}: {source}", path = path.display())]
    Io {
        /// What was being done.
        context: &'static str,
        /// To what.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether there is a whole database, but another process has it open. One that is still being
    /// made ([`crate::init`]) is none yet.
    pub fn is_in_use(&self) -> bool {
        let whole = |path: &Path| path.ends_with(DATABASE_FOLDER);
        matches!(self, Self::Store(tandem_store::Error::Locked(path)) if whole(path))
    }

    /// Whether it says that what is stored is wrong, rather than that it could not be looked at.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Trie(_) | Self::Absent { .. } | Self::Damaged(_) | Self::StateRoot { .. } => true,
            Self::Store(error) => error.is_damage(),
            Self::LostBlocks { .. } => true,
            Self::Genesis(_) | Self::OtherGenesis { .. } | Self::Io { .. } => false,
        }
    }

    pub(crate) fn absent(what: impl Into<String>) -> Self {
        Self::Absent { what: what.into() }
    }
}

impl From<tandem_trie::ApplyError<Error>> for Error {
    fn from(error: tandem_trie::ApplyError<Error>) -> Self {
        match error {
            tandem_trie::ApplyError::Trie(error) => Self::Trie(error),
            tandem_trie::ApplyError::Source(error) => error,
        }
    }
}

/// The only place where errors of the inside become answers to callers.
impl From<Error> for storage::Error {
    fn from(error: Error) -> Self {
        Self::Store(error.to_string())
    }
}
