//! One worker thread: some shards, their tries and layers, and the block it is working on.

use crate::{
    board::Board,
    config::Config,
    layers::{Branch, Found, Layers},
    metrics as names,
    walk::Walk,
};
use crossbeam_channel::Sender;
use metrics::{counter, gauge, histogram};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Envelope, Inbox, Received};
use tandem_bus::Subscription;
use tandem_primitives::{B256, BlockId, Shard, SubtrieRoot, TrieDiff, WalkTarget};
use tandem_proto::{
    event::ChainEvent,
    multiproof::{Begin, Error, Prefetch, ProofStats, StateUpdate},
    storage::StorageApi,
};
use tandem_telemetry::BusyIntervals;
use tandem_trie::ShardTrie;
use tracing::{Span, info_span, warn};

/// How long a worker waits for work before it looks at events again.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// Keys that may pile up before a walk is made although more updates are waiting.
const TARGETS_MAX: usize = 1024;

/// What a worker is told.
pub enum Message {
    /// A block begins; its roots go to `reply`.
    Begin { session: u64, begin: Begin, reply: Sender<Result<WorkerRoots, Error>> },
    /// Changes of one transaction, all shards.
    Update { session: u64, update: Arc<StateUpdate> },
    /// Keys that this block will probably touch, all shards.
    Prefetch { block: B256, keys: Arc<Prefetch> },
    /// The open block has no more updates.
    Finish { session: u64 },
    /// The open block is given up.
    Cancel { session: u64 },
    /// This block turned out invalid after its roots were given.
    Discard(B256),
    /// The worker ends.
    Stop,
}

/// One worker's share of the answer.
pub struct WorkerRoots {
    pub roots: Vec<(Shard, SubtrieRoot)>,
    pub stats: ProofStats,
}

struct OpenBlock {
    session: u64,
    begin: Begin,
    branch: Branch,
    reply: Sender<Result<WorkerRoots, Error>>,
    failed: Option<Error>,
    stats: ProofStats,
    queue_wait_max: Duration,
    span: Span,
    busy: BusyIntervals,
}

pub struct Worker {
    index: usize,
    shards: Vec<ShardTrie>,
    /// Position in `shards` by shard, for those that are ours.
    place: [Option<u8>; Shard::COUNT],
    owned: Vec<Shard>,
    layers: Layers,
    /// The block whose state the tries hold, `None` when they are empty.
    tip: Option<B256>,
    open: Option<OpenBlock>,
    storage: Arc<dyn StorageApi>,
    persisted: Subscription,
    boards: Arc<[Board]>,
    trie_bytes_max: usize,
    targets: Vec<WalkTarget>,
}

impl Worker {
    pub fn new(
        index: usize,
        owned: Vec<Shard>,
        config: &Config,
        storage: Arc<dyn StorageApi>,
        persisted: Subscription,
        boards: Arc<[Board]>,
    ) -> Self {
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
            owned,
            layers: Layers::default(),
            tip: None,
            open: None,
            storage,
            persisted,
            boards,
            targets: Vec::new(),
        }
    }

    pub fn run(mut self, inbox: &Inbox<Message>) {
        loop {
            match inbox.receive(IDLE_WAIT) {
                Received::Message(envelope) => {
                    if !self.work(envelope, inbox) {
                        return;
                    }
                }
                Received::Idle => self.hear_events(),
                Received::Closed => return,
            }
        }
    }

    /// Takes this message and all that wait behind it; reads missing nodes when none is left, so
    /// that one walk serves everything known by then. False at the end.
    fn work(&mut self, first: Envelope<Message>, inbox: &Inbox<Message>) -> bool {
        if let Some(open) = &mut self.open {
            open.busy.start();
        }
        let mut next = Some(first);
        while let Some(envelope) = next {
            if !self.handle(envelope) {
                return false;
            }
            if self.targets.len() >= TARGETS_MAX {
                self.reveal_missing();
            }
            next = inbox.try_receive();
        }
        self.reveal_missing();
        if let Some(open) = &mut self.open {
            open.busy.stop();
        }
        true
    }

    fn handle(&mut self, envelope: Envelope<Message>) -> bool {
        match envelope.message {
            Message::Begin { session, begin, reply } => {
                self.begin(session, begin, reply, &envelope.span);
            }
            Message::Update { session, update } if self.is_open(session) => {
                self.update(&update, envelope.sent.elapsed());
            }
            Message::Prefetch { block, keys } => self.prefetch(block, &keys),
            Message::Finish { session } if self.is_open(session) => self.finish(),
            Message::Cancel { session } if self.is_open(session) => {
                self.open = None;
                self.clear();
            }
            // Of a session that another one has taken the place of.
            Message::Update { .. } | Message::Finish { .. } | Message::Cancel { .. } => {}
            Message::Discard(block) => self.discard(block),
            Message::Stop => return false,
        }
        true
    }

    fn is_open(&self, session: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.session == session)
    }

    fn begin(
        &mut self,
        session: u64,
        begin: Begin,
        reply: Sender<Result<WorkerRoots, Error>>,
        parent: &Span,
    ) {
        if self.open.take().is_some() {
            self.clear();
        }
        self.hear_events();
        if self.tip != Some(begin.parent) {
            self.clear();
        }
        let span = info_span!(
            parent: parent, "storage worker",
            worker = self.index, block.number = begin.block.number,
            targets = tracing::field::Empty, walks = tracing::field::Empty,
            nodes = tracing::field::Empty, queue_wait_us = tracing::field::Empty,
        );
        let mut busy = BusyIntervals::new(&span);
        busy.start();
        let (branch, failed) = match self.resolve_branch(begin.parent) {
            Ok(branch) => (branch, None),
            Err(error) => (self.layers.branch(begin.parent), Some(error)),
        };
        let (stats, queue_wait_max) = (ProofStats::default(), Duration::ZERO);
        self.open = Some(OpenBlock {
            session,
            begin,
            branch,
            reply,
            failed,
            stats,
            queue_wait_max,
            span,
            busy,
        });
    }

    /// The layers from the parent down to the base. After a restart, or after the base stepped
    /// back, some are missing here that storage-writer can still tell.
    fn resolve_branch(&mut self, parent: B256) -> Result<Branch, Error> {
        let branch = self.layers.branch(parent);
        let base = self.storage.checkpoint()?.base;
        if branch.reaches(&base.hash) {
            return Ok(branch);
        }
        let pending: HashMap<B256, (BlockId, B256)> = self
            .storage
            .pending()?
            .into_iter()
            .map(|block| (block.id.hash, (block.id, block.parent)))
            .collect();
        let mut block = branch.bottom();
        while let Some(&(id, parent)) = pending.get(&block) {
            if let Some(diff) = self.storage.trie_diff(block)? {
                self.layers.insert(id, parent, diff);
            }
            block = parent;
            if self.layers.contains(&block) {
                block = self.layers.branch(block).bottom();
            }
        }
        let branch = self.layers.branch(parent);
        let base = self.storage.checkpoint()?.base;
        if branch.reaches(&base.hash) {
            Ok(branch)
        } else {
            Err(Error::ParentUnreachable { parent, base })
        }
    }

    fn update(&mut self, update: &StateUpdate, waited: Duration) {
        let Some(open) = &mut self.open else { return };
        open.stats.updates += 1;
        open.queue_wait_max = open.queue_wait_max.max(waited);
        if open.failed.is_some() {
            return;
        }
        for account in &update.accounts {
            if let Some(place) = self.place[account.shard().index()] {
                let shard = &mut self.shards[usize::from(place)];
                shard.update(account);
                shard.take_targets(&mut self.targets);
            }
        }
    }

    fn prefetch(&mut self, block: B256, keys: &Prefetch) {
        let open = self.open.as_ref();
        if open.is_none_or(|open| open.begin.block.hash != block || open.failed.is_some()) {
            return;
        }
        for (address_hash, slots) in &keys.accounts {
            if let Some(place) = self.place[Shard::of(address_hash).index()] {
                let shard = &mut self.shards[usize::from(place)];
                shard.prefetch(address_hash, slots);
                shard.take_targets(&mut self.targets);
            }
        }
    }

    fn finish(&mut self) {
        let started = Instant::now();
        self.reveal_missing();
        let roots = self.compute_roots();
        let Some(mut open) = self.open.take() else { return };
        let result = match open.failed.take() {
            Some(error) => Err(error),
            None => roots,
        };
        open.busy.stop();
        open.stats.busy = Duration::from_nanos(open.busy.total_ns());
        histogram!(names::PROOF_SECONDS).record(started.elapsed());
        histogram!(names::QUEUE_WAIT_SECONDS).record(open.queue_wait_max);
        counter!(names::TARGETS).increment(open.stats.targets);
        let block = open.begin.block;
        match result {
            Ok((roots, diff)) => {
                open.stats.nodes = diff.len() as u64;
                counter!(names::NODES).increment(open.stats.nodes);
                let stats = open.stats;
                open.span.record("targets", stats.targets);
                open.span.record("walks", stats.walks);
                open.span.record("nodes", stats.nodes);
                open.span.record("queue_wait_us", open.queue_wait_max.as_micros() as u64);
                // The span ends before the answer is given: the block ends with the answer.
                let OpenBlock { begin, reply, .. } = open;
                let _ = reply.send(Ok(WorkerRoots { roots, stats }));
                self.keep(block, begin.parent, diff);
            }
            Err(error) => {
                warn!(block.number = block.number, %error, "no subtrie roots");
                self.clear();
                let _ = open.reply.send(Err(error));
            }
        }
    }

    /// After the answer: the diff becomes a layer and goes to storage-writer.
    fn keep(&mut self, block: BlockId, parent: B256, diff: TrieDiff) {
        let diff = Arc::new(diff);
        self.tip = Some(block.hash);
        self.layers.insert(block, parent, diff.clone());
        if let Err(error) = self.storage.put_trie_diff(block.hash, &self.owned, diff) {
            warn!(block.number = block.number, %error, "trie diff not handed over");
        }
        let bytes: usize = self.shards.iter().map(ShardTrie::byte_len).sum();
        gauge!(names::TRIE_BYTES, "worker" => self.index.to_string()).set(bytes as f64);
        self.boards[self.index].set(bytes, self.tip);
        if bytes > self.trie_bytes_max {
            let share = self.trie_bytes_max / self.shards.len();
            self.shards.iter_mut().for_each(|shard| shard.prune(share));
        }
    }

    /// Storage roots, account leaves, subtrie roots: what waits for the last update.
    fn compute_roots(&mut self) -> Result<(Vec<(Shard, SubtrieRoot)>, TrieDiff), Error> {
        let parent = self.open.as_ref().map_or_else(Span::none, |open| open.span.clone());
        let _span = info_span!(parent: &parent, "account worker", worker = self.index).entered();
        let mut roots = Vec::with_capacity(self.shards.len());
        let mut all = TrieDiff::default();
        for place in 0..self.shards.len() {
            loop {
                if self.open.as_ref().is_none_or(|open| open.failed.is_some()) {
                    return Err(Error::Unavailable);
                }
                match self.shards[place].finish().map_err(|error| Error::Trie(error.to_string()))? {
                    Some((root, diff)) => {
                        roots.push((self.owned[place], root));
                        all.append(&diff);
                        break;
                    }
                    None => {
                        self.shards[place].take_targets(&mut self.targets);
                        if self.targets.is_empty() {
                            return Err(Error::Trie(
                                "a node is missing that no walk brings".into(),
                            ));
                        }
                        self.reveal_missing();
                    }
                }
            }
        }
        Ok((roots, all))
    }

    /// Walks to all targets collected, layers first, and reveals what is found.
    fn reveal_missing(&mut self) {
        if self.targets.is_empty() {
            return;
        }
        let targets = std::mem::take(&mut self.targets);
        let Some(mut open) = self.open.take() else { return };
        if open.failed.is_none() {
            let started = Instant::now();
            open.stats.targets += targets.len() as u64;
            if let Err(error) = self.walk(&mut open, &targets) {
                open.failed = Some(error);
            }
            histogram!(names::WALK_SECONDS).record(started.elapsed());
        }
        self.open = Some(open);
        self.targets = targets;
        self.targets.clear();
    }

    fn walk(&mut self, open: &mut OpenBlock, targets: &[WalkTarget]) -> Result<(), Error> {
        let mut walks: Vec<Walk> = targets.iter().map(|&target| Walk::new(target)).collect();
        let mut base: HashMap<(Option<B256>, Vec<u8>), alloy_primitives::Bytes> = HashMap::new();
        loop {
            let mut ask = Vec::new();
            for walk in walks.iter_mut().filter(|walk| !walk.done) {
                self.step(open, walk, &base)?;
                if !walk.done {
                    ask.push(walk.target());
                }
            }
            if ask.is_empty() {
                break;
            }
            open.stats.walks += 1;
            let answer = self.storage.walk_trie(&ask)?;
            if !open.branch.reaches(&answer.base.hash) {
                let parent = open.begin.parent;
                return Err(Error::ParentUnreachable { parent, base: answer.base });
            }
            for node in answer.nodes {
                base.insert((node.owner, node.path.to_vec()), node.rlp);
            }
            for walk in walks.iter_mut().filter(|walk| !walk.done) {
                // Neither a layer nor the base has a node here: the path ends above.
                walk.done = !base.contains_key(&(walk.target.owner, walk.path().to_vec()));
            }
        }
        for target in targets {
            self.shard(target).answered(target);
        }
        Ok(())
    }

    /// Reveals nodes along one walk until it ends or needs the base.
    fn step(
        &mut self,
        open: &OpenBlock,
        walk: &mut Walk,
        base: &HashMap<(Option<B256>, Vec<u8>), alloy_primitives::Bytes>,
    ) -> Result<(), Error> {
        let owner = walk.target.owner;
        while !walk.done {
            let rlp = match self.layers.get(&open.branch, owner.as_ref(), walk.path()) {
                Found::Node(rlp) => rlp,
                Found::Absent => {
                    walk.done = true;
                    return Ok(());
                }
                Found::InBase => match base.get(&(owner, walk.path().to_vec())) {
                    Some(rlp) => rlp,
                    None => return Ok(()),
                },
            };
            let shard = Shard::of(owner.as_ref().unwrap_or(&walk.target.key));
            if let Some(place) = self.place[shard.index()] {
                self.shards[usize::from(place)]
                    .reveal(owner.as_ref(), walk.path(), rlp)
                    .map_err(|error| Error::Trie(error.to_string()))?;
            }
            walk.descend(rlp);
        }
        Ok(())
    }

    fn shard(&mut self, target: &WalkTarget) -> &mut ShardTrie {
        let shard = Shard::of(target.owner.as_ref().unwrap_or(&target.key));
        let place = self.place[shard.index()];
        debug_assert!(place.is_some(), "targets come from our own shards");
        &mut self.shards[usize::from(place.unwrap_or(0))]
    }

    fn discard(&mut self, block: B256) {
        self.layers.remove(&block);
        if self.tip == Some(block) {
            self.clear();
        }
    }

    fn clear(&mut self) {
        if self.tip.take().is_some() {
            counter!(names::CLEARED).increment(1);
            self.boards[self.index].set(0, None);
        }
        self.targets.clear();
        self.shards.iter_mut().for_each(ShardTrie::clear);
    }

    fn hear_events(&mut self) {
        let mut newest = None;
        while let Some(payload) = self.persisted.try_next() {
            newest = ChainEvent::decode(&payload).or(newest);
        }
        if let Some(event) = newest {
            self.layers.persisted(event.block);
        }
    }
}
