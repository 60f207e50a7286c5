//! Feed of the canonical chain, for followers. A reader says at which block it stands, and gets the
//! next one from the database or from the pending blocks. Nothing is held for a reader between two
//! calls, so a slow one costs nothing, and a commit never waits for any.
//!
//! Blocks are read by a few threads of the lowest priority. Questions wait in a queue of
//! [`QUESTIONS_MAX`], and a reader has one question at a time.

use crate::{
    Error, body,
    codec::PendingRecord,
    service::{StorageWriter, stopped},
    shared::{Shared, stored_record},
};
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::{io, sync::Arc};
use tandem_actor::{Running, take_lowest_priority};
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::{
    feed::{Changes, FeedBlock, FeedReads, FeedStatus, FeedStep},
    storage::{self, Result},
};
use tandem_store::{
    View,
    tables::{AccessLists, Bodies, Canonical, Headers, Receipts, StateDiffs},
};
use tokio::sync::watch;

/// Number of threads that read blocks for the feed.
const THREADS: usize = 2;

/// Number of questions that wait for these threads; an asker waits while they are more.
const QUESTIONS_MAX: usize = 16;

/// Question of a reader at a block.
struct Question {
    after: BlockId,
    without_changes_to: BlockNumber,
    reply: Sender<Result<FeedStep>>,
}

/// Threads that read blocks for the feed.
pub struct FeedThreads {
    questions: Mutex<Option<Sender<Question>>>,
}

impl FeedThreads {
    /// Starts the threads, none if there are to be no readers.
    ///
    /// # Errors
    /// When the operating system cannot create a thread.
    pub fn start(shared: &Arc<Shared>, running: &Running) -> io::Result<Self> {
        let (questions, asked) = bounded(QUESTIONS_MAX);
        let readers =
            shared.config.feed_readers_max + usize::from(shared.config.feed.is_published());
        let threads = THREADS.min(readers);
        for number in 0..threads {
            let (shared, asked) = (shared.clone(), asked.clone());
            running.spawn(&format!("feed-{number}"), move || {
                take_lowest_priority();
                serve(&shared, &asked);
            })?;
        }
        let questions = Mutex::new((threads > 0).then_some(questions));
        Ok(Self { questions })
    }

    /// Lets the threads end.
    pub fn stop(&self) {
        *self.questions.lock() = None;
    }

    fn ask(&self, after: BlockId, without_changes_to: BlockNumber) -> Result<FeedStep> {
        let questions = self.questions.lock().clone().ok_or_else(stopped)?;
        let (reply, answer) = bounded(1);
        let question = Question { after, without_changes_to, reply };
        questions.send(question).map_err(|_| stopped())?;
        drop(questions);
        answer.recv().map_err(|_| stopped())?
    }
}

fn serve(shared: &Shared, asked: &Receiver<Question>) {
    for Question { after, without_changes_to, reply } in asked {
        // The asker may have gone.
        let _ = reply.send(next(shared, after, without_changes_to));
    }
}

impl FeedReads for StorageWriter {
    fn feed_status(&self) -> Result<FeedStatus> {
        self.shared.needs_state()?;
        let term = self.rights.read().term();
        let state = self.shared.state.lock();
        let (forkchoice, base) = (state.chain.forkchoice(), state.chain.base());
        Ok(FeedStatus { forkchoice, base, term })
    }

    fn feed_start(&self, known: &[BlockId]) -> Result<BlockId> {
        self.shared.needs_state()?;
        let (view, chain) = CanonicalChain::of(&self.shared);
        for block in known {
            if chain.contains(&view, block)? {
                return Ok(*block);
            }
        }
        let genesis = known.last().copied().unwrap_or_default();
        Err(storage::Error::Refused(format!(
            "the reader is on another chain: none of its blocks down to {genesis} is canonical"
        )))
    }

    fn feed_next(&self, after: BlockId, without_changes_to: BlockNumber) -> Result<FeedStep> {
        self.shared.needs_state()?;
        self.feed.ask(after, without_changes_to)
    }

    fn feed_changes(&self) -> watch::Receiver<u64> {
        self.shared.forkchoices.subscribe()
    }

    fn feed_readers_max(&self) -> usize {
        self.shared.config.feed_readers_max
    }
}

/// Canonical chain at one moment. It is copied, so that no lock is held while the database is read.
struct CanonicalChain {
    base: BlockId,
    head: BlockId,
    /// Hashes of the blocks above the base, lowest first.
    above: Vec<B256>,
}

impl CanonicalChain {
    /// Returns the chain, and a view of the database in which its blocks are.
    fn of(shared: &Shared) -> (View<'_>, Self) {
        let state = shared.state.lock();
        // Taken under the lock, so a block that is pending in memory is found in this snapshot, as
        // pending or in the base.
        let view = shared.store.snapshot();
        let above = state.chain.path().copied().collect();
        let head = state.chain.forkchoice().head;
        (view, Self { base: state.chain.base(), head, above })
    }

    /// Returns the hash of the block at a height, `None` above the head.
    fn hash(&self, view: &View<'_>, number: BlockNumber) -> Result<Option<B256>, Error> {
        match number.checked_sub(self.base.number + 1) {
            None => Ok(view.get::<Canonical>(number)?),
            Some(index) => {
                Ok(usize::try_from(index).ok().and_then(|at| self.above.get(at)).copied())
            }
        }
    }

    fn contains(&self, view: &View<'_>, block: &BlockId) -> Result<bool, Error> {
        Ok(self.hash(view, block.number)? == Some(block.hash))
    }

    /// Returns the highest canonical ancestor of a block.
    ///
    /// # Errors
    /// [`storage::Error::UnknownBlock`] when the block or an ancestor was dropped.
    fn ancestor(&self, view: &View<'_>, block: BlockId) -> Result<BlockId> {
        let mut at = block;
        while !self.contains(view, &at)? {
            let found = view.get::<Headers>(at.hash).map_err(Error::from)?;
            let (number, rlp) = found.ok_or(storage::Error::UnknownBlock(at.hash))?;
            let parent = body::decode_header(&rlp)?.parent_hash;
            at = BlockId::new(number.saturating_sub(1), parent);
        }
        Ok(at)
    }
}

/// Returns what comes after a block.
fn next(shared: &Shared, after: BlockId, without_changes_to: BlockNumber) -> Result<FeedStep> {
    let (view, chain) = CanonicalChain::of(shared);
    if !chain.contains(&view, &after)? {
        return Ok(FeedStep::Resume(chain.ancestor(&view, after)?));
    }
    if after == chain.head {
        return Ok(FeedStep::End);
    }
    let number = after.number + 1;
    let hash = chain.hash(&view, number)?;
    let hash = hash.ok_or_else(|| Error::absent(format!("canonical block {number}")))?;
    let record = shared.state.lock().chain.get(&hash).and_then(|block| block.record.clone());
    let block = read(&view, BlockId::new(number, hash), record, number > without_changes_to)?;
    Ok(FeedStep::Block(Box::new(block)))
}

/// Reads a block. `record` has its changes if it is pending and they are in memory.
fn read(
    view: &View<'_>,
    id: BlockId,
    record: Option<Arc<PendingRecord>>,
    with_changes: bool,
) -> Result<FeedBlock> {
    let absent = |what: &str| Error::absent(format!("{what} of block {id}"));
    let pruned_below = crate::meta::oldest_block(view)?;
    if id.number < pruned_below {
        let (at, oldest) = (id.number.saturating_sub(1), pruned_below - 1);
        return Err(storage::Error::TooFarBehind { at, oldest });
    }
    let header = view.get::<Headers>(id.hash).map_err(Error::from)?;
    let (_, header) = header.ok_or_else(|| absent("header"))?;
    let body = view.get::<Bodies>(id.hash).map_err(Error::from)?;
    let receipts = view.get::<Receipts>(id.hash).map_err(Error::from)?;
    let changes = match with_changes {
        true => changes(view, id, record, body::decode_header(&header)?.block_access_list_hash)?,
        false => Changes::Omitted,
    };
    Ok(FeedBlock {
        id,
        header,
        body: body.ok_or_else(|| absent("body"))?,
        receipts: receipts.ok_or_else(|| absent("receipts"))?,
        changes,
    })
}

/// Returns the changes by a block: its access list if its header has one, otherwise its state diff.
fn changes(
    view: &View<'_>,
    id: BlockId,
    record: Option<Arc<PendingRecord>>,
    list_hash: Option<B256>,
) -> Result<Changes> {
    if list_hash.is_some()
        && let Some(list) = view.get::<AccessLists>(id).map_err(Error::from)?
    {
        return Ok(Changes::List(list));
    }
    if let Some(record) = record {
        return Ok(Changes::Diff(record.diff.clone()));
    }
    if let Some(record) = stored_record(view, id.hash)? {
        return Ok(Changes::Diff(record.diff));
    }
    let kept = view.get::<StateDiffs>(id.number).map_err(Error::from)?;
    let kept = kept.map(|bytes| PendingRecord::decode(&bytes)).transpose()?;
    match kept.filter(|record| record.id == id) {
        Some(record) => Ok(Changes::Diff(record.diff)),
        None => Err(storage::Error::TooFarBehind {
            at: id.number.saturating_sub(1),
            oldest: oldest(view).map_err(storage::Error::from)?,
        }),
    }
}

/// Returns the lowest height from which the changes of all later blocks are kept.
fn oldest(view: &View<'_>) -> Result<BlockNumber, Error> {
    let first = |key: Option<&[u8]>| -> Option<BlockNumber> {
        key?.first_chunk().map(|number| u64::from_be_bytes(*number))
    };
    let diff = first(view.cursor::<StateDiffs>(&[]).entry()?.map(|(key, _)| key));
    let list = first(view.cursor::<AccessLists>(&[]).entry()?.map(|(key, _)| key));
    let base = crate::meta::base(view)?.number;
    let lowest = diff.into_iter().chain(list).min().unwrap_or(base + 1);
    let lowest = lowest.max(crate::meta::oldest_block(view)?);
    Ok(lowest.saturating_sub(1).min(base))
}
