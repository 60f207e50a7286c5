//! The persist thread: moves canonical blocks into the base, and the base back.

use crate::{
    Error,
    apply::{self, Tries},
    body,
    chain::{Pending, TrieParts},
    codec::{PendingRecord, ReverseDiff},
    meta, metrics,
    replay::Replay,
    shared::{Shared, State, delete_pending},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Inbox, Received};
use tandem_primitives::{
    AccountUpdate, B256, BlockId, BlockNumber, Bytes, EMPTY_CODE_HASH, StateDiff,
};
use tandem_proto::storage;
use tandem_store::{
    Batch, Durability, View,
    tables::{Bodies, Canonical, Code, Pending as PendingTable, ReverseDiffs, Transactions},
};
use tracing::{error, info, info_span, warn};

/// Messages that may wait for the persist thread; a sender waits while there are more.
pub const MAILBOX: usize = 16;

/// Blocks that one set of sparse tries steps back before it starts afresh, which bounds its memory.
const REPLAY_BLOCKS_MAX: u64 = 128;

/// Old reverse diffs that one block removes: more than it adds, so that a lowered limit is reached.
const PRUNED_MAX: u64 = 16;

/// Time between two looks at what the database takes up; a quiet thread wakes for them alone.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the persist thread is asked for.
pub enum Message {
    /// There may be blocks to move into the base.
    Advance,
    /// Step back to a height, then answer.
    Rewind { to: BlockNumber, reply: crossbeam_channel::Sender<storage::Result<()>> },
    /// End.
    Stop,
}

pub struct Persister {
    shared: Arc<Shared>,
    /// Height of the oldest reverse diff; one above the base when there is none.
    oldest_reverse: BlockNumber,
}

/// Tells waiting callers when the thread ends, however it ends.
struct StopGuard(Arc<Shared>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.stopped = true;
        state.advancing = false;
        state.in_flight = None;
        self.0.progress.notify_all();
    }
}

impl Persister {
    /// # Errors
    /// When the database fails.
    pub fn new(shared: Arc<Shared>) -> Result<Self, Error> {
        let view = shared.store.view();
        let oldest = view.cursor::<ReverseDiffs>(&[]).entry()?.map(|(key, _)| key.try_into());
        let oldest_reverse = match oldest {
            Some(Ok(key)) => u64::from_be_bytes(key),
            Some(Err(_)) => return Err(Error::Damaged("malformed reverse diff key".to_owned())),
            None => meta::base(&view)?.number + 1,
        };
        drop(view);
        Ok(Self { shared, oldest_reverse })
    }

    /// The thread's loop. Messages go before blocks, so that a rewind waits for one block at most.
    pub fn run(mut self, inbox: &Inbox<Message>) {
        let _guard = StopGuard(self.shared.clone());
        let mut looked: Option<Instant> = None;
        loop {
            if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                looked = Some(Instant::now());
                self.look();
            }
            let message = if self.shared.state.lock().advancing {
                inbox.try_receive()
            } else {
                match inbox.receive(LOOK_EVERY) {
                    Received::Message(envelope) => Some(envelope),
                    Received::Idle => None,
                    Received::Closed => return,
                }
            };
            match message.map(|envelope| envelope.message) {
                Some(Message::Stop) => return,
                Some(Message::Rewind { to, reply }) => {
                    let answer = self.rewind(to);
                    // The caller may have gone; the base has moved all the same.
                    let _ = reply.send(answer);
                }
                Some(Message::Advance) => {
                    let mut state = self.shared.state.lock();
                    state.advancing = true;
                    state.failure = None;
                }
                None => {}
            }
            self.advance();
        }
    }

    /// Publishes what the database takes up.
    fn look(&self) {
        match self.shared.store.usage() {
            Ok(Some(usage)) => metrics::publish(&usage),
            // In memory there is nothing to look at.
            Ok(None) => {}
            Err(error) => warn!(%error, "cannot look at what the database takes up"),
        }
    }

    /// Moves one block into the base if one is due.
    fn advance(&mut self) {
        let block = {
            let mut state = self.shared.state.lock();
            if !state.advancing {
                return;
            }
            let due = state.chain.backlog(self.shared.config.persist_depth) > 0;
            let next = state.chain.next().filter(|_| due).cloned();
            state.advancing = next.is_some();
            state.in_flight = next.as_ref().map(|block| block.id);
            next
        };
        let Some(block) = block else {
            self.shared.progress.notify_all();
            return;
        };
        let id = block.id;
        let started = Instant::now();
        let persisted = self.persist(&block);
        let mut state = self.shared.state.lock();
        state.in_flight = None;
        match persisted {
            Ok(pruned) => {
                state.chain.advance();
                for hash in pruned {
                    state.chain.remove(&hash);
                }
                self.shared.gauge(&state);
            }
            Err(error) => {
                error!(block = %id, %error, "base cannot move on");
                state.advancing = false;
                state.failure = Some(error.to_string());
            }
        }
        let failed = state.failure.is_some();
        drop(state);
        self.shared.progress.notify_all();
        if !failed {
            ::metrics::histogram!(metrics::PERSIST_SECONDS).record(started.elapsed());
            self.moved(id);
        }
    }

    /// The base stands at another block.
    fn moved(&self, base: BlockId) {
        // Tries that started from the old base are of no use any more.
        if let Some(mut replay) = self.shared.replay.try_lock() {
            *replay = None;
        }
        (self.shared.deps.on_persisted)(base);
    }

    /// Moves a child of the base into it: everything in one batch. Returns the side-chain blocks
    /// that it removed for their age.
    fn persist(&mut self, block: &Pending) -> Result<Vec<B256>, Error> {
        let store = &self.shared.store;
        // Nobody else writes what is read here, so no snapshot is needed.
        let view = store.view();
        let id = block.id;
        let tries = self.tries(&view, block)?;
        let undo = apply::undo(&view, &block.diff.accounts)?;
        let mut batch = store.batch();
        apply::write_state(&mut batch, &view, &block.diff.accounts)?;
        tries.write(&mut batch, &view)?;
        for (hash, code) in &block.diff.codes {
            batch.put::<Code>(*hash, code);
        }
        batch.put::<Canonical>(id.number, id.hash);
        for (index, hash) in (0u32..).zip(block.transaction_hashes.iter()) {
            batch.put::<Transactions>(*hash, (id, index));
        }
        let reverse = ReverseDiff { block: id.hash, updates: undo };
        batch.put::<ReverseDiffs>(id.number, &reverse.encode());
        let oldest_reverse = self.prune_reverse_diffs(&mut batch, id.number);
        batch.delete::<PendingTable>(id.hash);
        let side_chain_limit = id.number.saturating_sub(self.shared.config.side_chain_blocks);
        let pruned = self.shared.state.lock().chain.side_chains_below(side_chain_limit);
        for hash in &pruned {
            delete_pending(&mut batch, *hash);
        }
        meta::put_base(&mut batch, &id);
        self.write(batch, id)?;
        self.oldest_reverse = oldest_reverse;
        Ok(pruned)
    }

    fn write(&self, batch: Batch<'_>, block: BlockId) -> Result<(), Error> {
        let bytes = batch.byte_len();
        let _span = info_span!("write_batch", block.number = block.number, bytes).entered();
        // Not synced even under the sync policy: blocks and forkchoice are on the disk, and all
        // that this writes can be made again from them.
        Ok(self.shared.store.write(batch, Durability::Process)?)
    }

    /// The block's trie diff as it was handed over if that leads to the root in its header, else
    /// computed. The root betrays a diff of another block or over another base; the nodes below
    /// the shards' tops are taken as they are, because hashing them once more would cost what the
    /// workers have just paid.
    fn tries(&self, view: &View<'_>, block: &Pending) -> Result<Tries, Error> {
        let root = body::header(view, block.id.hash)?.state_root;
        // Parts may have come since the block was taken.
        let parts = self.shared.state.lock().chain.get(&block.id.hash).map(|b| b.trie.clone());
        if let Some(parts) = parts.as_ref().and_then(TrieParts::complete) {
            match Tries::from_parts(view, parts.to_vec()).and_then(|t| t.check(block.id, root)) {
                Ok(tries) => return Ok(tries),
                Err(error @ (Error::StateRoot { .. } | Error::Trie(_))) => {
                    error!(block = %block.id, %error, "trie diff does not fit its block");
                    ::metrics::counter!(metrics::TRIE_DIFFS_REFUSED).increment(1);
                }
                Err(error) => return Err(error),
            }
        }
        ::metrics::counter!(metrics::TRIE_DIFFS_RECOMPUTED).increment(1);
        Tries::compute(view, &block.diff.accounts)?.check(block.id, root)
    }

    /// Removes reverse diffs beyond the limit; returns the height of the oldest one left.
    fn prune_reverse_diffs(&self, batch: &mut Batch<'_>, newest: BlockNumber) -> BlockNumber {
        let limit = (newest + 1).saturating_sub(self.shared.config.reverse_diff_blocks);
        let end = limit.min(self.oldest_reverse + PRUNED_MAX).max(self.oldest_reverse);
        for number in self.oldest_reverse..end {
            batch.delete::<ReverseDiffs>(number);
        }
        end
    }

    fn rewind(&mut self, to: BlockNumber) -> storage::Result<()> {
        self.shared.state.lock().advancing = false;
        let from = self.shared.state.lock().chain.base();
        if to >= from.number {
            return Ok(());
        }
        if to + 1 < self.oldest_reverse {
            let oldest = self.oldest_reverse.saturating_sub(1).min(from.number);
            return Err(storage::Error::RewindTooDeep { to, oldest });
        }
        let mut replay = Replay::new(from);
        for steps in 0..from.number - to {
            if steps % REPLAY_BLOCKS_MAX == 0 {
                replay = Replay::new(self.shared.state.lock().chain.base());
            }
            let started = Instant::now();
            let base = self.step_back(&mut replay)?;
            ::metrics::histogram!(metrics::REWIND_SECONDS).record(started.elapsed());
            self.shared.progress.notify_all();
            self.moved(base);
        }
        info!(from = from.number, to, "base rewound");
        Ok(())
    }

    /// Steps the base back to its parent: everything in one batch. `replay` stands at the base.
    fn step_back(&self, replay: &mut Replay) -> Result<BlockId, Error> {
        let store = &self.shared.store;
        let view = store.view();
        let id = meta::base(&view)?;
        let header = body::header(&view, id.hash)?;
        let parent = BlockId::new(id.number - 1, header.parent_hash);
        let bytes = view.get::<ReverseDiffs>(id.number)?;
        let bytes = bytes.ok_or_else(|| Error::absent(format!("reverse diff of block {id}")))?;
        let reverse = ReverseDiff::decode(&bytes)?;
        if reverse.block != id.hash {
            return Err(Error::Damaged(format!("reverse diff of {id} is another block's")));
        }
        let forward = forward_diff(&view, &reverse.updates)?;
        let tries = replay.run(&view, parent.hash, &reverse.updates)?;
        let tries = tries.check(parent, body::header(&view, parent.hash)?.state_root)?;
        let body = view.get::<Bodies>(id.hash)?;
        let body = body.ok_or_else(|| Error::absent(format!("body of block {id}")))?;
        let transaction_hashes = body::transaction_hashes(&body)?;

        let mut batch = store.batch();
        apply::write_state(&mut batch, &view, &reverse.updates)?;
        tries.write(&mut batch, &view)?;
        batch.delete::<Canonical>(id.number);
        for hash in transaction_hashes.iter() {
            batch.delete::<Transactions>(*hash);
        }
        batch.delete::<ReverseDiffs>(id.number);
        let diff = Arc::new(forward);
        let record = PendingRecord { id, parent: parent.hash, transaction_hashes, diff };
        batch.put::<PendingTable>(id.hash, &record.encode());
        meta::put_base(&mut batch, &parent);
        // Under the lock, so that no one finds the block neither in the base nor pending.
        let mut state = self.shared.state.lock();
        self.write(batch, id)?;
        state.chain.step_back(parent, Pending { proven: true, ..record.into_pending() });
        self.shared.gauge(&state);
        Ok(parent)
    }
}

impl PendingRecord {
    /// The block without anything known of its trie diff.
    pub fn into_pending(self) -> Pending {
        let Self { id, parent, transaction_hashes, diff } = self;
        let (trie, proven) = (TrieParts::default(), false);
        Pending { id, parent, transaction_hashes, diff, trie, proven }
    }
}

/// The diff of the base's block, remade from the present values of what its reverse diff touches.
fn forward_diff(view: &View<'_>, reverse: &[AccountUpdate]) -> Result<StateDiff, Error> {
    let accounts = apply::undo(view, reverse)?;
    let code_of = |update: &AccountUpdate| update.account.map(|account| account.code_hash);
    let changed = accounts.iter().zip(reverse).filter(|(new, old)| code_of(new) != code_of(old));
    let hashes: Vec<B256> = changed
        .filter_map(|(new, _)| code_of(new))
        .filter(|hash| *hash != EMPTY_CODE_HASH)
        .collect();
    let found = view.multi_get::<Code>(hashes.iter().copied())?;
    let codes: Vec<(B256, Bytes)> =
        hashes.into_iter().zip(found).filter_map(|(hash, code)| Some((hash, code?))).collect();
    Ok(StateDiff { accounts, codes })
}

impl State {
    /// Whether a caller has to wait for the base to come closer to the head.
    pub fn lags(&self, depth: u64, backlog_max: u64) -> bool {
        self.advancing && !self.stopped && self.chain.backlog(depth) > backlog_max
    }
}
