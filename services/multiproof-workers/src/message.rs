//! Messages to the owners of the shards, and their answers.

use crate::spans::BlockSpans;
use crossbeam_channel::Sender;
use std::sync::Arc;
use tandem_policy::Policies;
use tandem_primitives::{B256, Shard, SubtrieRoot};
use tandem_proto::multiproof::{Begin, Error, Foresight, Prefetch, ProofStats, StateUpdate};

/// Message to an owner.
pub enum Message {
    /// A block begins.
    Begin(Box<Opening>),
    /// Changes of one transaction, for all shards.
    Update { session: u64, update: Arc<StateUpdate> },
    /// Keys that this block will probably touch, for all shards.
    Prefetch { block: B256, keys: Arc<Prefetch> },
    /// Changes that this block will probably make, for all shards.
    Foresee { block: B256, foresight: Arc<Foresight> },
    /// The open block has no more updates.
    Finish { session: u64 },
    /// The open block is given up.
    Cancel { session: u64 },
    /// This block turned out invalid after its roots were given.
    Discard(B256),
    /// The owner must end.
    Stop,
}

/// Beginning of a block.
pub struct Opening {
    /// Number that goes with every message about the block.
    pub session: u64,
    pub begin: Begin,
    /// Policies that apply to this block.
    pub policies: Policies,
    pub spans: Arc<BlockSpans>,
    /// Sender for the roots.
    pub reply: Sender<Result<OwnerRoots, Error>>,
}

/// Share of one owner in the answer.
pub struct OwnerRoots {
    pub roots: Vec<(Shard, SubtrieRoot)>,
    pub stats: ProofStats,
}
