//! Follows the feed in a stream of NATS, where storage-writer publishes it.
//!
//! The messages are those of the feed over gRPC, and the follower checks them in the same way. The
//! stream is read by number, a few messages ahead. At its end the reader waits for a word of the
//! leader on the bus, or asks again after a second.
//!
//! A reader is told of everything that the stream cannot give: no message for its position, a hole,
//! blocks that have gone. It reads from another source then.

use crate::feed::{MESSAGES_MAX, RemoteFeed};
use bytes::Bytes;
use std::{collections::VecDeque, time::Duration};
use tandem_bus::{Bus, Log, LogBounds, LogError, LogMessage, Subscription};
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    convert::FeedDecoder,
    feed::{FeedMessage, FeedSource, FeedStream, FollowRequest},
    feed_log::{BadNote, FEED_ALIVE, FEED_STREAM, FeedNote, feed_subject},
    storage::{BlockReads, BlockRef, Error, Result},
};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use tokio_util::task::AbortOnDropHandle;

/// Messages that are asked for at the same time.
const AHEAD: usize = 4;

/// Time after which the end of the stream is asked for again.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Messages at the end of the stream among which its newest head is looked for. A publisher that catches up
/// after a pause leaves many without one.
const LOOK_BACK_MAX: u64 = 4_096;

/// Feed of a chain in a stream of NATS.
pub struct LoggedFeed {
    bus: Bus,
    genesis: B256,
    runtime: Handle,
}

impl LoggedFeed {
    /// Makes a reader of the stream of the chain with this genesis block. Nothing is asked yet.
    pub fn new(bus: Bus, genesis: B256, runtime: Handle) -> Self {
        Self { bus, genesis, runtime }
    }
}

/// End of the stream, as the server that leads it has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamEnd {
    /// Block at which a reader of the whole stream stands.
    pub at: BlockId,
    /// Head of the newest forkchoice that the stream has with all its blocks. Every forkchoice that waited
    /// for the stream, and was answered, is this one or came before. `None` if the stream begins later.
    pub chosen: Option<BlockId>,
}

impl StreamEnd {
    /// Whether a chain has everything up to here: the last block, and the newest head as a block of its
    /// canonical branch. Its head may be a later one, which the leader chose and did not publish.
    ///
    /// # Errors
    /// The error of a look-up in `chain`.
    pub fn is_in(&self, chain: &impl BlockReads) -> Result<bool> {
        let is_canonical = |block: BlockId| -> Result<bool> {
            let found = chain.header(BlockRef::Number(block.number))?;
            Ok(found.is_some_and(|(id, _)| id == block))
        };
        let has_last = chain.header(BlockRef::Hash(self.at.hash))?.is_some();
        Ok(has_last && self.chosen.map_or(Ok(true), is_canonical)?)
    }
}

impl LoggedFeed {
    /// Returns the end of the stream, `None` if there is no stream or nothing in it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if NATS does not answer; [`Error::Refused`] if the stream has something else.
    pub async fn end(&self) -> Result<Option<StreamEnd>> {
        let log = match self.bus.find_log(FEED_STREAM, feed_subject(self.genesis)).await {
            Err(LogError::Missing(_)) => return Ok(None),
            found => found.map_err(unavailable)?,
        };
        let bounds = log.bounds().await.map_err(unavailable)?;
        let (last, message) = log.last().await.map_err(unavailable)?;
        let Some(mut message) = message else { return Ok(None) };
        let at = note(&message)?.at;
        let oldest = bounds.first.max(last.saturating_sub(LOOK_BACK_MAX));
        let mut chosen = None;
        loop {
            // The publisher tells a head with all its blocks only when the stream has them.
            let stands = note(&message)?.at;
            let told = FeedDecoder::default().take_encoded(message.payload);
            if let Ok(Some(FeedMessage::Status(status))) = told
                && status.forkchoice.head == stands
            {
                chosen = Some(stands);
                break;
            }
            if message.sequence <= oldest {
                break;
            }
            message = message_at(&log, message.sequence - 1).await?;
        }
        Ok(Some(StreamEnd { at, chosen }))
    }
}

impl FeedSource for LoggedFeed {
    fn follow(&self, request: FollowRequest) -> Result<Box<dyn FeedStream>> {
        let subject = feed_subject(self.genesis);
        let begun: Result<_> = self.runtime.block_on(async {
            let log = self.bus.find_log(FEED_STREAM, subject).await.map_err(unavailable)?;
            let (at, sequence) = start(&log, &request.known).await?;
            Ok((log, at, sequence))
        });
        let (log, at, sequence) = begun?;
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let reader = Reader {
            log,
            alive: self.bus.subscribe(FEED_ALIVE),
            at,
            turn: 0,
            next: sequence + 1,
            asked: VecDeque::new(),
            decoder: FeedDecoder::default(),
            sender,
        };
        Ok(Box::new(RemoteFeed::run(messages, &self.runtime, reader.run())))
    }
}

fn unavailable(error: LogError) -> Error {
    Error::Unavailable(error.to_string())
}

fn note(message: &LogMessage) -> Result<FeedNote> {
    message.note.parse().map_err(|error: BadNote| {
        Error::Refused(format!("message {} of the stream: {error}", message.sequence))
    })
}

/// Reads a message that was there a moment ago.
async fn message_at(log: &Log, sequence: u64) -> Result<LogMessage> {
    let message = log.read(sequence).await.map_err(unavailable)?;
    let gone = || Error::Unavailable(format!("message {sequence} of the stream has gone"));
    message.ok_or_else(gone)
}

async fn note_at(log: &Log, sequence: u64) -> Result<FeedNote> {
    note(&message_at(log, sequence).await?)
}

/// Returns the first of these blocks, which begin with the highest one, at which the stream can be
/// read from, and the number of the message with which a reader stands there.
async fn start(log: &Log, known: &[BlockId]) -> Result<(BlockId, u64)> {
    let LogBounds { first, last, messages } = log.bounds().await.map_err(unavailable)?;
    if messages == 0 {
        return Err(Error::Unavailable("the stream is empty".to_owned()));
    }
    let (oldest, newest) = (note_at(log, first).await?.at, note_at(log, last).await?.at);
    let head = known.first().copied().unwrap_or_default();
    // A block below the end would make the reader give up blocks that the stream lacks.
    if head.number > newest.number {
        let text = format!("the stream ends at block {newest}, before {head}");
        return Err(Error::Unavailable(text));
    }
    for block in known.iter().take_while(|block| block.number >= oldest.number) {
        // Heights rise along the stream, except where the leader left a branch. A block there may
        // not be found, and a lower one is then.
        let (mut low, mut high) = (first, last);
        while low < high {
            let middle = low + (high - low) / 2;
            match note_at(log, middle).await?.at.number < block.number {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let found = message_at(log, low).await?;
        // Parts of a block that are left alone at the beginning lead nowhere.
        let is_part =
            matches!(FeedDecoder::default().take_encoded(found.payload.clone()), Ok(None));
        if note(&found)?.at == *block && !is_part {
            return Ok((*block, low));
        }
    }
    let text = format!("the stream begins at block {oldest} and does not lead on from {head}");
    Err(Error::Unavailable(text))
}

/// Message at a number, `None` if there is none yet.
type LogAnswer = Result<Option<LogMessage>, LogError>;

/// Reader of the stream, from a message on.
struct Reader {
    log: Log,
    /// Words of the leader on the bus.
    alive: Subscription,
    /// Block at which the follower stands.
    at: BlockId,
    /// Turn of the publisher, 0 before the first message.
    turn: u64,
    /// Number of the next message to ask for.
    next: u64,
    /// Answers that are on their way, with their numbers.
    asked: VecDeque<(u64, AbortOnDropHandle<LogAnswer>)>,
    decoder: FeedDecoder,
    sender: mpsc::Sender<Result<FeedMessage>>,
}

impl Reader {
    /// Reads until the follower is gone or something fails.
    async fn run(mut self) {
        let resumed = FeedMessage::Resume(self.at);
        let ended = if self.send(resumed).await { self.read().await } else { Ok(()) };
        if let Err(error) = ended {
            // The follower may be gone.
            let _ = self.sender.send(Err(error)).await;
        }
    }

    /// Returns whether the follower is still there.
    async fn send(&self, message: FeedMessage) -> bool {
        self.sender.send(Ok(message)).await.is_ok()
    }

    async fn read(&mut self) -> Result<()> {
        loop {
            while self.asked.len() < AHEAD {
                let (log, sequence) = (self.log.clone(), self.next);
                let asked = tokio::spawn(async move { log.read(sequence).await });
                self.asked.push_back((sequence, AbortOnDropHandle::new(asked)));
                self.next += 1;
            }
            let Some((sequence, answer)) = self.asked.pop_front() else { continue };
            let stopping = || Error::Unavailable("stopping".to_owned());
            let message = answer.await.map_err(|_| stopping())?.map_err(unavailable)?;
            let word = match &message {
                Some(_) => self.alive.try_next(),
                None => self.wait_at(sequence).await?,
            };
            if let Some(word) = word
                && !self.hear(word).await
            {
                return Ok(());
            }
            let Some(message) = message else { continue };
            if let Some(message) = self.take(message)?
                && !self.send(message).await
            {
                return Ok(());
            }
        }
    }

    /// Waits at a message that is not there, and returns a word of the leader. The message is asked
    /// for again next.
    async fn wait_at(&mut self, sequence: u64) -> Result<Option<Bytes>> {
        self.asked.clear();
        self.next = sequence;
        let bounds = self.log.bounds().await.map_err(unavailable)?;
        if sequence < bounds.first {
            let (first, at) = (bounds.first, self.at);
            let text = format!("the stream has lost what comes after {at}: it begins at {first}");
            return Err(Error::Unavailable(text));
        }
        // A server with an older copy may have answered.
        if sequence <= bounds.last {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(None);
        }
        Ok(timeout(ASK_EVERY, self.alive.next()).await.ok().flatten())
    }

    /// Passes on the newest word of the leader. Returns whether the follower is still there.
    async fn hear(&mut self, word: Bytes) -> bool {
        let mut newest = word;
        while let Some(word) = self.alive.try_next() {
            newest = word;
        }
        match FeedDecoder::default().take_encoded(newest) {
            Ok(Some(status @ FeedMessage::Status(_))) => self.send(status).await,
            // A word is a hint, so one that makes no sense is nothing.
            _ => true,
        }
    }

    /// Takes the next message. Returns what the follower gets.
    fn take(&mut self, message: LogMessage) -> Result<Option<FeedMessage>> {
        let (sequence, note) = (message.sequence, note(&message)?);
        if note.turn != self.turn {
            // The block that the publisher before had begun is void.
            (self.turn, self.decoder) = (note.turn, FeedDecoder::default());
        }
        let taken = self.decoder.take_encoded(message.payload);
        let taken = taken.map_err(|error| {
            Error::Refused(format!("malformed message {sequence} of the stream: {error}"))
        })?;
        let stands = match &taken {
            None => return Ok(None),
            Some(FeedMessage::Status(_)) => self.at,
            Some(FeedMessage::Resume(block)) => *block,
            Some(FeedMessage::Block(block))
                if block.id.number.checked_sub(1) == Some(self.at.number) =>
            {
                block.id
            }
            Some(FeedMessage::Block(_)) => BlockId::default(),
        };
        if stands != note.at {
            let (at, to) = (self.at, note.at);
            let text = format!("the stream has a hole: after block {at} it goes on at block {to}");
            return Err(Error::Unavailable(text));
        }
        self.at = note.at;
        Ok(taken)
    }
}
