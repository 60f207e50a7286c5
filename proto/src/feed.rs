//! Feed of storage-writer: its canonical chain, block by block, for followers that keep a copy.
//!
//! The feed is a function of the reader's position. A reader that stands at a block asks for what
//! comes next, so nothing is queued for it, and it resumes anywhere. The answer is the next canonical
//! block, or the block to go back to if the reader's block left the canonical chain. Blocks are
//! canonical, so the leader found them valid. A follower checks them nevertheless.

use crate::storage::{BaseReads, BlockReads, Epoch, Forkchoice, Result, StateRanges, Term};
use std::{sync::Arc, time::Duration};
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes, Shard, StateDiff};
use tokio::sync::watch;

/// Changes of the state by a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changes {
    /// Not given, as the reader does not want them.
    Omitted,
    /// RLP of the block-level access list (EIP-7928), in a block that has one.
    List(Bytes),
    /// State diff of a block without a list.
    Diff(Arc<StateDiff>),
}

/// Canonical block, as the feed carries it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedBlock {
    /// Number and hash.
    pub id: BlockId,
    /// RLP of the header.
    pub header: Bytes,
    /// RLP of the body: transactions (wrapped as in a block), ommers, withdrawals.
    pub body: Bytes,
    /// Receipts as the executor encodes them.
    pub receipts: Bytes,
    /// Changes of the state.
    pub changes: Changes,
}

impl FeedBlock {
    /// Returns the bytes that the block takes in memory, about.
    pub fn bytes(&self) -> usize {
        let changes = match &self.changes {
            Changes::Omitted => 0,
            Changes::List(list) => list.len(),
            Changes::Diff(diff) => diff.bytes(),
        };
        self.header.len() + self.body.len() + self.receipts.len() + changes
    }
}

/// Position of a leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FeedStatus {
    /// Last forkchoice that was made durable.
    pub forkchoice: Forkchoice,
    /// Block whose state the base holds.
    pub base: BlockId,
    /// Term in which the leader leads.
    pub term: Term,
}

/// Next thing after a reader's block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedStep {
    /// The next canonical block.
    Block(Box<FeedBlock>),
    /// The reader's block is not canonical any more: the feed resumes at this ancestor of it.
    Resume(BlockId),
    /// The reader's block is the head.
    End,
}

/// Request to follow the canonical chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowRequest {
    /// Blocks of the reader's chain from its head down to genesis, 1 to
    /// [`FEED_KNOWN_MAX`](crate::limits::FEED_KNOWN_MAX).
    pub known: Vec<BlockId>,
    /// Height up to which blocks come without changes of the state.
    pub without_changes_to: BlockNumber,
}

/// Message of a feed between processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedMessage {
    /// Position of the leader.
    Status(FeedStatus),
    /// Block at which the feed resumes: the reader undoes all blocks above it.
    Resume(BlockId),
    /// The next block.
    Block(Box<FeedBlock>),
}

/// Reads of the feed, which belong on threads that may wait. They run at the lowest priority.
pub trait FeedReads: Send + Sync + 'static {
    /// Returns where the leader stands.
    fn feed_status(&self) -> Result<FeedStatus>;

    /// Returns the first of these blocks, which begin with the highest one, that is canonical.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::storage::Error::Refused) when none is: the reader is on another
    /// chain.
    fn feed_start(&self, known: &[BlockId]) -> Result<BlockId>;

    /// Returns what comes after a block. Blocks up to the height `without_changes_to` come without
    /// changes.
    ///
    /// # Errors
    /// [`Error::TooFarBehind`](crate::storage::Error::TooFarBehind) when the changes of the next
    /// block are no longer kept; [`Error::UnknownBlock`](crate::storage::Error::UnknownBlock) when
    /// the reader's block was dropped with its branch.
    fn feed_next(&self, after: BlockId, without_changes_to: BlockNumber) -> Result<FeedStep>;

    /// Returns a channel that changes whenever the forkchoice does.
    fn feed_changes(&self) -> watch::Receiver<u64>;

    /// Returns how many readers may follow at the same time.
    fn feed_readers_max(&self) -> usize;
}

/// Stream of a feed, for a thread that may wait.
pub trait FeedStream: Send {
    /// Returns the next message, `None` if there is none in this time. After an error the stream is of
    /// no use.
    ///
    /// # Errors
    /// The errors of [`FeedReads`]; [`Error::Unavailable`](crate::storage::Error::Unavailable) when the
    /// leader is gone.
    fn next(&mut self, wait: Duration) -> Result<Option<FeedMessage>>;
}

/// Leader that offers its feed.
pub trait FeedSource: Send + Sync + 'static {
    /// Begins to follow the canonical chain.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::storage::Error::Unavailable) when the leader is out of reach, or
    /// has no place for a further follower.
    fn follow(&self, request: FollowRequest) -> Result<Box<dyn FeedStream>>;
}

/// Calls of a follower to its leader.
pub trait LeaderApi: BaseReads + BlockReads + StateRanges + FeedSource {}

impl<T: BaseReads + BlockReads + StateRanges + FeedSource> LeaderApi for T {}

/// Block whose changes do not lead to the state root in its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrongRoot {
    /// Block.
    pub block: BlockId,
    /// Root in its header.
    pub header: B256,
    /// Root after its changes.
    pub computed: B256,
    /// Hash of the top node of each shard after the changes, `None` for an empty shard.
    pub shards: [Option<B256>; Shard::COUNT],
}

/// Answer to [`CheckedWrites::commit_checked`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckedCommit {
    /// The block is durable, and its root is that of its header. The changes of the state are given.
    Committed(Arc<StateDiff>),
    /// The block was refused, and nothing of it was written.
    Refused(Box<WrongRoot>),
}

/// Writes of a follower, in the process that has the database.
pub trait CheckedWrites: Send + Sync + 'static {
    /// Computes the state root after a child of a pending block or of the base. Only if it is the
    /// one in the header, the block becomes durable as pending. A known block stays as it is, and its
    /// stored changes are returned.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`](crate::storage::Error::UnknownBlock) when the parent is neither;
    /// [`Error::Refused`](crate::storage::Error::Refused) when the block contradicts itself or brings
    /// no changes.
    fn commit_checked(&self, epoch: Epoch, block: FeedBlock) -> Result<CheckedCommit>;

    /// Stores a block with its changes of a state that is being downloaded, and notes how far the
    /// caller is. After the changes of consecutive blocks each value is that after the last one,
    /// whichever of these blocks it was downloaded from. Repeating the blocks in order changes
    /// nothing. Only the end of the download proves the values.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::storage::Error::Refused) when no state is being downloaded, the
    /// block's parent is not there, or the block contradicts itself or brings no changes.
    fn put_changed(&self, block: FeedBlock, progress: &[u8]) -> Result<()>;
}
