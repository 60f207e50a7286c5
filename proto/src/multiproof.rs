//! Contract of multiproof-workers, which compute the state root while the block executes.
//!
//! A block takes one stream of updates and yields sixteen subtrie roots (or those of some shards).
//! [`ProofApi::begin`] opens the block, and [`ProofSession::update`] feeds it while transactions
//! execute. [`ProofSession::finish`] asks for the roots, and [`ProofSession::roots`] waits for
//! them.

mod merged;

pub use merged::MergedUpdates;

use std::{sync::Arc, time::Duration};
use tandem_primitives::{AccountUpdate, B256, BlockId, Shard, ShardSet, SubtrieRoot};

/// Reason why there are no subtrie roots.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// No layers reach from the base to the parent's state: the base is on another branch or has
    /// moved past the parent. The caller may retry the block once the base is below its parent.
    #[error("the state of parent {parent} cannot be reached from the base at block {base}")]
    ParentUnreachable {
        /// Parent of the block to process.
        parent: B256,
        /// Block at which the base stands.
        base: BlockId,
    },
    /// storage-writer did not answer.
    #[error(transparent)]
    Storage(#[from] crate::storage::Error),
    /// A trie node contradicts the node above it or cannot be decoded. The workers have dropped
    /// their tries.
    #[error("trie node: {0}")]
    Trie(String),
    /// The service is stopping or unreachable.
    #[error("multiproof-workers are not available")]
    Unavailable,
}

/// Request to open a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Block to process.
    pub block: BlockId,
    /// Hash of its parent, whose state the updates change.
    pub parent: B256,
    /// Shards whose roots are wanted. Updates and advice about other shards are ignored.
    pub shards: ShardSet,
    /// Whether the changes are kept for blocks on top of this one. If not, only the roots are
    /// wanted, and the workers return to the parent's state after the answer. Holds within one
    /// process: a block of another process is always kept.
    pub kept: bool,
}

impl Begin {
    /// Creates the request for all shards of a block.
    pub fn new(block: BlockId, parent: B256) -> Self {
        Self { block, parent, shards: ShardSet::ALL, kept: true }
    }

    /// Creates the request for the root of a block that is only built, in the background: see
    /// [`Begin::kept`]. The workers do not leave the caller its processor.
    pub fn passing(block: BlockId, parent: B256) -> Self {
        Self { kept: false, ..Self::new(block, parent) }
    }

    /// Restricts the request to these shards.
    #[must_use]
    pub fn of_shards(self, shards: ShardSet) -> Self {
        Self { shards, ..self }
    }
}

/// Changes of the state by one or more consecutive transactions (or system calls): the last value
/// of everything they touched. Sent in the order of execution.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateUpdate {
    /// Touched accounts, in any order, each at most once.
    pub accounts: Vec<AccountUpdate>,
}

/// Keys that the open block will probably read or write. This is advice, so that their paths are in
/// memory before its updates arrive. Correctness does not depend on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prefetch {
    /// `keccak256(address)` of accounts, each with `keccak256(slot)` of its slots, in any order.
    pub accounts: Vec<(B256, Vec<B256>)>,
}

/// Probable content of the open block's updates, so that it is written and hashed before they
/// arrive. Correctness does not depend on it: an update overrides it, whichever comes first. Values
/// that no update confirms are reverted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Foresight {
    /// State of the parent. Accounts in any order, each at most once. For an account that is
    /// `None`, only its slots are predicted.
    pub before: Vec<AccountUpdate>,
    /// State after the block, with the accounts and slots of `before` in the same order.
    pub after: Vec<AccountUpdate>,
}

/// Answer for one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardRoots {
    /// Shards that the answer covers: those of [`Begin::shards`].
    pub shards: ShardSet,
    /// Top node of each shard's subtrie, by [`Shard::index`]; `None` for shards that the answer
    /// does not cover.
    pub roots: [SubtrieRoot; Shard::COUNT],
    /// Work of the workers for this block.
    pub stats: ProofStats,
    /// Times at which any worker was busy with the block, for traces: disjoint intervals in order
    /// of time, `(start, end)` in nanoseconds since the Unix epoch. Empty where spans are not
    /// recorded.
    pub work: Vec<(u64, u64)>,
}

/// Counts over all workers, for metrics and traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProofStats {
    /// Number of state updates received. Those that were merged on their way count once.
    pub updates: u64,
    /// Number of trie walks requested (keys).
    pub targets: u64,
    /// Number of calls to storage-writer.
    pub walks: u64,
    /// Number of changed nodes.
    pub nodes: u64,
    /// Total busy time of the worker threads.
    pub busy: Duration,
    /// Part of it whose results were thrown away: nodes that were hashed ahead and changed again.
    pub wasted: Duration,
}

/// Status of the workers, for people and dashboards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Number of worker threads.
    pub threads: u32,
    /// Shards whose tries the workers hold, as of `tip`.
    pub shards: ShardSet,
    /// Approximate number of bytes that the revealed tries occupy.
    pub trie_bytes: u64,
    /// Hash of the block whose state the tries hold, `None` while they hold none.
    pub tip: Option<B256>,
}

/// Session of one block in processing.
pub trait ProofSession: Send {
    /// Notes for traces when the last transaction ended, in nanoseconds since the Unix epoch. Has no
    /// effect on the roots. Without it, the updates end with [`ProofSession::finish`].
    fn executed(&mut self, _unix_ns: u64) {}

    /// Feeds the changes of one or more transactions. Blocks only when the bounded queue to the
    /// workers is full. [`ProofSession::roots`] reports errors.
    fn update(&mut self, update: Arc<StateUpdate>);

    /// Returns whether the workers have taken all messages so far. A session that does not know says
    /// yes.
    fn has_taken_all(&self) -> bool {
        true
    }

    /// Ends the updates, so that the workers start on the roots. Does not wait for them.
    fn finish(&mut self);

    /// Waits for the roots, after [`ProofSession::finish`].
    ///
    /// # Errors
    /// See [`Error`]; the workers have then dropped their data about this block.
    fn roots(self: Box<Self>) -> Result<ShardRoots, Error>;
}

/// Calls of multiproof-workers.
///
/// Dropping a session without [`ProofSession::roots`] cancels the block. Only one block is open at
/// a time. Beginning another gives up the previous one, whose session then gets
/// [`Error::Unavailable`].
pub trait ProofApi: Send + Sync + 'static {
    /// Opens a block.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while the service is stopping.
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error>;

    /// Removes the changes of a block from the tries. The block was refused although its root could
    /// be computed.
    fn discard(&self, block: B256);

    /// Returns the current status of the workers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the workers are unreachable.
    fn status(&self) -> Result<Status, Error>;

    /// Sends advice for the open block `block`; see [`Prefetch`]. Any thread may call it, alongside
    /// the session. Never blocks: advice is dropped when the queue is nearly full, or `block` is
    /// not the open block.
    fn prefetch(&self, block: B256, keys: Arc<Prefetch>);

    /// Sends foresight for the open block `block`, in the manner of [`ProofApi::prefetch`].
    fn foresee(&self, block: B256, foresight: Arc<Foresight>);
}
