use crate::{
    Config, Error,
    acknowledged::Acknowledged,
    chain::{Origin, Pending},
    codec::{PendingRecord, encode_kept},
    config::{database_path, refuse_half_restored},
    feed::FeedThreads,
    feed_stream::StreamAcks,
    history::History,
    kept::Kept,
    load::{drop_unproven, load},
    meta, metrics,
    persist::{MAILBOX, Message, Persister},
    ranges::ServedStates,
    rights::Rights,
    scrub::{ScrubStatus, Scrubber},
    shared::{Branch, Shared, State},
    walk,
};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_actor::{Mailbox, Running, mailbox};
use tandem_primitives::{
    B256, BlockId, BlockNumber, Bytes, ShardSet, TrieDiff, WalkTarget, keccak256,
};
use tandem_proto::storage::{
    self, BaseReads, Block, BlockReads, BlockWrites, Checkpoint, Claim, Epoch, Forkchoice, Holder,
    KeptBlock, Leadership, PendingBlock, ReadState, Result, Standing, StateValues, Term, TrieNode,
    TrieNodes, TrieStorage, WriteLease,
};
use tandem_store::{
    Durability, Store,
    tables::{
        AccessLists, Accounts, Bodies, Code, Headers, Kept as KeptTable, Pending as PendingTable,
        Proven, Receipts, Slots,
    },
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, info_span, warn};

/// Keys of a call that a disk reads at once, see `read_delay_micros`.
const DELAYED_TOGETHER: usize = 32;

/// Longest wait of a forkchoice for the base. A consensus client gives up after eight seconds.
const BASE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Dependencies of storage-writer.
pub struct Deps {
    /// Called on the persist thread after each move of the base, forward or back, with the block
    /// that it is at now, but not while the process follows. It must not wait.
    pub on_persisted: Box<dyn Fn(BlockId) + Send + Sync>,
    /// Cancelled when the persist thread panics: the process must stop then.
    pub fatal: CancellationToken,
}

impl Default for Deps {
    fn default() -> Self {
        Self { on_persisted: Box::new(|_| {}), fatal: CancellationToken::new() }
    }
}

/// Waits for as long as this many reads of a disk would take.
fn delay(micros: u64, reads: usize) {
    if micros > 0 && reads > 0 {
        thread::sleep(Duration::from_micros(micros.saturating_mul(reads as u64)));
    }
}

/// storage-writer, for callers in the same process. Dropping the last handle stops it, writes
/// everything to the disk and marks the database as closed. Without that nothing is lost, but the
/// next start reads the log.
pub struct StorageWriter {
    pub(crate) shared: Arc<Shared>,
    pub(crate) genesis: BlockId,
    genesis_json: Arc<str>,
    is_copy: bool,
    /// Held for reading during each fenced write, so that a grant comes after all older writes.
    pub(crate) rights: RwLock<Rights>,
    /// Role among the copies of the chain.
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) mailbox: Mailbox<Message>,
    /// States that peers ask for.
    pub(crate) served: ServedStates,
    /// Threads that read the feed.
    pub(crate) feed: FeedThreads,
    /// Thread that checks the database in the background.
    scrubber: Scrubber,
    /// Whether a checkpoint is being made.
    pub(crate) makes_checkpoint: AtomicBool,
    running: Running,
}

impl StorageWriter {
    /// Opens the database of a data directory and starts the persist thread.
    ///
    /// When there is no database, or it is of another kind, has a newer schema or is open in
    /// another process; see [`tandem_store::Error`].
    pub fn start(config: Config, deps: Deps) -> Result<Arc<Self>, Error> {
        refuse_half_restored(&config.datadir)?;
        let mut options = config.store.clone();
        options.verify_logs = config.verifies_logs();
        let store = Store::open(&database_path(&config.datadir), &options)?;
        Self::start_over(store, config, deps)
    }

    /// Loads the contents of a store and starts the persist thread.
    pub(crate) fn start_over(
        store: Store,
        mut config: Config,
        deps: Deps,
    ) -> Result<Arc<Self>, Error> {
        metrics::describe();
        config.feed.check()?;
        let (genesis, chain) = load(&store, &config.limits())?;
        let rights = Rights::load(&store.view(), config.starts_as, genesis.is_copy())?;
        rights.gauge();
        let standing = rights.standing();
        let follows = standing == Standing::Follows;
        config.accept_lost_blocks |= follows;
        let kept = Kept::load(&store)?;
        let acknowledged = Acknowledged::open(&store, &chain, &config)?;
        let history = History::open(&store, &config)?;
        let is_downloading = meta::download(&store.view())?.is_some();
        let oldest_block = meta::oldest_block(&store.view())?;
        ::metrics::gauge!(metrics::OLDEST_BLOCK).set(oldest_block as f64);
        info!(
            base = %chain.base(), head = %chain.forkchoice().head, pending = chain.len(), ?standing,
            "database opened"
        );
        let running = Running::new(deps.fatal.clone());
        let state = State::new(chain, kept);
        let shared = Arc::new(Shared {
            config,
            store,
            deps,
            acknowledged,
            history,
            state: Mutex::new(state),
            free_bytes: AtomicU64::new(u64::MAX),
            progress: Condvar::new(),
            replay: Mutex::new(None),
            mended: Mutex::new(None),
            oldest_block: AtomicU64::new(oldest_block),
            is_downloading: AtomicBool::new(is_downloading),
            built: Mutex::default(),
            stored_codes: Mutex::default(),
            forkchoices: watch::Sender::default(),
            stream_acks: StreamAcks::default(),
            follows: AtomicBool::new(follows),
        });
        let suspects = shared.state.lock().chain.unproven();
        drop_unproven(&shared, suspects)?;
        shared.gauge(&shared.state.lock());
        let persister = Persister::new(shared.clone())?;
        let (mailbox, inbox) = mailbox("persist", MAILBOX);
        let not_started = |threads: &'static str| {
            move |source| Error::Io { context: "start", path: threads.into(), source }
        };
        let spawned = running.spawn("persist", move || persister.run(&inbox));
        spawned.map_err(not_started("persist thread"))?;
        let served = ServedStates::start(&shared, &running).map_err(not_started("peer threads"))?;
        let feed = FeedThreads::start(&shared, &running).map_err(not_started("feed threads"))?;
        let scrubber = Scrubber::start(&shared, &running).map_err(not_started("scrub thread"))?;
        Ok(Arc::new(Self {
            shared,
            served,
            feed,
            scrubber,
            genesis: genesis.id,
            is_copy: genesis.is_copy(),
            genesis_json: genesis.json.into(),
            rights: RwLock::new(rights),
            standing: watch::Sender::new(standing),
            mailbox,
            makes_checkpoint: AtomicBool::new(false),
            running,
        }))
    }

    /// Ends the persist thread after its current block. Blocks until it has ended, so never call it
    /// in async code. Calls that are still under way are answered.
    pub fn stop(&self) {
        self.running.stop(|| {
            self.served.stop();
            self.feed.stop();
            self.scrubber.stop();
            let _ = self.mailbox.send(Message::Stop);
        });
    }

    /// Returns what the check in the background has done and found since the start.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.scrubber.status()
    }

    /// Forgets pending blocks, as a power cut does. Not part of the interface: only for tests.
    #[doc(hidden)]
    pub fn lose(&self, blocks: &[B256]) -> Result<()> {
        Ok(self.shared.forget(&mut self.shared.state.lock(), blocks, &[])?)
    }

    /// Returns whether [`init_copy`](crate::init_copy) made the database, so all of it can be had
    /// again.
    pub fn is_copy(&self) -> bool {
        self.is_copy
    }

    pub(crate) fn fence(&self, held: Epoch) -> Result<RwLockReadGuard<'_, Rights>> {
        let rights = self.rights.read();
        match rights.check(held) {
            Ok(()) => Ok(rights),
            Err(error) => {
                let (term, own) = (Term::of_epoch(held.number), rights.term());
                drop(rights);
                if term > own {
                    // A later storage-writer granted this epoch.
                    self.hear_term(term)?;
                }
                Err(error)
            }
        }
    }

    fn rewind_base(&self, to: BlockNumber) -> Result<()> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.mailbox.send(Message::Rewind { to, reply }).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }

    /// Writes the forkchoice, in memory and in the database as one, if its head can be reached from
    /// the base. Otherwise returns the height to which the base has to step back first.
    fn set_forkchoice(&self, forkchoice: &Forkchoice) -> Result<Option<BlockNumber>> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let path = loop {
            let path = match shared.branch(&state, &forkchoice.head)? {
                Branch::Above(path) => path,
                Branch::Below(number) => return Ok(Some(number)),
            };
            // Blocks that are entering the base cannot be called back.
            if path.starts_with(&state.in_flight) {
                break path;
            }
            shared.progress.wait(&mut state);
        };
        let mut batch = shared.store.batch();
        meta::put_forkchoice(&mut batch, forkchoice);
        // The blocks that leave the path were canonical, so valid. The new forkchoice no longer
        // shows that.
        let left = state.chain.left_by(&path);
        left.iter().for_each(|hash| batch.put::<Proven>(*hash, &[]));
        shared.store.write(batch, shared.durability()).map_err(store_error)?;
        shared.acknowledged.head(&shared.store, forkchoice.head);
        for hash in path.iter().chain(&left) {
            state.chain.set_proven(hash);
        }
        let limits = shared.config.limits();
        state.chain.set_forkchoice(*forkchoice, path);
        state.chain.shrink(&limits);
        state.chain.set_goal(&limits);
        state.advancing = true;
        state.failure = None;
        drop(state);
        shared.forkchoices.send_modify(|changes| *changes += 1);
        Ok(None)
    }

    /// Waits until the stream has the forkchoice, if the settings say so. A newer forkchoice, which
    /// another call made meanwhile, is as good. A follower publishes nothing.
    fn wait_for_stream(&self) -> Result<()> {
        let wait = self.shared.config.feed.ack_wait();
        let Some(wait) = wait.filter(|_| !self.shared.follows.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let change = *self.shared.forkchoices.borrow();
        self.shared.stream_acks.wait_for(change, wait)
    }

    /// Waits until the base is not too far behind, for at most [`BASE_WAIT_MAX`].
    fn wait_for_base(&self) -> Result<()> {
        let backlog_max = self.shared.config.backlog_blocks_max;
        let until = Instant::now() + BASE_WAIT_MAX;
        let mut state = self.shared.state.lock();
        while state.lags(backlog_max) {
            if self.shared.progress.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        let lags = state.chain.backlog() > backlog_max;
        match &state.failure {
            Some(failure) if lags => Err(storage::Error::Store(failure.clone())),
            _ => Ok(()),
        }
    }

    /// Makes room for a child of `parent` when side branches take too many bytes.
    fn make_room(&self, parent: &B256) -> Result<()> {
        let limits = self.shared.config.limits();
        let mut state = self.shared.state.lock();
        while let Some(branch) = state.chain.crowded_out(parent, &limits) {
            warn!(blocks = branch.len(), tip = ?branch.first(), "side branch dropped for its bytes");
            ::metrics::counter!(metrics::BRANCHES_DROPPED).increment(1);
            self.shared.forget(&mut state, &branch, &[])?;
        }
        state.chain.shrink(&limits);
        Ok(())
    }
}

impl Drop for StorageWriter {
    fn drop(&mut self) {
        self.stop();
        self.shared.acknowledged.close(&self.shared.store);
    }
}

impl std::fmt::Debug for StorageWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageWriter").field("genesis", &self.genesis).finish_non_exhaustive()
    }
}

pub(crate) fn store_error(error: tandem_store::Error) -> storage::Error {
    Error::from(error).into()
}

/// Refuses a block whose header does not hash to its id.
pub(crate) fn other_header(id: BlockId) -> storage::Error {
    storage::Error::Refused(format!("the header of block {id} has another hash"))
}

pub(crate) fn stopped() -> storage::Error {
    storage::Error::Unavailable("the persist thread has stopped".to_owned())
}

impl BaseReads for StorageWriter {
    fn checkpoint(&self) -> Result<Checkpoint> {
        let state = self.shared.state.lock();
        Ok(Checkpoint {
            genesis: self.genesis,
            genesis_json: self.genesis_json.clone(),
            base: state.chain.base(),
            forkchoice: state.chain.forkchoice(),
            writes_fail: self.shared.store.is_failing(),
            oldest_block: self.shared.oldest_block.load(Ordering::Relaxed),
        })
    }

    fn read_state(&self, request: &ReadState) -> Result<StateValues> {
        self.shared.needs_state()?;
        let started = Instant::now();
        let keys = request.accounts.len() + request.slots.len() + request.codes.len();
        delay(self.shared.config.read_delay_micros, keys.div_ceil(DELAYED_TOGETHER));
        let view = self.shared.store.snapshot();
        let read = || -> Result<StateValues, Error> {
            let slots = view.multi_get::<Slots>(request.slots.iter().copied())?;
            Ok(StateValues {
                base: meta::base(&view)?,
                accounts: view.multi_get::<Accounts>(request.accounts.iter().copied())?,
                slots: slots.into_iter().map(Option::unwrap_or_default).collect(),
                codes: view.multi_get::<Code>(request.codes.iter().copied())?,
            })
        };
        let values = read()?;
        ::metrics::histogram!(metrics::READ_STATE_SECONDS).record(started.elapsed());
        Ok(values)
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        self.shared.needs_state()?;
        let started = Instant::now();
        delay(self.shared.config.trie_read_delay_micros, targets.len());
        let view = self.shared.store.snapshot();
        let mut nodes = Vec::new();
        walk::walk(&view, targets, &mut |owner, path, rlp| {
            nodes.push(TrieNode {
                owner,
                path: Bytes::copy_from_slice(path),
                rlp: Bytes::copy_from_slice(rlp),
            });
        })?;
        let base = meta::base(&view)?;
        ::metrics::histogram!(metrics::WALK_TRIE_SECONDS).record(started.elapsed());
        Ok(TrieNodes { base, nodes })
    }
}

impl TrieStorage for StorageWriter {
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        let (pending, kept) = {
            let state = self.shared.state.lock();
            (state.chain.ordered(), state.kept.ordered())
        };
        let view = self.shared.store.snapshot();
        let mut blocks = Vec::with_capacity(pending.len() + kept.len());
        for Pending { id, parent, .. } in pending {
            // A block that was discarded meanwhile is skipped.
            if let Some((_, header)) = view.get::<Headers>(id.hash).map_err(store_error)? {
                blocks.push(PendingBlock { id, parent, header, kept: false });
            }
        }
        for entry in kept {
            if let Some(KeptBlock { id, parent, header, .. }) = self.kept(entry.id.hash)? {
                blocks.push(PendingBlock { id, parent, header, kept: true });
            }
        }
        Ok(blocks)
    }

    fn trie_diff(&self, block: B256) -> Result<Option<Arc<TrieDiff>>> {
        Ok(self.shared.trie_diff(block)?)
    }

    fn put_trie_diff(&self, block: B256, shards: ShardSet, diff: Arc<TrieDiff>) -> Result<()> {
        self.shared.state.lock().chain.add_trie(block, shards, diff, Origin::Elsewhere);
        Ok(())
    }
}

impl BlockWrites for StorageWriter {
    fn commit(&self, epoch: Epoch, block: Block) -> Result<()> {
        let _span = info_span!("commit_block", block.number = block.id.number).entered();
        let started = Instant::now();
        self.shared.needs_state()?;
        let _granted = self.fence(epoch)?;
        let (shared, id) = (&self.shared, block.id);
        if keccak256(&block.header) != id.hash {
            return Err(other_header(id));
        }
        let view = shared.store.view();
        let kept = {
            let state = shared.state.lock();
            if state.chain.get(&id.hash).is_some() {
                return Ok(());
            }
            state.kept.contains(&id.hash)
        };
        // A block whose header is stored but that is not pending is in the base's chain.
        if view.get::<Headers>(id.hash).map_err(store_error)?.is_some() {
            return Ok(());
        }
        if view.get::<Headers>(block.parent).map_err(store_error)?.is_none() {
            return Err(storage::Error::UnknownBlock(block.parent));
        }
        let Block { parent, header, body, receipts, transaction_hashes, diff, access_list, .. } =
            block;
        self.make_room(&parent)?;
        let record = Arc::new(PendingRecord { id, parent, transaction_hashes, diff });
        let bytes = info_span!("encode_block").in_scope(|| record.encode());
        let list_len = access_list.as_ref().map_or(0, |list| list.len());
        let disk_bytes = bytes.len() + header.len() + body.len() + receipts.len() + list_len;
        let mut batch = shared.store.batch();
        batch.put::<PendingTable>(id.hash, &bytes);
        batch.put::<Headers>(id.hash, (id.number, &header));
        batch.put::<Bodies>(id.hash, &body);
        batch.put::<Receipts>(id.hash, &receipts);
        if let Some(list) = access_list {
            batch.put::<AccessLists>(id, &list);
        }
        if kept {
            batch.delete::<KeptTable>(id.hash);
        }
        let bytes = batch.byte_len();
        info_span!("write_batch", block.number = id.number, bytes)
            .in_scope(|| shared.store.write(batch, shared.durability()))
            .map_err(store_error)?;
        shared.acknowledged.committed(&shared.store, id);
        let mut state = shared.state.lock();
        state.kept.remove(&id.hash);
        state.chain.insert(Pending::new(record, disk_bytes as u64, false));
        shared.gauge(&state);
        ::metrics::histogram!(metrics::COMMIT_SECONDS).record(started.elapsed());
        Ok(())
    }

    fn prove(&self, epoch: Epoch, block: B256) -> Result<()> {
        let _granted = self.fence(epoch)?;
        let mut state = self.shared.state.lock();
        if state.chain.get(&block).is_none_or(|pending| pending.proven) {
            return Ok(());
        }
        let mut batch = self.shared.store.batch();
        batch.put::<Proven>(block, &[]);
        // When this write is lost, a restart computes the root.
        self.shared.store.write(batch, Durability::Process).map_err(store_error)?;
        state.chain.set_proven(&block);
        Ok(())
    }

    fn discard(&self, epoch: Epoch, block: B256) -> Result<()> {
        let _granted = self.fence(epoch)?;
        let mut state = self.shared.state.lock();
        if state.kept.contains(&block) {
            self.shared.forget(&mut state, &[], &[block])?;
        }
        let Some(id) = state.chain.get(&block).map(|pending| pending.id) else { return Ok(()) };
        if state.chain.is_canonical(&id) {
            return Err(storage::Error::Refused(format!("block {id} is canonical")));
        }
        Ok(self.shared.forget(&mut state, &[block], &[])?)
    }

    fn keep(&self, epoch: Epoch, block: KeptBlock) -> Result<()> {
        let _granted = self.fence(epoch)?;
        let (shared, id) = (&self.shared, block.id);
        if keccak256(&block.header) != id.hash {
            return Err(other_header(id));
        }
        let bytes = encode_kept(&block);
        let mut state = shared.state.lock();
        if state.kept.contains(&id.hash) || state.chain.get(&id.hash).is_some() {
            return Ok(());
        }
        let old = state.kept.crowded_out(bytes.len() as u64, shared.config.kept_bytes_max);
        if !old.is_empty() {
            debug!(blocks = old.len(), "kept blocks dropped for their bytes");
            shared.forget(&mut state, &[], &old)?;
        }
        let mut batch = shared.store.batch();
        batch.put::<KeptTable>(id.hash, &bytes);
        shared.store.write(batch, shared.durability()).map_err(store_error)?;
        state.kept.insert(id, bytes.len() as u64);
        Ok(())
    }

    fn canonicalize(&self, epoch: Epoch, forkchoice: Forkchoice) -> Result<BlockNumber> {
        let head = forkchoice.head;
        let _span = info_span!("canonicalize", block.number = head.number).entered();
        let started = Instant::now();
        {
            let _granted = self.fence(epoch)?;
            while let Some(number) = self.set_forkchoice(&forkchoice)? {
                info!(%head, to = number, "head is not above the base, stepping back");
                self.rewind_base(number)?;
            }
            self.mailbox.send(Message::Advance).map_err(|_| stopped())?;
        }
        self.wait_for_stream()?;
        self.wait_for_base()?;
        ::metrics::histogram!(metrics::CANONICALIZE_SECONDS).record(started.elapsed());
        Ok(self.shared.state.lock().chain.goal())
    }

    fn rewind(&self, epoch: Epoch, to: BlockNumber) -> Result<()> {
        let _granted = self.fence(epoch)?;
        self.rewind_base(to)
    }
}

impl WriteLease for StorageWriter {
    fn claim_epoch(&self, claim: &Claim) -> Result<Epoch> {
        let mut rights = self.rights.write();
        rights.admit()?;
        let (next, epoch) = rights.grant.next(claim);
        let mut batch = self.shared.store.batch();
        meta::put_grant(&mut batch, &next)?;
        self.shared.store.write(batch, self.shared.durability()).map_err(store_error)?;
        rights.grant = next;
        // From here on no other executor can commit.
        drop(rights);
        let suspects = self.shared.state.lock().chain.unproven();
        drop_unproven(&self.shared, suspects)?;
        ::metrics::counter!(metrics::EPOCHS_GRANTED).increment(1);
        info!(epoch = epoch.number, executor = claim.executor, "epoch granted");
        Ok(epoch)
    }

    fn keep_epoch(&self, epoch: Epoch) -> Result<()> {
        self.fence(epoch).map(|_| ())
    }

    fn release_epoch(&self, epoch: Epoch) -> Result<()> {
        let mut rights = self.rights.write();
        rights.check(epoch)?;
        let released = rights.grant.released();
        let mut batch = self.shared.store.batch();
        meta::put_grant(&mut batch, &released)?;
        // When this write is lost, the next start waits one lease for the executor.
        if let Err(error) = self.shared.store.write(batch, Durability::Process) {
            debug!(%error, "the end of a lease was not written");
        }
        rights.grant = released;
        Ok(())
    }

    fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.rights.read().grant.holder())
    }
}
