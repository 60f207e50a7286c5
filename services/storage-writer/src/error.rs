use crate::{Loss, config::DATABASE_FOLDER};
use std::path::{Path, PathBuf};
use tandem_primitives::{B256, BlockId};
use tandem_proto::storage;

/// Reason why storage-writer cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] tandem_store::Error),
    /// A trie node in the database is wrong or missing.
    #[error("trie: {0}")]
    Trie(#[from] tandem_trie::Error),
    /// A required record is missing.
    #[error("the database has no {what}")]
    Absent {
        /// The missing record.
        what: String,
    },
    /// A stored record is invalid.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The block leads to a state root other than the one in its header.
    #[error("state root after block {block} is {computed}, its header has {header}")]
    StateRoot {
        /// The block.
        block: BlockId,
        /// The root in the header.
        header: B256,
        /// The computed root.
        computed: B256,
    },
    /// Acknowledged blocks are lost that must be present.
    #[error(
        "the database in {path} has lost blocks: {loss}. Restore a backup of the folder, or start \
         once with --accept-lost-blocks and let the consensus client send the blocks from {first} on \
         again",
        path = path.display(), first = loss.head.number + 1
    )]
    LostBlocks {
        /// Path of the database.
        path: PathBuf,
        /// The lost writes.
        loss: Box<Loss>,
    },
    /// The settings of the published feed are wrong.
    #[error("storage_writer.feed: {0}")]
    FeedConfig(String),
    /// The genesis file is invalid.
    #[error("genesis: {0}")]
    Genesis(String),
    /// The data directory was made from another genesis.
    #[error("{datadir} holds another chain, with genesis block {have}: {reason}")]
    OtherGenesis {
        /// The data directory.
        datadir: PathBuf,
        /// Hash of its genesis block.
        have: B256,
        /// The difference.
        reason: &'static str,
    },
    /// The data directory has the copy of a follower, which has no accounts of a genesis.
    #[error(
        "{datadir} holds a follower's copy of the chain with genesis block {have}, which no genesis \
         file made; start it with `tandem follower`, or choose another directory"
    )]
    IsCopy {
        /// The data directory.
        datadir: PathBuf,
        /// Hash of its genesis block.
        have: B256,
    },
    /// Another state was being loaded into the data directory.
    #[error(
        "{path} has part of another state ({have}): continue with the same options, or remove it",
        path = path.display()
    )]
    OtherLoad {
        /// Path of the unfinished database.
        path: PathBuf,
        /// Plan of that state.
        have: String,
    },
    /// The restore of a snapshot into the data directory has not ended.
    #[error(
        "{path} has part of a snapshot: finish with `tandem snapshot restore`, or remove that folder",
        path = path.display()
    )]
    HalfRestored {
        /// Folder of the restore.
        path: PathBuf,
    },
    /// The service stops.
    #[error("storage-writer stops")]
    Stopping,
    /// The file system failed.
    #[error("{context} {path}: {source}", path = path.display())]
    Io {
        /// The operation.
        context: &'static str,
        /// Its path.
        path: PathBuf,
        /// Its error.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns whether a complete database exists but another process has it open. A database that
    /// is still being created ([`crate::init`]) does not count.
    pub fn is_in_use(&self) -> bool {
        let whole = |path: &Path| path.ends_with(DATABASE_FOLDER);
        matches!(self, Self::Store(tandem_store::Error::Locked(path)) if whole(path))
    }

    /// Returns whether the error says that stored data is wrong, rather than that it could not be
    /// read.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Trie(_) | Self::Absent { .. } | Self::Damaged(_) | Self::StateRoot { .. } => true,
            Self::Store(error) => error.is_damage(),
            Self::LostBlocks { .. } => true,
            Self::FeedConfig(_)
            | Self::Genesis(_)
            | Self::OtherGenesis { .. }
            | Self::IsCopy { .. }
            | Self::OtherLoad { .. }
            | Self::HalfRestored { .. }
            | Self::Stopping
            | Self::Io { .. } => false,
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

/// The only place where internal errors become answers to callers.
impl From<Error> for storage::Error {
    fn from(error: Error) -> Self {
        Self::Store(error.to_string())
    }
}
