//! Publisher of the feed to a stream of NATS, so that the record of the last blocks survives this
//! machine. It is a reader of the feed like any other, which appends what it reads to the stream.
//!
//! * **Position.** The newest message of the stream says how far the stream has come. A publisher
//!   resumes there, whichever process published before.
//! * **One at a time.** Each append names the message before it, and the server refuses it if there
//!   is another. The next one waits for the answer. A publisher begins its turn with a number above
//!   those in the stream, and the numbers of a term are above those of all earlier terms. One that
//!   finds a turn after its own is fenced: it gives up until its storage-writer leads in a later term.
//! * **Never in the way.** Nothing is queued. A stream that lags or is gone shows in the metrics and
//!   in the log, and the publisher goes on when it is back. A forkchoice waits for the stream only
//!   if `acks = "stream"`.
//! * **Holes.** If the feed no longer leads on from the end of the stream, the stream goes on at the
//!   base. Its readers notice, because each message says at which block a reader stands.

mod acks;
mod config;
mod turn;

use crate::{Error, StorageWriter, metrics as names};
use metrics::{counter, gauge};
use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tandem_bus::{Bus, LogError, LogOptions};
use tandem_primitives::BlockId;
use tandem_proto::{
    feed::{FeedReads, FeedStatus},
    feed_log::BadNote,
    storage::{self, Leadership, Standing, Term},
};
use tokio::{runtime::Handle, task::spawn_blocking, time::sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

pub use acks::StreamAcks;
pub use config::{FeedAcks, FeedConfig, FeedStream};

/// First pause after a failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Lag after which the log warns. It doubles with each warning.
const LAG_WARNED: Duration = Duration::from_secs(10);

/// Running publisher. It ends when it is dropped.
#[derive(Debug)]
pub struct FeedPublisher {
    _stop: DropGuard,
}

impl FeedPublisher {
    /// Starts to publish the feed of a storage-writer, if its settings say so. An unreachable NATS is
    /// not an error.
    ///
    /// # Errors
    /// [`Error::FeedConfig`] when there is to be a stream, but the bus is that of one process.
    pub fn start(
        storage: &Arc<StorageWriter>,
        bus: &Bus,
        runtime: &Handle,
    ) -> Result<Option<Self>, Error> {
        let config = &storage.shared.config.feed;
        if !config.is_published() {
            return Ok(None);
        }
        if !bus.is_shared() {
            return Err(Error::FeedConfig("`stream = \"jetstream\"` needs NATS".to_owned()));
        }
        let options = config.log(storage.genesis.hash);
        let publisher = Publisher {
            storage: Arc::downgrade(storage),
            bus: bus.clone(),
            options,
            nonce: rand::random(),
            turn: 0,
            stored: None,
            behind: None,
            warned: LAG_WARNED,
        };
        gauge!(names::STREAM_FENCED).set(0.0);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        runtime.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = publisher.run() => {}
            }
        });
        Ok(Some(Self { _stop: stop.drop_guard() }))
    }
}

/// Reason why a turn of the publisher ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// NATS is out of reach, or refuses something.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The stream has messages of something else.
    #[error(transparent)]
    Note(#[from] BadNote),
    /// The feed cannot be read.
    #[error("read the feed: {0}")]
    Feed(#[from] storage::Error),
    /// Another publisher took over.
    #[error("fenced in term {}: another publisher began after this one, in term {}", own.0, found.0)]
    Fenced {
        /// Term of the storage-writer.
        own: Term,
        /// Term of the newest turn in the stream.
        found: Term,
    },
    /// The stream has blocks that this leader does not have yet.
    #[error("the stream is ahead: it ends at block {at}, the head is {head}")]
    Ahead {
        /// Block at the end of the stream.
        at: BlockId,
        /// Own head.
        head: BlockId,
    },
    /// storage-writer has ended.
    #[error("storage-writer has ended")]
    Ended,
}

impl Failure {
    /// Returns the label of the metric.
    fn reason(&self) -> &'static str {
        match self {
            Self::Log(LogError::NoConnection) => "no_connection",
            Self::Log(LogError::Overtaken) => "overtaken",
            Self::Log(LogError::TooLarge { .. }) => "too_large",
            Self::Log(_) => "refused",
            Self::Note(_) => "other_content",
            Self::Feed(_) => "feed",
            Self::Fenced { .. } => "fenced",
            Self::Ahead { .. } => "ahead",
            Self::Ended => "ended",
        }
    }
}

/// Publisher over all its turns.
struct Publisher {
    storage: Weak<StorageWriter>,
    bus: Bus,
    options: LogOptions,
    /// Number that no other publisher has, so no two messages have the same name.
    nonce: u64,
    /// Number of the last own turn, 0 before the first.
    turn: u64,
    /// Block up to which the stream has acknowledged everything, `None` before it was asked.
    stored: Option<BlockId>,
    /// Time since which the stream has not had the head.
    behind: Option<Instant>,
    /// Lag after which the log warns next.
    warned: Duration,
}

impl Publisher {
    /// Publishes until storage-writer ends, or another publisher takes over.
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let (before, failure) = (self.stored, self.turn().await);
            if matches!(failure, Failure::Ended) {
                return;
            }
            counter!(names::STREAM_FAILURES, "reason" => failure.reason()).increment(1);
            let fenced_in = match failure {
                Failure::Fenced { own, .. } => Some(own),
                _ => None,
            };
            self.tell(failure.to_string(), fenced_in.is_some());
            if let Some(term) = fenced_in {
                gauge!(names::STREAM_FENCED).set(1.0);
                error!(%failure, "this process publishes the feed no longer");
                if self.term_after(term).await.is_none() {
                    return;
                }
                gauge!(names::STREAM_FENCED).set(0.0);
                self.tell("the publisher begins again".to_owned(), false);
                continue;
            }
            if self.stored != before {
                pause = PAUSE_MIN;
            }
            warn!(%failure, pause_ms = pause.as_millis(), "the feed is not published now");
            if let Ok(status) = self.status().await {
                self.show_lag(status);
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits until storage-writer leads in a term after this one; `None` when it ends.
    async fn term_after(&self, fenced: Term) -> Option<()> {
        let mut standing = self.storage.upgrade()?.standing();
        let leads = |it: &Standing| matches!(it, Standing::Leads(term) if *term > fenced);
        standing.wait_for(leads).await.ok().map(drop)
    }

    /// Tells those who wait for the stream why they do.
    fn tell(&self, reason: String, ended: bool) {
        if let Some(storage) = self.storage.upgrade() {
            storage.shared.stream_acks.failed(reason, ended);
        }
    }

    /// Shows the lag of the stream behind the head.
    fn show_lag(&mut self, status: FeedStatus) {
        let head = status.forkchoice.head;
        let stored = self.stored.filter(|stored| *stored != head);
        let blocks = match (self.stored, stored) {
            (Some(_), None) => 0,
            (_, stored) => head.number.abs_diff(stored.map_or(0, |block| block.number)).max(1),
        };
        let lag = match blocks {
            0 => {
                self.behind = None;
                Duration::ZERO
            }
            _ => self.behind.get_or_insert_with(Instant::now).elapsed(),
        };
        gauge!(names::STREAM_LAG_BLOCKS).set(blocks as f64);
        gauge!(names::STREAM_LAG_MILLISECONDS).set(lag.as_millis() as f64);
        if blocks == 0 && self.warned > LAG_WARNED {
            self.warned = LAG_WARNED;
            info!(%head, "the stream has the head again");
        }
        if lag >= self.warned {
            self.warned *= 2;
            warn!(blocks, lag_s = lag.as_secs(), %head, "the stream lags behind the head");
        }
    }

    async fn status(&self) -> Result<FeedStatus, Failure> {
        self.read(|storage| storage.feed_status()).await
    }

    /// Makes a call on a thread that may wait.
    async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&StorageWriter) -> storage::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let storage = self.storage.upgrade().ok_or(Failure::Ended)?;
        let called = spawn_blocking(move || call(&storage)).await;
        // The call is lost with its thread when the process ends.
        Ok(called.map_err(|_| Failure::Ended)??)
    }
}
