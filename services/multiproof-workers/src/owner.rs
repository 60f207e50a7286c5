//! Owner of some shards: a thread that holds their tries and never waits for a database. Missing
//! nodes become jobs for the proof threads, and their results are taken in between updates.

use crate::{
    block::OpenBlock,
    config::Config,
    dispatch::Dispatch,
    key_batch::KeyBatch,
    message::{Message, Opening, OwnerRoots},
    pool::{Context, Proof},
    stats::{Gaps, Instruments},
    status::WorkerStatus,
    tracked_layers::TrackedLayers,
    tries::OwnedTries,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Envelope, Inbox, ReceivedOr};
use tandem_bus::Subscription;
use tandem_policy::Dispatching;
use tandem_primitives::{B256, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::{
    multiproof::{Begin, Error, Foresight, Prefetch, ProofStats, StateUpdate},
    storage::TrieStorage,
};
use tracing::{Span, warn};

/// Time an owner waits for work before it checks events again.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// Idle time after which all foresight is assumed to be in.
const FORESEEN_WAIT: Duration = Duration::from_millis(1);

/// Tries and layers of some shards, the block in progress, and the jobs under way.
pub struct Owner {
    index: usize,
    tries: OwnedTries,
    layers: TrackedLayers,
    open: Option<OpenBlock>,
    /// Block that was discarded last.
    discarded: Option<B256>,
    batch: KeyBatch,
    dispatch: Dispatch,
    statuses: Arc<[WorkerStatus]>,
    instruments: Instruments,
    gaps: Gaps,
}

/// Components of an owner.
pub struct Parts {
    pub index: usize,
    pub owned: ShardSet,
    pub storage: Arc<dyn TrieStorage>,
    pub persisted: Subscription,
    pub statuses: Arc<[WorkerStatus]>,
    pub dispatch: Dispatch,
}

impl Owner {
    pub fn new(config: &Config, parts: Parts) -> Self {
        let Parts { index, owned, storage, persisted, statuses, dispatch } = parts;
        Self {
            index,
            tries: OwnedTries::new(owned, config),
            layers: TrackedLayers::new(storage, persisted),
            open: None,
            discarded: None,
            batch: KeyBatch::default(),
            dispatch,
            statuses,
            instruments: Instruments::new(index),
            gaps: Gaps::default(),
        }
    }

    /// Works until it is told to stop.
    pub fn run(mut self, inbox: &Inbox<Message>) {
        while self.turn(inbox) {}
    }

    /// Does the most urgent work: takes an answer, takes a message, requests the gathered keys,
    /// closes the block, hashes ahead, or drops layers. Waits when there is nothing to do. Returns
    /// false at the end.
    fn turn(&mut self, inbox: &Inbox<Message>) -> bool {
        if let Ok(proof) = self.dispatch.answers.try_recv() {
            self.receive_proof(proof);
            return true;
        }
        // Answers under way make room, or end a wait that the policy asks for.
        let full = self.dispatch.is_full() || self.is_blocked();
        if !full && let Some(envelope) = inbox.try_receive() {
            return self.handle(envelope, inbox.len());
        }
        let wait = match self.batch_due_in(0) {
            Some(Duration::ZERO) => {
                self.request_batch();
                return true;
            }
            Some(due) => due,
            None if self.open.as_ref().is_some_and(|open| open.foreseen) => FORESEEN_WAIT,
            None => IDLE_WAIT,
        };
        if self.try_close() || self.work_ahead() || self.drop_layer() {
            return true;
        }
        self.wait(inbox, wait, full)
    }

    /// Returns whether the policy of the open block lets no message in until all paths under way are
    /// there.
    fn is_blocked(&self) -> bool {
        let policy = self.open.as_ref().map(|open| open.policies.dispatch);
        policy == Some(Dispatching::Blocking) && self.dispatch.is_under_way()
    }

    /// Hashes some nodes that will probably not change any more. Returns false when there is
    /// nothing worth hashing.
    fn work_ahead(&mut self) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.failed.is_none()) else {
            return false;
        };
        let began = Instant::now();
        let hashed = self.tries.work_ahead();
        if hashed {
            open.ahead += began.elapsed();
        }
        hashed
    }

    /// Drops one layer that is of no use. Layers of an open block must stay as they are.
    fn drop_layer(&mut self) -> bool {
        self.open.is_none() && self.layers.drop_one()
    }

    /// Waits for a message or an answer, at most this long.
    fn wait(&mut self, inbox: &Inbox<Message>, wait: Duration, answers_only: bool) -> bool {
        if let Some(open) = &mut self.open {
            open.busy.stop();
        }
        let received = if answers_only {
            let answer = self.dispatch.answers.recv_timeout(wait);
            answer.map_or(ReceivedOr::Idle, ReceivedOr::Other)
        } else {
            inbox.receive_or(&self.dispatch.answers, wait)
        };
        if let Some(open) = &mut self.open {
            open.busy.start();
        }
        match received {
            ReceivedOr::Message(envelope) => return self.handle(envelope, inbox.len()),
            ReceivedOr::Other(proof) => self.receive_proof(proof),
            ReceivedOr::Idle => self.on_idle(),
            ReceivedOr::Closed => return false,
        }
        true
    }

    /// Reads events between blocks. Within a block, all foresight is in when there is nothing else
    /// to do, so its values are hashed to the tops of the tries.
    fn on_idle(&mut self) {
        match &mut self.open {
            None => self.layers.read_events(),
            Some(open) => {
                if std::mem::take(&mut open.foreseen) && open.failed.is_none() {
                    let began = Instant::now();
                    self.tries.hash_foreseen();
                    open.ahead += began.elapsed();
                }
            }
        }
    }

    fn handle(&mut self, envelope: Envelope<Message>, queued: usize) -> bool {
        match envelope.message {
            Message::Begin(opening) => self.begin(*opening, &envelope.span),
            Message::Update { session, update } if self.is_open(session) => {
                self.update(&update, envelope.sent.elapsed());
                if self.batch_due_in(queued) == Some(Duration::ZERO) {
                    self.request_batch();
                }
            }
            Message::Prefetch { block, keys } => self.prefetch(block, &keys),
            Message::Foresee { block, foresight } => self.foresee(block, &foresight),
            Message::Finish { session } if self.is_open(session) => {
                self.request_batch();
                if let Some(open) = &mut self.open {
                    open.finishing = Some(Instant::now());
                    open.retry = true;
                }
            }
            Message::Cancel { session } if self.is_open(session) => self.cancel(),
            // Message of a session that another session has replaced.
            Message::Update { .. } | Message::Finish { .. } | Message::Cancel { .. } => {}
            Message::Discard(block) => self.discard(block),
            Message::Stop => return false,
        }
        true
    }

    fn is_open(&self, session: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.session == session)
    }

    fn begin(&mut self, opening: Opening, parent: &Span) {
        self.cancel();
        self.layers.read_events();
        let begin = opening.begin;
        let shards = begin.shards.intersection(self.tries.owned());
        if shards.is_empty() {
            // Nothing is asked of this worker, so it has nothing to wait for, and nothing of the
            // block.
            if self.tries.fall_behind(begin.block.hash) {
                self.publish_status();
            }
            let nothing = OwnerRoots { roots: Vec::new(), stats: ProofStats::default() };
            let _ = opening.reply.send(Ok(nothing));
            return;
        }
        // A retried block gets fresh tries, because its earlier tries may be the cause.
        let again = self.discarded.take() == Some(begin.block.hash);
        let cold = if again { shards } else { self.tries.not_at(shards, begin.parent) };
        self.clear(cold);
        self.tries.set_tips(shards, begin.parent);
        let (branch, failed) = self.layers.branch(begin.parent, shards, cold);
        let context = Arc::new(Context {
            session: opening.session,
            parent: begin.parent,
            branch,
            layers: self.layers.shared(),
            spans: opening.spans.clone(),
        });
        self.gaps.clear();
        self.batch.clear();
        self.open = Some(OpenBlock::new(opening, shards, context, failed, self.index, parent));
    }

    fn update(&mut self, update: &StateUpdate, waited: Duration) {
        let Some(open) = &mut self.open else { return };
        open.stats.updates += 1;
        open.queue_wait_max = open.queue_wait_max.max(waited);
        if open.failed.is_some() {
            return;
        }
        self.batch.add_update(open.policies.batching);
        for account in &update.accounts {
            let Some(trie) = self.tries.asked(account.shard(), open.shards) else { continue };
            trie.update(account);
            trie.take_targets(&mut self.batch.targets);
            if open.account.is_none() && trie.has_written_accounts() {
                open.note_accounts();
            }
        }
    }

    fn prefetch(&mut self, block: B256, keys: &Prefetch) {
        let Some(shards) = self.takes_advice(block) else { return };
        let mut targets = Vec::new();
        self.tries.prefetch(keys, shards, &mut targets);
        self.request_paths(&mut targets, false);
    }

    fn foresee(&mut self, block: B256, foresight: &Foresight) {
        let Some(shards) = self.takes_advice(block) else { return };
        if let Some(open) = &mut self.open {
            open.foreseen = true;
        }
        let mut targets = Vec::new();
        self.tries.foresee(foresight, shards, &mut targets);
        self.request_paths(&mut targets, false);
    }

    /// Returns the shards to which advice for this block is of use now, if any.
    fn takes_advice(&self, block: B256) -> Option<ShardSet> {
        let open = self.open.as_ref().filter(|open| open.begin.block.hash == block)?;
        if open.failed.is_some() || open.finishing.is_some() {
            return None;
        }
        if self.dispatch.is_behind() {
            self.instruments.prefetch_dropped.increment(1);
            return None;
        }
        Some(open.shards)
    }

    /// Returns the time that the gathered batch may wait for more; see [`KeyBatch::due_in`].
    fn batch_due_in(&self, queued: usize) -> Option<Duration> {
        self.batch.due_in(self.open.as_ref()?.policies.batching, queued)
    }

    /// Requests the keys of the batch.
    fn request_batch(&mut self) {
        let Some(open) = &mut self.open else { return };
        let updates = self.batch.end();
        if updates == 0 {
            return;
        }
        open.batches += 1;
        self.instruments.batch_updates.add(updates);
        let mut targets = std::mem::take(&mut self.batch.targets);
        self.request_paths(&mut targets, true);
        self.batch.targets = targets;
    }

    /// Requests the paths to all these keys, and empties the list.
    fn request_paths(&mut self, targets: &mut Vec<WalkTarget>, required: bool) {
        let Some(open) = self.open.as_mut().filter(|_| !targets.is_empty()) else { return };
        open.stats.targets += targets.len() as u64;
        let (dispatch, counts) = (&mut self.dispatch, &mut self.instruments);
        let asked = dispatch.dispatch(&open.context, &open.policies, targets, required, counts);
        if let Err(error) = asked {
            open.fail(error);
        }
        targets.clear();
    }

    /// Takes in an answer: reveals its nodes, writes the leaves that waited for them, and requests
    /// the keys that this leads to.
    fn receive_proof(&mut self, proof: Proof) {
        let session = self.open.as_ref().map(|open| open.session);
        let ours = self.dispatch.record_answer(&proof, session);
        if let Some(open) = self.open.as_mut().filter(|_| ours) {
            let taken = Instant::now();
            let (ready, began) = (proof.ready, open.began);
            self.gaps.add(ready.saturating_duration_since(began), taken - began);
            self.instruments.proof_gap_seconds.record(taken.saturating_duration_since(ready));
            open.count_answer(&proof);
            if open.failed.is_none() {
                let mut more = Vec::new();
                match self.tries.reveal(&proof, &mut more) {
                    Ok(()) => self.request_paths(&mut more, true),
                    Err(error) => open.fail(Error::Trie(error.to_string())),
                }
            }
        } else {
            self.instruments.stale_proofs.increment(1);
        }
        self.dispatch.recycle(proof);
        if let Some(open) = &mut self.open
            && let Err(error) = self.dispatch.pump(&open.context)
        {
            open.fail(error);
        }
    }

    /// Closes the shards that wait for nothing, once all updates are in. Answers when all are
    /// closed. Returns false when there was nothing to try.
    fn try_close(&mut self) -> bool {
        let Some(open) = &mut self.open else { return false };
        if open.finishing.is_none() || !open.retry {
            return false;
        }
        open.retry = false;
        if open.failed.is_some() || self.close_shards() {
            self.answer();
        }
        true
    }

    /// Closes the shards that can be closed. Returns whether the block can be answered now: all
    /// are closed, or it has failed.
    fn close_shards(&mut self) -> bool {
        let Some(open) = &mut self.open else { return false };
        let mut more = Vec::new();
        let all = match open.close_shards(&mut self.tries, &self.dispatch, &mut more) {
            Ok(all) => all,
            Err(error) => {
                open.fail(error);
                return true;
            }
        };
        self.request_paths(&mut more, true);
        let Some(open) = &mut self.open else { return false };
        if !all && !self.dispatch.is_under_way() {
            open.fail(Error::Trie("a node is missing that no walk brings".into()));
        }
        all || open.failed.is_some()
    }

    /// Answers with the roots, or with the reason why there are none.
    fn answer(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        self.dispatch.abandon();
        open.stop();
        let (root_time, queue_wait) = (open.finishing.map(|at| at.elapsed()), open.queue_wait_max);
        let duplicates = self.tries.take_duplicates();
        self.instruments.count_block(root_time, queue_wait, open.stats.targets, duplicates);
        let (begin, shards) = (open.begin, open.shards);
        if let Some(error) = open.failed.take() {
            warn!(block.number = begin.block.number, %error, "no subtrie roots");
            self.clear(shards);
            let _ = open.reply.send(Err(error));
            return;
        }
        let (roots, diffs) = open.take_results();
        open.stats.nodes = diffs.iter().map(|diff| diff.len() as u64).sum();
        self.instruments.count_nodes(open.stats.nodes, self.tries.counts(shards));
        open.note_waste(self.tries.counts(shards));
        open.record(&mut self.gaps);
        // The spans end before the answer, because the block ends with the answer.
        let (stats, reply) = (open.stats, open.reply.clone());
        drop(open);
        let _ = reply.send(Ok(OwnerRoots { roots, stats }));
        self.keep(&begin, shards, diffs);
    }

    /// Makes a layer of the diffs of these shards, and sends them to storage-writer, after the
    /// answer.
    fn keep(&mut self, begin: &Begin, shards: ShardSet, diffs: Vec<TrieDiff>) {
        let (block, parent) = (begin.block, begin.parent);
        let diff = Arc::new(TrieDiff::concat(diffs.iter()));
        self.tries.recycle(shards, diffs);
        self.tries.set_tips(shards, block.hash);
        if !begin.kept {
            self.tries.discard(block.hash, Some(parent));
            self.publish_status();
            return;
        }
        self.layers.add(block, parent, shards, diff);
        // Shards that this block or the last one asked for may be asked for again, so their tries
        // stay.
        self.clear(self.tries.stale(block.hash, parent));
        let bytes = self.publish_status();
        self.instruments.trie_bytes.set(bytes as f64);
        self.instruments.layer_bytes.set(self.layers.byte_len() as f64);
        self.tries.prune(bytes);
    }

    /// Gives up the open block, if there is one. The tries return to its parent's state, and keep
    /// the nodes of it that were revealed.
    fn cancel(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.failed.is_some() {
            self.clear(open.shards);
            return;
        }
        self.batch.clear();
        self.dispatch.abandon();
        open.revert(&mut self.tries);
    }

    /// Takes back a block that turned out invalid after its roots were given.
    fn discard(&mut self, block: B256) {
        let parent = self.layers.remove(&block);
        self.discarded = Some(block);
        if let Some(open) = self.open.as_mut().filter(|open| open.begin.parent == block) {
            // The open block builds on a block that is gone.
            open.fail(Error::Unavailable);
            open.retry = true;
            return;
        }
        self.tries.discard(block, parent);
        self.publish_status();
    }

    /// Forgets the tries of these shards, which must be this owner's. Drops all jobs under way, so
    /// there must be no open block of other shards.
    fn clear(&mut self, shards: ShardSet) {
        if shards.is_empty() {
            return;
        }
        self.batch.clear();
        self.dispatch.abandon();
        if self.tries.clear(shards) {
            self.instruments.cleared.increment(1);
            self.publish_status();
        }
    }

    /// Publishes the state that the tries hold. Returns the bytes that they take.
    fn publish_status(&self) -> usize {
        let bytes = self.tries.byte_len();
        self.statuses[self.index].set(bytes, self.tries.held());
        bytes
    }
}
