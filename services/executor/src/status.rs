//! What the Engine API asks and answers, without its JSON.

use tandem_primitives::B256;

/// `PayloadStatusV1.status` (Engine API, paris.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Executed, its roots right, durable.
    Valid,
    /// Breaks a rule, or builds on a block that does.
    Invalid,
    /// Its parent is not known.
    Syncing,
    /// Well formed, its parent is known, but the state it builds on cannot be reached any more. It
    /// was not executed.
    Accepted,
    /// Its hash is not that of its header. V1 of the method alone has this answer; later versions
    /// say invalid.
    InvalidBlockHash,
}

impl Status {
    /// The name in the Engine API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "VALID",
            Self::Invalid => "INVALID",
            Self::Syncing => "SYNCING",
            Self::Accepted => "ACCEPTED",
            Self::InvalidBlockHash => "INVALID_BLOCK_HASH",
        }
    }
}

/// `PayloadStatusV1` (Engine API, paris.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PayloadStatus {
    /// The verdict.
    pub status: Status,
    /// The newest valid block on the payload's branch; `None` when it is not known.
    pub latest_valid_hash: Option<B256>,
    /// What is wrong: `kind: sentence`, the kind a constant name for programs
    /// ([`tandem_chain::BlockError::kind`]), the sentence for people.
    pub validation_error: Option<String>,
}

impl PayloadStatus {
    pub(crate) fn valid(hash: B256) -> Self {
        Self { status: Status::Valid, latest_valid_hash: Some(hash), validation_error: None }
    }

    pub(crate) fn invalid(latest_valid_hash: Option<B256>, error: String) -> Self {
        Self { status: Status::Invalid, latest_valid_hash, validation_error: Some(error) }
    }

    pub(crate) fn invalid_block_hash(error: String) -> Self {
        Self { status: Status::InvalidBlockHash, ..Self::invalid(None, error) }
    }

    pub(crate) fn accepted() -> Self {
        Self { status: Status::Accepted, latest_valid_hash: None, validation_error: None }
    }

    pub(crate) fn syncing() -> Self {
        Self { status: Status::Syncing, latest_valid_hash: None, validation_error: None }
    }
}

/// `ForkchoiceStateV1` (Engine API, paris.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForkchoiceState {
    /// The new head.
    pub head: B256,
    /// The newest safe block, zero for none.
    pub safe: B256,
    /// The newest finalized block, zero for none.
    pub finalized: B256,
}
