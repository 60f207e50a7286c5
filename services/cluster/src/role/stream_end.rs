//! End of the stream of blocks, which a follower reaches before it leads by lease. The leader before may have
//! answered for every block up to there (`storage_writer.feed.acks`), and its disk may be lost.

use super::promotion::Candidate;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_proto::storage::Result;
use tandem_storage_writer::FeedAcks;
use tandem_storage_writer_client::{LoggedFeed, StreamEnd};
use tokio::{spawn, task::spawn_blocking};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// Time between two looks at the own chain.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longest wait for the end of the stream where answers did not wait for the stream.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Longest wait where they did. The candidate gives the lease back then, because another one may have the
/// blocks.
const WAIT_MAX_FOR_ACKS: Duration = Duration::from_secs(30);

/// Answer to the question whether the candidate has what the stream has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reached {
    /// It has, or it leads all the same.
    Yes,
    /// It goes on to read.
    NotYet,
    /// It does not get there, for this reason.
    Never(String),
}

/// Way of a candidate that holds the lease to the end of the stream.
pub struct CatchUp {
    feed: Arc<LoggedFeed>,
    acks: FeedAcks,
    /// Task that reads the end of the stream. It may take longer than the lease may wait.
    reading: Option<AbortOnDropHandle<Result<Option<StreamEnd>>>>,
    /// Moment from which it has held the lease.
    begun: Option<Instant>,
    /// End of the stream, once it was read under the lease. The leader before answers nothing since.
    end: Option<Option<StreamEnd>>,
    /// Reason why the end could not be read last.
    failure: String,
}

impl CatchUp {
    /// Makes the way for a chain whose leaders answer with these acknowledgements.
    pub fn new(feed: LoggedFeed, acks: FeedAcks) -> Self {
        let (begun, reading, end) = (None, None, None);
        Self {
            feed: Arc::new(feed),
            acks,
            reading,
            begun,
            end,
            failure: "NATS does not answer".to_owned(),
        }
    }

    /// Forgets the end, because the lease is not held now.
    pub fn reset(&mut self) {
        (self.begun, self.reading, self.end) = (None, None, None);
    }

    /// Returns whether the candidate, which holds the lease, has everything in the stream. Does not wait
    /// for NATS.
    pub async fn look(&mut self, candidate: &Arc<Candidate>) -> Reached {
        let begun = match self.begun {
            Some(begun) => begun,
            None => {
                info!("the lease is held: the end of the stream is read before the lead begins");
                let turned = candidate.clone();
                if spawn_blocking(move || turned.turn_to_stream()).await.is_err() {
                    return Reached::NotYet;
                }
                *self.begun.insert(Instant::now())
            }
        };
        if self.end.is_none() {
            self.read_end().await;
        }
        let reason = match self.end {
            None => format!("the end of the stream cannot be read: {}", self.failure),
            Some(None) => return Reached::Yes,
            Some(Some(end)) => {
                let storage = candidate.storage.clone();
                match spawn_blocking(move || end.is_in(&*storage)).await {
                    Ok(Ok(true)) => return Reached::Yes,
                    Ok(Ok(false)) => {
                        format!("the stream has block {} of a chain that is not here", end.at)
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => return Reached::NotYet,
                }
            }
        };
        match self.acks {
            FeedAcks::Stream if begun.elapsed() >= WAIT_MAX_FOR_ACKS => Reached::Never(reason),
            FeedAcks::Leader if begun.elapsed() >= WAIT_MAX => {
                warn!(reason, "the lead begins without the end of the stream");
                Reached::Yes
            }
            FeedAcks::Stream | FeedAcks::Leader => Reached::NotYet,
        }
    }

    /// Starts to read the end, or takes it if it is there.
    async fn read_end(&mut self) {
        let feed = self.feed.clone();
        let reading = self
            .reading
            .get_or_insert_with(|| AbortOnDropHandle::new(spawn(async move { feed.end().await })));
        if !reading.is_finished() {
            return;
        }
        match reading.await {
            Ok(Ok(end)) => self.end = Some(end),
            Ok(Err(error)) => self.failure = error.to_string(),
            Err(error) => self.failure = error.to_string(),
        }
        self.reading = None;
    }
}
