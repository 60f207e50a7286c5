//! Persist thread: moves canonical blocks into the base, and the base back (`rewind.rs`).

use crate::{
    Config, Error, apply, block_tries,
    chain::Pending,
    codec::{PendingRecord, ReverseDiff},
    heal, meta, metrics,
    overlay::Overlay,
    shared::{Shared, State, record},
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use tandem_actor::{Inbox, Received};
use tandem_primitives::{AccountUpdate, B256, BlockId, BlockNumber};
use tandem_proto::storage;
use tandem_store::{
    Batch, Durability, View,
    tables::{
        AccessLists, Canonical, Code, Pending as PendingTable, Proven, ReverseDiffs, StateDiffs,
        Transactions,
    },
};
use tracing::{Span, debug, debug_span, error, info, info_span, warn};

/// Messages that may wait for the persist thread; a sender waits while the mailbox is full.
pub const MAILBOX: usize = 16;

/// Maximum bytes in memory of the blocks of one step. A commit waits while their batch is written.
const STEP_BYTES_MAX: u64 = 8 << 20;

/// Maximum number of heights whose old reverse diffs one block removes, and likewise access lists and
/// state diffs. A block adds fewer, so that a lowered limit is reached.
const PRUNED_MAX: u64 = 16;

/// Time between two checks of the database's usage; an idle thread wakes only for them.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Request to the persist thread.
pub enum Message {
    /// There may be blocks to move into the base.
    Advance,
    /// Step back to a height, then answer.
    Rewind { to: BlockNumber, reply: crossbeam_channel::Sender<storage::Result<()>> },
    /// Make a downloaded state the base, then answer.
    Adopt { block: BlockId, reply: crossbeam_channel::Sender<storage::Result<()>> },
    /// End the thread.
    Stop,
}

pub struct Persister {
    pub(crate) shared: Arc<Shared>,
    /// Height of the oldest reverse diff; one above the base when there is none.
    pub(crate) oldest_reverse: BlockNumber,
    /// Height below which no access list is left; one above the base when there is none.
    oldest_list: BlockNumber,
    /// Height below which no state diff is left; one above the base when there is none.
    pub(crate) oldest_diff: BlockNumber,
    /// Time since which a block has been due to enter the base, `None` while none is.
    due: Option<Instant>,
}

/// Guard that tells waiting callers when the thread ends, however it ends.
struct StopGuard(Arc<Shared>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.stopped = true;
        state.advancing = false;
        state.in_flight.clear();
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
        let oldest = view.cursor::<AccessLists>(&[]).entry()?.and_then(|(key, _)| height_of(key));
        let oldest_list = match oldest {
            Some(height) => height,
            None => meta::base(&view)?.number + 1,
        };
        let oldest = view.cursor::<StateDiffs>(&[]).entry()?.and_then(|(key, _)| height_of(key));
        let oldest_diff = match oldest {
            Some(height) => height,
            None => meta::base(&view)?.number + 1,
        };
        drop(view);
        Ok(Self { shared, oldest_reverse, oldest_list, oldest_diff, due: None })
    }

    /// Notes that the base is at this height, and nothing below it can be undone.
    pub fn begin_at(&mut self, base: BlockNumber) {
        (self.oldest_reverse, self.oldest_list, self.oldest_diff) = (base + 1, base + 1, base + 1);
    }

    /// Notes that the base stepped back to this height, so state diffs begin no higher than above it.
    pub fn rewound_to(&mut self, base: BlockNumber) {
        self.oldest_diff = self.oldest_diff.min(base + 1);
    }

    /// Runs the thread's loop. Messages go before blocks, so that a rewind waits for one step at
    /// most.
    pub fn run(mut self, inbox: &Inbox<Message>) {
        let _guard = StopGuard(self.shared.clone());
        let mut looked: Option<Instant> = None;
        loop {
            if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                looked = Some(Instant::now());
                self.look();
            }
            let rest = self.rest();
            let message = if rest.is_zero() {
                inbox.try_receive()
            } else {
                match inbox.receive(rest) {
                    Received::Message(envelope) => Some(envelope),
                    Received::Idle => None,
                    Received::Closed => return,
                }
            };
            match message.map(|envelope| envelope.message) {
                Some(Message::Stop) => return,
                Some(Message::Rewind { to, reply }) => {
                    let answer = self.rewind(to);
                    // The caller may have gone; the base has moved nevertheless.
                    let _ = reply.send(answer);
                }
                Some(Message::Adopt { block, reply }) => {
                    let answer = self.adopt(block);
                    let _ = reply.send(answer);
                }
                Some(Message::Advance) => {
                    let mut state = self.shared.state.lock();
                    state.advancing = true;
                    state.failure = None;
                }
                None => {}
            }
            if self.rest().is_zero() {
                self.advance();
            }
        }
    }

    /// Returns how long the thread has nothing to do: until enough blocks are due for a step, or the
    /// first of them has waited long enough for others.
    fn rest(&mut self) -> Duration {
        let Config { step_blocks, step_wait_millis, backlog_blocks_max, .. } = self.shared.config;
        let state = self.shared.state.lock();
        if !state.advancing {
            self.due = None;
            return LOOK_EVERY;
        }
        // A forkchoice waits while more blocks are due than `backlog_blocks_max`.
        let backlog = state.chain.backlog();
        if backlog == 0 || backlog >= step_blocks || backlog > backlog_blocks_max {
            return Duration::ZERO;
        }
        let since = *self.due.get_or_insert_with(Instant::now);
        Duration::from_millis(step_wait_millis).saturating_sub(since.elapsed())
    }

    /// Publishes the usage of the database, and checks whether a full disk has room again. Bounds
    /// the age of the mark that a power cut leaves.
    fn look(&self) {
        if self.shared.store.is_failing() {
            match self.shared.store.probe() {
                Ok(()) => info!("the database can be written again"),
                Err(error) => warn!(%error, "the database cannot be written"),
            }
        }
        self.shared.acknowledged.sync();
        self.look_at_volume();
        match self.shared.store.usage() {
            Ok(Some(usage)) => metrics::publish(&usage),
            // A database in memory has no usage.
            Ok(None) => {}
            Err(error) => warn!(%error, "cannot look at what the database takes up"),
        }
    }

    fn look_at_volume(&self) {
        let bytes = match self.shared.store.free_bytes() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return,
            Err(error) => {
                warn!(%error, "cannot look at what the volume has left");
                return;
            }
        };
        ::metrics::gauge!(metrics::VOLUME_FREE_BYTES).set(bytes as f64);
        let before = self.shared.free_bytes.swap(bytes, Relaxed);
        let least = self.shared.config.free_bytes_min;
        match (before < least, bytes < least) {
            (false, true) => warn!(bytes, least, "the volume is full"),
            (true, false) => info!(bytes, "the volume has room again"),
            _ => {}
        }
    }

    /// Moves the next step of blocks into the base if one is due.
    fn advance(&mut self) {
        let step = {
            let mut state = self.shared.state.lock();
            if !state.advancing {
                return;
            }
            let step = state.chain.next_step(self.shared.config.step_blocks, STEP_BYTES_MAX);
            state.advancing = !step.is_empty();
            state.in_flight = step.iter().map(|block| block.id.hash).collect();
            step
        };
        self.due = None;
        let Some(last) = step.last() else {
            self.shared.progress.notify_all();
            self.prune();
            self.prune_bodies(true);
            return;
        };
        let started = Instant::now();
        let persisted = self.persist(&step);
        let mut state = self.shared.state.lock();
        state.in_flight.clear();
        match &persisted {
            Ok(blocks) => {
                (0..*blocks).for_each(|_| state.chain.advance());
                self.shared.gauge(&state);
            }
            Err(error) => {
                error!(block = %last.id, %error, "base cannot move on");
                state.advancing = false;
                state.failure = Some(error.to_string());
            }
        }
        let base = state.chain.base();
        drop(state);
        self.shared.progress.notify_all();
        if let Ok(blocks) = persisted {
            ::metrics::histogram!(metrics::PERSIST_SECONDS).record(started.elapsed());
            ::metrics::histogram!(metrics::PERSIST_BLOCKS).record(blocks as f64);
            self.moved(base);
            self.prune_bodies(false);
        }
    }

    /// Notes that the base moved to another block.
    pub(crate) fn moved(&self, base: BlockId) {
        self.shared.acknowledged.base(&self.shared.store, base);
        // Tries that are of no use above the new base would only take memory.
        if let Some(mut replay) = self.shared.replay.try_lock()
            && replay.as_mut().is_some_and(|tries| !tries.follow(base))
        {
            *replay = None;
        }
        // The next block tries again.
        if let Err(error) = self.shared.history.prune(&self.shared.store, base.number) {
            warn!(%error, "cannot remove old history");
        }
        self.shared.announce(base);
    }

    /// Moves blocks into the base, all in one batch. The first is a child of the base, each other one a
    /// child of the block before it. Returns how many it moved: one when their trie diffs cannot be used
    /// together.
    fn persist(&mut self, step: &[Pending]) -> Result<usize, Error> {
        let store = &self.shared.store;
        // No other thread writes the data that is read here, so no snapshot is needed.
        let view = store.view();
        // Keeps the base unchanged: no other thread mends it meanwhile.
        let mut mended = self.shared.mended.lock();
        let together = block_tries::handed_over(&self.shared, &view, step)?;
        let (step, tries) = match together {
            Some(tries) => (step, tries),
            None => {
                let compute = || block_tries::of_block(&self.shared, &view, &step[0]);
                (&step[..1], heal::with_healing(&self.shared, &mut mended, compute)?)
            }
        };
        let mut batch = store.batch();
        // State before each block.
        let mut state = Overlay::new(&view);
        for block in step {
            let record = record(&view, block)?;
            let undo = state.undo(&record.diff.accounts)?;
            state.apply(&record.diff.accounts);
            self.persist_block(&mut batch, &view, &record, undo)?;
        }
        apply::write_state(&mut batch, &view, &state.into_updates())?;
        tries.write(&mut batch, &view)?;
        let newest = step[step.len() - 1].id;
        let pruned_max = PRUNED_MAX * step.len() as u64;
        let oldest_diff = self.prune_state_diffs(&mut batch, newest.number, pruned_max);
        let oldest_reverse = self.prune_reverse_diffs(&mut batch, newest.number, pruned_max);
        let oldest_list = self.prune_access_lists(&mut batch, &view, newest.number, pruned_max)?;
        meta::put_base(&mut batch, &newest);
        self.write(batch, newest)?;
        self.oldest_reverse = oldest_reverse;
        self.oldest_list = oldest_list;
        self.oldest_diff = oldest_diff;
        Ok(step.len())
    }

    /// Adds to a batch what is stored of each block that enters the base. `undo` has the values before it.
    fn persist_block(
        &self,
        batch: &mut Batch<'_>,
        view: &View<'_>,
        record: &PendingRecord,
        undo: Vec<AccountUpdate>,
    ) -> Result<(), Error> {
        let id = record.id;
        for (hash, code) in &record.diff.codes {
            batch.put::<Code>(*hash, code);
        }
        batch.put::<Canonical>(id.number, id.hash);
        for (index, hash) in (0u32..).zip(record.transaction_hashes.iter()) {
            batch.put::<Transactions>(*hash, (id, index));
        }
        self.shared.history.add(batch, id.number, &record.diff.accounts, &undo);
        let reverse = ReverseDiff { block: id.hash, updates: undo };
        batch.put::<ReverseDiffs>(id.number, &reverse.encode());
        // The feed gives followers the list of a block that has one.
        let has_list = view.get::<AccessLists>(id)?.is_some();
        if self.shared.config.feed_blocks > 0 && !has_list {
            batch.put::<StateDiffs>(id.number, &record.encode());
        }
        batch.delete::<PendingTable>(id.hash);
        batch.delete::<Proven>(id.hash);
        Ok(())
    }

    /// Forgets the blocks that cannot become canonical any more.
    fn prune(&self) {
        let mut state = self.shared.state.lock();
        let oldest = self.oldest_reverse.saturating_sub(1);
        let pending = state.chain.excluded(oldest);
        let finalized = state.chain.forkchoice().finalized.map_or(0, |block| block.number);
        let kept = state.kept.excluded(finalized);
        if pending.is_empty() && kept.is_empty() {
            return;
        }
        debug!(pending = pending.len(), kept = kept.len(), "side branches dropped");
        if let Err(error) = self.shared.forget(&mut state, &pending, &kept) {
            warn!(%error, "cannot drop side branches");
        }
    }

    pub(crate) fn write(&self, batch: Batch<'_>, block: BlockId) -> Result<(), Error> {
        let bytes = batch.byte_len();
        // A trace of its own for each batch of the background would crowd the payloads out.
        let span = if Span::current().is_none() {
            debug_span!("write_batch", block.number = block.number, bytes)
        } else {
            info_span!("write_batch", block.number = block.number, bytes)
        };
        let _entered = span.enter();
        // Not synced even under the sync policy: blocks and forkchoice are on the disk, and
        // everything in this batch can be rebuilt from them.
        Ok(self.shared.store.write(batch, Durability::Process)?)
    }

    /// Removes reverse diffs beyond the limit. Returns the height of the oldest one left.
    fn prune_reverse_diffs(
        &self,
        batch: &mut Batch<'_>,
        newest: BlockNumber,
        pruned_max: u64,
    ) -> BlockNumber {
        let limit = (newest + 1).saturating_sub(self.shared.config.reverse_diff_blocks);
        let end = limit.min(self.oldest_reverse + pruned_max).max(self.oldest_reverse);
        for number in self.oldest_reverse..end {
            batch.delete::<ReverseDiffs>(number);
        }
        end
    }

    /// Removes state diffs beyond the limit. Returns the height below which none is left.
    fn prune_state_diffs(
        &self,
        batch: &mut Batch<'_>,
        newest: BlockNumber,
        pruned_max: u64,
    ) -> BlockNumber {
        let limit = (newest + 1).saturating_sub(self.shared.config.feed_blocks);
        let end = limit.min(self.oldest_diff + pruned_max).max(self.oldest_diff);
        for number in self.oldest_diff..end {
            batch.delete::<StateDiffs>(number);
        }
        end
    }

    /// Removes access lists beyond the limit. Returns the height below which none is left.
    fn prune_access_lists(
        &self,
        batch: &mut Batch<'_>,
        view: &View<'_>,
        newest: BlockNumber,
        pruned_max: u64,
    ) -> Result<BlockNumber, Error> {
        let limit = (newest + 1).saturating_sub(self.shared.config.access_list_blocks);
        let end = limit.min(self.oldest_list + pruned_max).max(self.oldest_list);
        for number in self.oldest_list..end {
            // Side branches have lists too, until they are dropped.
            let mut cursor = view.cursor::<AccessLists>(&number.to_be_bytes());
            while let Some((key, _)) = cursor.entry()? {
                let Some(hash) = key.get(8..).and_then(|hash| B256::try_from(hash).ok()) else {
                    return Err(Error::Damaged("malformed access list key".to_owned()));
                };
                batch.delete::<AccessLists>(BlockId::new(number, hash));
                cursor.advance();
            }
        }
        Ok(end)
    }
}

/// Returns the height in a key of the table of access lists.
fn height_of(key: &[u8]) -> Option<BlockNumber> {
    key.first_chunk().map(|number| u64::from_be_bytes(*number))
}

impl State {
    /// Returns whether a caller has to wait for the base to come closer to the head.
    pub fn lags(&self, backlog_max: u64) -> bool {
        self.advancing && !self.stopped && self.chain.backlog() > backlog_max
    }
}
