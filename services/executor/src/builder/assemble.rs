//! One attempt at a block: executes it, and computes its root beside the execution.
//!
//! Only the workers of this process compute the root. A wrong root from other workers would go
//! unnoticed until the network refuses the block.

use super::{pooled::Contents, turn::EngineTurn};
use crate::{
    block::{
        build::{BuiltPayload, PayloadAttributes},
        execute::{Executed, Failure},
        fill::{Candidates, Filled, fill},
    },
    chain::Chain,
    error::Error,
    state::BlockState,
};
use alloy_primitives::Bloom;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_chain::{
    AccessList, Block, Fork, Header, Payload, Template, receipts_root, validate_body,
    validate_header,
};
use tandem_primitives::{B256, BlockId, Bytes, StateDiff, keccak256};
use tandem_proto::multiproof::{self, Begin, ProofApi, ProofSession, StateUpdate};

/// Extra data of payloads that are built here.
pub const EXTRA_DATA: &[u8] = b"tandem";

/// Longest wait for the workers to have time for a root.
const ROOT_WAIT_MAX: Duration = Duration::from_secs(4);

/// Maximum number of attempts at a root, after the one beside the execution.
const ROOT_ATTEMPTS_MAX: usize = 16;

/// Tools that blocks are made with.
pub struct Tools {
    pub chain: Arc<Chain>,
    /// Workers of this process.
    pub proof: Arc<dyn ProofApi>,
    pub turn: Arc<EngineTurn>,
    /// Gas limit that blocks move towards, unless the consensus client names another one.
    pub gas_limit_target: u64,
}

/// Result of executing a built block, which its newPayload need not repeat.
#[derive(Debug)]
pub struct BlockResult {
    pub executed: Executed,
    pub diff: Arc<StateDiff>,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
}

/// Built block.
pub struct Assembled {
    pub payload: BuiltPayload,
    pub result: BlockResult,
}

/// Block to be built, before its transactions are known.
#[derive(Clone)]
pub struct Draft<'a> {
    tools: &'a Tools,
    /// Template of the block.
    pub attributes: &'a PayloadAttributes,
    parent: BlockId,
    parent_header: Arc<Header>,
    /// Header without roots and gas used.
    pub header: Header,
}

impl<'a> Draft<'a> {
    /// Describes the block with these attributes and this extra data on `parent`.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`]; as [`Chain`] for reading.
    pub fn new(
        tools: &'a Tools,
        parent: B256,
        attributes: &'a PayloadAttributes,
        extra_data: Bytes,
    ) -> Result<Self, Error> {
        let found = tools.chain.header_by_hash(parent)?;
        let (parent, parent_header) = found.ok_or(Error::UnknownBlock)?;
        let template = Template {
            timestamp: attributes.timestamp,
            prev_randao: attributes.prev_randao,
            fee_recipient: attributes.suggested_fee_recipient,
            withdrawals: attributes.withdrawals.clone(),
            parent_beacon_block_root: attributes.parent_beacon_block_root,
            slot_number: attributes.slot_number,
            gas_limit_target: attributes.target_gas_limit.unwrap_or(tools.gas_limit_target),
            extra_data,
        };
        let header = template.header(tools.chain.spec(), &parent_header);
        Ok(Self { tools, attributes, parent, parent_header, header })
    }

    /// Executes the block with these candidates and computes its root. `contents` returns what the
    /// candidates noted of those that were taken.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if no valid block can be built on the parent.
    pub fn assemble<C: Candidates>(
        self,
        mut candidates: C,
        contents: impl FnOnce(C) -> Result<Contents, Error>,
    ) -> Result<Assembled, Failure> {
        let Self { tools, attributes, parent, parent_header, mut header } = self;
        let Tools { chain, proof, turn, .. } = tools;
        let spec = chain.spec();
        let withdrawals = attributes.withdrawals.as_deref();
        let view = chain.view_for_building(parent).map_err(Failure::Internal)?;
        let begin = Begin::passing(BlockId::new(header.number, unique()), parent.hash);
        let session = turn.begin(&**proof, begin).map_err(internal)?;
        let mut session = YieldingSession { inner: session, turn };
        let hashes = Box::new(|number| chain.block_hash(parent, number));
        let mut state = BlockState::new(&view, hashes, Some(&mut session));
        let filled = fill(spec, &header, withdrawals, &mut state, &mut candidates)?;
        let diff = Arc::new(state.into_diff());
        session.finish();
        let Filled { executed, value } = filled;
        let Contents { raw, blobs } = contents(candidates).map_err(Failure::Internal)?;
        (header.receipts_root, header.logs_bloom) = receipts_root(&executed.receipts);
        header.gas_used = executed.gas_used;
        header.blob_gas_used = header.blob_gas_used.map(|_| executed.blob_gas_used);
        let fork = spec.fork_of(&header);
        if fork >= Fork::Prague {
            header.requests_hash = Some(executed.requests.requests_hash());
        }
        let list = executed.access_list.as_ref();
        header.block_access_list_hash = list.map(AccessList::hash);
        header.state_root = state_root(tools, session, begin, &diff).map_err(internal)?;
        let (receipts_root, logs_bloom) = (header.receipts_root, header.logs_bloom);
        let mut block = Block::seal(header, &raw, withdrawals).map_err(Failure::Invalid)?;
        block.access_list = executed.access_list.clone();
        validate_header(spec, &block.header, &parent_header)
            .and_then(|()| validate_body(spec, &block))
            .map_err(Failure::Invalid)?;
        let payload = BuiltPayload {
            fork,
            payload: Payload::from_block(&block).0,
            // The hash excludes requests without data, and so must the list (prague.md).
            requests: executed.requests.iter().filter(|it| it.len() > 1).cloned().collect(),
            value,
            blobs,
        };
        let result = BlockResult { executed, diff, receipts_root, logs_bloom };
        Ok(Assembled { payload, result })
    }
}

fn internal(error: multiproof::Error) -> Failure {
    Failure::Internal(error.into())
}

/// Returns a name for the workers: the block's hash is not known before its root.
fn unique() -> B256 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    keccak256([&b"built"[..], &NEXT.fetch_add(1, Relaxed).to_be_bytes()].concat())
}

/// Session that ends as soon as the engine is at work.
struct YieldingSession<'a> {
    /// `None` if it was not begun, or ended.
    inner: Option<Box<dyn ProofSession>>,
    turn: &'a EngineTurn,
}

impl YieldingSession<'_> {
    fn yields(&mut self) -> Option<&mut Box<dyn ProofSession>> {
        if self.turn.is_taken() {
            self.inner = None;
        }
        self.inner.as_mut()
    }
}

impl ProofSession for YieldingSession<'_> {
    fn update(&mut self, update: Arc<StateUpdate>) {
        if let Some(session) = self.yields() {
            session.update(update);
        }
    }

    fn finish(&mut self) {
        if let Some(session) = self.yields() {
            session.finish();
        }
    }

    fn roots(self: Box<Self>) -> Result<multiproof::ShardRoots, multiproof::Error> {
        self.inner.map_or(Err(multiproof::Error::Unavailable), ProofSession::roots)
    }
}

/// Returns the root of the state. If the engine took the workers, gives them all changes once it has
/// left them.
fn state_root(
    tools: &Tools,
    session: YieldingSession<'_>,
    begin: Begin,
    diff: &StateDiff,
) -> Result<B256, multiproof::Error> {
    let combined = |session: Box<dyn ProofSession>| {
        let answer = session.roots()?;
        let combined = tandem_trie::combine(&answer.roots);
        let (root, _) = combined.map_err(|error| multiproof::Error::Trie(error.to_string()))?;
        Ok(root)
    };
    let (began, mut attempts) = (Instant::now(), 0);
    let mut last = match session.inner.map(combined) {
        Some(Err(error)) => error,
        Some(root) => return root,
        None => multiproof::Error::Unavailable,
    };
    while let Some(left) = ROOT_WAIT_MAX.checked_sub(began.elapsed()) {
        if !tools.turn.wait(left) {
            break;
        }
        let Some(mut session) = tools.turn.begin(&*tools.proof, begin)? else { continue };
        session.update(Arc::new(StateUpdate { accounts: diff.accounts.clone() }));
        session.finish();
        attempts += 1;
        match combined(session) {
            // The engine was faster again, or the workers are gone.
            Err(error) if attempts < ROOT_ATTEMPTS_MAX => last = error,
            result => return result,
        }
    }
    Err(last)
}
