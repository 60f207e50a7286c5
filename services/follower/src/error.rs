use tandem_primitives::BlockId;
use tandem_proto::storage;

/// Reason why the follower does not follow a leader now.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The leader is out of reach, or has no place. It may be asked again.
    #[error("the leader is lost: {0}")]
    Lost(storage::Error),
    /// The leader sent what cannot be true. It is not asked again.
    #[error("refused: {0}")]
    Refused(String),
    /// The leader no longer has the changes after the head, and there is a state already.
    #[error(
        "block {at} is too far behind: the leader's feed goes back to block {oldest}, so a new copy is \
         needed"
    )]
    TooFarBehind {
        /// Head of the follower.
        at: u64,
        /// Oldest block after which the feed continues.
        oldest: u64,
    },
    /// The database of the follower failed.
    #[error("the follower's database: {0}")]
    Own(storage::Error),
    /// The follower is told to end.
    #[error("the follower is stopping")]
    Stopping,
}

impl Error {
    /// Refuses a block.
    pub(crate) fn block(block: BlockId, what: impl std::fmt::Display) -> Self {
        Self::Refused(format!("block {block}: {what}"))
    }

    /// Returns the error of a leader that is left because its lead is over.
    pub(crate) fn left() -> Self {
        Self::Lost(storage::Error::Unavailable("its lead is over".to_owned()))
    }

    /// Sorts the error of a write of what a leader sent.
    pub(crate) fn of_own_write(error: storage::Error) -> Self {
        match error {
            storage::Error::Refused(text) => Self::Refused(text),
            error => Self::Own(error),
        }
    }

    /// Sorts the error of a call to the leader.
    pub(crate) fn of_leader(error: storage::Error) -> Self {
        match error {
            storage::Error::TooFarBehind { at, oldest } => Self::TooFarBehind { at, oldest },
            // The leader refuses this follower, or its messages make no sense.
            storage::Error::Refused(text) => Self::Refused(text),
            error => Self::Lost(error),
        }
    }
}
