//! Words of the decisions: limits, actions, verdicts and progress.

use crate::check::ChainHeader;
use std::time::Duration;
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::{
    peer_sessions::{Misconduct, PeerId},
    sync::StateProgress,
};

/// Bounds of the work.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of headers in memory.
    pub headers_max: usize,
    /// Number of blocks above the newest executed one whose bodies are fetched.
    pub blocks_ahead_max: usize,
    /// Bytes of bodies that wait or are under way.
    pub body_bytes_max: usize,
    /// Number of bodies of one request.
    pub bodies_per_request_max: usize,
    /// Number of requests to one peer under way.
    pub requests_per_peer_max: u32,
    /// Number of blocks that the executor gets before it has answered.
    pub imports_max: usize,
    /// Time in which a peer has to answer.
    pub request: Duration,
    /// Time after which another peer is asked for what the executor waits for.
    pub hedge: Duration,
    /// Time without any new header after which a goal is given up if there is a newer one.
    pub stalled: Duration,
}

/// Number of a request.
pub type RequestId = u64;

/// Data that a peer is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Headers from this one down.
    Headers {
        /// Hash of the highest one.
        start: B256,
        /// Number of headers, at most.
        limit: u64,
    },
    /// Bodies of these blocks.
    Bodies(Vec<ChainHeader>),
}

/// Action that the caller carries out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action<B> {
    /// Ask a peer.
    Ask {
        /// Number under which the answer is given back.
        request: RequestId,
        /// Peer to ask.
        peer: PeerId,
        /// Data to ask for.
        wanted: Wanted,
    },
    /// Report a peer.
    Report(PeerId, Misconduct),
    /// Execute a block. Blocks come in order.
    Import(BlockId, B),
    /// The goal is executed: make it the head.
    Apply(B256),
    /// These blocks build on an invalid block.
    Condemn(Invalid),
}

/// Fault of an invalid block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Block that breaks a rule.
    pub culprit: B256,
    /// Newest valid block below it, if one is known.
    pub latest_valid: Option<B256>,
    /// Description of the rule.
    pub rule: String,
}

/// Blocks that are invalid because an ancestor of them is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    /// Fault of the ancestor.
    pub verdict: Verdict,
    /// The ancestor, and blocks above it, the goal among them.
    pub blocks: Vec<B256>,
}

/// Answer of the executor to a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Import {
    /// The block is executed.
    Done,
    /// The block waits for its branch to be chosen.
    Kept,
    /// The block breaks a rule.
    Invalid {
        /// Newest valid block below it, if one is known.
        latest_valid: Option<B256>,
        /// Description of the rule.
        rule: String,
    },
    /// The executor has no verdict, or does not know the parent (any more).
    Failed,
}

/// Work under way, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing to do.
    Idle,
    /// Headers are fetched from the goal down.
    Headers,
    /// Bodies are fetched and blocks executed.
    Blocks,
    /// A state is downloaded, and the blocks up to it.
    State,
}

/// Progress, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Work under way.
    pub stage: Stage,
    /// Newest executed block of the way.
    pub current: Option<BlockNumber>,
    /// Number of the wanted head, or the highest one that a peer claims.
    pub highest: Option<BlockNumber>,
    /// Lowest header of the way down, while it goes on.
    pub lowest_header: Option<BlockNumber>,
    /// Bodies that wait for their execution.
    pub bodies: usize,
    /// Bytes of those.
    pub body_bytes: usize,
    /// Headers in memory.
    pub headers: usize,
    /// Peers that may be asked.
    pub peers: usize,
    /// Requests under way.
    pub requests: usize,
    /// Downloaded part of a state.
    pub downloaded: Option<StateProgress>,
}
