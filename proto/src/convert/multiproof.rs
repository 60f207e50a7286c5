//! Stream to multiproof-workers and back.

use super::{
    error::{At, ConvertError, Reason},
    field::{at_most, hash, hash_bytes, nested, range, required, shard_bits, shards},
    trie::NODE_BYTES_MAX,
};
use crate::{
    limits::TRACEPARENT_BYTES_MAX,
    multiproof::{Begin, Error, Foresight, Prefetch, ProofStats, ShardRoots, StateUpdate, Status},
    wire::multiproof_workers::v1::{
        self, process_block_request::Command as WireCommand, process_block_response::Answer,
    },
};
use std::{sync::Arc, time::Duration};
use tandem_primitives::{B256, Shard, ShardSet, SubtrieRoot};

/// Command of the executor about one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens the block.
    Begin {
        /// Block to open.
        begin: Begin,
        /// Span of the caller as a W3C `traceparent`, unchecked; empty without one.
        traceparent: String,
    },
    /// Sends the changes of one transaction.
    Update(Arc<StateUpdate>),
    /// Ends the updates and asks for the roots.
    Finish,
    /// Gives up the block.
    Cancel,
    /// Announces keys that this block will probably touch. Belongs to no session.
    Prefetch {
        /// Hash of the block.
        block: B256,
        /// Keys that it will probably touch.
        keys: Arc<Prefetch>,
    },
    /// Announces the probable content of this block's updates. Belongs to no session.
    Foresee {
        /// Hash of the block.
        block: B256,
        /// Probable content of the updates.
        foresight: Arc<Foresight>,
    },
    /// Discards a block that was refused after its roots were sent. Belongs to no session.
    Discard(B256),
}

/// Message of the stream to the workers, which carries one block after another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionCommand {
    /// Id of one block's session within the stream, never reused. 0 for a command that belongs to
    /// no session.
    pub session: u64,
    /// Command to execute.
    pub command: Command,
}

/// Message of the stream from the workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionAnswer {
    /// Id of the answered session.
    pub session: u64,
    /// Roots, or the reason why there are none.
    pub result: Result<ShardRoots, Error>,
}

impl From<(Begin, String)> for v1::Begin {
    fn from((begin, traceparent): (Begin, String)) -> Self {
        let parent = hash_bytes(begin.parent);
        let all = begin.shards == ShardSet::ALL;
        let shards = (!all).then(|| shard_bits(begin.shards));
        Self { block: Some(begin.block.into()), parent, traceparent, shards }
    }
}

impl TryFrom<v1::Begin> for (Begin, String) {
    type Error = ConvertError;

    fn try_from(wire: v1::Begin) -> Result<Self, ConvertError> {
        let block = nested(wire.block).at("block")?;
        let shards = wire.shards.map_or(Ok(ShardSet::ALL), shards).at("shards")?;
        let parent = hash(&wire.parent).at("parent")?;
        let begin = Begin::new(block, parent).of_shards(shards);
        at_most(TRACEPARENT_BYTES_MAX, wire.traceparent.len()).at("traceparent")?;
        Ok((begin, wire.traceparent))
    }
}

impl From<SessionCommand> for v1::ProcessBlockRequest {
    fn from(message: SessionCommand) -> Self {
        let command = match message.command {
            Command::Begin { begin, traceparent } => {
                WireCommand::Begin((begin, traceparent).into())
            }
            Command::Update(update) => WireCommand::Update((&*update).into()),
            Command::Finish => WireCommand::Finish(v1::Finish {}),
            Command::Cancel => WireCommand::Cancel(v1::Cancel {}),
            Command::Prefetch { block, keys } => WireCommand::Prefetch((block, &*keys).into()),
            Command::Foresee { block, foresight } => {
                WireCommand::Foresee((block, &*foresight).into())
            }
            Command::Discard(block) => WireCommand::Discard(block.into()),
        };
        Self { session: message.session, command: Some(command) }
    }
}

impl TryFrom<v1::ProcessBlockRequest> for SessionCommand {
    type Error = ConvertError;

    fn try_from(wire: v1::ProcessBlockRequest) -> Result<Self, ConvertError> {
        let command = match required(wire.command).at("process_block.command")? {
            WireCommand::Begin(begin) => {
                let (begin, traceparent) = begin.try_into().at("process_block.begin")?;
                Command::Begin { begin, traceparent }
            }
            WireCommand::Update(update) => {
                let update: StateUpdate = update.try_into().at("process_block.update")?;
                Command::Update(Arc::new(update))
            }
            WireCommand::Finish(_) => Command::Finish,
            WireCommand::Cancel(_) => Command::Cancel,
            WireCommand::Prefetch(prefetch) => {
                let (block, keys): (_, Prefetch) =
                    prefetch.try_into().at("process_block.prefetch")?;
                Command::Prefetch { block, keys: Arc::new(keys) }
            }
            WireCommand::Foresee(foresee) => {
                let (block, foresight): (_, Foresight) =
                    foresee.try_into().at("process_block.foresee")?;
                Command::Foresee { block, foresight: Arc::new(foresight) }
            }
            WireCommand::Discard(discard) => {
                Command::Discard(hash(&discard.block).at("block").at("process_block.discard")?)
            }
        };
        Ok(Self { session: wire.session, command })
    }
}

impl From<ProofStats> for v1::ProofStats {
    fn from(stats: ProofStats) -> Self {
        Self {
            updates: stats.updates,
            targets: stats.targets,
            walks: stats.walks,
            nodes: stats.nodes,
            busy_ns: u64::try_from(stats.busy.as_nanos()).unwrap_or(u64::MAX),
            wasted_ns: u64::try_from(stats.wasted.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl From<v1::ProofStats> for ProofStats {
    fn from(wire: v1::ProofStats) -> Self {
        Self {
            updates: wire.updates,
            targets: wire.targets,
            walks: wire.walks,
            nodes: wire.nodes,
            busy: Duration::from_nanos(wire.busy_ns),
            wasted: Duration::from_nanos(wire.wasted_ns),
        }
    }
}

impl From<ShardRoots> for v1::ShardRoots {
    fn from(answer: ShardRoots) -> Self {
        let roots = Shard::all().zip(answer.roots);
        let roots = roots.filter(|(shard, _)| answer.shards.contains(*shard));
        let roots = roots.map(|(shard, root)| v1::SubtrieRoot {
            shard: shard.nibble().into(),
            node: root.map(|rlp| rlp.0),
        });
        let (stats, work_ns) = (Some(answer.stats.into()), work_to_wire(answer.work));
        Self { roots: roots.collect(), stats, work_ns }
    }
}

impl TryFrom<v1::ShardRoots> for ShardRoots {
    type Error = ConvertError;

    fn try_from(wire: v1::ShardRoots) -> Result<Self, ConvertError> {
        at_most(Shard::COUNT, wire.roots.len()).at("roots")?;
        let mut shards = ShardSet::EMPTY;
        let mut roots: [SubtrieRoot; Shard::COUNT] = Default::default();
        for (index, root) in wire.roots.into_iter().enumerate() {
            let (shard, root) = subtrie_root(root, shards).at_index(index).at("roots")?;
            shards.insert(shard);
            roots[shard.index()] = root;
        }
        let work = work_from_wire(&wire.work_ns).at("work_ns")?;
        Ok(Self { shards, roots, stats: wire.stats.unwrap_or_default().into(), work })
    }
}

/// Maximum number of intervals of work in an answer.
const WORK_MAX: usize = 1_024;

/// Converts intervals of work to their distances. If there are too many, the shortest gaps are
/// closed, so the figures become a little larger.
fn work_to_wire(mut work: Vec<(u64, u64)>) -> Vec<u64> {
    let mut gap = 20_000_u64;
    while work.len() > WORK_MAX {
        work.dedup_by(|next, kept| {
            let joins = next.0.saturating_sub(kept.1) < gap;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        gap = gap.saturating_mul(2);
    }
    let mut at = 0_u64;
    let mut distances = Vec::with_capacity(work.len() * 2);
    for (start, end) in work {
        distances.extend([start.saturating_sub(at), end.saturating_sub(start)]);
        at = end;
    }
    distances
}

/// Converts distances to intervals of work.
fn work_from_wire(distances: &[u64]) -> Result<Vec<(u64, u64)>, Reason> {
    at_most(WORK_MAX * 2, distances.len())?;
    let mut at = 0_u64;
    let intervals = distances.chunks(2).map(|pair| {
        let start = at.saturating_add(pair[0]);
        at = start.saturating_add(pair.get(1).copied().unwrap_or(0));
        (start, at)
    });
    Ok(intervals.collect())
}

/// Converts the root of a shard that must be greater than all shards in `before`.
fn subtrie_root(
    wire: v1::SubtrieRoot,
    before: ShardSet,
) -> Result<(Shard, SubtrieRoot), ConvertError> {
    range(0, 15, wire.shard).at("shard")?;
    let shard = required(Shard::from_nibble(wire.shard as u8)).at("shard")?;
    if before.iter().any(|before| before >= shard) {
        return Err(Reason::NotAscending).at("shard");
    }
    if let Some(node) = &wire.node {
        range(1, NODE_BYTES_MAX, node.len() as u64).at("node")?;
    }
    Ok((shard, wire.node.map(Into::into)))
}

impl From<SessionAnswer> for v1::ProcessBlockResponse {
    fn from(message: SessionAnswer) -> Self {
        let answer = match message.result {
            Ok(roots) => Answer::Roots(roots.into()),
            Err(error) => Answer::Error((&error).into()),
        };
        Self { session: message.session, answer: Some(answer) }
    }
}

impl TryFrom<v1::ProcessBlockResponse> for SessionAnswer {
    type Error = ConvertError;

    fn try_from(wire: v1::ProcessBlockResponse) -> Result<Self, ConvertError> {
        let result = match required(wire.answer).at("process_block.answer")? {
            Answer::Roots(roots) => Ok(roots.try_into().at("process_block.roots")?),
            Answer::Error(error) => Err(error.try_into().at("process_block.error")?),
        };
        Ok(Self { session: wire.session, result })
    }
}

impl From<B256> for v1::DiscardRequest {
    fn from(block: B256) -> Self {
        Self { block: hash_bytes(block) }
    }
}

impl TryFrom<v1::DiscardRequest> for B256 {
    type Error = ConvertError;

    fn try_from(wire: v1::DiscardRequest) -> Result<Self, ConvertError> {
        hash(&wire.block).at("discard.block")
    }
}

impl From<Status> for v1::GetStatusResponse {
    fn from(status: Status) -> Self {
        Self {
            threads: status.threads,
            shards: status.shards.bits().into(),
            trie_bytes: status.trie_bytes,
            tip: status.tip.map(hash_bytes),
        }
    }
}

impl TryFrom<v1::GetStatusResponse> for Status {
    type Error = ConvertError;

    fn try_from(wire: v1::GetStatusResponse) -> Result<Self, ConvertError> {
        Ok(Self {
            threads: wire.threads,
            shards: shards(wire.shards).at("get_status.shards")?,
            trie_bytes: wire.trie_bytes,
            tip: wire.tip.as_deref().map(hash).transpose().at("get_status.tip")?,
        })
    }
}
