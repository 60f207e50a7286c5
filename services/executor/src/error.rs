use std::{io, sync::Arc};
use tandem_chain::BlockError;
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
    /// The state of this block is neither in the layers nor in the base, nor in history.
    #[error("state of block {block} is not available, the oldest state is that of block {oldest}")]
    StateUnavailable {
        /// Block whose state was to be read.
        block: BlockId,
        /// Oldest block whose state can be read.
        oldest: BlockNumber,
    },
    /// There is no proof for this block: history has values of states, but no tries.
    #[error("no proof for block {block}, the oldest block with tries is block {oldest}")]
    ProofUnavailable {
        /// Block whose state was to be proven.
        block: BlockId,
        /// Oldest block whose state can be proven.
        oldest: BlockNumber,
    },
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
    /// A value is not in memory, and the execution was not to wait for it.
    #[error("a value of the state is not in memory")]
    NotInMemory,
    /// An account's code hash has no known code.
    #[error("code {0} is missing")]
    MissingCode(B256),
    /// BLOCKHASH asks for a block whose header the witness lacks.
    #[error("the witness lacks the header of block {0}")]
    MissingHeader(BlockNumber),
    /// The witness lacks a part of the state.
    #[error(transparent)]
    Witness(Box<WitnessError>),
    /// The EVM failed for a reason that is not the block's fault. The text is the EVM's.
    #[error("execution: {0}")]
    Evm(String),
    /// The operating system did not start a thread.
    #[error("cannot start the thread `{name}`: {error}")]
    Thread {
        /// Name of the thread, or prefix of the names of several threads.
        name: &'static str,
        /// Error of the operating system.
        error: Arc<io::Error>,
    },
    /// A thread ended without the result that the call waited for. The caller may repeat the call.
    #[error("the thread that had to {task} ended without a result: {reason}")]
    WorkerDied {
        /// Task of the thread.
        task: &'static str,
        /// Reason why there is no result.
        reason: String,
    },
    /// No valid block can be built on the parent, for example because a system contract is missing.
    #[error("no valid block can be built on block {parent}: {reason}")]
    NothingToBuild {
        /// Hash of the parent.
        parent: B256,
        /// Rule that the built block would break.
        reason: Box<BlockError>,
    },
    /// The payload is not built yet, and its time is over.
    #[error("the payload is not built yet, retry later")]
    NotBuiltYet,
    /// A transaction that a block is to have cannot be in it.
    #[error("transaction {hash} cannot be in the block: {reason}")]
    CannotInclude {
        /// Hash of the transaction.
        hash: B256,
        /// Reason why not.
        reason: String,
    },
    /// Another build is more urgent.
    #[error("the build was given up for a more urgent one")]
    BuildGivenUp,
    /// The trie nodes of a proof lead to another state root than the block's.
    #[error(
        "the trie nodes of block {block} lead to the state root {computed}, its header has {header}"
    )]
    ProofMismatch {
        /// Block whose state was to be proven.
        block: BlockNumber,
        /// Root in the header.
        header: B256,
        /// Root that the nodes lead to.
        computed: B256,
    },
    /// The trie nodes of a proof lead to no state root.
    #[error("trie nodes of block {block}: {error}")]
    ProofNodes {
        /// Block whose state was to be proven.
        block: BlockNumber,
        /// Fault of the nodes.
        error: Box<tandem_trie::Error>,
    },
    /// The call was cut, because it took too long or its caller is gone.
    #[error(transparent)]
    Cut(#[from] Cut),
    /// The call's parameters contradict each other (for example, a fee cap below the tip).
    #[error("{0}")]
    InvalidCall(String),
}

impl revm::context::DBErrorMarker for Error {}

impl Error {
    /// Returns a function that reports why a thread did not start.
    pub(crate) fn thread(name: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Thread { name, error: Arc::new(error) }
    }
}

impl From<WitnessError> for Error {
    fn from(error: WitnessError) -> Self {
        Self::Witness(Box::new(error))
    }
}
