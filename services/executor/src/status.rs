//! Requests and answers of the Engine API, without their JSON.

use tandem_primitives::B256;

/// `PayloadStatusV1.status` (Engine API, paris.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The block was executed, its roots are right, and it is durable.
    Valid,
    /// The block breaks a rule, or builds on a block that does.
    Invalid,
    /// The block's parent is unknown.
    Syncing,
    /// The block is well formed and its parent is known, but its parent's state can no longer be
    /// reached. The block was not executed.
    Accepted,
    /// The hash differs from the header's hash. Only V1 of the method gives this answer; later
    /// versions answer INVALID.
    InvalidBlockHash,
}

impl Status {
    /// Returns the name in the Engine API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "VALID",
            Self::Invalid => "INVALID",
            Self::Syncing => "SYNCING",
            Self::Accepted => "ACCEPTED",
            Self::InvalidBlockHash => "INVALID_BLOCK_HASH",
        }
    }

    /// Returns the status in the form of this version of `engine_newPayload`.
    pub(crate) fn answered_by(self, version: u8) -> Self {
        match self {
            // `INVALID` replaces it since V2 (shanghai.md).
            Self::InvalidBlockHash if version > 1 => Self::Invalid,
            _ => self,
        }
    }
}

/// `PayloadStatusV1` (Engine API, paris.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PayloadStatus {
    /// The verdict.
    pub status: Status,
    /// Newest valid block on the payload's branch, `None` if it is unknown.
    pub latest_valid_hash: Option<B256>,
    /// Fault of the payload: `kind: sentence`. The kind is a constant name for programs
    /// ([`tandem_chain::BlockError::kind`]), the sentence is for people.
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

/// Blocks that are invalid because an ancestor of theirs is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condemned {
    /// Hashes of the blocks.
    pub blocks: Vec<B256>,
    /// Newest valid block below the ancestor, if one is known.
    pub latest_valid: Option<B256>,
    /// Fault of the ancestor, as in [`PayloadStatus::validation_error`].
    pub error: String,
}

/// `ForkchoiceStateV1` (Engine API, paris.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForkchoiceState {
    /// New head.
    pub head: B256,
    /// Newest safe block, zero for none.
    pub safe: B256,
    /// Newest finalized block, zero for none.
    pub finalized: B256,
}
