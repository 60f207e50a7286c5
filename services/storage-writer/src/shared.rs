//! State shared by the callers' threads and the persist thread, and the rules for changing it.
//!
//! * The base changes only on the persist thread, by one batch for each step of a few blocks.
//! * Pending blocks, forkchoice and epoch change on the callers' threads.
//! * The database is written first, memory after it. So a reader that looks into memory first and
//!   into the database then misses nothing. When both must change as one (a forkchoice, a step
//!   back), the lock on [`State`] is held over the write.

use crate::{
    Config, Deps, Error,
    acknowledged::Acknowledged,
    apply::Tries,
    chain::{Ancestor, Chain, Pending, TrieParts},
    codec::PendingRecord,
    diff_check::{Extent, verify_handed_over},
    feed_stream::StreamAcks,
    heal,
    history::History,
    kept::Kept,
    metrics,
    rebuild::Built,
    replay::Replay,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tandem_primitives::{AccountUpdate, B256, BlockId, BlockNumber, StateDiff, TrieDiff};
use tandem_proto::storage;
use tandem_store::{
    Batch, Durability, Store, View,
    tables::{
        AccessLists, Bodies, Canonical, Headers, Kept as KeptTable, Pending as PendingTable,
        Proven, Receipts,
    },
};
use tokio::sync::watch;

/// Part of the chain that is in memory, and the current work of the persist thread.
pub struct State {
    pub chain: Chain,
    /// Blocks that wait for their execution.
    pub kept: Kept,
    /// Whether the base is on its way to the head.
    pub advancing: bool,
    /// Blocks that are being moved into the base, lowest first.
    pub in_flight: Vec<B256>,
    /// Reason why the base stopped on its way.
    pub failure: Option<String>,
    /// Whether the persist thread has ended.
    pub stopped: bool,
}

impl State {
    /// Creates a state in which the base stays where it is.
    pub fn new(chain: Chain, kept: Kept) -> Self {
        let in_flight = Vec::new();
        Self { chain, kept, advancing: false, in_flight, failure: None, stopped: false }
    }
}

pub struct Shared {
    pub config: Config,
    pub store: Store,
    pub deps: Deps,
    /// Acknowledged writes, which survive a restart.
    pub acknowledged: Acknowledged,
    pub state: Mutex<State>,
    /// Rules of history.
    pub history: History,
    /// Bytes that the volume had left at the last check.
    pub free_bytes: AtomicU64,
    /// Signalled whenever the persist thread has changed [`State`].
    pub progress: Condvar,
    /// Tries of the branch that was replayed last, if they are still of use. Locked before `state`.
    pub replay: Mutex<Option<Replay>>,
    /// Base at which rebuilding all tries did not help. Locked while the base is changed or its
    /// tries are mended, and before `replay` and `state`.
    pub mended: Mutex<Option<B256>>,
    /// Height from which on all blocks have bodies and receipts.
    pub oldest_block: AtomicU64,
    /// Whether a state is being downloaded, so that there is none now.
    pub is_downloading: AtomicBool,
    /// Tries of the downloaded state, `None` when parts came since.
    pub built: Mutex<Option<Built>>,
    /// Hashes of some codes that the base has, for the checks of a follower.
    pub stored_codes: Mutex<HashSet<B256>>,
    /// Counts the changes of the forkchoice, for readers of the feed.
    pub forkchoices: watch::Sender<u64>,
    /// Blocks that the stream of the feed has acknowledged.
    pub stream_acks: StreamAcks,
    /// Whether the process follows a leader, which has every block.
    pub follows: AtomicBool,
}

/// Place where a block's branch meets the base's chain.
pub enum Branch {
    /// These blocks lead from the base to the block.
    Above(Vec<B256>),
    /// The branch leaves the base's chain at this height, below the base.
    Below(BlockNumber),
}

impl Shared {
    /// Returns the durability of an acknowledged write.
    pub fn durability(&self) -> Durability {
        let waits = self.config.sync && !self.follows.load(Relaxed);
        if waits { Durability::Disk } else { Durability::Process }
    }

    /// Says where the base is now, unless it is that of a copy, which would be taken for the leader's.
    pub fn announce(&self, base: BlockId) {
        if !self.follows.load(Relaxed) {
            (self.deps.on_persisted)(base);
        }
    }

    /// Sets whether the process follows a leader, which has every block.
    pub fn set_follows(&self, follows: bool) {
        self.follows.store(follows, Relaxed);
    }

    /// Returns how a block's branch connects to the base.
    ///
    /// # Errors
    /// [`storage::Error::UnknownBlock`] when it does not connect.
    pub fn branch(&self, state: &State, block: &BlockId) -> storage::Result<Branch> {
        let known = state.chain.get(&block.hash).map(|pending| pending.id);
        if known.is_some_and(|id| id != *block) {
            return Err(storage::Error::UnknownBlock(block.hash));
        }
        let base = state.chain.base();
        match state.chain.ancestor(block.hash, &base.hash) {
            (Ancestor::Base, branch) => Ok(Branch::Above(branch)),
            (Ancestor::Other(hash), _) => match self.canonical_number(hash)? {
                Some(number) if number <= base.number => Ok(Branch::Below(number)),
                _ => Err(storage::Error::UnknownBlock(hash)),
            },
        }
    }

    /// Returns the height of a block in the base's chain, `None` when it is not in it.
    fn canonical_number(&self, hash: B256) -> Result<Option<BlockNumber>, Error> {
        let view = self.store.view();
        let Some((number, _)) = view.get::<Headers>(hash)? else { return Ok(None) };
        Ok((view.get::<Canonical>(number)? == Some(hash)).then_some(number))
    }

    /// Returns the whole trie diff of a pending block, and computes it when no diff that fits was
    /// handed over. Returns `None` when the block is not pending, or its branch leaves the
    /// canonical chain below the base. A block that has entered the base is in the base that a
    /// later call reads.
    pub fn trie_diff(&self, hash: B256) -> Result<Option<Arc<TrieDiff>>, Error> {
        if let Some(diff) = self.handed_over(hash)? {
            return Ok(Some(diff));
        }
        self.prove(hash)
    }

    /// Calls [`Shared::compute_trie_diff`], and rebuilds tries of the base that turn out damaged.
    ///
    /// # Errors
    /// As for [`Shared::compute_trie_diff`].
    pub fn prove(&self, hash: B256) -> Result<Option<Arc<TrieDiff>>, Error> {
        match self.compute_trie_diff(hash) {
            // The base stays unchanged from here on.
            Err(Error::Trie(_)) => {
                let mut mended = self.mended.lock();
                heal::with_healing(self, &mut mended, || self.compute_trie_diff(hash))
            }
            // A block with a wrong state root says nothing about the base.
            computed => computed,
        }
    }

    /// Computes the trie diff of a pending block, whatever was handed over: the workers' results
    /// for a block say nothing about its header.
    ///
    /// # Errors
    /// [`Error::StateRoot`] when the diff does not lead to the root in the block's header.
    pub fn compute_trie_diff(&self, hash: B256) -> Result<Option<Arc<TrieDiff>>, Error> {
        let mut replay = self.replay.lock();
        let (view, base, branch) = {
            let mut state = self.state.lock();
            loop {
                // Memory lags behind the database by one step at most, whose blocks are still pending
                // in memory. So this snapshot's base is always found.
                let view = self.store.snapshot();
                let base = crate::meta::base(&view)?;
                let (Ancestor::Base, branch) = state.chain.ancestor(hash, &base.hash) else {
                    // The block may be below the database's base, and memory is about to follow.
                    if !state.stopped && state.in_flight.contains(&hash) {
                        self.progress.wait(&mut state);
                        continue;
                    }
                    return Ok(None);
                };
                if !branch.is_empty() {
                    let blocks = branch.iter().filter_map(|hash| state.chain.get(hash).cloned());
                    break (view, base, blocks.collect::<Vec<_>>());
                }
                // The block is in the database's base, and memory is about to follow. A caller that
                // learns that the block is not pending may ask for the base next.
                if state.stopped || state.chain.get(&hash).is_none() {
                    return Ok(None);
                }
                self.progress.wait(&mut state);
            }
        };
        let (mut current, done) = continued(replay.take(), base, &branch)
            .filter(|(_, done)| *done < branch.len())
            .unwrap_or_else(|| (Replay::new(base), 0));
        let mut last = None;
        for block in &branch[done..] {
            last = Some(self.replay_block(&mut current, &view, block)?);
        }
        *replay = Some(current);
        Ok(last)
    }

    /// Runs the changes of a child of `parent` through the tries, and returns what they become. The
    /// child is not stored. `fresh` drops the tries of the blocks before, and reads them anew.
    ///
    /// Returns `None` when the parent is neither the base nor pending above it.
    ///
    /// # Errors
    /// When the database fails, or its tries are damaged.
    pub fn run_child(
        &self,
        (parent, child): (B256, BlockId),
        header_root: B256,
        updates: &[AccountUpdate],
        fresh: bool,
    ) -> Result<Option<Tries>, Error> {
        let mut replay = self.replay.lock();
        let (view, base, branch) = {
            let state = self.state.lock();
            let view = self.store.snapshot();
            let base = crate::meta::base(&view)?;
            let (Ancestor::Base, branch) = state.chain.ancestor(parent, &base.hash) else {
                return Ok(None);
            };
            let blocks = branch.iter().filter_map(|hash| state.chain.get(hash).cloned());
            (view, base, blocks.collect::<Vec<_>>())
        };
        let kept = replay.take().filter(|_| !fresh);
        let (mut current, done) =
            continued(kept, base, &branch).unwrap_or_else(|| (Replay::new(base), 0));
        current.outlive_the_base();
        for block in &branch[done..] {
            self.replay_block(&mut current, &view, block)?;
        }
        let tries = current.run(&view, child.hash, updates)?;
        // Tries that took in a refused block are of no use.
        if tries.root == header_root {
            *replay = Some(current);
        }
        Ok(Some(tries))
    }

    /// Returns the trie diff of a pending block as it was handed over. Together with the diffs of
    /// the blocks below, it must lead to the root in the header: no reader may build on a worker's
    /// mistake. The nodes below the shards' tops are not checked; their readers find their hashes
    /// in the tops.
    fn handed_over(&self, hash: B256) -> Result<Option<Arc<TrieDiff>>, Error> {
        let (view, id, diffs) = {
            let mut state = self.state.lock();
            let Some(id) = state.chain.get(&hash).map(|block| block.id) else { return Ok(None) };
            let view = self.store.snapshot();
            let base = crate::meta::base(&view)?;
            let (Ancestor::Base, branch) = state.chain.ancestor(hash, &base.hash) else {
                return Ok(None);
            };
            let diffs = branch.iter().map(|hash| state.chain.merged_trie(hash));
            let Some(diffs) = diffs.collect::<Option<Vec<_>>>() else { return Ok(None) };
            (view, id, diffs)
        };
        let Some(diff) = diffs.last().cloned() else { return Ok(None) };
        let root = crate::body::header(&view, hash)?.state_root;
        Ok(verify_handed_over(&view, id, root, diffs, Extent::Tops)?.map(|_| diff))
    }

    fn replay_block(
        &self,
        replay: &mut Replay,
        view: &View<'_>,
        block: &Pending,
    ) -> Result<Arc<TrieDiff>, Error> {
        let header = crate::body::header(view, block.id.hash)?;
        let record = record(view, block)?;
        let tries = replay.run(view, block.id.hash, &record.diff.accounts)?;
        let tries = tries.check(block.id, header.state_root)?;
        ::metrics::counter!(metrics::TRIE_DIFFS_RECOMPUTED).increment(1);
        let diff = tries.parts.into_iter().next().unwrap_or_default();
        let mut state = self.state.lock();
        state.chain.set_trie(&block.id.hash, TrieParts::whole(diff.clone()));
        Ok(diff)
    }

    /// Returns the state diffs of pending blocks, in the order of the request; `None` where one is
    /// not pending.
    ///
    /// # Errors
    /// When the database fails.
    pub fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>, Error> {
        let found: Vec<Option<Pending>> = {
            let state = self.state.lock();
            blocks.iter().map(|hash| state.chain.get(hash).cloned()).collect()
        };
        let view = self.store.view();
        let mut diffs = Vec::with_capacity(found.len());
        for block in found {
            let read = |block: Pending| -> Result<Option<Arc<StateDiff>>, Error> {
                match block.record {
                    Some(record) => Ok(Some(record.diff.clone())),
                    // The block may have entered the base meanwhile.
                    None => Ok(stored_record(&view, block.id.hash)?.map(|record| record.diff)),
                }
            };
            diffs.push(block.map(read).transpose()?.flatten());
        }
        Ok(diffs)
    }

    /// Forgets these pending and kept blocks, in the database and in memory.
    ///
    /// # Errors
    /// When the database fails; nothing is changed then.
    pub fn forget(
        &self,
        state: &mut MutexGuard<'_, State>,
        pending: &[B256],
        kept: &[B256],
    ) -> Result<(), Error> {
        let mut batch = self.store.batch();
        for hash in pending {
            // A block that is not pending is not in the database either.
            if let Some(block) = state.chain.get(hash) {
                delete_pending(&mut batch, block.id);
            }
        }
        for hash in kept {
            batch.delete::<KeptTable>(*hash);
        }
        // A forgotten block is of no use, so its return after a power cut does no harm.
        self.store.write(batch, Durability::Process)?;
        for hash in pending {
            state.chain.remove(hash);
        }
        for hash in kept {
            state.kept.remove(hash);
        }
        self.gauge(state);
        Ok(())
    }

    /// Publishes the numbers that changed.
    pub fn gauge(&self, state: &MutexGuard<'_, State>) {
        ::metrics::gauge!(metrics::BACKLOG_BLOCKS).set(state.chain.backlog() as f64);
        let (disk, memory) = state.chain.bytes();
        ::metrics::gauge!(metrics::PENDING_BYTES, "place" => "database").set(disk as f64);
        ::metrics::gauge!(metrics::PENDING_BYTES, "place" => "memory").set(memory as f64);
        ::metrics::gauge!(metrics::BASE_BLOCK).set(state.chain.base().number as f64);
        ::metrics::gauge!(metrics::PENDING_BLOCKS).set(state.chain.len() as f64);
    }
}

/// Returns a replay that can go on above `base` at a block of this branch, and the number of the
/// branch's blocks that ran already.
fn continued(replay: Option<Replay>, base: BlockId, branch: &[Pending]) -> Option<(Replay, usize)> {
    let mut replay = replay?;
    if !replay.follow(base) {
        return None;
    }
    if replay.tip() == base.hash {
        return Some((replay, 0));
    }
    let done = branch.iter().position(|block| block.id.hash == replay.tip())? + 1;
    Some((replay, done))
}

/// Returns state diff and transaction hashes of a pending block, from memory or from the database.
///
/// # Errors
/// When the database fails, or does not have the record.
pub fn record(view: &View<'_>, block: &Pending) -> Result<Arc<PendingRecord>, Error> {
    if let Some(record) = &block.record {
        return Ok(record.clone());
    }
    let found = stored_record(view, block.id.hash)?;
    found.map(Arc::new).ok_or_else(|| Error::absent(format!("record of block {}", block.id)))
}

pub fn stored_record(view: &View<'_>, hash: B256) -> Result<Option<PendingRecord>, Error> {
    view.get::<PendingTable>(hash)?.map(|bytes| PendingRecord::decode(&bytes)).transpose()
}

/// Removes a pending block from all tables.
pub fn delete_pending(batch: &mut Batch<'_>, id: BlockId) {
    let hash = id.hash;
    batch.delete::<PendingTable>(hash);
    batch.delete::<Proven>(hash);
    batch.delete::<Headers>(hash);
    batch.delete::<Bodies>(hash);
    batch.delete::<Receipts>(hash);
    batch.delete::<AccessLists>(id);
}
