use crate::queries::budget::Cut;
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::{multiproof, storage};
use tandem_trie::WitnessError;

/// Why the executor has no answer. An invalid payload is an answer, not an error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Head, safe and finalized block do not lie on one chain (Engine API -38002).
    #[error("invalid forkchoice state: {0}")]
    InvalidForkchoice(&'static str),
    /// The new head leaves the chain below the oldest state that can be restored (Engine API
    /// -38006).
    #[error("the reorg goes back to block {to}, the oldest state left is that of block {oldest}")]
    ReorgTooDeep {
        /// Where the new head's branch leaves the chain.
        to: BlockNumber,
        /// How far back the state can go.
        oldest: BlockNumber,
    },
    /// The state of this block is neither in the layers nor in the base.
    #[error("state of block {0} is not available")]
    StateUnavailable(BlockId),
    /// No such block.
    #[error("unknown block")]
    UnknownBlock,
    /// The base stands on another branch than the state that is read.
    #[error("the base at block {base} is not below block {block}")]
    BaseMoved {
        /// The block whose state is read.
        block: B256,
        /// Where the base stands.
        base: BlockId,
    },
    /// A stored record cannot be decoded.
    #[error("stored {what} of block {block}: {error}")]
    Record {
        /// Which record.
        what: &'static str,
        /// Its block.
        block: B256,
        /// What is wrong with it.
        error: String,
    },
    /// storage-writer did not do what it was asked.
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// multiproof-workers have no roots.
    #[error("state root: {0}")]
    Proof(#[from] multiproof::Error),
    /// The engine's mailbox is full, or the engine has stopped.
    #[error(transparent)]
    Engine(#[from] tandem_actor::Error),
    /// Nobody has the code of this hash, which an account names.
    #[error("code {0} is missing")]
    MissingCode(B256),
    /// BLOCKHASH asks for a block whose header the witness lacks.
    #[error("the witness lacks the header of block {0}")]
    MissingHeader(BlockNumber),
    /// The witness does not tell a part of the state.
    #[error(transparent)]
    Witness(Box<WitnessError>),
    /// The EVM failed for a reason that is not the block's fault.
    #[error("execution: {0}")]
    Execution(String),
    /// The call was cut: it takes too long, or its caller is gone.
    #[error(transparent)]
    Cut(#[from] Cut),
    /// The call's parameters make no sense (a fee cap below the tip, for instance).
    #[error("{0}")]
    InvalidCall(String),
}

impl revm::context::DBErrorMarker for Error {}

impl From<WitnessError> for Error {
    fn from(error: WitnessError) -> Self {
        Self::Witness(Box::new(error))
    }
}
