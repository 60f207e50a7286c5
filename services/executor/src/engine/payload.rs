//! engine_newPayload: executes one block while its state root is computed.

use super::{
    Engine, Verdict,
    base::Standing,
    overlap::{Overlap, Work},
};
use crate::{
    ahead::{
        listed::Listed,
        senders::Senders,
        speculate::{Advice, Ahead},
    },
    block::{
        execute::{Executed, Failure, execute},
        receipts::{FinishedReceipts, ReceiptsRooter},
    },
    builder::BlockResult,
    error::Error,
    machines::ForeignResults,
    metrics as names,
    state::{
        BlockState,
        parent::ParentState as _,
        view::{ReadCounts, StateView},
    },
    status::PayloadStatus,
};
use alloy_consensus::Header;
use metrics::{counter, histogram};
use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::{
    Block, BlockError, encode_receipts, is_merged, validate_body, validate_header, validate_outcome,
};
use tandem_policy::{Policies, StateReads};
use tandem_primitives::{B256, BlockId, StateDiff};
use tandem_proto::{
    event::CHAIN_EXECUTED,
    multiproof::{self, Begin, ProofApi, ProofSession, StateUpdate},
    storage,
};
use tandem_telemetry::{BusyIntervals, unix_nanos};
use tracing::{Span, field::Empty, info, info_span, warn};

/// Maximum number of valid blocks that wait to be marked as valid. A restart rechecks the roots of
/// unmarked blocks.
const UNSAID_MAX: usize = 1024;

/// Executed block whose root is still being computed.
pub(super) struct Running {
    pub executed: Executed,
    pub diff: Arc<StateDiff>,
    pub session: Box<dyn ProofSession>,
    /// Times at which the block was executed, in nanoseconds since the Unix epoch: by this thread,
    /// or for it on another one. Empty where spans are not recorded.
    pub executing: Vec<(u64, u64)>,
    /// Rooter that has the receipts of execution.
    pub rooter: ReceiptsRooter,
}

/// One execution of a block.
#[derive(Default)]
struct Attempt {
    /// Whether the block executes itself from the beginning: without other machines, and without its
    /// access list.
    is_alone: bool,
    /// Whether the changes are those of the access list.
    is_followed: bool,
    /// Results of theirs that were committed, and the receipts of the block.
    foreign: ForeignResults,
}

impl Running {
    /// Tells the workers that all updates are in.
    pub fn finish(&mut self) {
        if let Some(end) = self.executing.iter().map(|(_, end)| *end).max() {
            self.session.executed(end);
        }
        self.session.finish();
    }
}

impl Engine {
    /// Validates and executes one block (Engine API, paris.md, "Payload validation"), or an
    /// imported block from before the merge.
    pub(super) fn new_payload(
        &mut self,
        block: &Arc<Block>,
        senders: &Senders,
    ) -> Result<PayloadStatus, Error> {
        let policies = self.load_policies();
        let payload_span = Span::current();
        let span = info_span!(
            "validate_block_with_state",
            block.number = block.id.number, block.hash = %block.id.hash,
            transactions = block.transactions.len(), gas_used = block.header.gas_used,
            policy.batching = %policies.batching, policy.chunking = %policies.chunking,
            policy.chunk_targets = policies.chunk_targets,
            policy.force_chunk_targets = policies.force_chunk_targets,
            policy.dispatch = %policies.dispatch,
            policy.transition_flush = %policies.transition_flush,
            policy.receipts_root = %policies.receipts_root, policy.reads = %policies.reads,
            policy.access_lists = %policies.access_lists,
        );
        let _entered = span.entered();
        let (id, parent) = (block.id, block.header.parent_hash);
        // Checked first, because a refused block's record stays if storage-writer fails to drop it.
        if let Some(verdict) = self.invalid.get(&id.hash).or_else(|| self.invalid.get(&parent)) {
            let verdict = verdict.clone();
            return Ok(self.refuse(id.hash, verdict));
        }
        if self.chain.knows(id)? {
            return Ok(PayloadStatus::valid(id.hash));
        }
        let Some((parent_id, parent_header)) = self.chain.header_by_hash(parent)? else {
            let status = self.kept_status(parent)?;
            return self.keep(block, status);
        };
        let chain = self.chain.clone();
        let mut checked = validate_header(&chain.spec, &block.header, &parent_header);
        // Before the merge there is no valid ancestor to name (paris.md, "Payload validation").
        let mut latest_valid = parent;
        if !is_merged(&parent_header) {
            latest_valid = B256::ZERO;
            let terminal = self.check_terminal(&block.header, parent_id, &parent_header)?;
            checked = terminal.and(checked);
        }
        let checked = checked
            .map_err(Failure::Invalid)
            .and_then(|()| self.check_ommers(block))
            .and_then(|()| validate_body(&chain.spec, block).map_err(Failure::Invalid));
        if checked.is_ok()
            && let Some(status) = self.postponed(parent)?
        {
            return self.keep(block, status);
        }
        let result = checked.and_then(|()| {
            self.execute_and_prove(block, senders, parent_id, &policies, &payload_span)
        });
        match result {
            Ok(()) => {
                self.unblock(&id.hash);
                Ok(PayloadStatus::valid(id.hash))
            }
            Err(Failure::Internal(error)) => {
                if !moved(&error) {
                    return Err(error);
                }
                // The base has moved past the fork of a side branch. Or an event from before a step
                // back arrived after it, from another process.
                self.load_pending()?;
                match self.postponed(parent)? {
                    Some(status) => self.keep(block, status),
                    // The payload may be sent again, and then meets the current base.
                    None => Err(error),
                }
            }
            Err(Failure::Invalid(error)) => {
                info!(number = id.number, hash = %id.hash, %error, "invalid block");
                counter!(names::INVALID, "rule" => error.kind()).increment(1);
                let verdict = Verdict { latest_valid: Some(latest_valid), error: error.describe() };
                Ok(self.refuse(id.hash, verdict))
            }
        }
    }

    /// Returns the answer to a payload that cannot be executed on this parent now, or `None` if it
    /// can.
    fn postponed(&mut self, parent: B256) -> Result<Option<PayloadStatus>, Error> {
        Ok(match self.stand_on(parent)? {
            Standing::Reached => None,
            // If the base stepped back for each block of an unchosen branch, a single proposer
            // could stall the node (Engine API, paris.md: ACCEPTED).
            Standing::Below(_) => Some(PayloadStatus::accepted()),
            Standing::Far | Standing::Unconnected => Some(PayloadStatus::syncing()),
        })
    }

    fn refuse(&mut self, hash: B256, verdict: Verdict) -> PayloadStatus {
        let status = verdict.status();
        self.invalid.insert(hash, verdict);
        status
    }

    /// Executes the block and compares the result with its header. If its access list or other machines
    /// have a part in the result, a block is refused only after an execution without them.
    fn execute_and_prove(
        &mut self,
        block: &Arc<Block>,
        senders: &Senders,
        parent: BlockId,
        policies: &Policies,
        payload_span: &Span,
    ) -> Result<(), Failure> {
        let mut first = Attempt::default();
        let result = self.try_block(block, senders, parent, policies, (payload_span, &mut first));
        let is_own = first.foreign.used.is_empty() && !first.is_followed;
        if is_own || !matches!(result, Err(Failure::Invalid(_))) {
            return result;
        }
        let number = block.id.number;
        warn!(number, "the block breaks a rule, it is executed without its access list");
        counter!(names::ACCESS_LISTS, "outcome" => "repeated").increment(1);
        if !first.foreign.used.is_empty() {
            counter!(names::LEASED_TRANSACTIONS, "outcome" => "repeated_block").increment(1);
        }
        let mut second = Attempt { is_alone: true, ..Attempt::default() };
        self.try_block(block, senders, parent, policies, (payload_span, &mut second))?;
        if let Some(machines) = self.machines.as_ref().filter(|_| !first.foreign.used.is_empty()) {
            machines.blame(&first.foreign, &second.foreign.receipts);
        }
        Ok(())
    }

    fn try_block(
        &mut self,
        block: &Arc<Block>,
        senders: &Senders,
        parent: BlockId,
        policies: &Policies,
        (payload_span, attempt): (&Span, &mut Attempt),
    ) -> Result<(), Failure> {
        let started = Instant::now();
        let mut running = match self.built.take(&block.id.hash) {
            Some(result) => self.resume(result, block.id, parent)?,
            None => self.execute_streaming(block, senders, parent, policies, attempt)?,
        };
        let executed_at = Instant::now();
        histogram!(names::EXECUTION_SECONDS).record(executed_at - started);
        running.finish();
        let Running { executed, diff, session, executing, rooter } = running;
        let FinishedReceipts { root, bloom, encoded } =
            info_span!("receipts_root").in_scope(|| rooter.finish(&executed.receipts));
        attempt.is_followed = executed.is_followed;
        let outcome = executed.outcome(root, bloom);
        if let Err(error) = validate_outcome(&self.chain.spec, block, &outcome) {
            attempt.foreign.receipts = executed.receipts;
            return Err(Failure::Invalid(error));
        }
        // Only the root is open now. At startup, storage-writer checks the roots of its pending
        // blocks, so a crash from here on leaves no invalid block behind.
        self.chain.withhold(block.id.hash);
        let record = storage::Block {
            id: block.id,
            parent: parent.hash,
            header: block.header_rlp.clone(),
            body: block.body_rlp.clone(),
            receipts: encoded.unwrap_or_else(|| encode_receipts(&executed.receipts)),
            transaction_hashes: block.transaction_hashes.clone(),
            diff: diff.clone(),
            access_list: executed.access_list.as_ref().map(|list| list.rlp().clone()),
        };
        let committed = self.commit(record);
        let mut work = Work::default();
        let verdict = self.await_state_root(block, parent, session, &diff, &mut work);
        let root_at = Instant::now();
        let overlap = Overlap::of(executing, work, unix_nanos());
        overlap.record(payload_span);
        histogram!(names::ROOT_WAIT_SECONDS).record(root_at - executed_at);
        if let Err(failure) = verdict.and(committed) {
            self.chain.recent.remove(&block.id.hash);
            self.proof.discard(block.id.hash);
            if let Err(error) = self.storage.discard(self.epoch, block.id.hash) {
                warn!(number = block.id.number, %error, "refused block stays pending");
            }
            return Err(failure);
        }
        overlap.count();
        self.accept(block);
        attempt.foreign.receipts = executed.receipts;
        let total = started.elapsed();
        info!(
            number = block.id.number,
            hash = %block.id.hash,
            transactions = block.transactions.len(),
            mgas = block.header.gas_used as f64 / 1e6,
            execution_ms = (executed_at - started).as_secs_f64() * 1e3,
            root_wait_ms = (root_at - executed_at).as_secs_f64() * 1e3,
            total_ms = total.as_secs_f64() * 1e3,
            "block executed"
        );
        Ok(())
    }

    /// Takes over the result of a block that was built here. The hash covers everything that the
    /// result depends on. The workers get all changes at once.
    fn resume(
        &self,
        result: BlockResult,
        block: BlockId,
        parent: BlockId,
    ) -> Result<Running, Failure> {
        let BlockResult { executed, diff, receipts_root, logs_bloom } = result;
        counter!(names::BUILT_BLOCKS).increment(1);
        let session = Self::prove_again(&self.proof, Begin::new(block, parent.hash), &diff)?;
        let rooter = ReceiptsRooter::Known(receipts_root, Box::new(logs_bloom));
        Ok(Running { executed, diff, session, executing: Vec::new(), rooter })
    }

    /// Executes the block on its parent's state, streaming the changes to the workers.
    fn execute_streaming(
        &self,
        block: &Arc<Block>,
        senders: &Senders,
        parent: BlockId,
        policies: &Policies,
        attempt: &mut Attempt,
    ) -> Result<Running, Failure> {
        let (chain, proof) = (&self.chain, &self.proof);
        let view = info_span!("get_overlay").in_scope(|| {
            let recent = chain.recent.clone();
            Arc::new(StateView::pinned(parent.hash, recent, self.storage.clone()))
        });
        // The workers' spans are children of the block's span, not of the short span that opens
        // them.
        let opening = info_span!("spawn_payload_processor");
        let begin = Begin::new(block.id, parent.hash);
        let session = proof.begin(begin);
        drop(opening);
        let mut session = session.map_err(|error| Failure::Internal(error.into()))?;
        let advice = Advice { proof: proof.clone(), block: block.id.hash };
        advice.tell_credited(block);
        let span = info_span!(
            "payload processor",
            reads.layers = Empty,
            reads.cache = Empty,
            reads.storage = Empty,
            reads.unforeseen = Empty,
            speculated = Empty,
            committed = Empty,
            conflicts = Empty,
            listed = Empty,
            list.left_at = Empty,
            longest.index = Empty,
            longest.us = Empty,
            longest.ahead = Empty,
        );
        let block_span = Span::current();
        let mut busy = BusyIntervals::new(&span);
        let (working, _entered) = (busy.enter(), span.enter());
        let hashes = Box::new(|number| chain.block_hash(parent, number));
        let mut state = BlockState::new(&*view, hashes, Some(&mut *session))
            .flushed_by(policies.transition_flush);
        let mut rooter = self.receipts_rooter(&block.header, policies.receipts_root);
        let mut ahead = self.ahead(block_span, parent, view.clone(), advice, policies.reads);
        if !attempt.is_alone {
            ahead.listed = self.listed(block, policies, view.clone());
            ahead.machines = self.machines.as_ref();
        }
        let result = execute(&chain.spec, block, senders, &mut state, &mut rooter, Some(&ahead));
        attempt.foreign.used = ahead.foreign.take();
        let mut executed = result?;
        let foretold = state.foretold().cloned();
        let diff = Arc::new(state.into_diff());
        drop(working);
        if let Some(foretold) = foretold {
            let is_right = foretold.accounts == diff.accounts;
            let outcome = match (executed.is_followed, is_right) {
                (true, _) => "confirmed",
                (false, true) => "followed",
                (false, false) => "differing",
            };
            counter!(names::ACCESS_LISTS, "outcome" => outcome).increment(1);
            if !is_right {
                // The workers have the values of the list, which are not those of the execution.
                drop(session);
                session = Self::prove_again(proof, begin, &diff)?;
            }
        }
        if !executed.steps.is_empty() {
            // The workers have one block open at a time, so this block begins again.
            drop(session);
            self.set_post_states(block.id, parent, &mut executed.receipts, &executed.steps)?;
            session = Self::prove_again(proof, begin, &diff)?;
        }
        for (what, name) in [("wait.state_ns", "state"), ("wait.workers_ns", "workers")] {
            let waited = Duration::from_nanos(busy.waited_ns(what));
            histogram!(names::EXECUTION_WAITS, "for" => name).record(waited);
        }
        let ReadCounts { layers, cache, storage, alone } = view.counts();
        span.record("reads.unforeseen", alone);
        histogram!(names::UNFORESEEN_READS).record(alone as f64);
        for (place, count) in [("layers", layers), ("cache", cache), ("storage", storage)] {
            span.record(["reads.", place].concat().as_str(), count);
            counter!(names::READS, "from" => place).increment(count);
        }
        let executing = [busy.intervals(), busy.waited("wait.ahead_ns")].concat();
        Ok(Running { executed, diff, session, executing, rooter })
    }

    /// Opens a block at the workers once more, with all its changes.
    fn prove_again(
        proof: &Arc<dyn ProofApi>,
        begin: Begin,
        diff: &StateDiff,
    ) -> Result<Box<dyn ProofSession>, Failure> {
        let session = proof.begin(begin);
        let mut session = session.map_err(|error| Failure::Internal(error.into()))?;
        session.update(Arc::new(StateUpdate { accounts: diff.accounts.clone() }));
        Ok(session)
    }

    /// Returns the inputs of execution ahead of turns.
    fn ahead(
        &self,
        span: Span,
        parent: BlockId,
        view: Arc<StateView>,
        advice: Advice,
        reads: StateReads,
    ) -> Ahead<'_> {
        let chain = self.chain.clone();
        let block_hashes = Arc::new(move |number| chain.block_hash(parent, number));
        Ahead {
            threads: &self.prewarmers,
            span,
            block_hashes,
            advice: Some(advice),
            predictor: self.prediction.of(view.is_far()),
            parent: view,
            in_rounds: reads == StateReads::Rounds,
            listed: None,
            machines: None,
            foreign: RefCell::default(),
        }
    }

    /// Returns the block's access list if it drives the block.
    fn listed(&self, block: &Block, policies: &Policies, view: Arc<StateView>) -> Option<Listed> {
        let is_alone = self.prewarmers.is_empty() && self.machines.is_none();
        if is_alone || !Listed::is_wanted(block, policies.access_lists) {
            return None;
        }
        let listed = Listed::of(block, view)?;
        Some(match policies.reads {
            StateReads::OneByOne => listed,
            _ => listed.reading_ahead(),
        })
    }

    /// Makes an executed block durable while the workers still hash, and adds its changes to those in memory.
    /// This thread is idle meanwhile, and another thread would have to be woken on the workers' processor.
    /// Nothing reads the changes before the block is accepted.
    fn commit(&mut self, record: storage::Block) -> Result<(), Failure> {
        let started = Instant::now();
        let mut committed = self.storage.commit(self.epoch, record.clone());
        if let Err(storage::Error::UnknownBlock(lost)) = committed
            && self.commit_again(lost).map_err(Failure::Internal)?
        {
            committed = self.storage.commit(self.epoch, record.clone());
        }
        if committed.is_ok() {
            self.chain.recent.insert(record.id, record.parent, record.diff.clone());
            self.committed.push(record);
        }
        histogram!(names::COMMIT_SECONDS).record(started.elapsed());
        committed.map_err(|error| Failure::Internal(error.into()))
    }

    /// Waits for the root and compares it. If the root differs or is missing, computes it once more
    /// with fresh tries before failing. A wrong verdict on a valid block would take the node off
    /// the chain.
    fn await_state_root(
        &self,
        block: &Block,
        parent: BlockId,
        session: Box<dyn ProofSession>,
        diff: &StateDiff,
        work: &mut Work,
    ) -> Result<(), Failure> {
        let span = info_span!("await_state_root", targets = Empty, walks = Empty, nodes = Empty);
        let _entered = span.enter();
        let header = block.header.state_root;
        let first = root(session, work);
        if matches!(first, Ok(computed) if computed == header) {
            return Ok(());
        }
        counter!(names::ROOT_RETRIES).increment(1);
        self.proof.discard(block.id.hash);
        let mut session = self
            .proof
            .begin(Begin::new(block.id, parent.hash))
            .map_err(|error| Failure::Internal(error.into()))?;
        session.update(Arc::new(StateUpdate { accounts: diff.accounts.clone() }));
        let computed = root(session, work).map_err(|error| Failure::Internal(error.into()))?;
        if !matches!(first, Ok(first) if first == computed) {
            let number = block.id.number;
            warn!(number, ?first, second = %computed, "first state root was wrong");
        }
        if computed == header {
            return Ok(());
        }
        Err(Failure::Invalid(BlockError::StateRoot { header, computed }))
    }

    /// Accepts a valid and durable block: later blocks may build on it.
    fn accept(&mut self, block: &Block) {
        let header: Arc<Header> = Arc::new(block.header.clone());
        self.chain.tree.write().insert(block.id, header);
        self.chain.release(block.id.hash);
        self.unsaid.push_back(block.id.hash);
        if self.unsaid.len() > UNSAID_MAX {
            self.unsaid.pop_front();
        }
        counter!(names::GAS).increment(block.header.gas_used);
        counter!(names::TRANSACTIONS).increment(block.transactions.len() as u64);
        self.publish(CHAIN_EXECUTED, block.id);
    }
}

/// Returns whether a block failed because the base has moved away from below its parent.
fn moved(error: &Error) -> bool {
    matches!(
        error,
        Error::BaseMoved { .. } | Error::Proof(multiproof::Error::ParentUnreachable { .. })
    )
}

/// Returns the state root that the workers computed. Adds the times at which they worked.
pub(super) fn root(
    session: Box<dyn ProofSession>,
    work: &mut Work,
) -> Result<B256, multiproof::Error> {
    let answer = session.roots()?;
    work.add(answer.work, &answer.stats);
    let span = Span::current();
    span.record("targets", answer.stats.targets);
    span.record("walks", answer.stats.walks);
    span.record("nodes", answer.stats.nodes);
    let (root, _) = tandem_trie::combine(&answer.roots)
        .map_err(|error| multiproof::Error::Trie(error.to_string()))?;
    Ok(root)
}
