//! One turn of the publisher: from the end of the stream until something fails.

use super::{Failure, Publisher};
use crate::metrics as names;
use bytes::Bytes;
use metrics::counter;
use prost::Message;
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};
use tandem_bus::{Log, LogError, PAYLOAD_BYTES_MAX};
use tandem_primitives::{BlockId, BlockNumber};
use tandem_proto::{
    convert::FeedParts,
    feed::{FeedBlock, FeedReads, FeedStatus, FeedStep},
    feed_log::{FEED_ALIVE, FeedNote, encode_resume, encode_status},
    storage::{self, Forkchoice, Term},
};
use tokio::time::timeout;
use tracing::{info, warn};

/// Blocks after which a reader in the middle of the stream hears where the leader stands.
const TOLD_EVERY: u64 = 16;

/// Interval at which the leader's position is said on the bus.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Smallest messages that the server must take: below it, a block would be too many.
const PART_BYTES_MIN: usize = 16 << 10;

/// Blocks come with their changes from the first one on.
const WITHOUT_CHANGES_TO: BlockNumber = 0;

/// Turn of a publisher.
struct Turn<'a> {
    publisher: &'a mut Publisher,
    log: Log,
    /// Number of the last message.
    last: u64,
    /// Block at which a reader stands after that message.
    at: BlockId,
    /// Forkchoice that readers of the stream were told last.
    told: Option<Forkchoice>,
    /// Blocks sent since.
    untold: u64,
    /// Time when the leader's position was said on the bus.
    alive: Option<Instant>,
}

impl Publisher {
    /// Publishes from the end of the stream on, until something fails. Returns the reason.
    pub(super) async fn turn(&mut self) -> Failure {
        let begun = async {
            let log = self.bus.open_log(&self.options).await?;
            let (last, message) = log.last().await?;
            let note = message.map(|message| message.note.parse::<FeedNote>()).transpose()?;
            let found = note.map_or(0, |note| note.turn);
            let part_bytes = log.payload_bytes_max();
            if part_bytes < PART_BYTES_MIN {
                return Err(LogError::TooLarge { bytes: PART_BYTES_MIN, max: part_bytes }.into());
            }
            let status = self.status().await?;
            let fenced = Failure::Fenced { own: status.term, found: Term::of_epoch(found) };
            let next = next_turn(self.turn, found, status.term).ok_or(fenced)?;
            let head = status.forkchoice.head;
            if let Some(FeedNote { at, .. }) = note
                && at.number > head.number
            {
                return Err(Failure::Ahead { at, head });
            }
            Ok((log, last, note, next, status))
        };
        let (log, last, note, next, status) = match begun.await {
            Ok(begun) => begun,
            Err(failure) => return failure,
        };
        self.turn = next;
        let at = note.map_or(status.base, |note| note.at);
        info!(turn = self.turn, messages = last, %at, "the feed is published");
        let mut turn = Turn { publisher: self, log, last, at, told: None, untold: 0, alive: None };
        match turn.run(status).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }
}

/// Returns the number of the next turn of a storage-writer that leads in this term, `None` if another
/// publisher came after it. `own` is the number of its last turn, `found` the newest in the stream.
///
/// The numbers of a term are above those of all earlier ones, so a storage-writer that was superseded
/// never takes the stream away from the one that leads. Within a term, as between two leaders without
/// terms, the one that began last goes on.
fn next_turn(own: u64, found: u64, term: Term) -> Option<u64> {
    let has_begun = own > term.floor();
    let is_fenced = Term::of_epoch(found) > term || has_begun && found > own;
    (!is_fenced).then(|| own.max(found).max(term.floor()) + 1)
}

impl Turn<'_> {
    async fn run(&mut self, status: FeedStatus) -> Result<Infallible, Failure> {
        // Claims the turn: from here on the stream refuses messages of every other publisher.
        self.tell(status).await?;
        let mut changes = self.publisher.read(|storage| Ok(storage.feed_changes())).await?;
        loop {
            // Read before the position, which is then as new or newer.
            let change = *changes.borrow_and_update();
            let status = self.publisher.status().await?;
            self.publisher.show_lag(status);
            if self.alive.is_none_or(|said| said.elapsed() >= ALIVE_EVERY) {
                self.say_alive(status);
            }
            let at = self.at;
            let step = self.publisher.read(move |storage| {
                // A step that no longer exists is an answer here, not a failure.
                match storage.feed_next(at, WITHOUT_CHANGES_TO) {
                    Err(storage::Error::UnknownBlock(_) | storage::Error::TooFarBehind { .. }) => {
                        Ok(None)
                    }
                    step => step.map(Some),
                }
            });
            match step.await? {
                Some(FeedStep::Block(block)) => self.append_block(*block, status).await?,
                Some(FeedStep::Resume(block)) => {
                    self.append(encode_resume(block), block, false).await?;
                    self.at = block;
                }
                None => self.leave_hole(status).await?,
                // The head moved between the two reads.
                Some(FeedStep::End) if status.forkchoice.head != self.at => {}
                Some(FeedStep::End) => {
                    if self.untold > 0 || self.told != Some(status.forkchoice) {
                        self.tell(status).await?;
                    }
                    self.publisher.show_lag(status);
                    if let Some(storage) = self.publisher.storage.upgrade() {
                        storage.shared.stream_acks.stored(change);
                    }
                    if changes.has_changed().is_ok_and(|changed| !changed) {
                        self.say_alive(status);
                        // The end of storage-writer shows at the next read.
                        let _ = timeout(ALIVE_EVERY, changes.changed()).await;
                    }
                }
            }
        }
    }

    /// Appends a block, in parts if it is too large for a message.
    async fn append_block(&mut self, block: FeedBlock, status: FeedStatus) -> Result<(), Failure> {
        if self.untold >= TOLD_EVERY {
            self.tell(status).await?;
        }
        let id = block.id;
        let part_bytes = self.log.payload_bytes_max().min(PAYLOAD_BYTES_MAX);
        // The message has a few bytes around the part.
        let mut parts = FeedParts::of_bytes(block, part_bytes.saturating_sub(64)).peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            let at = if is_last { id } else { self.at };
            self.append(part.encode_to_vec().into(), at, is_last).await?;
        }
        self.at = id;
        self.untold += 1;
        Ok(())
    }

    /// Lets the stream go on at the base, because the feed does not lead on from its end.
    async fn leave_hole(&mut self, status: FeedStatus) -> Result<(), Failure> {
        if self.at == status.base {
            return Err(storage::Error::UnknownBlock(self.at.hash).into());
        }
        counter!(names::STREAM_HOLES).increment(1);
        let (from, to) = (self.at, status.base);
        warn!(%from, %to, "the stream has a hole: the feed does not lead on from its last block");
        self.at = status.base;
        self.tell(status).await
    }

    /// Appends the position of the leader.
    async fn tell(&mut self, status: FeedStatus) -> Result<(), Failure> {
        self.append(encode_status(status), self.at, false).await?;
        (self.told, self.untold) = (Some(status.forkchoice), 0);
        Ok(())
    }

    /// Says on the bus where the leader stands.
    fn say_alive(&mut self, status: FeedStatus) {
        self.publisher.bus.publish(FEED_ALIVE, encode_status(status));
        self.alive = Some(Instant::now());
    }

    /// Appends a message, and waits for its acknowledgement.
    async fn append(&mut self, payload: Bytes, at: BlockId, is_block: bool) -> Result<(), Failure> {
        let Publisher { nonce, turn, .. } = *self.publisher;
        let id = format!("{nonce:x}.{turn}.{}", self.last);
        let (bytes, note) = (payload.len(), FeedNote { turn, at }.to_string());
        self.last = self.log.append(self.last, &id, &note, payload).await?;
        counter!(names::STREAM_BYTES).increment(bytes as u64);
        counter!(names::STREAM_BLOCKS).increment(u64::from(is_block));
        self.publisher.stored = Some(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_above_those_in_the_stream_and_no_earlier_term_has_one_after_it() {
        let second = Term(2).floor();
        // The first turn takes over from those before, of this term and of earlier ones.
        assert_eq!(next_turn(0, 0, Term(0)), Some(1));
        assert_eq!(next_turn(0, 7, Term(0)), Some(8));
        assert_eq!(next_turn(0, 7, Term(2)), Some(second + 1));
        assert_eq!(next_turn(0, second + 7, Term(2)), Some(second + 8));
        // The own turn goes on, unless another publisher began one after it.
        assert_eq!(next_turn(7, 7, Term(0)), Some(8));
        assert_eq!(next_turn(7, 8, Term(0)), None);
        assert_eq!(next_turn(second + 7, 8, Term(2)), Some(second + 8));
        assert_eq!(next_turn(second + 7, second + 8, Term(2)), None);
        // A later term fences off also a publisher that has not begun yet.
        assert_eq!(next_turn(0, second + 1, Term(1)), None);
        assert_eq!(next_turn(7, second + 1, Term(0)), None);
        // A process that leads again in a later term begins anew.
        assert_eq!(next_turn(7, second + 1, Term(3)), Some(Term(3).floor() + 1));
    }
}
