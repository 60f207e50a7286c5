//! Owner of some shards: a thread that holds their tries and never waits for a database. Missing
//! nodes become jobs for the proof threads, and their results are taken in between updates.

use crate::{
    block::{OpenBlock, Places},
    board::Board,
    config::Config,
    dispatch::{Dispatch, shard_of},
    layers::Layers,
    message::{Message, Opening, OwnerRoots},
    pool::{Context, Proof},
    stats::{Gaps, Instruments},
    walk::unpack,
};
use parking_lot::RwLock;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Envelope, Inbox, ReceivedOr};
use tandem_bus::Subscription;
use tandem_policy::Next;
use tandem_primitives::{B256, BlockId, Shard, ShardSet, WalkTarget};
use tandem_proto::{
    event::ChainEvent,
    multiproof::{Error, Foresight, Prefetch, ProofStats, StateUpdate},
    storage::TrieStorage,
};
use tandem_trie::ShardTrie;
use tracing::Span;

/// Time an owner waits for work before it checks events again.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// Idle time after which all foresight is assumed to be in.
const FORESEEN_WAIT: Duration = Duration::from_millis(1);

/// Number of keys at which a batch is requested, whatever the policy.
const GATHERED_MAX: usize = 8_192;

/// Some shards, their tries and layers, and the block in progress.
pub struct Owner {
    pub(crate) index: usize,
    pub(crate) shards: Vec<ShardTrie>,
    /// Position in `shards` by shard, for the shards of this owner.
    pub(crate) place: Places,
    pub(crate) owned: Vec<Shard>,
    /// Written between blocks only, because the proof threads read them meanwhile.
    pub(crate) layers: Arc<RwLock<Layers>>,
    /// Block whose state the tries of each shard hold, by their place. For a shard that an open
    /// block asks for, it is that block's parent. `None` when they are empty.
    pub(crate) tips: Vec<Option<B256>>,
    /// Block that the newest of the tries hold.
    pub(crate) tip: Option<B256>,
    /// Block that was discarded last.
    pub(crate) discarded: Option<B256>,
    pub(crate) open: Option<OpenBlock>,
    pub(crate) storage: Arc<dyn TrieStorage>,
    persisted: Subscription,
    /// Block that is known to be in the base, until all layers below it are dropped.
    base: Option<BlockId>,
    pub(crate) boards: Arc<[Board]>,
    pub(crate) trie_bytes_max: usize,
    /// Keys of the batch that is being gathered.
    pub(crate) targets: Vec<WalkTarget>,
    pub(crate) dispatch: Dispatch,
    pub(crate) instruments: Instruments,
    pub(crate) gaps: Gaps,
    /// Whether foreseen values are not yet hashed to the tops of their tries.
    foreseen: bool,
    /// Position of the shard that was last checked for work ahead.
    next_ahead: usize,
    /// Duplicates that the shards had counted when the last block was over.
    pub(crate) duplicates: u64,
}

/// Components of an owner.
pub struct Parts {
    pub index: usize,
    pub owned: Vec<Shard>,
    pub storage: Arc<dyn TrieStorage>,
    pub persisted: Subscription,
    pub boards: Arc<[Board]>,
    pub dispatch: Dispatch,
}

impl Owner {
    pub fn new(config: &Config, parts: Parts) -> Self {
        let Parts { index, owned, storage, persisted, boards, dispatch } = parts;
        let mut place = [None; Shard::COUNT];
        for (position, shard) in owned.iter().enumerate() {
            place[shard.index()] = Some(position as u8);
        }
        let shards = owned
            .iter()
            .map(|&shard| {
                let mut trie = ShardTrie::new(shard);
                trie.verify_nodes = config.verify_nodes;
                trie
            })
            .collect();
        Self {
            index,
            shards,
            place,
            trie_bytes_max: config.trie_bytes_max * owned.len() / Shard::COUNT,
            tips: vec![None; owned.len()],
            tip: None,
            owned,
            layers: Arc::default(),
            discarded: None,
            open: None,
            storage,
            persisted,
            base: None,
            boards,
            targets: Vec::new(),
            dispatch,
            instruments: Instruments::new(index),
            gaps: Gaps::default(),
            foreseen: false,
            next_ahead: 0,
            duplicates: 0,
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
            self.take(proof);
            return true;
        }
        // Answers under way make room.
        let full = self.dispatch.is_full();
        if !full && let Some(envelope) = inbox.try_receive() {
            return self.handle(envelope, inbox.len());
        }
        let wait = match self.gathering_ends(0) {
            Some(Duration::ZERO) => {
                self.ask_gathered();
                return true;
            }
            Some(ends) => ends,
            None if self.foreseen => FORESEEN_WAIT,
            None => IDLE_WAIT,
        };
        if self.try_close() || self.work_ahead() || self.drop_layer() {
            return true;
        }
        self.wait(inbox, wait, full)
    }

    /// Hashes nodes of one shard that will probably not change any more. Stops after one shard,
    /// because more urgent work may arrive meanwhile. Returns false when there is nothing worth
    /// hashing.
    fn work_ahead(&mut self) -> bool {
        if self.open.as_ref().is_none_or(|open| open.failed.is_some()) {
            return false;
        }
        for _ in 0..self.shards.len() {
            self.next_ahead = (self.next_ahead + 1) % self.shards.len();
            if self.shards[self.next_ahead].work_ahead() > 0 {
                return true;
            }
        }
        false
    }

    /// Hashes to the tops of the tries. All foresight is in when there is nothing else to do.
    fn hash_foreseen(&mut self) {
        if std::mem::take(&mut self.foreseen)
            && self.open.as_ref().is_some_and(|o| o.failed.is_none())
        {
            for shard in &mut self.shards {
                shard.hash_foreseen();
            }
        }
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
            ReceivedOr::Other(proof) => self.take(proof),
            // The layers of an open block must stay as they are.
            ReceivedOr::Idle if self.open.is_none() => self.hear_events(),
            ReceivedOr::Idle => self.hash_foreseen(),
            ReceivedOr::Closed => return false,
        }
        true
    }

    fn handle(&mut self, envelope: Envelope<Message>, queued: usize) -> bool {
        match envelope.message {
            Message::Begin(opening) => self.begin(*opening, &envelope.span),
            Message::Update { session, update } if self.is_open(session) => {
                self.update(&update, envelope.sent.elapsed());
                if self.gathering_ends(queued) == Some(Duration::ZERO) {
                    self.ask_gathered();
                }
            }
            Message::Prefetch { block, keys } => self.prefetch(block, &keys),
            Message::Foresee { block, foresight } => self.foresee(block, &foresight),
            Message::Finish { session } if self.is_open(session) => {
                self.ask_gathered();
                if let Some(open) = &mut self.open {
                    open.finishing = Some(Instant::now());
                    open.retry = true;
                }
            }
            Message::Cancel { session } if self.is_open(session) => self.give_up(),
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
        self.give_up();
        self.hear_events();
        let begin = opening.begin;
        let shards = begin.shards.intersection(self.owned.iter().copied().collect());
        if shards.is_empty() {
            // Nothing is asked of this worker, so it has nothing to wait for, and nothing of the
            // block.
            if self.tip.is_some_and(|tip| tip != begin.block.hash) {
                self.tip = None;
                self.post();
            }
            let nothing = OwnerRoots { roots: Vec::new(), stats: ProofStats::default() };
            let _ = opening.reply.send(Ok(nothing));
            return;
        }
        // A retried block gets fresh tries, because its earlier tries may be the cause.
        let again = self.discarded.take() == Some(begin.block.hash);
        let fits = |shard: &Shard| !again && self.tip_of(*shard) == Some(begin.parent);
        let cold: ShardSet = shards.iter().filter(|shard| !fits(shard)).collect();
        self.clear(cold);
        self.set_tips(shards, begin.parent);
        let (branch, lacks) = {
            let layers = self.layers.read();
            let branch = layers.branch(begin.parent);
            let lacks = !layers.lacking(&branch, shards).is_empty();
            (branch, lacks)
        };
        // Tries of the parent's state are enough. A reader of the layers sees whether they reach
        // down to the base.
        let mut failed = None;
        let branch = if cold.is_empty() && !lacks {
            branch
        } else {
            self.resolve_branch(begin.parent, shards).unwrap_or_else(|error| {
                failed = Some(error);
                branch
            })
        };
        let context = Arc::new(Context {
            session: opening.session,
            parent: begin.parent,
            branch,
            layers: self.layers.clone(),
            spans: opening.spans.clone(),
        });
        let index = self.index;
        let mut place = self.place;
        ShardSet::ALL.difference(shards).iter().for_each(|shard| place[shard.index()] = None);
        self.gaps.clear();
        self.foreseen = false;
        self.open = Some(OpenBlock::new(opening, place, context, failed, index, parent));
    }

    fn update(&mut self, update: &StateUpdate, waited: Duration) {
        let Some(open) = &mut self.open else { return };
        open.stats.updates += 1;
        open.queue_wait_max = open.queue_wait_max.max(waited);
        if open.failed.is_some() {
            return;
        }
        open.gathering.add(open.policies.batching);
        for account in &update.accounts {
            if let Some(place) = open.place[account.shard().index()] {
                let shard = &mut self.shards[usize::from(place)];
                shard.update(account);
                shard.take_targets(&mut self.targets);
                if open.account.is_none() && shard.has_written_accounts() {
                    open.start_accounts(self.index);
                    open.stop_accounts();
                }
            }
        }
    }

    fn prefetch(&mut self, block: B256, keys: &Prefetch) {
        let Some(place) = self.takes_advice(block) else { return };
        let mut targets = Vec::new();
        for (address_hash, slots) in &keys.accounts {
            if let Some(place) = place[Shard::of(address_hash).index()] {
                let shard = &mut self.shards[usize::from(place)];
                shard.prefetch(address_hash, slots);
                shard.take_targets(&mut targets);
            }
        }
        self.ask(&mut targets, false);
    }

    fn foresee(&mut self, block: B256, foresight: &Foresight) {
        let Some(place) = self.takes_advice(block) else { return };
        self.foreseen = true;
        let mut targets = Vec::new();
        for (before, after) in foresight.before.iter().zip(&foresight.after) {
            if let Some(place) = place[before.shard().index()] {
                let shard = &mut self.shards[usize::from(place)];
                shard.foresee(before, after);
                shard.take_targets(&mut targets);
            }
        }
        self.ask(&mut targets, false);
    }

    /// Returns the places of the shards to which advice for this block is of use now, if any.
    fn takes_advice(&self, block: B256) -> Option<Places> {
        let open = self.open.as_ref().filter(|open| open.begin.block.hash == block)?;
        if open.failed.is_some() || open.finishing.is_some() {
            return None;
        }
        if self.dispatch.is_behind() {
            self.instruments.prefetch_dropped.increment(1);
            return None;
        }
        Some(open.place)
    }

    /// Returns the time that the gathered batch may wait for more. Zero means that it is due now.
    /// `None` means that there is no batch, or that the next message joins it.
    fn gathering_ends(&self, queued: usize) -> Option<Duration> {
        let open = self.open.as_ref().filter(|open| open.gathering.updates > 0)?;
        if self.targets.len() >= GATHERED_MAX {
            return Some(Duration::ZERO);
        }
        match open.gathering.next(open.policies.batching, self.targets.len(), queued) {
            Next::Dispatch => Some(Duration::ZERO),
            Next::Take => None,
            // There are no keys to wait with.
            Next::Wait(_) if self.targets.is_empty() => Some(Duration::ZERO),
            Next::Wait(time) => Some(time),
        }
    }

    /// Requests the keys of the batch.
    fn ask_gathered(&mut self) {
        let Some(open) = &mut self.open else { return };
        let gathering = std::mem::take(&mut open.gathering);
        if gathering.updates == 0 {
            return;
        }
        open.batches += 1;
        self.instruments.batch_updates.add(gathering.updates);
        let mut targets = std::mem::take(&mut self.targets);
        self.ask(&mut targets, true);
        self.targets = targets;
    }

    /// Requests all these keys.
    pub(crate) fn ask(&mut self, targets: &mut Vec<WalkTarget>, required: bool) {
        let Some(open) = self.open.as_mut().filter(|_| !targets.is_empty()) else { return };
        open.stats.targets += targets.len() as u64;
        let (dispatch, counts) = (&mut self.dispatch, &mut self.instruments);
        let asked = dispatch.dispatch(&open.context, &open.policies, targets, required, counts);
        if let Err(error) = asked {
            open.failed.get_or_insert(error);
        }
        targets.clear();
    }

    /// Takes in an answer: reveals its nodes, writes the leaves that waited for them, and requests
    /// the keys that this leads to.
    fn take(&mut self, proof: Proof) {
        let session = self.open.as_ref().map(|open| open.session);
        let ours = self.dispatch.note(&proof, session);
        if let Some(open) = self.open.as_mut().filter(|_| ours) {
            let taken = Instant::now();
            let (ready, began) = (proof.ready, open.began);
            self.gaps.add(ready.saturating_duration_since(began), taken - began);
            self.instruments.proof_gap_seconds.record(taken.saturating_duration_since(ready));
            open.jobs += 1;
            open.retry = true;
            match &proof.result {
                Ok(calls) => open.stats.walks += calls,
                Err(error) => {
                    open.failed.get_or_insert_with(|| error.clone());
                }
            }
            if open.failed.is_none()
                && let Err(error) = self.reveal(&proof)
                && let Some(open) = &mut self.open
            {
                open.failed = Some(Error::Trie(error.to_string()));
            }
        } else {
            self.instruments.stale_proofs.increment(1);
        }
        self.dispatch.recycle(proof);
        if let Some(open) = &mut self.open
            && let Err(error) = self.dispatch.pump(&open.context)
        {
            open.failed.get_or_insert(error);
        }
    }

    fn reveal(&mut self, proof: &Proof) -> Result<(), tandem_trie::Error> {
        let mut path = (usize::MAX, [0; 64]);
        for node in proof.nodes.iter() {
            let Some(target) = proof.targets.get(node.target) else { continue };
            if path.0 != node.target {
                path = (node.target, unpack(&target.key));
            }
            let (owner, path) = (target.owner.as_ref(), &path.1[..node.depth]);
            let Some(shard) = self.shard(target) else { continue };
            match node.hash {
                Some(hash) => shard.reveal_hashed(owner, path, node.rlp, hash)?,
                None => shard.reveal(owner, path, node.rlp)?,
            }
        }
        let mut more = Vec::new();
        for target in &proof.targets {
            if let Some(shard) = self.shard(target) {
                shard.answered(target);
                shard.take_targets(&mut more);
            }
        }
        self.ask(&mut more, true);
        Ok(())
    }

    fn shard(&mut self, target: &WalkTarget) -> Option<&mut ShardTrie> {
        let place = self.place[shard_of(target).index()];
        debug_assert!(place.is_some(), "targets come from our own shards");
        self.shards.get_mut(usize::from(place?))
    }

    /// Notes the block that is in the base by now. Layers below it are of no use any more and do no
    /// harm, so they are dropped when there is time.
    fn hear_events(&mut self) {
        while let Some(payload) = self.persisted.try_next() {
            if let Some(event) = ChainEvent::decode(&payload) {
                self.base = Some(event.block);
            }
        }
    }

    /// Drops one layer that the base contains or excludes. Returns false when there is none, or a
    /// block is open.
    pub(crate) fn drop_layer(&mut self) -> bool {
        let Some(base) = self.base.filter(|_| self.open.is_none()) else { return false };
        let dropped = self.layers.write().drop_one(base);
        if !dropped {
            self.base = None;
        }
        dropped
    }
}
