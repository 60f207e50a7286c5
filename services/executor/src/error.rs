use tandem_http::usage::Cut;
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::{multiproof, storage};
use tandem_trie::WitnessError;

/// Reason why the executor has no answer. An invalid payload is an answer, not an error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Head, safe and finalized block are not on one chain (Engine API -38002).
    #[error("invalid forkchoice state: {0}")]
    InvalidForkchoice(&'static str),
    /// The new head leaves the chain below the oldest state that can be restored (Engine API
    /// -38006).
    #[error("the reorg goes back to block {to}, the oldest state left is that of block {oldest}")]
    ReorgTooDeep {
        /// Block at which the new head's branch leaves the chain.
        to: BlockNumber,
        /// Oldest block whose state can be restored.
        oldest: BlockNumber,
    },
    /// The state of this block is neither in the layers nor in the base.
    #[error("state of block {0} is not available")]
    StateUnavailable(BlockId),
    /// The block is unknown.
    #[error("unknown block")]
    UnknownBlock,
    /// The base is on another branch than the state being read.
    #[error("the base at block {base} is not below block {block}")]
    BaseMoved {
        /// Block whose state is read.
        block: B256,
        /// Block at which the base is.
        base: BlockId,
    },
    /// A stored record cannot be decoded.
    #[error("stored {what} of block {block}: {error}")]
    Record {
        /// Kind of the record.
        what: &'static str,
        /// Block of the record.
        block: B256,
        /// Reason why decoding failed.
        error: String,
    },
    /// storage-writer did not fulfil the request.
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// multiproof-workers returned no roots.
    #[error("state root: {0}")]
    Proof(#[from] multiproof::Error),
    /// The engine's mailbox is full, or the engine has stopped.
    #[error(transparent)]
    Engine(#[from] tandem_actor::Error),
    /// An account's code hash has no known code.
    #[error("code {0} is missing")]
    MissingCode(B256),
    /// BLOCKHASH asks for a block whose header the witness lacks.
    #[error("the witness lacks the header of block {0}")]
    MissingHeader(BlockNumber),
    /// The witness lacks a part of the state.
    #[error(transparent)]
    Witness(Box<WitnessError>),
    /// The EVM failed for a reason that is not the block's fault.
    #[error("execution: {0}")]
    Execution(String),
    /// The call was cut, because it took too long or its caller is gone.
    #[error(transparent)]
    Cut(#[from] Cut),
    /// The call's parameters contradict each other (for example, a fee cap below the tip).
    #[error("{0}")]
    InvalidCall(String),
}

impl revm::context::DBErrorMarker for Error {}

impl From<WitnessError> for Error {
    fn from(error: WitnessError) -> Self {
        Self::Witness(Box::new(error))
    }
}
