//! Chain that sync fills: what it needs of the executor.

use crate::state::{Import, Invalid};
use std::pin::Pin;
use tandem_chain::Block;
use tandem_primitives::{B256, BlockId};
use tandem_proto::sync::SyncProgress;

/// Future answer of the chain.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Begins the execution of a prepared block when it is called. Blocks are executed in the order of
/// the calls, whether or not the futures are polled.
pub type Prepared = Box<dyn FnOnce() -> Pending<Import> + Send>;

/// Answer to the choice of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// The choice was carried out, or is impossible for good.
    Done,
    /// Blocks up to the head are still being executed: ask again.
    Working,
    /// The chain failed; the log says why.
    Failed,
}

/// Chain of the node. Its errors are for its own log.
pub trait BlockSink: Send + Sync + 'static {
    /// Returns the head.
    fn head(&self) -> BlockId;

    /// Returns the place of the first of these blocks that is executed. May block.
    fn first_known(&self, blocks: &[BlockId]) -> Option<usize>;

    /// Prepares a block whose body belongs to its header. Several may be prepared at the same time.
    fn prepare(&self, block: Block) -> Pending<Option<Prepared>>;

    /// Makes an executed or kept block the head; safe and finalized block stay.
    fn make_head(&self, block: BlockId) -> Pending<Chosen>;

    /// Carries out the forkchoice that waits for this head.
    fn reach(&self, head: B256) -> Pending<Chosen>;

    /// Follows storage-writer to a downloaded state, whose block is base and head now. Returns whether
    /// it did; the log says why not.
    fn adopt(&self) -> Pending<bool>;

    /// Notes that blocks are invalid because an ancestor of theirs is.
    fn condemn(&self, invalid: Invalid) -> Pending<()>;

    /// Shows the progress, `None` once there is nothing to do.
    fn show(&self, progress: Option<SyncProgress>);
}
