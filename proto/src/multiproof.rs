//! multiproof-workers: the state root, computed while the block executes.
//!
//! One stream in per block, sixteen subtrie roots out (or those of some shards): [`ProofApi::begin`] opens the block,
//! [`ProofSession::update`] feeds it while transactions execute, [`ProofSession::finish`] asks for
//! the roots and [`ProofSession::roots`] waits for them.

use std::{sync::Arc, time::Duration};
use tandem_primitives::{AccountUpdate, B256, BlockId, Shard, ShardSet, SubtrieRoot};

/// Why there are no subtrie roots.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// No layers reach from the base to the parent's state: the base is on another branch, or has
    /// moved past the parent. The block may be begun again once the base is below its parent.
    #[error("the state of parent {parent} cannot be reached from the base at block {base}")]
    ParentUnreachable {
        /// The parent of the block to be processed.
        parent: B256,
        /// The block that the base stands at.
        base: BlockId,
    },
    /// storage-writer did not answer.
    #[error(transparent)]
    Storage(#[from] crate::storage::Error),
    /// A trie node contradicts the one above it, or cannot be decoded: the tries were dropped.
    #[error("trie node: {0}")]
    Trie(String),
    /// The service is stopping, or cannot be reached.
    #[error("multiproof-workers are not available")]
    Unavailable,
}

/// What a block starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// The block to be processed.
    pub block: BlockId,
    /// Hash of its parent, whose state the updates change.
    pub parent: B256,
    /// The shards whose roots are wanted. Updates and advice about others are passed over.
    pub shards: ShardSet,
}

impl Begin {
    /// All shards of a block.
    pub fn new(block: BlockId, parent: B256) -> Self {
        Self { block, parent, shards: ShardSet::ALL }
    }

    /// The same block for these shards alone.
    #[must_use]
    pub fn of_shards(self, shards: ShardSet) -> Self {
        Self { shards, ..self }
    }
}

/// What one transaction (or system call) did to the state, or several one after the other: the last
/// value of everything they touched. Sent in the order of execution.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateUpdate {
    /// Accounts touched, in any order, each at most once.
    pub accounts: Vec<AccountUpdate>,
}

/// Keys that the open block will probably read or write: advice, so that their paths are in memory
/// by the time its updates come. Nothing depends on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prefetch {
    /// `keccak256(address)` of accounts, each with `keccak256(slot)` of its slots, in any order.
    pub accounts: Vec<(B256, Vec<B256>)>,
}

/// What updates of the open block will probably say, so that it is written and hashed by the time
/// they come. Nothing depends on it: an update wins, whichever comes first, and what none confirms
/// is taken back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Foresight {
    /// The parent's state. Accounts in any order, each at most once; one that is `None` says that
    /// only its slots are foreseen.
    pub before: Vec<AccountUpdate>,
    /// The same accounts and slots in the same order, as the block will leave them.
    pub after: Vec<AccountUpdate>,
}

/// The answer for one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardRoots {
    /// The shards that this is about: those of [`Begin::shards`].
    pub shards: ShardSet,
    /// Top node of each shard's subtrie, by [`Shard::index`]; `None` for shards that it is not
    /// about.
    pub roots: [SubtrieRoot; Shard::COUNT],
    /// What the workers did for it.
    pub stats: ProofStats,
}

/// Counts over all workers, for metrics and traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProofStats {
    /// State updates received.
    pub updates: u64,
    /// Trie walks requested (keys).
    pub targets: u64,
    /// Calls to storage-writer.
    pub walks: u64,
    /// Nodes changed.
    pub nodes: u64,
    /// Time that worker threads were busy, summed.
    pub busy: Duration,
}

/// What the workers hold, for people and dashboards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Worker threads.
    pub threads: u32,
    /// The shards whose tries they hold, as of `tip`.
    pub shards: ShardSet,
    /// Bytes that the revealed tries occupy, about.
    pub trie_bytes: u64,
    /// Hash of the block whose state the tries hold, `None` while they hold none.
    pub tip: Option<B256>,
}

/// One block being processed.
pub trait ProofSession: Send {
    /// Feeds the changes of one transaction, or of several. Waits only when the bounded queue to the workers is
    /// full; an error shows up in [`ProofSession::roots`].
    fn update(&mut self, update: Arc<StateUpdate>);

    /// No more updates come: the workers start on the roots. Does not wait for them.
    fn finish(&mut self);

    /// Waits for the roots, after [`ProofSession::finish`].
    ///
    /// # Errors
    /// See [`Error`]; the workers have dropped what they had of this block.
    fn roots(self: Box<Self>) -> Result<ShardRoots, Error>;
}

/// The calls of multiproof-workers.
///
/// Dropping a session without [`ProofSession::roots`] cancels the block. One block is open at a
/// time: beginning another gives up the one before, whose session then gets
/// [`Error::Unavailable`].
pub trait ProofApi: Send + Sync + 'static {
    /// Opens a block.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while the service is stopping.
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error>;

    /// The block was refused, although its root could be computed: its changes leave the tries.
    fn discard(&self, block: B256);

    /// What the workers hold now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when they cannot be reached.
    fn status(&self) -> Result<Status, Error>;

    /// Advice for the open block `block`: see [`Prefetch`]. May be called by any thread, beside the
    /// session. Never waits: advice is dropped where the queue is well filled, where another block
    /// is open, or none.
    fn prefetch(&self, block: B256, keys: Arc<Prefetch>);

    /// Foresight for the open block `block`, as [`ProofApi::prefetch`] gives advice.
    fn foresee(&self, block: B256, foresight: Arc<Foresight>);
}
