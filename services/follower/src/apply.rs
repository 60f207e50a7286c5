//! Application of a leader's feed to the own database.

use crate::{
    Error,
    check::check,
    diagnose::describe,
    known::known,
    metrics as names,
    service::{FollowerStorage, Leader, Shared},
};
use metrics::{counter, gauge, histogram};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::BlockId;
use tandem_proto::{
    feed::{CheckedCommit, FeedBlock, FeedMessage, FeedStatus, FollowRequest},
    storage::{self, BlockRef, Epoch, Forkchoice, Term},
};
use tracing::{debug, info};

/// Longest wait for a message before the follower looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Follower of one leader.
pub struct Applier<'a> {
    shared: &'a Shared,
    leader: &'a Leader,
    storage: Arc<dyn FollowerStorage>,
    epoch: Epoch,
    /// Newest stored block of the leader's chain.
    at: BlockId,
    /// Own forkchoice.
    chosen: Forkchoice,
    /// Position that the leader told last.
    told: Option<FeedStatus>,
    /// Whether a later term than that one is known here. Only a stream, which has the past too, may tell it.
    is_past: bool,
    /// Whether the leader has said where the feed resumes.
    resumed: bool,
    /// Whether it resumes at a block below the own head.
    leaves_own_branch: bool,
}

impl<'a> Applier<'a> {
    /// Begins at the own head.
    ///
    /// # Errors
    /// [`Error::Own`].
    pub fn new(shared: &'a Shared, leader: &'a Leader, epoch: Epoch) -> Result<Self, Error> {
        let storage = shared.storage.clone();
        let chosen = storage.checkpoint().map_err(Error::Own)?.forkchoice;
        shared.status.set_head(chosen.head);
        let at = chosen.head;
        Ok(Self {
            shared,
            leader,
            storage,
            epoch,
            at,
            chosen,
            told: None,
            is_past: false,
            resumed: false,
            leaves_own_branch: false,
        })
    }

    /// Follows the leader until it is lost, refused, or the follower is to end.
    ///
    /// # Errors
    /// Always, with the reason.
    pub fn run(&mut self) -> Result<(), Error> {
        let known = known(&*self.storage, self.at).map_err(Error::Own)?;
        let request = FollowRequest { known, without_changes_to: 0 };
        let mut feed = self.leader.feed.follow(request).map_err(Error::of_leader)?;
        let silence = Duration::from_secs(self.shared.config.silence_seconds_max);
        let mut heard = Instant::now();
        loop {
            if self.shared.stopping.is_cancelled() {
                return Err(Error::Stopping);
            }
            if self.leader.api.is_some() && self.shared.left.is_cancelled() {
                return Err(Error::left());
            }
            let message = feed.next(LOOK_EVERY).map_err(Error::of_leader)?;
            let now = Instant::now();
            let Some(message) = message else {
                // The leaders may have been left meanwhile.
                self.choose()?;
                self.show_lag(now);
                if now - heard > silence {
                    let text = format!("it said nothing for {silence:?}");
                    return Err(Error::Lost(tandem_proto::storage::Error::Unavailable(text)));
                }
                continue;
            };
            heard = now;
            self.take(message)?;
            self.show_lag(Instant::now());
        }
    }

    /// Takes a message of the feed.
    fn take(&mut self, message: FeedMessage) -> Result<(), Error> {
        match message {
            FeedMessage::Status(status) => {
                if self.takes_term(status.term)? {
                    self.told = Some(status);
                    self.hear(Some(status.forkchoice.head));
                }
            }
            FeedMessage::Resume(block) => self.resume(block)?,
            FeedMessage::Block(block) => self.store(*block)?,
        }
        self.choose()
    }

    /// Refuses a leader whose term is over, and notes a new one, so that a promotion is above it. A stream
    /// is read through the terms that are over, because it has nothing of a later one before their end.
    /// Returns whether the word counts: a leader that gave way may speak beside the stream.
    fn takes_term(&mut self, term: Term) -> Result<bool, Error> {
        let is_stream = self.leader.api.is_none();
        match self.told {
            Some(told) if told.term == term => return Ok(true),
            Some(told) if told.term > term && is_stream => return Ok(false),
            _ => {}
        }
        let known = self.storage.hear_term(term).map_err(Error::Own)?;
        self.is_past = term < known;
        if self.is_past && !is_stream {
            let text = format!("it leads in term {}, but term {} has begun", term.0, known.0);
            return Err(Error::Lost(tandem_proto::storage::Error::Unavailable(text)));
        }
        Ok(true)
    }

    /// Goes back to a block of the own chain.
    fn resume(&mut self, block: BlockId) -> Result<(), Error> {
        counter!(names::RESUMED).increment(1);
        self.leaves_own_branch |= !self.resumed && block != self.at;
        self.resumed = true;
        if block == self.at {
            return Ok(());
        }
        if !self.is_ancestor(block)? {
            let text = format!("the feed resumes at {block}, which is no ancestor of {}", self.at);
            return Err(Error::Refused(text));
        }
        info!(from = %self.at, to = %block, "the leader left a branch");
        self.at = block;
        // A child of a block below the base cannot be stored before the base has stepped back.
        if block.number < self.storage.checkpoint().map_err(Error::Own)?.base.number {
            self.make(self.forkchoice_at(block))?;
        }
        Ok(())
    }

    /// Returns whether a block is an ancestor of the newest stored one.
    fn is_ancestor(&self, block: BlockId) -> Result<bool, Error> {
        let mut at = self.at;
        while at.number > block.number {
            let found = self.storage.header(BlockRef::Hash(at.hash)).map_err(Error::Own)?;
            let Some((_, header)) = found else { return Ok(false) };
            let header = tandem_chain::decode_header(&header);
            let header = header.map_err(|error| Error::block(at, error))?;
            at = BlockId::new(at.number - 1, header.parent_hash);
        }
        Ok(at == block)
    }

    /// Checks a block and stores it.
    fn store(&mut self, block: FeedBlock) -> Result<(), Error> {
        if !self.resumed {
            return Err(Error::block(block.id, "it comes before the leader said where it resumes"));
        }
        let started = Instant::now();
        let (id, bytes) = (block.id, block.bytes());
        let header = check(&block, self.at)?;
        let rlp = block.header.clone();
        let committed = match self.storage.commit_checked(self.epoch, block.clone()) {
            // The base went past the parent meanwhile, on its way to the head of the branch that was left.
            Err(storage::Error::UnknownBlock(parent))
                if parent == self.at.hash && self.chosen.head != self.at =>
            {
                self.make(self.forkchoice_at(self.at))?;
                self.storage.commit_checked(self.epoch, block)
            }
            committed => committed,
        };
        let committed = committed.map_err(Error::of_own_write)?;
        let diff = match committed {
            CheckedCommit::Committed(diff) => diff,
            CheckedCommit::Refused(wrong) => {
                return Err(Error::block(id, describe(self.leader.api.as_deref(), &wrong)));
            }
        };
        self.shared.view.stored(id, header.parent_hash, &rlp, diff);
        self.at = id;
        self.hear(None);
        counter!(names::APPLIED).increment(1);
        counter!(names::BYTES).increment(bytes as u64);
        histogram!(names::APPLY_SECONDS).record(started.elapsed());
        debug!(block = %id, "block applied");
        Ok(())
    }

    /// Takes over the leader's forkchoice when its head is stored, or moves the own head along from
    /// time to time while the follower catches up.
    fn choose(&mut self) -> Result<(), Error> {
        let Some(FeedStatus { forkchoice: told, .. }) = self.told else { return Ok(()) };
        // The own branch may be that of the later term, whose leader alone can say that it is not. Where the
        // leaders are left, what the stream has is all that there is.
        if self.is_past && self.leaves_own_branch && !self.shared.left.is_cancelled() {
            return Ok(());
        }
        if told.head == self.at {
            if self.chosen != told {
                self.make(told)?;
            }
            return Ok(());
        }
        let step = self.shared.config.head_step_blocks.max(1);
        let is_far = told.head.number > self.at.number + step;
        if is_far && self.at.number >= self.chosen.head.number + step {
            self.make(self.forkchoice_at(self.at))?;
        }
        Ok(())
    }

    /// Returns the forkchoice with this head: with what the leader calls safe and final, as far as it
    /// is not above.
    fn forkchoice_at(&self, head: BlockId) -> Forkchoice {
        let told = self.told.map(|told| told.forkchoice).unwrap_or_default();
        let below = |block: &BlockId| block.number <= head.number;
        Forkchoice { head, safe: told.safe.filter(below), finalized: told.finalized.filter(below) }
    }

    fn make(&mut self, forkchoice: Forkchoice) -> Result<(), Error> {
        self.storage.canonicalize(self.epoch, forkchoice).map_err(Error::Own)?;
        self.chosen = forkchoice;
        self.shared.status.set_head(forkchoice.head);
        self.shared.view.chosen(forkchoice);
        self.hear(None);
        Ok(())
    }

    /// Notes a word of the leader.
    fn hear(&self, leader: Option<BlockId>) {
        if let Some(lag) = self.shared.status.hear(Instant::now(), leader) {
            histogram!(names::HEAD_SECONDS).record(lag);
        }
    }

    fn show_lag(&self, now: Instant) {
        let status = &self.shared.status;
        let (head, leader) = status.heads();
        gauge!(names::LAG_BLOCKS).set(status.lag_blocks().unwrap_or(0) as f64);
        gauge!(names::LAG_MILLISECONDS).set(status.lag_time(now).as_millis() as f64);
        self.shared.view.behind(leader.filter(|leader| *leader != head));
    }
}
