//! What the owners of the shards are told, and what they answer.

use crate::spans::BlockSpans;
use crossbeam_channel::Sender;
use std::sync::Arc;
use tandem_policy::Policies;
use tandem_primitives::{B256, Shard, SubtrieRoot};
use tandem_proto::multiproof::{Begin, Error, Foresight, Prefetch, ProofStats, StateUpdate};

/// What an owner is told.
pub enum Message {
    /// A block begins.
    Begin(Box<Opening>),
    /// Changes of one transaction, all shards.
    Update { session: u64, update: Arc<StateUpdate> },
    /// Keys that this block will probably touch, all shards.
    Prefetch { block: B256, keys: Arc<Prefetch> },
    /// What updates of this block will probably say, all shards.
    Foresee { block: B256, foresight: Arc<Foresight> },
    /// The open block has no more updates.
    Finish { session: u64 },
    /// The open block is given up.
    Cancel { session: u64 },
    /// This block turned out invalid after its roots were given.
    Discard(B256),
    /// The owner ends.
    Stop,
}

/// How a block begins.
pub struct Opening {
    /// Goes with every message about the block.
    pub session: u64,
    pub begin: Begin,
    /// Those that hold for this block.
    pub policies: Policies,
    pub spans: Arc<BlockSpans>,
    /// Where the roots go.
    pub reply: Sender<Result<OwnerRoots, Error>>,
}

/// One owner's share of the answer.
pub struct OwnerRoots {
    pub roots: Vec<(Shard, SubtrieRoot)>,
    pub stats: ProofStats,
}
